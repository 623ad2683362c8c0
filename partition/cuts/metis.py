"""METIS, run in child processes: it holds Python's global lock, cannot be interrupted, and crashes on bad input.

This module is the parent's side. It starts :mod:`partition.cuts.metis_child`, and arrays pass both ways through unnamed
temporary files that the child inherits, so that nothing stays on disk if a process is killed.
Source: Karypis and Kumar, "A fast and high quality multilevel scheme for partitioning irregular graphs", 1998.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager, suppress

import numpy as np

from partition.errors import InputError, whole_number
from partition.system import child_process
from partition.system.memory import available_cpus, available_memory_bytes, record_children
from partition.system.units import size

from .metis_child import NO_ROOM, SEEDS, read_array

_MOST_CHILDREN = 4
_OUT_OF_MEMORY = re.compile("MemoryError|insufficient memory|Memory allocation failed")  # Python's, pymetis's, METIS's
EDGE_BYTES = 238  # memory that METIS takes per undirected edge
_POLL_S = 0.2
_CHUNK = 1 << 20  # numbers that are written at once


def check_seed(seed) -> int:
    """Return the seed as an int; raise :class:`InputError` if METIS does not take it."""
    return whole_number("seed", seed, 0, SEEDS - 1)


@contextmanager
def write_shared_arrays(**arrays):
    """Write arrays to unnamed files of int64, which children map, and give a dict of these files.

    METIS takes int64 without a copy. A graph is shared as ``xadj`` and ``adjncy``: the ``indptr`` and ``indices`` of
    :func:`partition.graph.symmetrised`.
    """
    with ExitStack() as stack:
        files, need = {}, 8 * sum(map(len, arrays.values()))
        with child_process.temporary_space() as folder:
            free = shutil.disk_usage(folder).free
        if need > free:
            raise InputError(
                f"METIS needs {size(need)} for temporary files in {folder}, which has {size(free)} free; free space, "
                "or set TMPDIR to a directory with more"
            )
        for key in list(arrays):
            array = arrays.pop(key)
            with child_process.temporary_space():
                files[key] = tempfile.TemporaryFile()
                stack.callback(_close, files[key])
                for start in range(0, len(array), _CHUNK):
                    files[key].write(np.ascontiguousarray(array[start : start + _CHUNK], np.int64))
                files[key].flush()
        yield files


def _close(file) -> None:
    with suppress(OSError):  # closing tries once more to write what a full disk did not take
        file.close()


def k_way(
    adjacency: dict,
    parts: int,
    weights: np.ndarray,
    *,
    objective: str = "cut",
    tolerance: float = 1.03,
    shares=None,
    seed: int = 0,
    progress=None,
) -> np.ndarray:
    """Split an undirected graph into parts of equal weight, with few edges or few copies between them.

    ``adjacency`` is a graph from :func:`write_shared_arrays`, ``weights`` (N,) are positive integers, and ``shares``
    (P,) is each part's share of the whole weight. METIS minimises edges between parts (``"cut"``), or copies of nodes
    in other parts that own one of their neighbours (``"volume"``); a part weighs at most ``tolerance`` times its share.
    Returns the part of each node, int32 (N,). METIS may leave a part empty on tiny graphs.
    """
    job = {"parts": parts, "objective": objective, "tolerance": tolerance, "seed": seed}
    job["shares"] = None if shares is None else [float(share) for share in shares]
    with write_shared_arrays(weights=weights) as more:
        (result,) = _run({**adjacency, **more}, [job], f"METIS, {parts} parts, {objective}", progress)
        return result.astype(np.int32)


def clusters(adjacency: dict, owner: np.ndarray, parts: int, size: int, *, seed: int = 0, progress=None) -> np.ndarray:
    """Split each part into METIS clusters of about ``size`` nodes; clusters with close numbers are close in the graph.

    Returns the cluster of each node, int64 (N,), counted from 0 in each part.
    """
    workers = min(most_children(), parts)
    jobs = [{"cluster_size": size, "seed": seed, "worker": i, "workers": workers} for i in range(workers)]
    with write_shared_arrays(owner=owner) as more:
        results = _run({**adjacency, **more}, jobs, "METIS, clusters inside parts", progress)
    cluster = np.empty(len(owner), np.int64)
    for job, result in zip(jobs, results):
        cluster[owner % workers == job["worker"]] = result
    return cluster


def most_children() -> int:
    """Return how many children run at once; each has its own interpreter and scratch memory."""
    return min(available_cpus(), _MOST_CHILDREN)


def _run(inputs: dict, jobs: list[dict], stage: str, progress) -> list[np.ndarray]:
    """Run a child for each job at the same time; if this process is interrupted, the children are killed at once."""
    started, kills = time.monotonic(), child_process.memory_kills()
    with ExitStack() as stack:
        running = []
        for job in jobs:
            with child_process.temporary_space():
                result, errors, said = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(3))
            files = {**inputs, "result": result}
            numbers = {key: file.fileno() for key, file in files.items()}
            text = json.dumps({**job, "parent": os.getpid(), "files": numbers}, allow_nan=False)
            with child_process.temporary_space():
                said.write(text.encode())
                said.seek(0)
            process = subprocess.Popen(
                [sys.executable, "-m", "partition.cuts.metis_child"],
                stdin=said,  # the shares of many parts are more text than an argument may have
                stdout=errors,
                stderr=errors,
                env=child_process.environment(),
                pass_fds=list(numbers.values()),
            )
            stack.callback(_end, process)
            running.append((process, result, errors))
        while any(process.poll() is None for process, *_ in running):
            time.sleep(min(_POLL_S, 0.01 + (time.monotonic() - started) / 10))
            if progress:
                progress(stage)
        for process, _, errors in running:
            if process.returncode:
                errors.seek(0)
                raise _failure(process.returncode, errors.read().decode(errors="replace").strip(), inputs, kills)
        results = [read_array(result.fileno()) for _, result, _ in running]
        record_children(sum(int(result[-1]) for result in results))
        return [result[:-1] for result in results]


def _failure(code: int, said: str, inputs: dict, kills: int | None) -> Exception:
    """The exception to raise when a child has failed."""
    code = child_process.exit_code(code, said)
    if code == NO_ROOM:
        return InputError(
            f"METIS cannot write its result in {tempfile.gettempdir()}: no space left; free space, or set TMPDIR to "
            "another directory"
        )
    if child_process.killed_for_memory(code, kills) or _OUT_OF_MEMORY.search(said):
        edges = os.fstat(inputs["adjncy"].fileno()).st_size // 16  # each is listed by both of its ends, as an int64
        return InputError(
            f"METIS ran out of memory on {edges:,} undirected edges, for which it needs about "
            f"{size(edges * EDGE_BYTES)}; {size(available_memory_bytes())} are available. Give a memory bound "
            "(--memory) to use a method that needs less, or use a larger machine"
        )
    if code < 0:
        return InputError(f"METIS was {child_process.signal_text(code)}; nothing is written")
    return RuntimeError(f"METIS ended with exit code {code}: {said or 'no message'}")


def _end(process: subprocess.Popen) -> None:
    process.kill()
    process.wait()
