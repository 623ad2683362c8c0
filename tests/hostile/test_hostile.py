"""Hostile inputs of every kind, a few hundred of them; ``trial.py`` runs tens of thousands."""

import importlib
import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest
from calls import ARGUMENTS
from kinds import KINDS
from slow_case import slow

CASES = 100  # of a test; they have every kind
EVERY = 41  # of the calls with one odd argument; it shares no factor with the number of odd objects

pytestmark = pytest.mark.needs_dgl  # files of DGL are among the inputs


def trial(folder: Path, *options) -> dict:
    """What one trial said: cases by kind, and failures."""
    path = folder / "outcome.json"
    command = [sys.executable, Path(__file__).with_name("trial.py"), *map(str, options), "--json", path]
    # a process of its own: it forks, which a process with threads cannot
    done = subprocess.run([*command, "--seconds", "120"], capture_output=True, text=True, timeout=1200)
    assert path.exists(), done.stderr
    return json.loads(path.read_text())


def check(outcome: dict, kinds: list[str], least: int):
    assert all(outcome["cases"].get(kind, 0) >= least for kind in kinds), outcome["cases"]
    failures = [
        f"{f['command']}\n{f['cause']}; {'--arguments 1 ' * (f['kind'] == 'argument')}--number {f['number']}"
        for f in outcome["failures"]
    ]
    assert not failures, "\n\n".join(failures)


@pytest.mark.parametrize("start", [0, slow(CASES), slow(2 * CASES)])
def test_hostile_inputs_are_refused_in_words(tmp_path, start):
    check(trial(tmp_path, "--start", start, "--cases", CASES), list(KINDS), 1)


def test_the_arguments_that_are_tried_exist():
    for name, good, tried in ARGUMENTS:
        module, _, function = name.rpartition(".")
        tested = getattr(importlib.import_module(module), function)
        parameters = {
            *inspect.signature(tested).parameters,
            *getattr(getattr(tested, "Config", None), "__match_args__", ()),
        }
        assert {*good, *tried.split()} <= parameters, name


def test_odd_arguments_are_refused_in_words(tmp_path):
    check(trial(tmp_path, "--arguments", EVERY), ["argument"], 90)
