"""A graph of clusters with fewer edges, where METIS would take too much memory for all: each cluster keeps its heaviest.

Light edges that lead anywhere say little about a cut, and no number of rounds brings them together. The local search
sees all edges again. An edge stays if either end keeps it, so the graph stays undirected (Satuluri, Parthasarathy and
Ruan, "Local graph sparsification for scalable clustering", SIGMOD 2011, keep edges by the similarity of their ends).
"""

from __future__ import annotations

from functools import partial

import numpy as np

from .job import Job, mixed
from .stages import Arrays, Stages

_LOT_BITS = 16  # of a key, below the weight: which of equally heavy edges stay
_NONE = np.iinfo(np.int64).max


def thin(run: Stages, job: Job, stage: str, clusters: int, share: float) -> str:
    """Let each cluster keep this share of its edges, at least one; return the stage that has the new graph."""
    run.map("least-kept", partial(_least_kept, job, stage=stage, clusters=clusters, share=share), job.ranges)
    run.map("thinned", partial(_thinned, job, stage=stage, clusters=clusters), job.ranges)
    run.drop("least-kept", stage)
    return "thinned"


def _least_kept(job: Job, index: int, stage: str, clusters: int, share: float) -> Arrays:
    """The key of the lightest edge that each cluster of a slice keeps."""
    (degree,) = job.folder.load(f"{stage}/{index}", "degree")
    row, _, key, _ = _edges(job, index, stage, clusters)
    key = key[np.lexsort((key, row))]
    least = np.full(len(degree), _NONE)
    has_edges = degree > 0
    kept = np.ceil(share * degree[has_edges]).astype(np.int64)
    least[has_edges] = key[np.cumsum(degree)[has_edges] - kept]
    return {"least": least}


def _thinned(job: Job, index: int, stage: str, clusters: int) -> Arrays:
    """The rows of a slice with the edges that either end keeps."""
    least = np.concatenate([job.folder.load(f"least-kept/{each}", "least")[0] for each in range(job.ranges)])
    row, neighbour, key, weight = _edges(job, index, stage, clusters)
    degree, load = job.folder.load(f"{stage}/{index}", "degree", "load")
    stays = key >= np.minimum(least[row], least[neighbour])
    row = row[stays] - _begin(job, index, clusters)
    return {
        "degree": np.bincount(row, minlength=len(degree)),
        "neighbour": neighbour[stays],
        "weight": weight[stays],
        "load": load,
    }


def _edges(job: Job, index: int, stage: str, clusters: int) -> tuple[np.ndarray, ...]:
    """Row, neighbour, key and weight of each edge of a slice; the key orders edges by weight, and then by lot."""
    degree, neighbour, weight = job.folder.load(f"{stage}/{index}", "degree", "neighbour", "weight")
    row = np.repeat(np.arange(len(degree)) + _begin(job, index, clusters), degree)
    lot = mixed(np.minimum(row, neighbour) * clusters + np.maximum(row, neighbour), job.seed)
    return (
        row,
        neighbour,
        (weight.astype(np.int64) << _LOT_BITS) + (lot >> np.uint64(64 - _LOT_BITS)).astype(np.int64),
        weight,
    )


def _begin(job: Job, index: int, clusters: int) -> int:
    return -(-clusters * index // job.ranges)
