"""What the README shows, and what a user meets first: the example, the demo's commands, the wrong Python."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from partition import partition

ROOT = Path(__file__).parents[2]


def test_the_example_prints_how_it_goes(tmp_path):
    """As one rank, which torchrun would start with these variables."""
    (code,) = re.findall(r"```python\n(# train\.py.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    partition("sample:communities?nodes=200&seed=0", 1, tmp_path / "shards")
    ranks = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
    environment = {**os.environ, **ranks, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-c", code.replace("range(100)", "range(20)")]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"(epoch (1|2)0  loss \d+\.\d{4}  validation accuracy \d+\.\d\d%\n){2}", done.stdout)


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
    with pytest.raises(SystemExit, match="dgl-gt needs Python 3.10 or newer, and this is Python 3.9"):
        exec(compile((ROOT / "setup.py").read_text(), "setup.py", "exec"), {})
