"""Who holds what: the rows, edges and copies of each part of a cut, and the figures of the whole."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .edge_cut import Rows
from .graph import Graph
from .quality import edge_cut_quality, vertex_cut_quality
from .vertex_cut import VertexCut


@dataclass(frozen=True)
class Part:
    """Structure of one part; ids are new ids."""

    positions: np.ndarray  # of the part's edges in the graph's CSR, row by row
    indptr: np.ndarray  # over owned rows; of a vertex cut over all held rows, as mirrors have in-edges too
    indices: np.ndarray  # rows of held nodes: owned first, then copies
    copies: np.ndarray  # nodes held but not owned, halo or mirrors: ascending, hence grouped by owner
    cut_edges: int  # edges with a remote end

    def with_in_edges(self, owned: int) -> np.ndarray:
        """Which copies have in-edges, (len(copies),) bool: mirrors that send a result home."""
        return np.diff(self.indptr)[owned:] > 0


class Layout:
    """A cut laid out: one part's structure at a time, and every part's copies and counts.

    Parameters
    ----------
    graph : Graph
    cut : EdgeCut or VertexCut

    Attributes
    ----------
    copies : list of ndarray, K
        New ids that each part holds but does not own, ascending.
    returning : list of ndarray, K
        Those of them with in-edges; none in an edge cut.
    """

    def __init__(self, graph: Graph, cut: Rows):
        self.graph, self.cut = graph, cut
        self.is_vertex_cut = isinstance(cut, VertexCut)
        self._new_ids = cut.new_ids()
        self._slot = np.full(graph.num_nodes, -1, np.int64)
        self._owned = np.diff(cut.ptr)
        self.copies, self.returning, self._edges, self._cut_edges = [], [], [], []
        for index in range(cut.parts):
            part = self.part(index)
            self.copies.append(part.copies)
            self.returning.append(part.copies[part.with_in_edges(self._owned[index])])
            self._edges.append(len(part.indices))
            self._cut_edges.append(part.cut_edges)

    def part(self, index: int) -> Part:
        """The structure of one part."""
        return _structure(self.graph, self.cut, self._new_ids, self._slot, index)

    def wanted(self, rows: list[np.ndarray], index: int) -> list[np.ndarray]:
        """Of each part's ascending ids, those that part ``index`` owns."""
        begin, end = self.cut.ptr[index], self.cut.ptr[index + 1]
        return [each[np.searchsorted(each, begin) : np.searchsorted(each, end)] for each in rows]

    @cached_property
    def figures(self) -> dict:
        """The manifest's counts: cut, halo_depth, parts, nodes, edges, quality, per_part, received_rows."""
        per_part = []
        for index, copies in enumerate(self.copies):
            per_part.append(
                {
                    "owned": int(self._owned[index]),
                    "mirrors" if self.is_vertex_cut else "halo": len(copies),
                    "edges": self._edges[index],
                    "sent": sum(map(len, self.wanted(self.copies, index))),
                }
            )
            if self.is_vertex_cut:
                per_part[-1] |= {
                    "returned": len(self.returning[index]),
                    "returns": sum(map(len, self.wanted(self.returning, index))),
                }
        names = ("owned", "mirrors", "returned", "edges") if self.is_vertex_cut else ("owned", "halo", "edges")
        columns = {name: [part[name] for part in per_part] for name in names}
        if self.is_vertex_cut:
            quality = vertex_cut_quality(**columns)
        else:
            quality = edge_cut_quality(**columns, cut_edges=self._cut_edges)
        return {
            "cut": "vertex" if self.is_vertex_cut else "edge",
            "halo_depth": 0 if self.is_vertex_cut else 1,
            "parts": self.cut.parts,
            "nodes": self.graph.num_nodes,
            "edges": self.graph.num_edges,
            "quality": quality.as_dict(),
            "per_part": per_part,
            "received_rows": [np.diff(np.searchsorted(rows, self.cut.ptr)).tolist() for rows in self.copies],
        }


def _structure(graph: Graph, cut: Rows, new_ids, slot, index: int) -> Part:
    """The structure of a part; ``slot`` is an all -1 scratch array of length N, left as it was."""
    begin, end = cut.ptr[index], cut.ptr[index + 1]
    if isinstance(cut, VertexCut):
        positions = np.flatnonzero(cut.edge_part == index)
        target = new_ids[np.searchsorted(graph.indptr, positions, side="right") - 1]
    else:
        rows = cut.order[begin:end]
        degree = graph.indptr[rows + 1] - graph.indptr[rows]
        indptr = np.concatenate([[0], np.cumsum(degree)])
        positions = np.repeat(graph.indptr[rows] - indptr[:-1], degree) + np.arange(indptr[-1])
        target = np.repeat(np.arange(begin, end, dtype=new_ids.dtype), degree)
    source = new_ids[graph.indices[positions]]
    remote = (source < begin) | (source >= end)
    remote_target = (target < begin) | (target >= end)
    seen = np.zeros(graph.num_nodes, bool)
    seen[source[remote]] = True
    seen[target[remote_target]] = True
    copies = np.flatnonzero(seen)
    del seen
    slot[begin:end] = np.arange(end - begin)
    slot[copies] = np.arange(len(copies)) + (end - begin)
    held = end - begin + len(copies)
    indices = slot[source].astype(np.int32 if held < 2**31 else np.int64)
    if isinstance(cut, VertexCut):
        row = slot[target]
        by_row = np.argsort(row, kind="stable")  # within a row, edges keep the user's order
        positions, indices = positions[by_row], indices[by_row]
        indptr = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=held))])
    slot[begin:end] = -1
    slot[copies] = -1
    return Part(positions, indptr, indices, copies.astype(cut.order.dtype), int((remote | remote_target).sum()))
