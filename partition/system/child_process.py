"""Child processes that run this project's own modules: their environment, their end, and how they ended."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

from dgl_gt.partition.errors import InputError


def command(module: str, *arguments: str) -> list[str]:
    """Return the command line that runs a module of this project, with :func:`environment`."""
    if sys.version_info >= (3, 11):
        return [sys.executable, "-m", module, *arguments]
    code = f"import sys; del sys.path[0]; import runpy; runpy.run_module({module!r}, None, '__main__', True)"
    return [sys.executable, "-c", code, *arguments]  # Python 3.10 does not know PYTHONSAFEPATH


def environment() -> dict[str, str]:
    """Return an environment where modules of this project are found, not namesakes in the working directory."""
    home = str(Path(__file__).absolute().parents[3])
    path = os.pathsep.join(filter(None, [home, os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}


@contextmanager
def temporary_space():
    """Yield the directory for temporary files; an error names that directory, as the user did not choose it."""
    where = ""
    try:
        folder = tempfile.gettempdir()  # finds one that can be written to
        where = f" in {folder}"
        yield folder
    except OSError as error:
        raise InputError(
            f"cannot write temporary files{where}: {error.strerror or error}; free space, or set TMPDIR to another "
            "directory"
        ) from error


def die_with_parent(parent: int) -> None:
    """Called by a child: have it killed when the parent dies in any way; exit if the parent has died already."""
    if sys.platform == "linux":
        PR_SET_PDEATHSIG = 1
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("its parent is gone")


def memory_kills() -> int | None:
    """Return how many processes the system has killed for lack of memory, or None if it does not say.

    Kills in control groups (containers) are counted, too.
    """
    try:
        counts = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in counts if line.startswith("oom_kill ")), None)


def killed_for_memory(code: int, kills: int | None) -> bool:
    """Return whether a child was killed for lack of memory; ``kills`` is :func:`memory_kills` when it started."""
    return code == -signal.SIGKILL and memory_kills() != kills


def exit_code(code: int, message: str) -> int:
    """Return a Python child's exit code, or -SIGINT if Ctrl-C ended it.

    A child that is interrupted while its interpreter still starts cannot handle that, and ends with code 1.
    """
    return -signal.SIGINT if code == 1 and message.rstrip().endswith("KeyboardInterrupt") else code


def signal_text(code: int) -> str:
    """Describe a negative exit status: "ended by signal 9 (SIGKILL)"."""
    name = next((f" ({each.name})" for each in signal.Signals if each == -code), "")  # real-time signals have none
    is_unclear = code == -signal.SIGKILL and memory_kills() is None
    return f"ended by signal {-code}{name}" + (", which the system sends when memory runs out" if is_unclear else "")
