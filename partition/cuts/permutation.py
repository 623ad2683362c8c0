"""The order of rows: each part owns a slice of the new node ids. And the counts of an edge cut in such an order."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TypeVar

import numpy as np

from dgl_gt.partition.errors import InputError, whole_number
from dgl_gt.partition.figures.figures import Figures, HostCounts, host_sizes
from dgl_gt.partition.figures.mapping import Mapping
from dgl_gt.partition.graph import Graph
from dgl_gt.partition.schema import Schema
from dgl_gt.partition.system.distinct import unique

_CHUNK_ROWS = 1 << 14  # rows whose in-edges are looked at together
NEAR_ROWS = 1024  # rows less than this far apart are near: a processor's caches hold what lies between them
Cut = TypeVar("Cut", bound="Permutation")


@dataclass(frozen=True)
class Permutation:
    """A permutation of the nodes with slice pointers: part i owns the new ids ``ptr[i]:ptr[i + 1]``."""

    order: np.ndarray  # the user's node id of each new id, (N,)
    ptr: np.ndarray  # slice pointers, int64, (P + 1,)
    mapping: Mapping | None = field(
        default=None, kw_only=True
    )  # how parts were given to ranks; None: as they were made

    @property
    def parts(self) -> int:
        """The number of parts, P."""
        return len(self.ptr) - 1

    def mapped(self: Cut, mapping: Mapping) -> Cut:
        """Return the cut with every part renumbered to its rank."""
        rank_of_part = np.array(mapping.rank_of_part)
        parts = np.argsort(rank_of_part)  # the part of each rank
        order = np.concatenate([self.order[self.ptr[part] : self.ptr[part + 1]] for part in parts])
        ptr = np.concatenate([[0], np.cumsum(np.diff(self.ptr)[parts])])
        return replace(self, order=order, ptr=ptr, mapping=mapping, **self._renumbered(rank_of_part, parts))

    def _renumbered(self, rank_of_part: np.ndarray, parts: np.ndarray) -> dict:
        """The other fields that have one entry per part or name parts, renumbered; ``parts`` is the part of each rank."""
        return {}

    def by_type(self: Cut, schema: Schema) -> Cut:
        """Return the cut with the rows of each part type by type, otherwise in the same order."""
        types, order = schema.type_of(self.order), self.order.copy()
        for begin, end in pairwise(self.ptr):
            order[begin:end] = self.order[begin:end][np.argsort(types[begin:end], kind="stable")]
        return replace(self, order=order)

    def new_ids(self) -> np.ndarray:
        """Return the new id of each of the user's node ids, (N,)."""
        new = np.empty_like(self.order)
        new[self.order] = np.arange(len(self.order), dtype=self.order.dtype)
        return new


def slice_pointers(owner: np.ndarray, parts: int) -> np.ndarray:
    """Return where the rows of each part begin and end, int64, (P + 1,), from the part of each node, (N,)."""
    return np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=parts))]).astype(np.int64)


def check_parts(num_nodes: int, parts) -> int:
    """Return the number of parts as an int; raise :class:`InputError` unless every part can have a node."""
    number = whole_number("parts", parts)
    if not 1 <= number <= num_nodes:
        raise InputError(f"cannot split {num_nodes} nodes into {parts} parts; choose 1 to {num_nodes} parts")
    return number


# ---- counts ------------------------------------------------------------------------------------------------------------


def count_assignment(graph: Graph, owner: np.ndarray, shares: np.ndarray) -> Figures:
    """Figures of an assignment of nodes to parts, (N,), with one hop of halo; its near edges are not known yet."""
    order = np.argsort(owner, kind="stable").astype(graph.indices.dtype)
    ptr = slice_pointers(owner, len(shares))
    return count_edge_cut(graph, order, ptr, shares, is_ordered=False)[0]


def count_edge_cut(
    graph: Graph, order: np.ndarray, ptr: np.ndarray, shares: np.ndarray, depth: int = 1, *, is_ordered: bool = True
) -> tuple[Figures, list[list[np.ndarray]]]:
    """Count what each part of an edge cut owns, holds with ``depth`` hops of halo and sends, and its edges.

    Also returns the new ids of the halo rows of each part, hop by hop, ascending: P x depth arrays. Near edges
    and counts of hosts are made only if the parts and the rows within them have their final order (``is_ordered``).
    """
    new_ids = np.empty_like(order)
    new_ids[order] = np.arange(len(order), dtype=order.dtype)
    slot = np.full(graph.num_nodes, -1, row_type(graph.num_nodes))  # row of each new id in the current part
    counts, rings = [], []
    for part in range(len(shares)):
        of_part, halo = count_part(graph, order, new_ids, slot, ptr, part, depth, is_ordered=is_ordered)
        counts.append(of_part)
        rings.append(halo)
    masked = count_masked(graph, order, ptr)
    of_hosts = [halo[0] for halo in rings] if is_ordered else None
    return edge_cut_figures(counts, of_hosts, ptr, shares, masked, columns_of(graph)), rings


@dataclass(frozen=True)
class PartCounts:
    """What one part of an edge cut counts."""

    edges: np.ndarray  # int64 (depth,): in-edges of the owned rows, then of the halo rows of each hop but the last
    edges_from: np.ndarray  # int64 (P,): in-edges of the owned rows whose source another part owns, by that part
    received: np.ndarray  # int64 (depth, P): halo rows by their owner
    copied_edges: np.ndarray  # int64 (depth, P): in-edges of halo rows that the part holds, by their owner
    near_edges: np.ndarray  # int64 (1,): 0 where the order of rows is not final


def count_part(
    graph: Graph, order, new_ids, slot, ptr, part: int, depth: int, *, is_ordered: bool = True
) -> tuple[PartCounts, list[np.ndarray]]:
    """Count one part of an edge cut, and return its rings: the new ids of its halo rows, hop by hop, ascending.

    ``slot``, (N,), holds -1 everywhere, before and after.
    """
    begin, end = int(ptr[part]), int(ptr[part + 1])
    edges, edges_from, halo = _count_edges(graph, order, new_ids, slot, ptr, part, depth)
    received = np.stack([np.diff(np.searchsorted(ring, ptr)) for ring in halo])
    copied_edges, near_edges = np.zeros_like(received), 0
    for hop, ring in enumerate(halo[:-1], start=1):
        copied = np.concatenate([[0], np.cumsum(_in_degrees(graph, order[ring]))])
        copied_edges[hop] = np.diff(copied[np.searchsorted(ring, ptr)])
    if is_ordered:
        chunks = _sources(graph, order[begin:end])
        near_edges = sum(count_near(rows, slot[new_ids[sources]]) for rows, sources in chunks)
    for ids in (slice(begin, end), *halo):
        slot[ids] = -1
    return PartCounts(np.array(edges, np.int64), edges_from, received, copied_edges, np.array([near_edges])), halo


def edge_cut_figures(
    counts: list[PartCounts], halo: list[np.ndarray] | None, ptr: np.ndarray, shares: np.ndarray, masked, columns
) -> Figures:
    """The figures of an edge cut from the counts of its parts.

    ``halo`` are the new ids of each part's first ring, ascending; None where the order of rows is not final.
    """
    parts = len(counts)
    received, edges_from = (np.stack([getattr(each, name) for each in counts]) for name in ("received", "edges_from"))
    return Figures(
        cut="edge",
        shares=np.asarray(shares, np.float64),
        owned=np.diff(ptr),
        edges_by_hop=np.stack([each.edges for each in counts]),
        cut_edges=edges_from.sum(axis=1),
        near_edges=None if halo is None else np.concatenate([each.near_edges for each in counts]),
        copies_by_hop=received.sum(axis=2),
        sent_by_hop=received.sum(axis=0).T,
        sent_edges_by_hop=np.sum([each.copied_edges for each in counts], axis=0).T,
        received_rows=received.sum(axis=1),
        hosts={} if halo is None else _count_hosts(ptr, halo, edges_from),
        returned=np.zeros(parts, np.int64),
        returns=np.zeros(parts, np.int64),
        returned_edges=np.zeros(parts, np.int64),
        masked=masked,
        **columns,
    )


def _count_edges(graph: Graph, order, new_ids, slot, ptr, part: int, depth: int):
    """Edges by hop, cut edges by the part of their source, (P,), and the rings of one part.

    ``slot`` gets the row of each node that the part holds.
    """
    parts, (begin, end) = len(ptr) - 1, ptr[part : part + 2].tolist()
    slot[begin:end] = np.arange(end - begin)
    held, rows = end - begin, np.arange(begin, end)
    edges, edges_from, rings = [0] * depth, np.zeros(parts, np.int64), []
    for hop in range(depth):
        is_source = np.zeros(graph.num_nodes, bool)
        for _, sources in _sources(graph, order[rows]):
            sources = new_ids[sources]
            is_source[sources] = True
            edges[hop] += len(sources)
            if hop == 0:
                remote = sources[(sources < begin) | (sources >= end)]
                edges_from += np.bincount(np.searchsorted(ptr, remote, "right") - 1, minlength=parts)
        rows = np.flatnonzero(is_source & (slot < 0))
        slot[rows] = np.arange(held, held + len(rows))
        held += len(rows)
        rings.append(rows.astype(order.dtype))
    return edges, edges_from, rings


def _count_hosts(ptr: np.ndarray, halo: list[np.ndarray], edges_from: np.ndarray) -> dict[int, HostCounts]:
    """Counts of hosts of several parts: from the halo rows of each part, and the edges of part i from part j, (P, P)."""
    parts, found = len(halo), {}
    for size in host_sizes(parts):
        hosts = parts // size
        received = np.zeros((hosts, hosts), np.int64)
        for host in range(hosts):
            rows = unique(np.concatenate(halo[host * size : (host + 1) * size]))
            received[host] = np.diff(np.searchsorted(rows, ptr[::size]))
        edges = edges_from.reshape(hosts, size, hosts, size).sum(axis=(1, 3))
        for counts in (received, edges):
            np.fill_diagonal(counts, 0)
        found[size] = HostCounts(received, edges.sum(axis=1))
    return found


def _sources(graph: Graph, nodes: np.ndarray):
    """For some nodes at a time: the place of each in-edge's destination among the nodes, and the edge's source."""
    for start in range(0, len(nodes), _CHUNK_ROWS):
        indptr, positions = in_edges(graph, nodes[start : start + _CHUNK_ROWS])
        places = np.repeat(np.arange(start, start + len(indptr) - 1), np.diff(indptr))
        yield places, graph.indices[positions]


def in_edges(graph: Graph, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pointers to the in-edges of nodes, int64, (n + 1,), and the positions of these edges in the graph, (E,)."""
    degrees = _in_degrees(graph, nodes)
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    return indptr, np.repeat(graph.indptr[nodes] - indptr[:-1], degrees) + np.arange(indptr[-1])


def _in_degrees(graph: Graph, nodes: np.ndarray) -> np.ndarray:
    return graph.indptr[nodes + 1] - graph.indptr[nodes]


def count_near(rows: np.ndarray, other_rows: np.ndarray) -> int:
    """Edges whose two rows lie near each other."""
    return int(np.count_nonzero(np.abs(rows - other_rows) < NEAR_ROWS))


def count_masked(graph, order: np.ndarray, ptr: np.ndarray) -> dict[str, np.ndarray]:
    """For each mask of a graph, the owned nodes of each part that it selects, int64, (P,)."""
    masks = {name: value for name, value in graph.node_data.items() if value.dtype == bool and value.ndim == 1}
    return {
        name: np.array([np.count_nonzero(mask[order[begin:end]]) for begin, end in pairwise(ptr)], np.int64)
        for name, mask in ((name, on_all_nodes(graph, name, mask)) for name, mask in masks.items())
    }


def on_all_nodes(graph, name: str, column: np.ndarray) -> np.ndarray:
    """A column of node data, of a type or of all, with a row for each node; those of other types are 0."""
    if graph.schema is None or len(column) == graph.num_nodes:
        return column
    whole = np.zeros((graph.num_nodes, *column.shape[1:]), column.dtype)
    whole[graph.schema.rows_of("node", name)] = column
    return whole


def training_nodes(graph) -> np.ndarray | None:
    """The training nodes of each split, of any type, bool (N, splits); None for a graph without."""
    names = [name for name in graph.node_data if name.rpartition("/")[2] == "train_mask"]
    if not names:
        return None
    masks = [on_all_nodes(graph, name, graph.node_data[name]) for name in names]
    masks = [each.reshape(len(each), math.prod(each.shape[1:])) for each in masks]
    return np.concatenate(masks, axis=1) if len({each.shape for each in masks}) > 1 else np.logical_or.reduce(masks)


def row_type(held: int) -> type[np.int32 | np.int64]:
    """The integer type of ids of this many rows."""
    return np.int32 if held < 2**31 else np.int64


def columns_of(graph) -> dict[str, dict]:
    """The columns of a graph's data, for :class:`dgl_gt.partition.figures.figures.Figures`."""
    return {
        kind: {name: (value.dtype.name, value.shape[1:]) for name, value in getattr(graph, kind).items()}
        for kind in ("node_data", "edge_data")
    }
