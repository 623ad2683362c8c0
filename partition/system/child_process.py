"""Starting this project's own modules as child processes, and ending with the parent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

from partition.errors import InputError


def environment() -> dict[str, str]:
    """An environment in which ``python -m`` finds this project, not a namesake in the working directory."""
    home = str(Path(__file__).resolve().parent.parent)
    path = os.pathsep.join(filter(None, [home, os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}  # the latter is heeded from Python 3.11 on


@contextmanager
def temporary_space():
    """Give the directory of temporary files; where it has no room it is named, as it is not one that the user named."""
    where = ""
    try:
        folder = tempfile.gettempdir()  # which looks for one that can be written to
        where = f" in {folder}"
        yield folder
    except OSError as error:
        raise InputError(
            f"cannot write temporary files{where}: {error.strerror or error}; free space, or set TMPDIR to another "
            "directory"
        ) from error


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
    name = next((f" ({each.name})" for each in signal.Signals if each == -code), "")  # real-time signals have none
    is_unclear = code == -signal.SIGKILL and memory_kills() is None
    return f"ended by signal {-code}{name}" + (", which the system sends when memory runs out" if is_unclear else "")
