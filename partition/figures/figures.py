"""Figures, what predictions know of a partition; and its quality: ratios and sums of them, for people and for reports."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.schema import Relation, Schema
from dgl_gt.partition.system.units import format_count

MEANINGS = {  # of the figures, a title and what is counted; what costs comes first: many cut edges may share a row
    "volume": ("Volume", "rows that parts send each other in one exchange"),
    "cut_ratio": ("Cut ratio", "edges whose source another part owns"),
    "cut_weight": ("Cut weight", "weight (--cut-weights) of these edges"),
    "cut_weight_ratio": ("Weight ratio", "their weight / the weight of all edges"),
    "mirrors": ("Mirrors", "copies of nodes outside their master's part"),
    "replication_factor": ("Replication", "rows held / nodes; 1 means no copies"),
    "max_copies_factor": ("Largest part", "rows that it holds / an even share of the nodes"),
    "node_balance": ("Node balance", "nodes of the fullest part / its share; 1 is perfect"),
    "edge_balance": ("Edge balance", "edges of the busiest part / its share; 1 is perfect"),
    "weight_balance": (
        "Weight balance",
        "weight of nodes (--node-weights) of the heaviest part / its share; 1 is perfect",
    ),
    "train_balance": ("Train balance", "training nodes of the fullest part / its share; 1 is perfect"),
}


@dataclass(frozen=True, eq=False)
class HostCounts:
    """Counts of an edge cut whose parts lie on G hosts: M parts on each, which are neighbours in the order of parts."""

    # int64 (G, G): halo rows of the first hop that parts of host i need of parts of host j, at [i, j]; a row that several
    # parts of host i need is counted once
    received_rows: np.ndarray
    cut_edges: np.ndarray  # int64 (G,): edges of the owned rows of a host's parts that have a source on another host


@dataclass(frozen=True)
class TypedWidths:
    """Columns of ``feat`` of each node type, 0 without, and the relations of a typed graph."""

    widths: tuple[tuple[str, int], ...]
    relations: tuple[Relation, ...]

    def as_dict(self) -> dict:
        """The widths by type, as plans show them."""
        return dict(self.widths)


@dataclass(frozen=True, eq=False)
class TypedCounts:
    """Counts of the parts of a typed graph by node type and relation, in the order of its schema.

    All are int64. A source of a relation is a row that the relation's edges read; where several relations read it, it
    counts for each.
    """

    nodes: np.ndarray  # (P, 1 + r, T): owned rows, then copies of each hop
    edges: np.ndarray  # (P, r, relations): as Figures.edges_by_hop
    sources: np.ndarray  # (P, r, relations): of the edges of this hop and of those before it
    own_sources: np.ndarray  # (P, relations): those of the first hop that the part owns
    cut_edges: np.ndarray  # (P, relations): as Figures.cut_edges
    whole_sources: np.ndarray  # (relations,): those of the whole graph

    def in_one_part(self) -> TypedCounts:
        """The counts of the same graph in one part."""
        nodes, edges = (each[:, 0].sum(axis=0)[None, None] for each in (self.nodes, self.edges))
        nodes, sources = np.concatenate([nodes, 0 * nodes], axis=1), self.whole_sources[None]
        return TypedCounts(nodes, edges, sources[None], sources, 0 * sources, self.whole_sources)


def dealt_parts(shares: np.ndarray, speeds: Sequence[float]) -> list[int]:
    """How many parts, neighbours in their order, each rank takes: at least one, and a share of the load by its speed.

    ``shares`` are the parts' own of the load, (P,), and ``speeds`` relative to each other, (R,).
    """
    parts, ranks = len(shares), len(speeds)
    ends = np.append(0, np.cumsum(shares)) / np.sum(shares)
    wanted = np.cumsum(speeds)[:-1] / np.sum(speeds)
    bounds = [0]
    for rank, share in enumerate(wanted, 1):
        nearest = int(np.abs(ends - share).argmin())
        bounds.append(min(max(nearest, bounds[-1] + 1), parts - (ranks - rank)))
    return np.diff([*bounds, parts]).tolist()


def host_sizes(parts: int) -> list[int]:
    """Numbers M > 1 of parts per host with which P parts fill two or more hosts exactly, ascending."""
    return [size for size in range(2, parts // 2 + 1) if parts % size == 0]


@dataclass(frozen=True, eq=False)
class Figures:
    """Counts of a partition into P parts, and the sizes of its data.

    They are counted when a cut is laid out or tried, stored in the manifest, and read back by
    :func:`dgl_gt.partition.read_figures`. Predictions and the selector see nothing else of a partition.

    All counts are int64. r is the number of hops of halo that the parts hold; a vertex cut has one column in place of
    them, for its mirrors.

    Attributes
    ----------
    cut : {"edge", "vertex"}
    shares : ndarray, float64, (P,)
        Share of the whole load that each part was to take; the sum is 1.
    owned : ndarray, (P,)
        Nodes that each part owns.
    edges_by_hop : ndarray, (P, r)
        Edge cut: in-edges of the owned rows, then of the halo rows of each hop but the last. Vertex cut: all edges.
    cut_edges : ndarray, (P,)
        Edges of the first column that have an end which another part owns.
    near_edges : ndarray, (P,), or None
        Edges of the first column between two rows that lie less than 1,024 rows apart in the part. None where the
        order of rows within the parts is not known yet; predictions of the selector are refused then.
    copies_by_hop : ndarray, (P, r)
        Rows that each part holds but does not own: halo rows, or mirrors.
    sent_by_hop : ndarray, (P, r)
        Owned rows that other parts hold copies of, counted once for each copy.
    sent_edges_by_hop : ndarray, (P, r)
        Edge cut: own edges that other parts hold copies of, once for each copy, by their hop in the ``edges_by_hop`` of
        those parts; the first column is 0. Vertex cut: 0.
    received_rows : ndarray, (P, P)
        Copies that part i holds of rows of part j, of all hops, at [i, j].
    hosts : dict of int to HostCounts
        Edge cut: counts of hosts of M parts, by M, for each M of :func:`host_sizes`. Empty for a vertex cut, and where
        near edges are not known.
    returned, returns : ndarray, (P,)
        Vertex cut: mirrors with in-edges that the part holds, and those of its masters that other parts hold. Edge
        cut: 0.
    returned_edges : ndarray, (P,)
        Vertex cut: in-edges of the mirrors that the part holds. Edge cut: 0.
    masked : dict of str to ndarray, (P,)
        Owned nodes that each mask selects; masks are boolean node data, one number per node.
    node_data, edge_data : dict of str to (str, tuple of int)
        Name of each column's dtype, and the shape of one of its rows.
    schema : Schema, optional
        The types of nodes and edges, where there are several.
    typed : TypedCounts, optional
        Counts by type; given with a schema.
    pieces : Figures, optional
        Those of more parts, several of which make up each part here, one after the other: see :meth:`on_ranks`.
    bounds : list of int, optional
        The first of these pieces in each part, and the number of all.
    """

    cut: str
    shares: np.ndarray
    owned: np.ndarray
    edges_by_hop: np.ndarray
    cut_edges: np.ndarray
    near_edges: np.ndarray | None
    copies_by_hop: np.ndarray
    sent_by_hop: np.ndarray
    sent_edges_by_hop: np.ndarray
    received_rows: np.ndarray
    hosts: dict[int, HostCounts]
    returned: np.ndarray
    returns: np.ndarray
    returned_edges: np.ndarray
    masked: dict[str, np.ndarray]
    node_data: dict[str, tuple[str, tuple[int, ...]]]
    edge_data: dict[str, tuple[str, tuple[int, ...]]]
    schema: Schema | None = None
    typed: TypedCounts | None = None
    pieces: Figures | None = None
    bounds: list[int] | None = None

    def __post_init__(self):
        parts = (len(self.owned),)
        of_parts = [
            self.shares,
            self.cut_edges,
            self.returned,
            self.returns,
            self.returned_edges,
            *self.masked.values(),
        ]
        of_parts += [] if self.near_edges is None else [self.near_edges]
        by_hop = self.edges_by_hop, self.copies_by_hop, self.sent_by_hop, self.sent_edges_by_hop
        fits = all(each.shape == parts for each in of_parts) and self.received_rows.shape == parts * 2
        if not (fits and all(each.shape == (*parts, by_hop[0].shape[-1]) for each in by_hop)):
            raise ValueError("counts of a partition differ in their number of parts or hops")

    @property
    def parts(self) -> int:
        """P."""
        return len(self.owned)

    @property
    def nodes(self) -> int:
        """Nodes of the whole graph."""
        return int(self.owned.sum())

    @property
    def edges(self) -> np.ndarray:
        """Edges that each part owns, (P,)."""
        return self.edges_by_hop[:, 0]

    @property
    def halo_depth(self) -> int:
        """Hops of halo that the parts hold; 0 for a vertex cut."""
        return self.edges_by_hop.shape[1] if self.cut == "edge" else 0

    @property
    def features(self) -> int | TypedWidths:
        """Columns of the node data ``feat``; 0 without ``feat``, or if it is one number per node. Of a typed graph, by type."""
        return features_of(self.node_data, self.schema)

    @property
    def feature_bytes(self) -> float:
        """Size of ``feat`` per node (bytes)."""
        return self._row_bytes("node", {name: each for name, each in self.node_data.items() if _is_feat(name)})

    @property
    def node_bytes(self) -> float:
        """Size of all other node data per node (bytes)."""
        return self._row_bytes("node", {name: each for name, each in self.node_data.items() if not _is_feat(name)})

    @property
    def edge_bytes(self) -> float:
        """Size of all edge data per edge (bytes)."""
        return self._row_bytes("edge", self.edge_data)

    def _row_bytes(self, kind: str, columns: dict[str, tuple[str, tuple[int, ...]]]) -> float:
        """Size of one row of columns (bytes); data of a type count by its share of all rows."""
        total = 0.0
        for name, (dtype, shape) in columns.items():
            row = np.dtype(dtype).itemsize * math.prod(shape)
            if self.schema is not None:
                rows, whole = self.schema.rows_of(kind, name), self.schema.rows_of(kind, "")
                row = row * (rows.stop - rows.start) / max(whole.stop, 1)
            total += row
        return total

    def held_within(self, hops: int) -> np.ndarray:
        """Owned rows and copies of the first hops, (P,)."""
        return self.owned + self.copies_within(hops)

    def copies_within(self, hops: int) -> np.ndarray:
        """Copies of the first hops that each part holds, (P,)."""
        return self.copies_by_hop[:, :hops].sum(axis=1)

    def sent_within(self, hops: int) -> np.ndarray:
        """Rows that each part sends to fill the first hops of all others, (P,)."""
        return self.sent_by_hop[:, :hops].sum(axis=1)

    def edges_within(self, hops: int) -> np.ndarray:
        """Edges of the first columns of ``edges_by_hop``, (P,): those that reach that many hops."""
        return self.edges_by_hop[:, :hops].sum(axis=1)

    @property
    def with_pieces(self) -> Figures:
        """These figures; without ``pieces``, each part is one."""
        return self if self.pieces else self.on_ranks(self.parts)

    def on_ranks(self, ranks: int) -> Figures:
        """Figures of an edge cut whose parts share fewer ranks, as many on each; these are its ``pieces``.

        Raises
        ------
        InputError
            The parts cannot be shared out evenly.
        """
        if self.parts % ranks:
            raise InputError(
                f"{format_count(ranks, 'rank')} cannot take {format_count(self.parts, 'part')} evenly; choose a number of ranks that "
                "divides the parts"
            )
        per_rank = self.parts // ranks
        pieces = {"pieces": self, "bounds": list(range(0, self.parts + 1, per_rank))}
        if ranks == self.parts:
            return replace(self, **pieces)
        if ranks == 1:
            return replace(self.in_one_part(), **pieces)
        host = self.hosts[per_rank]

        def sums(counts: np.ndarray) -> np.ndarray:
            return counts.reshape(ranks, -1).sum(axis=1)

        edges, none = sums(self.edges)[:, None], np.zeros((ranks, 1), np.int64)
        return replace(
            self,
            shares=sums(self.shares),
            owned=sums(self.owned),
            edges_by_hop=edges,
            cut_edges=host.cut_edges,
            near_edges=None if self.near_edges is None else sums(self.near_edges),
            copies_by_hop=host.received_rows.sum(axis=1)[:, None],
            sent_by_hop=host.received_rows.sum(axis=0)[:, None],
            sent_edges_by_hop=none,
            received_rows=host.received_rows,
            hosts={size: self.hosts[size * per_rank] for size in host_sizes(ranks)},
            masked={name: sums(column) for name, column in self.masked.items()},
            **dict.fromkeys(("returned", "returns", "returned_edges"), none[:, 0]),
            **pieces,
        )

    def in_one_part(self) -> Figures:
        """Figures of the same graph in one part; its near edges are those of the parts."""
        one, none = np.ones(1, np.int64), np.zeros(1, np.int64)
        return replace(
            self,
            cut="edge",
            pieces=None,
            bounds=None,
            shares=np.ones(1),
            owned=one * self.owned.sum(),
            edges_by_hop=one[:, None] * self.edges.sum(),
            near_edges=None if self.near_edges is None else one * self.near_edges.sum(),
            hosts={},
            masked={name: one * column.sum() for name, column in self.masked.items()},
            typed=None if self.typed is None else self.typed.in_one_part(),
            **dict.fromkeys(("cut_edges", "returned", "returns", "returned_edges"), none),
            **dict.fromkeys(("copies_by_hop", "sent_by_hop", "sent_edges_by_hop", "received_rows"), none[:, None]),
        )


def features_of(node_data: dict, schema: Schema | None = None) -> int | TypedWidths:
    """Columns of ``feat`` among node data, see :attr:`Figures.node_data`; 0 without ``feat``, or if its rows are no vectors."""
    if schema is not None:
        widths = tuple((name, _width(node_data, f"{name}/feat")) for name in schema.node_types)
        return TypedWidths(widths, schema.relations)
    return _width(node_data, "feat")


def _width(node_data: dict, name: str) -> int:
    _, shape = node_data.get(name, ("", ()))
    return shape[0] if len(shape) == 1 else 0


def _is_feat(name: str) -> bool:
    return name.rpartition("/")[2] == "feat"


def edge_cut_quality(owned, halo, edges, cut_edges, shares=None, train=None) -> dict:
    """The quality of an edge cut, as docs/format.md describes it.

    All arguments have one entry for each part, (P,): owned nodes, halo rows, edges, edges with a source in another
    part, the share of the whole load that the part was to take, equal by default, and, (P, splits), training nodes.
    """
    return {
        "volume": int(np.sum(halo)),
        **_of_both_cuts(owned, halo, edges, shares, train),
        "cut_ratio": int(np.sum(cut_edges)) / max(int(np.sum(edges)), 1),
        "halo": int(np.sum(halo)),
    }


def vertex_cut_quality(owned, mirrors, returned, edges, shares=None, train=None) -> dict:
    """The same of a vertex cut; ``returned`` are mirrors with in-edges."""
    return {
        "volume": int(np.sum(mirrors)) + int(np.sum(returned)),
        **_of_both_cuts(owned, mirrors, edges, shares, train),
        "mirrors": int(np.sum(mirrors)),
    }


def _of_both_cuts(owned, copies, edges, shares, train) -> dict[str, float | None]:
    owned, copies, edges = (np.asarray(counts, dtype=np.int64) for counts in (owned, copies, edges))
    parts, held = len(owned), owned + copies
    shares = np.full(parts, 1 / parts) if shares is None else np.asarray(shares)
    return {
        "replication_factor": int(held.sum()) / int(owned.sum()),
        "max_copies_factor": int(held.max()) * parts / int(owned.sum()),
        "node_balance": balance_of(owned, shares),
        "edge_balance": balance_of(edges, shares),
        "train_balance": None if train is None else max(balance_of(split, shares) for split in np.asarray(train).T),
    }


def balance_of(counts: np.ndarray, shares: np.ndarray) -> float:
    """The largest count over its share of the sum."""
    return float((counts / shares).max() / counts.sum()) if counts.sum() else 1.0
