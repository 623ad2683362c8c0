"""What a user meets first: the demo's commands, and the wrong Python. tests/docs runs the README."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_demo_shows_commands_as_one_types_them():
    script = (ROOT / "examples" / "demo.sh").read_text()
    step = re.search(r"^step\(\) \{.*?^\}", script, re.DOTALL | re.MULTILINE)[0]
    words = ["echo", "a?b=1&c", "it's", "--out", "x.csv", ""]
    done = subprocess.run(["bash", "-c", f'{step}\nstep "$@"', "bash", *words], capture_output=True, text=True)
    shown, printed = done.stdout.strip("\n").splitlines()
    assert shown == r"$ echo 'a?b=1&c' 'it'\''s' --out x.csv ''"
    again = subprocess.run(["bash", "-c", shown.removeprefix("$ ")], capture_output=True, text=True)
    assert again.stdout.rstrip("\n") == printed


def test_a_python_that_is_too_old_is_named(monkeypatch):
    """Before setuptools or a dependency says something else."""
    monkeypatch.setattr(sys, "version_info", (3, 9, 18))
    with pytest.raises(SystemExit, match="dgl-gt needs Python 3.10 or newer"):
        exec(compile((ROOT / "setup.py").read_text(), "setup.py", "exec"), {})
