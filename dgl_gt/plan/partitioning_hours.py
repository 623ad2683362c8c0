"""How long many workers take to partition a graph that is not there, and a run to train on it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from dgl_gt.partition.config import PartitionConfig
from dgl_gt.partition.console import table
from dgl_gt.partition.distributed.estimate import check_worker_memory, estimated_stages
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.sources.coo import COOGraph
from dgl_gt.partition.system.units import format_bytes


class Partitioning(NamedTuple):
    """What the edge cut of a graph takes."""

    workers: int
    worker_bytes: int
    seconds: float | None  # None where tasks do not fit into a worker's memory
    written_bytes: int


def partitioning_of(nodes: int, edges: int, features: int, workers: int, worker_bytes: int) -> Partitioning:
    """Estimate the edge cut into as many parts as there are workers, by the rates of :mod:`.distributed.estimate`.

    A stage with fewer tasks than workers keeps only as many busy. Nodes have float32 features and a label.
    """
    end = np.broadcast_to(np.zeros(1, np.int64), edges)  # takes no memory
    row = np.broadcast_to(np.zeros(1, np.float32), (nodes, features + 1))
    graph = COOGraph(end, end, nodes, {"feat": row})
    config = PartitionConfig(parts=workers)
    stages = estimated_stages(graph, config, worker_bytes)
    seconds: float | None = sum(of_one / min(workers, tasks) for _, tasks, _, of_one in stages)
    try:
        check_worker_memory(graph, config, worker_bytes)
    except InputError:
        seconds = None
    return Partitioning(workers, worker_bytes, seconds, sum(size for _, _, size, _ in stages))


def hours_table(rows: Iterable[tuple[Partitioning, float | None]], epochs: int) -> str:
    """A table of partitioning and of a step's seconds, if it fits, with the hours of a run of so many epochs."""
    shown = [
        [
            each.workers,
            format_bytes(each.worker_bytes),
            _hours(each.seconds),
            format_bytes(each.written_bytes),
            _hours(None if step_s is None else epochs * step_s),
        ]
        for each, step_s in rows
    ]
    head = ["workers", "memory of each", "partitioning, h", "written", f"{epochs} epochs, h"]
    return table(head, shown)


def _hours(seconds: float | None) -> str:
    return "does not fit" if seconds is None else f"{seconds / 3600:.2g}"
