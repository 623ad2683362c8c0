"""METIS by pymetis, in child processes: it holds the GIL, cannot be interrupted and may crash on bad input.

``python -m partition.cuts.metis JOB`` is the child. Arrays pass both ways through unnamed temporary files that it inherits,
so that nothing stays on disk whoever is killed.
Source: Karypis and Kumar, "A fast and high quality multilevel scheme for partitioning irregular graphs", 1998.
"""

from __future__ import annotations

import json
import mmap
import operator
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager, suppress

import numpy as np

from partition.errors import InputError
from partition.system import child_process
from partition.system.memory import available_cpus, available_memory_bytes, peak_memory_bytes, record_children
from partition.system.units import size

_SEEDS = 2**31 - 1  # METIS's are counted from 1
_MOST_CHILDREN = 4
_OUT_OF_MEMORY = re.compile("MemoryError|insufficient memory|Memory allocation failed")  # Python's, pymetis's, METIS's
_NO_ROOM = 28  # exit status of a child that cannot write its result
_ALONE = 0.1  # share of nodes without neighbours beyond which METIS does not see them
EDGE_BYTES = 238  # what METIS takes for an undirected edge
_POLL_S = 0.2
_CHUNK = 1 << 20


def check_seed(seed) -> int:
    """The seed as an int; :class:`InputError` where METIS cannot have it."""
    try:
        number = operator.index(seed)
    except TypeError:
        raise InputError(f"seed is {seed!r}; it must be an integer") from None
    if not 0 <= number < _SEEDS:
        raise InputError(f"seed is {number}; it must be at least 0 and below {_SEEDS}")
    return number


@contextmanager
def shared(**arrays):
    """Arrays as unnamed int64 files, the type that METIS takes without a copy, for children to map.

    A graph is shared as ``xadj`` and ``adjncy``: the ``indptr`` and ``indices`` of :func:`partition.graph.symmetrised`.
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
                stack.callback(_closed, files[key])
                for start in range(0, len(array), _CHUNK):
                    files[key].write(np.ascontiguousarray(array[start : start + _CHUNK], np.int64))
                files[key].flush()
        yield files


def _closed(file) -> None:
    with suppress(OSError):  # what a full disk did not take is written once more
        file.close()


def k_way(
    adjacency: dict,
    parts: int,
    weights: np.ndarray,
    *,
    objective: str = "cut",
    slack: float = 1.03,
    shares=None,
    seed: int = 0,
    progress=None,
) -> np.ndarray:
    """Split an undirected graph into parts of equal weight with few edges between them, or little volume.

    Parameters
    ----------
    adjacency : dict
        The graph, from :func:`shared`.
    parts : int
        K, 2 <= K <= N.
    weights : ndarray of positive integers, (N,)
    objective : {"cut", "volume"}
        What METIS makes small: edges between parts, or copies of nodes in parts that own a neighbour of theirs.
    slack : float
        A part's weight over its share, at most.
    shares : sequence of float, (K,), optional
        Of the whole weight, by part; equal by default.
    seed : int
        The same seed gives the same result.
    progress : callable, optional
        Called as ``progress(stage)`` while METIS runs.

    Returns
    -------
    ndarray, int64, (N,)
        The part of every node. METIS may leave a part empty on tiny graphs.
    """
    job = {"parts": parts, "objective": objective, "slack": slack, "seed": seed}
    job["shares"] = None if shares is None else [float(share) for share in shares]
    with shared(weights=weights) as more:
        (result,) = _run({**adjacency, **more}, [job], f"METIS, {parts} parts, {objective}", progress)
        return result.astype(np.int32)


def clusters(adjacency: dict, owner: np.ndarray, parts: int, size: int, *, seed: int = 0, progress=None) -> np.ndarray:
    """Number the METIS clusters of about ``size`` nodes inside each part; neighbouring numbers are near in the graph.

    Returns
    -------
    ndarray, int64, (N,)
        The cluster of every node, counted from 0 within its part.
    """
    workers = min(most_children(), parts)
    jobs = [{"cluster_size": size, "seed": seed, "only": list(range(i, parts, workers))} for i in range(workers)]
    with shared(owner=owner) as more:
        results = _run({**adjacency, **more}, jobs, "METIS, clusters inside parts", progress)
    cluster = np.empty(len(owner), np.int64)
    for job, result in zip(jobs, results):
        cluster[np.isin(owner, job["only"])] = result
    return cluster


def most_children() -> int:
    """How many children run at once; each has an interpreter and scratch of its own."""
    return min(available_cpus(), _MOST_CHILDREN)


def _run(inputs: dict, jobs: list[dict], stage: str, progress) -> list[np.ndarray]:
    """Run one child a job side by side; if this process is interrupted they are killed at once."""
    started, kills = time.monotonic(), child_process.memory_kills()
    with ExitStack() as stack:
        running = []
        for job in jobs:
            with child_process.temporary_space():
                result, errors = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(2))
            files = {**inputs, "result": result}
            numbers = {key: file.fileno() for key, file in files.items()}
            command = [
                sys.executable,
                "-m",
                "partition.cuts.metis",
                json.dumps({**job, "parent": os.getpid(), "files": numbers}),
            ]
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
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
        results = [_read(result.fileno()) for _, result, _ in running]
        record_children(sum(int(result[-1]) for result in results))
        return [result[:-1] for result in results]


def _failure(code: int, said: str, inputs: dict, kills: int | None) -> Exception:
    """What to raise when a child has failed."""
    if code == _NO_ROOM:
        return InputError(
            f"METIS cannot write its result in {tempfile.gettempdir()}: no space left; free space, or set TMPDIR to "
            "another directory"
        )
    if child_process.killed_for_memory(code, kills) or _OUT_OF_MEMORY.search(said):
        edges = os.fstat(inputs["adjncy"].fileno()).st_size // 16  # each is listed by both of its ends, as an int64
        return InputError(
            f"METIS ran out of memory on {edges:,} undirected edges, for which it needs about "
            f"{size(edges * EDGE_BYTES)}; {size(available_memory_bytes())} are available. Give a memory bound "
            "(--memory), within which other ways of cutting are chosen, or use a larger machine"
        )
    if code < 0:
        return InputError(f"METIS was {child_process.signal_text(code)}; nothing is written")
    return RuntimeError(f"METIS ended with exit code {code}: {said or 'no message'}")


def _end(process: subprocess.Popen) -> None:
    process.kill()
    process.wait()


def _read(number: int) -> np.ndarray:
    """Memory-map an inherited file of int64; empty files cannot be mapped."""
    if not os.fstat(number).st_size:
        return np.zeros(0, np.int64)
    return np.frombuffer(mmap.mmap(number, 0, access=mmap.ACCESS_READ), np.int64)


def _part(xadj, adjncy, parts: int, weights, *, recursive: bool, shares=None, **options) -> np.ndarray:
    import pymetis

    graph = pymetis.CSRAdjacency(xadj, adjncy)
    options["seed"] = options["seed"] % _SEEDS + 1  # seeds 0 and 1 coincide, so count from 1
    result = pymetis.part_graph(
        parts, graph, vweights=weights, tpwgts=shares, recursive=recursive, options=pymetis.Options(**options)
    )
    return np.asarray(result.vertex_part)


def _linked(xadj, adjncy):
    """The rows that have neighbours, and the graph of them alone; all rows where few have none.

    METIS's time grows with the square of the rows without neighbours; few of them cost it nothing.
    """
    has_neighbours = np.diff(xadj) > 0
    if np.count_nonzero(has_neighbours) >= (1 - _ALONE) * len(has_neighbours):
        return np.arange(len(xadj) - 1), xadj, adjncy
    rows = np.flatnonzero(has_neighbours)
    number = np.cumsum(has_neighbours) - 1
    return rows, np.append(xadj[rows], xadj[-1]), number[adjncy]


def _dealt(part: np.ndarray, alone: np.ndarray, parts: int, weights: np.ndarray, shares) -> None:
    """Give the rows where ``alone`` to the parts that lack most of their share of the weight; ``part`` is changed."""
    shares = np.full(parts, 1 / parts) if shares is None else np.asarray(shares)
    lacking = np.maximum(shares * weights.sum() - np.bincount(part[~alone], weights[~alone], parts), 0)
    own = weights[alone]
    ends = np.cumsum(lacking) / max(lacking.sum(), 1e-9) * own.sum()
    part[alone] = np.minimum(np.searchsorted(ends, np.cumsum(own) - own / 2), parts - 1)


def _subgraph(xadj, adjncy, rows, slot):
    """Induced subgraph on ``rows``; ``slot`` is an all -1 scratch array of length N, left as it was."""
    slot[rows] = np.arange(len(rows))
    degree = xadj[rows + 1] - xadj[rows]
    starts = np.cumsum(degree) - degree
    neighbours = slot[adjncy[np.repeat(xadj[rows] - starts, degree) + np.arange(int(degree.sum()))]]
    slot[rows] = -1
    inside = neighbours >= 0
    before = np.concatenate([[0], np.cumsum(inside)])
    return before[np.append(starts, len(neighbours))], neighbours[inside]


def _answer(arrays: dict, job: dict) -> np.ndarray:
    xadj, adjncy = arrays["xadj"], arrays["adjncy"]
    if "parts" in job:
        return _whole(xadj, adjncy, arrays["weights"], job)
    owner = arrays["owner"]
    cluster = np.zeros(len(owner), np.int64)
    slot = np.full(len(owner), -1, np.int64)
    for part in job["only"]:
        rows = np.flatnonzero(owner == part)
        if round(len(rows) / job["cluster_size"]) < 2:
            continue
        linked, sub_xadj, sub_adjncy = _linked(*_subgraph(xadj, adjncy, rows, slot))
        count = max(1, round(len(linked) / job["cluster_size"]))
        cluster[rows] = count  # rows without neighbours in the part come last
        cluster[rows[linked]] = 0
        if count > 1:
            # Clusters need no exact balance, and bisection is twice as fast for as many parts.
            weights = np.ones(len(linked), np.int64)
            cluster[rows[linked]] = _part(sub_xadj, sub_adjncy, count, weights, recursive=True, seed=job["seed"])
    return cluster[np.isin(owner, job["only"])]


def _whole(xadj, adjncy, weights: np.ndarray, job: dict) -> np.ndarray:
    """The part of every node."""
    parts, options = job["parts"], {key: job[key] for key in ("shares", "seed")}
    options |= {"objtype": int(job["objective"] == "volume"), "ufactor": max(1, round(1000 * (job["slack"] - 1)))}
    linked, xadj, adjncy = _linked(xadj, adjncy)
    # Recursive bisection, pymetis's default up to K = 8, ignores balance.
    if len(linked) == len(weights):
        return _part(xadj, adjncy, parts, weights, recursive=False, **options)
    part, alone = np.zeros(len(weights), np.int64), np.ones(len(weights), bool)
    alone[linked] = False
    if len(linked) >= parts:
        part[linked] = _part(xadj, adjncy, parts, weights[linked], recursive=False, **options)
    _dealt(part, alone, parts, weights, job["shares"])
    return part


def _child(job: dict) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    child_process.die_with_parent(job["parent"])
    result = job["files"].pop("result")
    answer = _answer({key: _read(number) for key, number in job["files"].items()}, job)
    try:
        with open(result, "wb") as file:
            file.write(np.append(answer, peak_memory_bytes()).astype(np.int64))
    except OSError:
        sys.exit(_NO_ROOM)


if __name__ == "__main__":
    _child(json.loads(sys.argv[1]))
