"""Child processes that run this project's own code: their environment, what they send, and how they ended.

Damaged files crash some libraries, so these read in a child: arrays come back through a pipe, and a crash becomes an
InputError.
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import pickle
import resource
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from dgl_gt.partition.errors import InputError

from .signals import STOPPING

_COPIES = 4  # of a file's arrays that a library may hold at once
_EXTRA_BYTES = 1 << 30  # allowed beyond those copies


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


# ---- how a child ended


def memory_kills() -> int | None:
    """Return how many processes the system has killed for lack of memory, containers' too; None if it does not say."""
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


# ---- files that a child reads


def read_in_child(
    module: str, path: Path, library: str, *arguments: str
) -> Iterator[tuple[dict, dict[str, np.ndarray]]]:
    """Run ``python -m module path parent *arguments``, whose main calls :func:`serve`, and yield its records.

    ``library`` is what the child reads with, for messages.
    """
    line, kills = command(module, str(path), str(os.getpid()), *arguments), memory_kills()
    with temporary_space():
        messages = tempfile.TemporaryFile()
    with messages as said:
        child = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said, env=environment())
        try:
            what = "it"
            while record := _read_record(child.stdout):
                header, arrays = record
                if "end" in header:
                    return
                if "error" in header:
                    raise InputError(header["error"])
                if "memory" in header:
                    raise InputError(f"{path}: reading {what} needs more memory than its size suggests; is it damaged?")
                what = header.get("reading", what)
                yield header, arrays
            code = child.wait()
        finally:  # a library that holds damaged data may crash or hang at its exit, so the child is killed
            child.kill()
            child.wait()
            child.stdout.close()
        said.seek(0)
        message = said.read().decode(errors="replace")
    code = exit_code(code, message)
    if killed_for_memory(code, kills):
        raise InputError(f"{path}: memory ran out while {library} read {what}; use a larger machine")
    if code < 0:
        raise InputError(
            f"{path}: {library} was {signal_text(code)} while it read {what}, so the file is damaged "
            "or needs more memory than there is; write it again, or use a larger machine"
        )
    raise RuntimeError(f"{' '.join(line)} ended with status {code}: {message}")


def _read_record(stream) -> tuple[dict, dict[str, np.ndarray]] | None:
    """Read the next record; return None if the child ended before the record was complete."""
    try:
        header = json.loads(stream.readline())
        names, pipe = header.get("arrays", ()), _Pipe(stream)
        return header, {key: np.lib.format.read_array(pipe, allow_pickle=False) for key in names}
    except ValueError:
        return None


def serve(parent: str, records: Iterable[tuple[dict, dict[str, np.ndarray]]]) -> None:
    """Called by the child: write the records to the parent, then the InputError or MemoryError that stopped them.

    A record is a dict for JSON and a dict of arrays by name. The JSON's ``reading`` names what will be read next.
    """
    die_with_parent(int(parent))
    stream = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not get into the pipe
    last: dict = {"end": True}
    try:
        for header, arrays in records:
            _write_record(stream, {**header, "arrays": list(arrays)}, arrays)
    except InputError as error:
        last = {"error": str(error)}
    except MemoryError:  # raised beyond the limit of bound_memory
        last = {"memory": True}
    _write_record(stream, last, {})


def _write_record(stream, header: dict, arrays: dict[str, np.ndarray]) -> None:
    stream.write(json.dumps(header, allow_nan=False).encode() + b"\n")
    for array in arrays.values():
        np.lib.format.write_array(_Pipe(stream), array, allow_pickle=False)
    stream.flush()


class _Pipe:
    """A wrapper that keeps numpy from seeking in a pipe."""

    def __init__(self, stream):
        self.read, self.write = stream.read, getattr(stream, "write", None)


def bound_memory(file_bytes: int) -> None:
    """Called by the child after its imports: limit its memory to what files of this size need, with a margin."""
    if sys.platform == "linux":
        now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + _COPIES * file_bytes + _EXTRA_BYTES,) * 2)


def with_prefix(prefix: str, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays whose names begin with the prefix, without the prefix in their names."""
    return {key.removeprefix(prefix): array for key, array in arrays.items() if key.startswith(prefix)}


# ---- work in a fork of this process


def run_forked(work: Callable, name: str):
    """Return ``work()``, which a forked child of this process runs; raise what it raises.

    What the work loads and leaves in memory ends with the child. The result must be picklable. ``name`` is what messages
    call the child: :class:`InputError` says that the system has killed it for lack of memory, and ``RuntimeError`` that it
    has ended in another way.
    """
    context, kills = multiprocessing.get_context("fork"), memory_kills()
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_run_here, args=(work, sender, os.getpid()))
    child.start()
    sender.close()
    try:
        result, error, frames = receiver.recv()
    except EOFError:
        child.join()
        raise _unexpected_end(name, child.exitcode, kills) from None
    finally:
        child.kill()  # where this process is told to stop while it waits
        child.join()
        receiver.close()
    if error is not None:
        raise error from (None if isinstance(error, InputError) else RuntimeError(frames))
    return result


def _unexpected_end(name: str, code: int, kills: int | None) -> Exception:
    if killed_for_memory(code, kills):
        return InputError(f"{name} ran out of memory; use a smaller model, or a machine with more memory")
    how = f"was {signal_text(code)}" if code < 0 else f"ended with exit code {code}"
    return RuntimeError(f"{name} {how}")


def _run_here(work: Callable, sender, parent: int) -> None:
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)  # the parent acts on them, and ends this process
    die_with_parent(parent)
    try:
        outcome: tuple[object, Exception | None, str] = work(), None, ""
        pickle.dumps(outcome)
    except Exception as error:
        outcome = None, _sendable(error), traceback.format_exc()
    sender.send(outcome)


def _sendable(error: Exception) -> Exception:
    """The error, or one in words where the other process could not read it."""
    try:
        return pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
