"""Who holds what: the rows, edges and copies of each part of a cut, and the figures of the whole."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from partition.cuts.permutation import NEAR_ROWS, Permutation
from partition.cuts.vertex_cut import VertexCut
from partition.graph import Graph
from partition.predict.quality import edge_cut_quality, vertex_cut_quality


@dataclass(frozen=True)
class Part:
    """Structure of one part; ids are new ids."""

    edge_ids: np.ndarray  # the user's, row by row; within a row, edges keep the user's order
    indptr: (
        np.ndarray
    )  # of the rows that have in-edges here: owned; those of inner rings; of a vertex cut all held rows
    indices: np.ndarray  # rows of held nodes: owned first, then ring by ring
    rings: list[np.ndarray]  # nodes held but not owned, a list a hop (mirrors: one): ascending, hence grouped by owner
    cut_edges: int  # of owned rows (of a vertex cut all) with a remote end
    near_edges: int  # of the same, those between rows less than NEAR_ROWS apart

    @property
    def copies(self) -> np.ndarray:
        return np.concatenate(self.rings)


class Layout:
    """A cut laid out: one part's structure at a time, and every part's copies and counts.

    Parameters
    ----------
    graph : Graph
        Of a cut with a ``part_edges`` method of its own (:class:`partition.cuts.streamed_cut.StreamedCut`) only the counts and the
        data are read.
    cut : EdgeCut, VertexCut or StreamedCut
    depth : int
        Hops of halo, at least 1; vertex cuts have none.

    Attributes
    ----------
    rings : list of list of ndarray, K x depth
        New ids that each part holds but does not own, hop by hop, ascending.
    returning : list of ndarray, K
        Those with in-edges, hence a result to send home; none in an edge cut.
    """

    def __init__(self, graph: Graph, cut: Permutation, depth: int = 1):
        self.graph, self.cut = graph, cut
        self.is_vertex_cut = isinstance(cut, VertexCut)
        self.depth = 1 if self.is_vertex_cut else depth
        self._new_ids = cut.new_ids()
        self._slot = np.full(graph.num_nodes, -1, _row_type(graph.num_nodes))
        self._owned = np.diff(cut.ptr)
        self.rings, self.returning, self._edges, self._cut_edges, self._near_edges = [], [], [], [], []
        for index, owned in enumerate(self._owned):
            part = self.part(index)
            self.rings.append(part.rings)
            ends = np.cumsum([owned, *map(len, part.rings[: self.depth - 1])])
            self._edges.append(np.diff(part.indptr[ends], prepend=0).tolist())
            self._cut_edges.append(part.cut_edges)
            self._near_edges.append(part.near_edges)
            if self.is_vertex_cut:
                self._edges[-1] = [len(part.indices)]
                self.returning.append(part.rings[0][np.diff(part.indptr)[owned:] > 0])

    def part(self, index: int) -> Part:
        """The structure of one part."""
        make = _mirrored if self.is_vertex_cut else _with_halo
        return make(self, index)

    def wanted(self, rows: list[np.ndarray], index: int) -> list[np.ndarray]:
        """Of each part's ascending ids, those that part ``index`` owns."""
        begin, end = self.cut.ptr[index], self.cut.ptr[index + 1]
        return [each[np.searchsorted(each, begin) : np.searchsorted(each, end)] for each in rows]

    def wanted_by_hop(self, index: int) -> list[list[np.ndarray]]:
        """:meth:`wanted` for each hop of the rings."""
        return [self.wanted([rings[hop] for rings in self.rings], index) for hop in range(self.depth)]

    def received(self, index: int) -> np.ndarray:
        """Copies that part ``index`` holds by hop and owner, int64, (depth, K)."""
        return np.stack([np.diff(np.searchsorted(ring, self.cut.ptr)) for ring in self.rings[index]])

    @cached_property
    def figures(self) -> dict:
        """The manifest's counts: cut, halo_depth, parts, nodes, edges, shares, quality, per_part, received_rows."""
        per_part = [self._counts(index) for index in range(self.cut.parts)]
        names = ("owned", "mirrors", "returned", "edges") if self.is_vertex_cut else ("owned", "halo", "edges")
        columns = {name: [part[name] for part in per_part] for name in names}
        columns |= {"train": self._train(), "shares": self.cut.shares}
        if self.is_vertex_cut:
            quality = vertex_cut_quality(**columns)
        else:
            quality = edge_cut_quality(**columns, cut_edges=self._cut_edges)
        return {
            "cut": "vertex" if self.is_vertex_cut else "edge",
            "halo_depth": 0 if self.is_vertex_cut else self.depth,
            "parts": self.cut.parts,
            "nodes": self.graph.num_nodes,
            "edges": self.graph.num_edges,
            "shares": [float(share) for share in self.cut.shares],
            "quality": quality.as_dict(),
            "per_part": per_part,
            "received_rows": [self.received(index).sum(axis=0).tolist() for index in range(self.cut.parts)],
        }

    def _counts(self, index: int) -> dict:
        sent = [sum(map(len, hop)) for hop in self.wanted_by_hop(index)]
        halo = [len(ring) for ring in self.rings[index]]
        counts = {
            "owned": int(self._owned[index]),
            "mirrors" if self.is_vertex_cut else "halo": sum(halo),
            "edges": self._edges[index][0],
            "near_edges": self._near_edges[index],
            "sent": sum(sent),
        }
        if self.is_vertex_cut:
            back = sum(map(len, self.wanted(self.returning, index)))
            return {**counts, "returned": len(self.returning[index]), "returns": back}
        return {**counts, "halo_by_hop": halo, "sent_by_hop": sent, "edges_by_hop": self._edges[index]}

    def _train(self) -> np.ndarray | None:
        """Training nodes of each part and split, (K, splits)."""
        train = self.graph.node_data.get("train_mask")
        if train is None:
            return None
        splits = train.reshape(self.graph.num_nodes, -1)
        ends = zip(self.cut.ptr[:-1], self.cut.ptr[1:])
        return np.stack([splits[self.cut.order[begin:end]].sum(axis=0) for begin, end in ends])


def _with_halo(layout: Layout, index: int) -> Part:
    """A part of an edge cut: its rows' in-edges, then those of the halo rows of all hops but the last."""
    graph, cut, new_ids, slot = layout.graph, layout.cut, layout._new_ids, layout._slot
    begin, end = cut.ptr[index], cut.ptr[index + 1]
    slot[begin:end] = np.arange(end - begin)
    held, frontier = int(end - begin), np.arange(begin, end)
    rings, indptr, edge_ids, sources = [], [np.zeros(1, np.int64)], [], []
    for _ in range(layout.depth):
        rows = cut.order[frontier]
        degree = graph.indptr[rows + 1] - graph.indptr[rows]
        starts = np.concatenate([[0], np.cumsum(degree)])
        positions = np.repeat(graph.indptr[rows] - starts[:-1], degree) + np.arange(starts[-1])
        edge_ids.append(graph.edge_ids[positions])
        sources.append(new_ids[graph.indices[positions]])
        indptr.append(starts[1:] + sum(map(len, edge_ids[:-1])))
        new = np.zeros(graph.num_nodes, bool)
        new[sources[-1]] = True
        frontier = np.flatnonzero(new & (slot < 0))
        slot[frontier] = np.arange(held, held + len(frontier))
        held += len(frontier)
        rings.append(frontier.astype(cut.order.dtype))
    indices = np.concatenate([slot[source].astype(_row_type(held)) for source in sources])
    slot[begin:end] = -1
    for ring in rings:
        slot[ring] = -1
    cut_edges = int(np.count_nonzero((sources[0] < begin) | (sources[0] >= end)))
    row = np.repeat(np.arange(end - begin), np.diff(indptr[1], prepend=0))
    return Part(np.concatenate(edge_ids), np.concatenate(indptr), indices, rings, cut_edges, _near(row, indices))


def _mirrored(layout: Layout, index: int) -> Part:
    """A part of a vertex cut: its edges, by rows of all nodes that they touch."""
    cut, new_ids, slot = layout.cut, layout._new_ids, layout._slot
    begin, end = cut.ptr[index], cut.ptr[index + 1]
    source, target, edge_ids = cut.part_edges(layout.graph, index)
    source, target = new_ids[source], new_ids[target]
    remote, remote_target = ((ids < begin) | (ids >= end) for ids in (source, target))
    seen = np.zeros(len(slot), bool)
    seen[source[remote]] = True
    seen[target[remote_target]] = True
    mirrors = np.flatnonzero(seen)
    del seen
    slot[begin:end] = np.arange(end - begin)
    slot[mirrors] = np.arange(len(mirrors)) + (end - begin)
    held = int(end - begin) + len(mirrors)
    cut_edges = int(np.count_nonzero(remote | remote_target))
    row, indices = slot[target], slot[source].astype(_row_type(held), copy=False)
    del source, target, remote, remote_target
    slot[begin:end] = -1
    slot[mirrors] = -1
    near = _near(row, indices)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=held))])
    by_row = np.argsort(row, kind="stable")
    rings = [mirrors.astype(cut.order.dtype)]
    return Part(edge_ids[by_row], indptr, indices[by_row], rings, cut_edges, near)


def _near(row: np.ndarray, indices: np.ndarray) -> int:
    return int(np.count_nonzero(np.abs(indices[: len(row)] - row) < NEAR_ROWS))


def _row_type(held: int) -> type:
    return np.int32 if held < 2**31 else np.int64
