"""Halos of several hops: parts ask ranges for the in-edges of their halo rows, hop by hop, and ranges answer."""

from __future__ import annotations

from functools import partial

import numpy as np

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.system.distinct import unique

from .cut import by_part, part_cells
from .edges import edge_ids
from .job import BASE_BYTES, USABLE, Job, edge_bytes
from .stages import Arrays, Stages, by_key, gather


def fetch_halos(run: Stages, job: Job, where: list) -> None:
    """Write the in-edges of the rows that each part holds but does not own, without those of the last hop."""
    for hop in range(1, job.halo_depth):
        run.map(f"ring-{hop}", partial(_ring, job, where=where, hop=hop), job.parts)
        run.map(f"in-edges-{hop}", partial(_in_edges, job, hop=hop), job.ranges)


def held_cells(job: Job, part: int, where: list, hops: int | None = None) -> list[np.ndarray]:
    """The nodes of a part and of the first hops of its halo, their in-degrees, and sources and ids of their in-edges."""
    stages = [f"in-edges-{hop}" for hop in range(1, job.halo_depth if hops is None else hops + 1)]
    edges = sum(
        int(np.diff(job.folder.rows(f"{stage}/{index}", "edge.ptr", part, part + 2))[0])
        for stage in stages
        for index in range(job.ranges)
    )
    _check_fits(job, edges, f"the halo of part {part} has")
    pieces = [part_cells(job, where[part]), *(part_cells(job, (stage, range(job.ranges), part)) for stage in stages)]
    return [np.concatenate(each) for each in zip(*pieces)]


def _ring(job: Job, part: int, where: list, hop: int) -> Arrays:
    """The nodes of one hop of a part's halo, by range."""
    node, _, src, _ = held_cells(job, part, where, hop - 1)
    ring = np.setdiff1d(unique(src), node, assume_unique=True)
    return by_key("row", job.range_of(ring), job.ranges, node=ring)


def _in_edges(job: Job, index: int, hop: int) -> Arrays:
    """The nodes of a range that are in one hop of a part's halo, and their in-edges, by part."""
    asked = [
        gather(job.folder, f"ring-{hop}", range(part, part + 1), "row", index, "node")[0] for part in range(job.parts)
    ]
    node, part = np.concatenate(asked), np.repeat(np.arange(job.parts), [len(each) for each in asked])
    indptr, src = job.folder.load(f"ranges-sorted/{index}", "indptr", "src")
    begin = indptr[node - job.range_ptr[index]]
    degree = indptr[node - job.range_ptr[index] + 1] - begin
    _check_fits(job, int(degree.sum()), f"the halos of all parts have in one of {job.ranges} ranges of nodes")
    at = np.repeat(begin - np.cumsum(degree) + degree, degree) + np.arange(degree.sum())
    return by_part(part, job.parts, node, degree, src[at], edge_ids(job, index)[at])


def _check_fits(job: Job, edges: int, whose: str) -> None:
    """Raise :class:`InputError` where so many in-edges of halos take more memory than a task has."""
    needed = BASE_BYTES + edges * edge_bytes(job.num_nodes, job.num_edges)
    if job.sizes.usable_bytes is not None and needed > job.sizes.usable_bytes:
        raise InputError(
            f"halo_depth (--halo-depth) is {job.halo_depth}, and {whose} {edges:,} in-edges, which take a worker_memory "
            f"(--worker-memory) of about {int(needed / USABLE) >> 20}MiB: give that much, or take fewer hops"
        )
