"""A module of the user's named ``partition`` beside the script or in the working directory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RUNS = "raise SystemExit('the code of the user ran')\n"
USES = "import dgl_gt.partition; assert callable(dgl_gt.partition.partition)\n"


def python(*arguments, cwd, **environment):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)} | environment
    return subprocess.run([sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, env=environment)


@pytest.fixture(params=["module", "package", "empty folder"])
def namesake(request, tmp_path) -> Path:
    """A folder with a namesake that must not run."""
    if request.param == "module":
        (tmp_path / "partition.py").write_text(RUNS)
        return tmp_path
    (tmp_path / "partition").mkdir()
    if request.param == "package":
        (tmp_path / "partition" / "__init__.py").write_text(RUNS)
    return tmp_path


@pytest.mark.parametrize("first", ["", "."], ids=["working directory", "PYTHONPATH"])
@pytest.mark.parametrize("way", ["-c", "script", "-m"])
def test_a_namesake_does_not_stand_in_the_way(namesake, way, first):
    (namesake / "script.py").write_text(USES)
    arguments = {"-c": ["-c", USES], "script": ["script.py"], "-m": ["-m", "dgl_gt", "--version"]}[way]
    done = python(*arguments, cwd=namesake, PYTHONPATH=os.pathsep.join(filter(None, [first, str(ROOT)])))
    assert done.returncode == 0, done.stderr


def test_nor_in_the_way_of_child_processes(namesake):
    arguments = ["partition", "sample:communities?nodes=200", "--parts", "2", "--out", "shards"]
    done = python("-m", "dgl_gt", *arguments, cwd=namesake)
    assert done.returncode == 0, done.stderr


def test_a_script_may_have_the_name(tmp_path):
    (tmp_path / "partition.py").write_text(USES)
    done = python("partition.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
