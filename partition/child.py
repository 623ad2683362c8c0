"""Starting this project's own modules as child processes, and ending with the parent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path


def environment() -> dict[str, str]:
    """An environment in which ``python -m`` finds this project, not a namesake in the working directory."""
    home = str(Path(__file__).resolve().parent.parent)
    path = os.pathsep.join(filter(None, [home, os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}  # the latter is heeded from Python 3.11 on


def die_with_parent(parent: int) -> None:
    """From the child: be killed when the parent dies, however it dies; leave at once if it is gone already."""
    if sys.platform == "linux":
        PR_SET_PDEATHSIG = 1
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("its parent is gone")
