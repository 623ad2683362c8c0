"""A small made-up part of a graph, and a stand-in for the other ranks, on which a training step can be traced.

A step's operations, and the sizes of its tensors, do not depend on the values of the data. So small parts show how
each size depends on the counts of a part, and no other rank needs to run.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import torch

from dgl_gt.comm.group import Comm
from dgl_gt.comm.in_flight import InFlight
from dgl_gt.exchange.load import make_strategy
from dgl_gt.exchange.shard import make_shard
from dgl_gt.exchange.sharded_graph import ShardedGraph
from partition.cuts.edge_cut import EdgeCut
from partition.cuts.permutation import Permutation
from partition.cuts.vertex_cut import VertexCut
from partition.graph import Graph, from_edges
from partition.predict.figures import Figures
from partition.shards.counts import manifest_counts
from partition.shards.layout import Layout
from partition.shards.write import structure_arrays

_OWNED, _OTHERS = (40, 90), (12, 40)  # least and most rows of the part, and of each other part
_MANY_PARTS = 16
_OTHERS_OF_MANY = (5, 8)


class StandInRanks(Comm):
    """Rank 0 of a group whose other ranks do not exist: rows arrive as zeros, and sums are this rank's own.

    Attributes
    ----------
    listener : callable or None
        Called as ``listener(kind, what, *sizes)`` for each exchange and sum, see :class:`dgl_gt.trace.recorder.Event`.
    """

    def __init__(self, world_size: int):
        self.rank, self.world_size, self.listener = 0, world_size, None
        self._is_nccl, self._detector, self.tape, self._in_flight = False, None, None, InFlight()
        self.reset_counters()

    def all_to_all(self, received, sent, recv_counts, send_counts):
        """Fill ``received`` with zeros, and tell the listener; see :meth:`Comm.all_to_all`."""
        received.zero_()
        if (listener := self.listener) is None:
            return lambda: None
        row_bytes = sent.element_size() * sent.shape[1:].numel()
        peers = [rank for rank in range(1, self.world_size) if recv_counts[rank]]
        what = (self.world_size - peers[0],) if len(peers) == 1 and self.world_size > 2 else ()
        listener("begin", what, row_bytes * sum(send_counts[1:]), row_bytes * sum(recv_counts[1:]))
        return lambda: listener("wait")

    def _all_reduce(self, total, op=None) -> None:
        if self.listener is not None:
            self.listener("sum", (), total.nbytes)

    def _gather_text(self, text: str) -> list[str]:
        return [text] * self.world_size


class _LaidOut:
    """The arrays of a layout in memory, with the methods of :class:`partition.shards.read.ShardReader`."""

    def __init__(self, layout: Layout):
        graph, figures = layout.graph, layout.figures
        self.directory = self.path = None
        self.parts, self.is_vertex_cut = figures.parts, layout.is_vertex_cut
        self.manifest = {
            **manifest_counts(figures, [0] * figures.parts),
            "ptr": layout.cut.ptr.tolist(),
            "source": graph.name,
        }
        self._layout = layout

    def rows(self, part: int, depth: int = 1) -> list[int]:
        return [int(self._layout.figures.held_within(hops)[part]) for hops in range(depth + 1)]

    def structure(self, part: int, *names: str, depth: int = 1) -> dict[str, torch.Tensor]:
        arrays = structure_arrays(self._layout, self._layout.part(part), part)
        return {name: torch.from_numpy(np.ascontiguousarray(arrays[name])) for name in names or arrays}

    def data(self, part: int, kind: str, *names: str, rows: int) -> dict[str, torch.Tensor]:
        columns = getattr(self._layout.graph, kind)
        return {name: torch.from_numpy(column[:rows].copy()) for name, column in columns.items()}


def stand_in(
    strategy: str, depth: int, parts: int, seed: int, node_data: dict, edge_data: dict, overlap: bool = True
) -> tuple[ShardedGraph, Figures]:
    """Make part 0 of a small random graph, and its figures.

    Parameters
    ----------
    strategy, depth
        As for :func:`dgl_gt.load`; ``strategy`` is one of :data:`partition.predict.strategies.STRATEGIES`.
    parts : int
        Number of parts P.
    seed : int
        Seed of the numbers of rows and edges.
    node_data, edge_data : dict of str to (dtype, shape)
        The columns: a dtype's name and the shape of a row. Their values are zeros, and True for booleans.
    overlap : bool
        See :func:`dgl_gt.load`.
    """
    rng = np.random.default_rng([parts, seed])
    layout = Layout(*_cut_graph(rng, strategy, depth, parts, node_data, edge_data), depth)
    shard, ranks = make_shard(_LaidOut(layout), 0, depth), StandInRanks(parts)
    degrees = torch.ones(shard.num_held, 2, dtype=torch.int64)
    shard = replace(shard, degrees=degrees, rank_order=shard.node_ids[: shard.num_held])
    return ShardedGraph(shard, ranks, lambda on: make_strategy(strategy, on, ranks, overlap)), layout.figures


def _cut_graph(rng, strategy: str, depth: int, parts: int, node_data, edge_data) -> tuple[Graph, Permutation]:
    owned, others = (rng.integers(*bounds) for bounds in (_OWNED, _OTHERS if parts < _MANY_PARTS else _OTHERS_OF_MANY))
    ptr = np.concatenate([[0], np.cumsum([owned, *[others] * (parts - 1)])])
    src, dst = _even_edges(rng, ptr) if depth == 1 else _few_edges(rng, ptr)
    graph = from_edges(src, dst, int(ptr[-1]), {}, name="the graph of a trace")
    graph.node_data.update(_made_up(node_data, graph.num_nodes))
    graph.edge_data.update(_made_up(edge_data, graph.num_edges))
    order = np.arange(graph.num_nodes, dtype=np.int32)
    if strategy == "mirror":
        return graph, VertexCut(order, ptr, rng.integers(0, parts, graph.num_edges, np.int32))
    return graph, EdgeCut(order, ptr, np.full(parts, 1 / parts))


def _even_edges(rng, ptr: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Edges of which each row has as many from each other part, so that ``ring``'s blocks are alike."""
    near, far = rng.integers(1, 5), rng.integers(1, 4) if len(ptr) <= _MANY_PARTS else 1
    src, dst = [], []
    for part, rows in enumerate(pairwise(ptr)):
        for other, sources in enumerate(pairwise(ptr)):
            ends = np.repeat(np.arange(*rows), near if part == other else far)
            src.append(rng.integers(*sources, len(ends)))
            dst.append(ends)
    return np.concatenate(src), np.concatenate(dst)


def _few_edges(rng, ptr: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Edges so few that each further hop reaches new rows, and never all."""
    dst = np.repeat(np.arange(ptr[-1]), rng.integers(1, 3, ptr[-1]))
    near = np.clip(dst + rng.integers(-4, 5, len(dst)), 0, ptr[-1] - 1)
    return np.where(rng.random(len(dst)) < rng.uniform(0.2, 0.5), rng.integers(0, ptr[-1], len(dst)), near), dst


def _made_up(columns: dict, rows: int) -> dict[str, np.ndarray]:
    return {name: np.full((rows, *shape), dtype == "bool", dtype=dtype) for name, (dtype, shape) in columns.items()}
