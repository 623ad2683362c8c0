"""Hostile inputs of every kind, a few hundred of them; ``trial.py`` runs tens of thousands."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from kinds import KINDS

CASES = 300


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    """What one trial said: cases by kind, and failures."""
    path = tmp_path_factory.mktemp("hostile") / "outcome.json"
    command = [sys.executable, Path(__file__).with_name("trial.py"), "--cases", str(CASES), "--json", path]
    # a process of its own: it forks, which a process with threads cannot
    done = subprocess.run([*command, "--seconds", "120"], capture_output=True, text=True, timeout=1200)
    assert path.exists(), done.stderr
    return json.loads(path.read_text())


@pytest.mark.parametrize("kind", KINDS)
def test_hostile_inputs_are_refused_in_words(outcome, kind):
    assert outcome["cases"][kind] >= 3
    failures = [
        f"{f['command']}\n{f['cause']}; --number {f['number']}" for f in outcome["failures"] if f["kind"] == kind
    ]
    assert not failures, "\n\n".join(failures)
