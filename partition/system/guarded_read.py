"""Reading a file in a child process, because damaged files crash some libraries.

Arrays come back through a pipe. A crash becomes an InputError.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from dgl_gt.partition.errors import InputError

from . import child_process

_COPIES = 4  # of a file's arrays that a library may hold at once
_EXTRA_BYTES = 1 << 30  # allowed beyond those copies


def read_in_child(
    module: str, path: Path, library: str, *arguments: str
) -> Iterator[tuple[dict, dict[str, np.ndarray]]]:
    """Run ``python -m module path parent *arguments``, whose main calls :func:`serve`, and yield its records as they arrive.

    ``library`` is what the child reads with, for messages.
    """
    command, kills = (
        child_process.command(module, str(path), str(os.getpid()), *arguments),
        child_process.memory_kills(),
    )
    with child_process.temporary_space():
        messages = tempfile.TemporaryFile()
    with messages as said:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said, env=child_process.environment()
        )
        try:
            what = ""
            while record := _read_record(child.stdout):
                header, arrays = record
                if "end" in header:
                    return
                if "error" in header:
                    raise InputError(header["error"])
                if "memory" in header:
                    raise InputError(
                        f"{path}: reading {what or 'it'} needs more memory than its size suggests, so the file may be "
                        "damaged; write it again"
                    )
                what = header.get("reading", what)
                yield header, arrays
            code = child.wait()
        finally:  # a library that holds damaged data may crash or hang at its exit, so the child is killed
            child.kill()
            child.wait()
            child.stdout.close()
        said.seek(0)
        message = said.read().decode(errors="replace")
        code = child_process.exit_code(code, message)
        if child_process.killed_for_memory(code, kills):
            raise InputError(f"{path}: memory ran out while {library} read {what or 'it'}; use a larger machine")
        if code < 0:
            raise InputError(
                f"{path}: {library} was {child_process.signal_text(code)} while it read {what or 'it'}, so the file is damaged "
                "or needs more memory than there is; write it again, or use a larger machine"
            )
        raise RuntimeError(f"{' '.join(command)} ended with status {code}: {message}")


def _read_record(stream) -> tuple[dict, dict[str, np.ndarray]] | None:
    """Read the next record; return None if the child ended before the record was complete."""
    try:
        header = json.loads(stream.readline())
        return header, {
            key: np.lib.format.read_array(_Pipe(stream), allow_pickle=False) for key in header.get("arrays", ())
        }
    except ValueError:
        return None


def serve(parent: str, records: Iterable[tuple[dict, dict[str, np.ndarray]]]) -> None:
    """Called by the child: write the records to the parent, then the InputError or MemoryError that stopped them.

    A record is a dict for JSON and a dict of arrays by name. The JSON's ``reading`` names what will be read next.
    """
    child_process.die_with_parent(int(parent))
    stream = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not get into the pipe
    last = {"end": True}
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


def bound_memory(file_bytes: int) -> None:
    """Called by the child after its imports: limit its memory to what files of this size need, with a margin."""
    if sys.platform == "linux":
        now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + _COPIES * file_bytes + _EXTRA_BYTES,) * 2)


def with_prefix(prefix: str, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays whose names begin with the prefix, without the prefix in their names."""
    return {key.removeprefix(prefix): array for key, array in arrays.items() if key.startswith(prefix)}


class _Pipe:
    """A wrapper that keeps numpy from seeking in a pipe."""

    def __init__(self, stream):
        self.stream = stream

    def read(self, count: int) -> bytes:
        return self.stream.read(count)

    def write(self, data) -> None:
        self.stream.write(data)
