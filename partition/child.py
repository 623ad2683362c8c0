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


def memory_kills() -> int | None:
    """How many processes the system has killed for lack of memory, in control groups too; None if it does not say."""
    try:
        counts = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in counts if line.startswith("oom_kill ")), None)


def was_for_memory(code: int, kills: int | None) -> bool:
    """Whether a child with this exit status was killed for lack of memory; ``kills`` were counted when it started."""
    return code == -signal.SIGKILL and memory_kills() != kills


def signal_text(code: int) -> str:
    """A negative exit status in words: ended by signal 9 (SIGKILL)."""
    text = f"ended by signal {-code} ({signal.Signals(-code).name})"
    is_unclear = code == -signal.SIGKILL and memory_kills() is None
    return text + (", which the system sends when memory runs out" if is_unclear else "")
