"""METIS, run in child processes: it holds Python's global lock, cannot be interrupted, and crashes on bad input.

The parent's side comes first, then that of the child, ``python -m dgl_gt.partition.cuts.metis`` with a job as JSON on
standard input. Arrays pass both ways through unnamed temporary files that the child inherits, so that nothing stays on
disk if a process is killed.
Source: Karypis and Kumar, "A fast and high quality multilevel scheme for partitioning irregular graphs", 1998.
"""

from __future__ import annotations

import json
import mmap
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
import scipy  # imports its parts at their first use

from dgl_gt.partition.errors import InputError, whole_number
from dgl_gt.partition.system import child_process
from dgl_gt.partition.system.memory import available_memory_bytes, peak_memory_bytes, record_children
from dgl_gt.partition.system.units import format_bytes

_OUT_OF_MEMORY = re.compile("MemoryError|insufficient memory|Memory allocation failed")  # Python's, pymetis's, METIS's
EDGE_BYTES = 238  # memory that METIS takes per undirected edge
_POLL_S = 0.2
_CHUNK = 1 << 20  # numbers that are written at once
_SEEDS = 2**31 - 1  # METIS takes 1 to this many
_NO_ROOM = 28  # exit status of a child that cannot write its result
_MAX_ISOLATED = 0.1  # share of nodes without neighbours that METIS is given


def check_seed(seed) -> int:
    """Return the seed as an int; raise :class:`InputError` if METIS does not take it."""
    return whole_number("seed", seed, 0, _SEEDS - 1)


@contextmanager
def _shared_arrays(arrays: dict):
    """Write arrays to unnamed files of int64, which METIS takes without a copy, and give a dict of these files."""
    with ExitStack() as stack:
        files, need = {}, 8 * sum(map(len, arrays.values()))
        with child_process.temporary_space() as folder:
            free = shutil.disk_usage(folder).free
        if need > free:
            raise InputError(
                f"METIS needs {format_bytes(need)} for temporary files in {folder}, which has {format_bytes(free)} free; free space, "
                "or set TMPDIR to a directory with more"
            )
        for key, array in arrays.items():
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
    undirected: scipy.sparse.csr_array,
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

    ``undirected``, (N, N), holds each edge in both directions and no self-loops; its values are the weights of edges,
    or bools where all weigh one. ``weights`` (N,) are positive integers, and ``shares`` (P,) is each part's share of
    the whole weight. METIS minimises edges between parts (``"cut"``), or copies of nodes in other parts that own one of
    their neighbours (``"volume"``); a part weighs at most ``tolerance`` times its share. Returns the part of each node,
    int32 (N,). METIS may leave a part empty on tiny graphs.
    """
    job = {"parts": parts, "objective": objective, "tolerance": tolerance, "seed": seed}
    job["shares"] = None if shares is None else [float(share) for share in shares]
    arrays = {"xadj": undirected.indptr, "adjncy": undirected.indices, "weights": weights}
    if undirected.dtype != bool:
        arrays["edge_weights"] = undirected.data
    with _shared_arrays(arrays) as files:
        return _run(files, job, f"METIS, {parts} parts, {objective}", progress).astype(np.int32)


def _run(inputs: dict, job: dict, stage: str, progress) -> np.ndarray:
    """Run a child for a job; if this process is interrupted, the child is killed at once."""
    started, kills = time.monotonic(), child_process.memory_kills()
    with ExitStack() as stack:
        with child_process.temporary_space():
            result, errors, said = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(3))
        files = {**inputs, "result": result}
        numbers = {key: file.fileno() for key, file in files.items()}
        text = json.dumps({**job, "parent": os.getpid(), "files": numbers}, allow_nan=False)
        with child_process.temporary_space():
            said.write(text.encode())
            said.seek(0)
        process = subprocess.Popen(
            child_process.command("dgl_gt.partition.cuts.metis"),
            stdin=said,  # the shares of many parts are more text than an argument may have
            stdout=errors,
            stderr=errors,
            env=child_process.environment(),
            pass_fds=list(numbers.values()),
        )
        stack.callback(_end, process)
        while process.poll() is None:
            time.sleep(min(_POLL_S, 0.01 + (time.monotonic() - started) / 10))
            if progress:
                progress(stage)
        if process.returncode:
            errors.seek(0)
            raise _failure(process.returncode, errors.read().decode(errors="replace").strip(), inputs, kills)
        answer = _read_array(result.fileno())
    record_children(int(answer[-1]))
    return answer[:-1]


def _failure(code: int, said: str, inputs: dict, kills: int | None) -> Exception:
    """The exception to raise when a child has failed."""
    code = child_process.exit_code(code, said)
    if code == _NO_ROOM:
        return InputError(
            f"METIS cannot write its result in {tempfile.gettempdir()}: no space left; free space, or set TMPDIR to "
            "another directory"
        )
    if child_process.killed_for_memory(code, kills) or _OUT_OF_MEMORY.search(said):
        edges = os.fstat(inputs["adjncy"].fileno()).st_size // 16  # each is listed by both of its ends, as an int64
        return InputError(
            f"METIS ran out of memory on {edges:,} undirected edges, for which it needs about "
            f"{format_bytes(edges * EDGE_BYTES)}; {format_bytes(available_memory_bytes())} are available. Give a memory bound "
            "(--memory) to use a method that needs less, or use a larger machine"
        )
    if code < 0:
        return InputError(f"METIS was {child_process.signal_text(code)}; nothing is written")
    return RuntimeError(f"METIS ended with exit code {code}: {said or 'no message'}")


def _end(process: subprocess.Popen) -> None:
    process.kill()
    process.wait()


# ---- the child ---------------------------------------------------------------------------------------------------------


def _read_array(number: int) -> np.ndarray:
    """Map the open file of this number as int64; an empty file, which cannot be mapped, gives an empty array."""
    if not os.fstat(number).st_size:
        return np.zeros(0, np.int64)
    return np.frombuffer(mmap.mmap(number, 0, access=mmap.ACCESS_READ), np.int64)


def _run_metis(xadj, adjncy, parts: int, weights, *, edge_weights, shares, **options) -> np.ndarray:
    import pymetis

    graph = pymetis.CSRAdjacency(xadj, adjncy)
    result = pymetis.part_graph(
        parts,
        graph,
        vweights=weights,
        eweights=edge_weights,
        tpwgts=shares,
        recursive=False,  # recursive bisection, pymetis's default up to P = 8, ignores balance
        options=pymetis.Options(**options),
    )
    return np.asarray(result.vertex_part)


def _without_isolated(xadj, adjncy):
    """The rows that have neighbours, and the graph of these rows alone; all rows if few have no neighbours.

    METIS's time grows with the square of the number of rows without neighbours, but a few of them cost nothing.
    """
    has_neighbours = np.diff(xadj) > 0
    if np.count_nonzero(has_neighbours) >= (1 - _MAX_ISOLATED) * len(has_neighbours):
        return np.arange(len(xadj) - 1), xadj, adjncy
    rows = np.flatnonzero(has_neighbours)
    number = np.cumsum(has_neighbours) - 1
    return rows, np.append(xadj[rows], xadj[-1]), number[adjncy]


def _deal_out(part: np.ndarray, isolated: np.ndarray, parts: int, weights: np.ndarray, shares) -> None:
    """Give the rows where ``isolated`` to the parts that lack most of their share of the weight; changes ``part``."""
    shares = np.full(parts, 1 / parts) if shares is None else np.asarray(shares)
    missing = np.maximum(shares * weights.sum() - np.bincount(part[~isolated], weights[~isolated], parts), 0)
    own = weights[isolated]
    ends = np.cumsum(missing) / max(missing.sum(), 1e-9) * own.sum()
    part[isolated] = np.minimum(np.searchsorted(ends, np.cumsum(own) - own / 2), parts - 1)


def _k_way(arrays: dict, job: dict) -> np.ndarray:
    """The part of each node."""
    linked, xadj, adjncy = _without_isolated(arrays["xadj"], arrays["adjncy"])
    weights, parts, shares = arrays["weights"], job["parts"], job["shares"]
    options = {
        "edge_weights": arrays.get("edge_weights"),
        "shares": shares,
        "seed": job["seed"] % _SEEDS + 1,  # METIS gives the same for seeds 0 and 1
        "objtype": int(job["objective"] == "volume"),
        "ufactor": max(1, round(1000 * (job["tolerance"] - 1))),
    }
    if len(linked) == len(weights):
        return _run_metis(xadj, adjncy, parts, weights, **options)
    part, isolated = np.zeros(len(weights), np.int64), np.ones(len(weights), bool)
    isolated[linked] = False
    if len(linked) >= parts:
        part[linked] = _run_metis(xadj, adjncy, parts, weights[linked], **options)
    _deal_out(part, isolated, parts, weights, shares)
    return part


def _main(job: dict) -> None:
    """Do a job and write its result, followed by this process's peak memory (bytes), as int64."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    child_process.die_with_parent(job["parent"])
    result = job["files"].pop("result")
    arrays = {name: _read_array(number) for name, number in job["files"].items()}
    answer = _k_way(arrays, job)
    try:
        with open(result, "wb") as file:
            file.write(np.append(answer, peak_memory_bytes()).astype(np.int64))
    except OSError:
        sys.exit(_NO_ROOM)


if __name__ == "__main__":
    _main(json.load(sys.stdin))
