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

CASES = 300
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


def check(outcome: dict, kind: str, least: int):
    assert outcome["cases"][kind] >= least
    failures = [
        f"{f['command']}\n{f['cause']}; {'--arguments 1 ' * (kind == 'argument')}--number {f['number']}"
        for f in outcome["failures"]
        if f["kind"] == kind
    ]
    assert not failures, "\n\n".join(failures)


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    return trial(tmp_path_factory.mktemp("hostile"), "--cases", CASES)


@pytest.mark.parametrize("kind", KINDS)
def test_hostile_inputs_are_refused_in_words(outcome, kind):
    check(outcome, kind, 3)


def test_the_arguments_that_are_tried_exist():
    for name, good, tried in ARGUMENTS:
        module, _, function = name.rpartition(".")
        parameters = inspect.signature(getattr(importlib.import_module(module), function)).parameters
        assert {*good, *tried.split()} <= parameters.keys(), name


def test_odd_arguments_are_refused_in_words(tmp_path):
    check(trial(tmp_path, "--arguments", EVERY), "argument", 90)
