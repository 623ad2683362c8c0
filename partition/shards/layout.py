"""Who holds what: the rows, edges and copies of each part of a cut, and the figures of the whole; and which cut to keep."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dgl_gt.partition.cuts.edge_cut import EdgeCut
from dgl_gt.partition.cuts.permutation import (
    columns_of,
    count_edge_cut,
    count_masked,
    count_near,
    in_edges,
    row_type,
    training_nodes,
)
from dgl_gt.partition.cuts.vertex_cut import VertexCut
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.figures.costs import Costs
from dgl_gt.partition.figures.figures import Figures, TypedCounts, edge_cut_quality, vertex_cut_quality
from dgl_gt.partition.figures.mapping import best_mapping
from dgl_gt.partition.figures.profile import Profile
from dgl_gt.partition.graph import Graph
from dgl_gt.partition.schema import Schema
from dgl_gt.partition.sources.coo import COOGraph
from dgl_gt.partition.system.distinct import unique
from dgl_gt.partition.system.units import format_bytes


@dataclass(frozen=True)
class Part:
    """Structure of one part. Within a row, edges keep the user's order."""

    edge_ids: np.ndarray  # the user's edge ids, row by row, (E,)
    # in-edges of each row, int64, (rows + 1,): of the owned rows and of the rings but the last, or of all held rows of
    # a vertex cut
    indptr: np.ndarray
    indices: np.ndarray  # rows of the sources, (E,); owned rows come first, then those of each ring
    rings: list[np.ndarray]  # new ids that the part holds but does not own, ascending: one ring per hop, or the mirrors

    @property
    def copies(self) -> np.ndarray:
        """New ids of all rings, one after the other."""
        return np.concatenate(self.rings)


class Layout:
    """A cut laid out: the figures and the copies of all parts, and the structure of one part at a time.

    Of a graph whose cut has a ``part_edges`` method of its own (:class:`dgl_gt.partition.cuts.streamed_cut.StreamedCut`), only
    the counts and the data are read. ``rings``, P x depth, are the new ids that each part holds but does not own, hop
    by hop, ascending. ``returning`` are each part's mirrors that have in-edges and therefore send a result to their
    master; it is empty for an edge cut.
    """

    def __init__(self, graph: Graph, cut: EdgeCut | VertexCut, depth: int = 1):
        self.graph, self.cut = graph, cut if graph.schema is None else cut.by_type(graph.schema)
        cut = self.cut
        self.is_vertex_cut = isinstance(cut, VertexCut)
        self._new_ids = cut.new_ids()
        self._slot = np.full(graph.num_nodes, -1, row_type(graph.num_nodes))  # row of each new id in the part at hand
        if self.is_vertex_cut:
            self.figures, self.rings, self.returning = _count_vertex_cut(self)
        else:
            self.figures, self.rings = count_edge_cut(graph, cut.order, cut.ptr, cut.shares, depth)
            self.returning = []
        if graph.schema is not None:
            self.figures = replace(self.figures, schema=graph.schema, typed=_count_types(self, graph.schema))

    def part(self, index: int) -> Part:
        """The structure of one part."""
        if self.is_vertex_cut:
            return _with_mirrors(self, index)
        order = self.cut.order, self._new_ids, self._slot
        return part_with_halo(self.graph, *order, self.cut.ptr, index, self.rings[index])

    def wanted(self, rows: Iterable[np.ndarray], index: int) -> list[np.ndarray]:
        """From each part's ascending list of ids, return those that part ``index`` owns."""
        begin, end = self.cut.ptr[index], self.cut.ptr[index + 1]
        return [each[np.searchsorted(each, begin) : np.searchsorted(each, end)] for each in rows]

    def by_owner(self, ids: np.ndarray) -> np.ndarray:
        """How many of some ascending new ids each part owns, int64, (P,)."""
        return np.diff(np.searchsorted(ids, self.cut.ptr))

    @cached_property
    def quality(self) -> dict:
        """The quality of the cut."""
        figures = self.figures
        copies, shared = figures.copies_by_hop.sum(axis=1), {"shares": figures.shares, "train": self._train()}
        if self.is_vertex_cut:
            return vertex_cut_quality(figures.owned, copies, figures.returned, figures.edges, **shared)
        quality = edge_cut_quality(figures.owned, copies, figures.edges, figures.cut_edges, **shared)
        assert isinstance(self.cut, EdgeCut)
        return quality | self.cut.of_weights

    def _train(self) -> np.ndarray | None:
        """Training nodes of each part and split, (P, splits)."""
        splits = training_nodes(self.graph)
        if splits is None:
            return None
        ends = zip(self.cut.ptr[:-1], self.cut.ptr[1:])
        return np.stack([splits[self.cut.order[begin:end]].sum(axis=0) for begin, end in ends])


def mapped_layout(graph: Graph, cut: EdgeCut | VertexCut, depth: int, costs: Costs, profile: Profile | None) -> Layout:
    """The layout of a cut; with a profile, every part has the number of the rank that suits it best."""
    layout = Layout(graph, cut, depth)
    if profile is None or cut.mapping is not None or cut.parts == 1:
        return layout
    return Layout(graph, cut.mapped(best_mapping(layout.figures, costs, profile)), depth)


def part_with_halo(graph: Graph, order, new_ids, slot, ptr, index: int, rings: list[np.ndarray]) -> Part:
    """A part of an edge cut: the in-edges of its owned rows, then those of each ring but the last.

    ``slot``, (N,), holds -1 everywhere, before and after.
    """
    owned = np.arange(ptr[index], ptr[index + 1])
    held = np.concatenate([owned, *rings])
    indptr, positions = in_edges(graph, order[np.concatenate([owned, *rings[:-1]])])
    slot[held] = np.arange(len(held))
    indices = slot[new_ids[graph.indices[positions]]].astype(row_type(len(held)), copy=False)
    slot[held] = -1
    return Part(graph.edge_ids[positions], indptr, indices, rings)


def _with_mirrors(layout: Layout, index: int) -> Part:
    """A part of a vertex cut: its edges, by the rows of all nodes that they touch."""
    cut, new_ids, slot = layout.cut, layout._new_ids, layout._slot
    assert isinstance(cut, VertexCut)
    source, target, edge_ids = cut.part_edges(layout.graph, index)
    ends = [new_ids[source], new_ids[target]]
    del source, target
    part = part_with_mirrors(ends, edge_ids, slot, int(cut.ptr[index]), int(cut.ptr[index + 1]))
    return replace(part, rings=[part.rings[0].astype(cut.order.dtype)])


def part_with_mirrors(ends: list[np.ndarray], edge_ids: np.ndarray, slot: np.ndarray, begin: int, end: int) -> Part:
    """A part of a vertex cut that is the master of the new ids ``begin`` to ``end``.

    ``ends`` are the new ids of the sources and destinations of its edges; the list is emptied, as these take memory.
    ``slot``, (N,), holds -1 everywhere, before and after.
    """
    target, source = ends.pop(), ends.pop()
    is_mirror = np.zeros(len(slot), bool)
    for ids in (source, target):
        is_mirror[ids] = True
    is_mirror[begin:end] = False
    mirrors = np.flatnonzero(is_mirror)
    del is_mirror
    slot[begin:end] = np.arange(end - begin)
    slot[mirrors] = np.arange(len(mirrors)) + (end - begin)
    held = end - begin + len(mirrors)
    row, indices = slot[target], slot[source].astype(row_type(held), copy=False)
    del source, target
    slot[begin:end] = -1
    slot[mirrors] = -1
    indptr = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=held))])
    by_row = np.argsort(row, kind="stable")
    return Part(edge_ids[by_row], indptr, indices[by_row], [mirrors])


def _count_vertex_cut(layout: Layout) -> tuple[Figures, list[list[np.ndarray]], list[np.ndarray]]:
    """Figures of a vertex cut, the mirrors of each part, and those of them that have in-edges."""
    cut = layout.cut
    counts, rings, returning = [], [], []
    for index, owned in enumerate(np.diff(cut.ptr)):
        part = layout.part(index)
        counts.append(count_mirrored(part, owned))
        rings.append(part.rings)
        returning.append(part.rings[0][np.diff(part.indptr)[owned:] > 0])
    received, returned = (
        np.stack([layout.by_owner(each) for each in ids]) for ids in ([each[0] for each in rings], returning)
    )
    masked, columns = count_masked(layout.graph, cut.order, cut.ptr), columns_of(layout.graph)
    return vertex_cut_figures(counts, received, returned, cut.ptr, cut.shares, masked, columns), rings, returning


def count_mirrored(part: Part, owned: int) -> np.ndarray:
    """The edges of a part of a vertex cut, int64 (4,): all, cut ones, near ones, and those into mirrors."""
    rows = np.repeat(np.arange(len(part.indptr) - 1, dtype=part.indices.dtype), np.diff(part.indptr))
    cut = np.count_nonzero((rows >= owned) | (part.indices >= owned))
    return np.array([len(rows), cut, count_near(rows, part.indices), np.count_nonzero(rows >= owned)])


def vertex_cut_figures(counts, received, returned, ptr: np.ndarray, shares: np.ndarray, masked, columns) -> Figures:
    """The figures of a vertex cut from :func:`count_mirrored` of its parts.

    ``received`` and ``returned``, (P, P), are the mirrors of each part by their master, and those of them with in-edges.
    """
    parts, (edges, cut_edges, near_edges, returned_edges) = len(counts), np.stack(counts, axis=1)
    return Figures(
        cut="vertex",
        shares=shares,
        owned=np.diff(ptr),
        edges_by_hop=edges[:, None],
        cut_edges=cut_edges,
        near_edges=near_edges,
        copies_by_hop=received.sum(axis=1)[:, None],
        sent_by_hop=received.sum(axis=0)[:, None],
        sent_edges_by_hop=np.zeros((parts, 1), np.int64),
        received_rows=received,
        hosts={},
        returned=returned.sum(axis=1),
        returns=returned.sum(axis=0),
        returned_edges=returned_edges,
        masked=masked,
        **columns,
    )


def _count_types(layout: Layout, schema: Schema) -> TypedCounts:
    """The counts of each part by node type and relation."""
    counts = []
    for index, edges_by_hop in enumerate(layout.figures.edges_by_hop):
        part, owned = layout.part(index), np.arange(*layout.cut.ptr[index : index + 2])
        counts.append(
            count_part_by_type(part, [layout.cut.order[ids] for ids in (owned, *part.rings)], edges_by_hop, schema)
        )
    nodes, edges, sources, own_sources, cut_edges = map(np.stack, zip(*counts))
    return TypedCounts(nodes, edges, sources, own_sources, cut_edges, _whole_sources(layout.graph, schema))


def count_part_by_type(
    part: Part, node_ids: list[np.ndarray], edges_by_hop: np.ndarray, schema: Schema
) -> tuple[np.ndarray, ...]:
    """What a part adds to the fields of :class:`TypedCounts`, but for the last, in their order.

    ``node_ids`` are the user's ids of the owned rows, then of those of each ring.
    """
    types, relations, own = len(schema.nodes), len(schema.edges), len(node_ids[0])
    nodes = np.stack([np.bincount(schema.type_of(ids), minlength=types) for ids in node_ids])
    relation, ends = schema.relation_of(part.edge_ids), np.cumsum(edges_by_hop)
    held = sum(map(len, node_ids))
    rows = np.repeat(np.arange(len(part.indptr) - 1), np.diff(part.indptr))[: ends[0]]
    is_cut = (part.indices[: ends[0]] >= own) | (rows >= own)
    cut_edges = np.bincount(relation[: ends[0]][is_cut], minlength=relations)
    edges, sources, own_sources = [], [], np.zeros(relations, np.int64)
    for hop, (begin, end) in enumerate(zip([0, *ends], ends)):
        edges.append(np.bincount(relation[begin:end], minlength=relations))
        pairs = unique(relation[:end] * held + part.indices[:end])
        sources.append(np.bincount(pairs // held, minlength=relations))
        if hop == 0:
            own_sources = np.bincount(pairs[pairs % held < own] // held, minlength=relations)
    return nodes, np.stack(edges), np.stack(sources), own_sources, cut_edges


def _whole_sources(graph: Graph | COOGraph, schema: Schema) -> np.ndarray:
    """How many nodes are sources of each relation, int64, (relations,)."""
    counts = np.zeros(len(schema.edges), np.int64)
    src = graph.edges()[0] if isinstance(graph, Graph) else graph.src  # of a graph that is read in slices
    for number, (begin, end) in enumerate(zip(schema.edge_ptr, schema.edge_ptr[1:])):
        counts[number] = len(unique(src[begin:end]))
    return counts


# ---- which cut to keep -------------------------------------------------------------------------------------------------


def choose_cut(
    layouts: list[Layout], costs: Costs, rank_memory: int | None = None, profile: Profile | None = None
) -> dict:
    """Return the manifest's ``choice``: the cut of the lowest predicted step time among those that fit.

    With a profile, steps are predicted for its ranks and links.

    A cut fits if its largest part needs at most ``rank_memory`` bytes. Where none does, the one that needs least is
    chosen, and :func:`check_memory` refuses it.
    """
    candidates: list[dict] = [
        {
            "cut": layout.figures.cut,
            "predicted_seconds": costs.step_seconds(layout.figures, profile),
            "rank_memory_bytes": _largest_rank_bytes(layout.figures, costs),
            "quality": layout.quality,
        }
        for layout in layouts
    ]
    fitting = [each for each in candidates if rank_memory is None or each["rank_memory_bytes"] <= rank_memory]
    best = min(fitting or candidates, key=lambda each: each["predicted_seconds" if fitting else "rank_memory_bytes"])
    sent = {layout.figures.cut: costs.sent_bytes(layout.figures) for layout in layouts}
    return {
        "cut": best["cut"],
        "reason": _reason(best, candidates, sent, rank_memory),
        "model": costs.model,
        "profile": costs.profile if profile is None else profile.name,
        "candidates": candidates,
    }


def check_memory(figures: Figures, costs: Costs, rank_memory: int | None, *, is_only: bool) -> None:
    """Raise :class:`InputError` where the largest part of a cut needs more than ``rank_memory`` bytes.

    Unless it is the only cut that was made, it is the one that needs least.
    """
    needed = _largest_rank_bytes(figures, costs)
    if rank_memory is not None and needed > rank_memory:
        which = f"the {figures.cut} cut does not fit" if is_only else "no cut fits"
        other = "try cut='auto' (--cut auto), " if is_only else ""
        raise InputError(
            f"{which} ranks of {format_bytes(rank_memory)}: the {figures.cut} cut needs about {format_bytes(needed)} for its largest "
            f"part; make more parts, {other}or raise rank_memory (--rank-memory)"
        )


def _largest_rank_bytes(figures: Figures, costs: Costs) -> int:
    return int(costs.rank_memory_bytes(figures).max())


def _reason(best: dict, candidates: list[dict], sent: dict[str, int], rank_memory: int | None) -> str:
    others = [each for each in candidates if each is not best]
    if not others:
        return f"the {best['cut']} cut is the only one that the memory bound allows"
    other = others[0]
    held, edges = ([each["quality"][key] for each in (best, other)] for key in ("max_copies_factor", "edge_balance"))
    reason = (
        f"a step is predicted to take {best['predicted_seconds']:.3g} s with the {best['cut']} cut and "
        f"{other['predicted_seconds']:.3g} s with the {other['cut']} cut; a step sends {format_bytes(sent[best['cut']])} and "
        f"{format_bytes(sent[other['cut']])}, and the largest part holds {held[0]:.2f} and {held[1]:.2f} times an even share of "
        f"the nodes and {edges[0]:.2f} and {edges[1]:.2f} times an even share of the edges"
    )
    if rank_memory is not None and other["rank_memory_bytes"] > rank_memory:
        reason += (
            f"; the {other['cut']} cut does not fit: its largest part needs about {format_bytes(other['rank_memory_bytes'])}, "
            f"and a rank has {format_bytes(rank_memory)}"
        )
    return reason
