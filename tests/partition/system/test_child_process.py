import subprocess
import sys
from pathlib import Path

import pytest

from dgl_gt.partition.system.child_process import environment

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    "namesake",
    [
        False,
        pytest.param(
            True, marks=pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no PYTHONSAFEPATH")
        ),
    ],
)
def test_children_import_this_project(tmp_path, monkeypatch, namesake):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if namesake:
        (tmp_path / "dgl_gt").mkdir()
        (tmp_path / "dgl_gt" / "__init__.py").write_text("")
    code = "import dgl_gt.partition; print(dgl_gt.partition.__file__); import errors"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert done.stdout.strip() == str(ROOT / "dgl_gt" / "partition" / "__init__.py")
    assert "No module named 'errors'" in done.stderr, "the modules of a package are not importable by themselves"
