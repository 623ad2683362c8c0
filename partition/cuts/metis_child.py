"""The child process in which METIS runs: ``python -m dgl_gt.partition.cuts.metis_child``, with a job on standard input.

A job is JSON: ``files`` gives the numbers of the inherited files, by name, and the rest are the options of the k-way
partition that is asked for.
:mod:`dgl_gt.partition.cuts.metis` is the parent's side.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import sys

import numpy as np

from dgl_gt.partition.system import child_process
from dgl_gt.partition.system.memory import peak_memory_bytes

SEEDS = 2**31 - 1  # METIS takes 1 to this many
NO_ROOM = 28  # exit status of a child that cannot write its result
_MAX_ISOLATED = 0.1  # share of nodes without neighbours that METIS is given


def read_array(number: int) -> np.ndarray:
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
        "seed": job["seed"] % SEEDS + 1,  # METIS gives the same for seeds 0 and 1
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


def main(job: dict) -> None:
    """Do a job and write its result, followed by this process's peak memory (bytes), as int64."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    child_process.die_with_parent(job["parent"])
    result = job["files"].pop("result")
    arrays = {name: read_array(number) for name, number in job["files"].items()}
    answer = _k_way(arrays, job)
    try:
        with open(result, "wb") as file:
            file.write(np.append(answer, peak_memory_bytes()).astype(np.int64))
    except OSError:
        sys.exit(NO_ROOM)


if __name__ == "__main__":
    main(json.load(sys.stdin))
