"""Vertex cut: every edge gets one owner; a node touched by edges of several parts has one master and mirrors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from partition.errors import InputError
from partition.graph import Graph, symmetrised

from . import metis, native
from .edge_cut import CLUSTER_NODES, Rows, check_parts

_SLACK = 1.05  # a part's edges over the mean, at most
_BALANCE = 0.3  # of HDRF's score; larger values copy more for a balance that the cap gives already
_LEVEL_ROUNDS = 10
_LEVEL_DEGREE = 64  # nodes of more edges rarely leave a part without new copies
LARGEST_ID = 2**31 - 1


@dataclass(frozen=True)
class VertexCut(Rows):
    """Masters as a permutation of the nodes and slice pointers, and the part of every edge.

    Attributes
    ----------
    order : ndarray of integers, (N,)
        ``order[new id]`` is the user's node id.
    ptr : ndarray, int64, (K + 1,)
        Part i is the master of the new ids ``ptr[i]:ptr[i + 1]``.
    edge_part : ndarray, int32, (E,)
        The part of the edge at each position of the graph's CSR.
    """

    edge_part: np.ndarray

    @property
    def shares(self) -> np.ndarray:
        """Of the whole load, by part: equal, float64, (K,)."""
        return np.full(self.parts, 1 / self.parts)

    def part_edges(self, graph: Graph, index: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Sources, destinations and ids of a part's edges in the user's numbering, a node's in-edges in their order."""
        positions = np.flatnonzero(self.edge_part == index)
        target = np.searchsorted(graph.indptr, positions, side="right") - 1
        return graph.indices[positions], target, graph.edge_ids[positions]


def make_vertex_cut(graph: Graph, parts: int, *, seed: int = 0, by_metis: bool = True, progress=None) -> VertexCut:
    """Cut a graph by nodes: edges are dealt out so that few nodes are copied, and the parts hold equally many copies.

    Two ways are tried: METIS-grown (degree-weighted METIS parts keep their inner edges, HDRF's score places the others)
    and neighbour expansion, what it leaves placed by the same score. In both, nodes with few edges then move out of the
    parts that hold most copies. Kept is what has fewest copies in its largest part, then fewest in all. Masters go
    where the fewest rows are owned and sent; inside parts rows are in the order of METIS clusters.

    Parameters
    ----------
    graph : Graph
    parts : int
        K, 1 <= K <= N.
    seed : int
        The same seed gives the same cut.
    by_metis : bool
        Without METIS, which takes most of the memory, there is neighbour expansion alone, and inside parts rows are in
        its order.
    progress : callable, optional
        Called as ``progress(stage)``.

    Raises
    ------
    InputError
        K out of range, more than 2**31 - 1 nodes or edges, or the package's compiled part is not there.
    """
    check_parts(graph, parts)
    if max(graph.num_nodes, graph.num_edges) > LARGEST_ID:
        raise InputError(
            f"{graph.name} has {graph.num_nodes} nodes and {graph.num_edges} edges; a vertex cut takes at most "
            f"{LARGEST_ID} of each: make an edge cut"
        )
    progress = progress or (lambda *_: None)
    edges = _Edges(graph, parts)
    expanded, joined = _expanded(edges, seed, progress)
    if not by_metis:
        progress("vertex cut, levelling copies")
        edge_part = edges.levelled(expanded)
        return _with_masters(graph, edges, edge_part, lambda _: joined)
    undirected = symmetrised(graph)
    with metis.shared(xadj=undirected.indptr, adjncy=undirected.indices) as adjacency:
        del undirected
        candidates = [expanded, *([_grown(edges, adjacency, seed, progress)] if parts > 1 else [])]
        progress("vertex cut, levelling copies")
        edge_part = min((edges.levelled(owner) for owner in candidates), key=edges.rank)
        del expanded, candidates
        return _with_masters(
            graph,
            edges,
            edge_part,
            lambda master: metis.clusters(adjacency, master, parts, CLUSTER_NODES, seed=seed, progress=progress),
        )


def _with_masters(graph: Graph, edges: _Edges, edge_part: np.ndarray, place) -> VertexCut:
    """The cut with a master for each node; ``place(master)`` says in which order rows are inside parts."""
    master, ptr = masters(edges.tally(edge_part)[0], edges.parts)
    order = np.lexsort((place(master), master)).astype(graph.indices.dtype)
    return VertexCut(order, ptr, edge_part)


def masters(copies: np.ndarray, parts: int) -> tuple[np.ndarray, np.ndarray]:
    """The master of each node, int32 (N,), from the parts that hold it, bits (N, ceil(K / 64)); and slice pointers."""
    master = np.empty(len(copies), np.int32)
    native.run("masters", len(copies), parts, copies, master)
    return master, np.concatenate([[0], np.cumsum(np.bincount(master, minlength=parts))]).astype(np.int64)


def capacity_of(num_edges: int, parts: int) -> int:
    """The edges that a part of a vertex cut takes at most."""
    return int(np.ceil(_SLACK * num_edges / parts))


class _Edges:
    """A graph's edges, numbered by CSR position, as the compiled loops take them."""

    def __init__(self, graph: Graph, parts: int):
        self.num_nodes, self.num_edges, self.parts = graph.num_nodes, graph.num_edges, parts
        self.capacity = capacity_of(graph.num_edges, parts)
        # The types that the loops read; a graph made by from_edges has them.
        self.sources = np.ascontiguousarray(graph.indices, np.int32)
        self.destinations = np.ascontiguousarray(graph.destinations(), np.int32)
        in_indptr = np.ascontiguousarray(graph.indptr, np.int64)
        self.indptr = np.empty(graph.num_nodes + 1, np.int64)
        self.neighbours, self.edges = (np.empty(2 * graph.num_edges, np.int32) for _ in range(2))
        native.run("lists", graph.num_nodes, in_indptr, self.sources, self.indptr, self.neighbours, self.edges)
        self.degrees = np.diff(self.indptr)

    def tally(self, owner) -> tuple[np.ndarray, np.ndarray]:
        """Which parts hold each node, (N, ceil(K / 64)) bits, and the edges of each part, (K,)."""
        copies = np.zeros((self.num_nodes, -(-self.parts // 64)), np.uint64)
        sizes = np.zeros(self.parts, np.int64)
        native.run("tally", self.num_edges, self.sources, self.destinations, self.parts, owner, copies, sizes)
        return copies, sizes

    def place_rest(self, owner) -> np.ndarray:
        """Give the edges without an owner to parts by HDRF's score, those between nodes of low degree first."""
        copies, sizes = self.tally(owner)
        rest = np.flatnonzero(owner < 0).astype(np.int32)
        sums = self.degrees[self.sources[rest]] + self.degrees[self.destinations[rest]]
        rest = rest[np.argsort(sums, kind="stable")]
        native.run(
            "hdrf",
            len(rest),
            rest,
            self.sources,
            self.destinations,
            self.degrees,
            0,
            self.parts,
            _BALANCE,
            self.capacity,
            copies,
            sizes,
            owner,
        )
        return owner

    def levelled(self, owner) -> np.ndarray:
        """The same cut with nodes of few edges moved out of the parts that hold most copies; changed in place.

        Left as it is where a count for each node and part would take far more memory than the edges.
        """
        if not native.counts_fit(self.num_nodes, self.num_edges, self.parts):
            return owner
        listed = np.flatnonzero((self.degrees > 0) & (self.degrees <= _LEVEL_DEGREE))
        listed = listed[np.argsort(self.degrees[listed], kind="stable")]
        counts = np.empty((self.num_nodes, self.parts), np.int32)
        native.run(
            "level",
            self.num_nodes,
            self.indptr,
            self.neighbours,
            self.edges,
            len(listed),
            listed,
            self.parts,
            self.capacity,
            _LEVEL_ROUNDS,
            counts,
            owner,
        )
        return owner

    def rank(self, owner) -> tuple[int, int]:
        """Copies in the largest part, and in all: less is better."""
        copies, _ = self.tally(owner)
        held = [
            int(np.count_nonzero(copies[:, p // 64] >> np.uint64(p % 64) & np.uint64(1))) for p in range(self.parts)
        ]
        return max(held), sum(held)


def _grown(edges: _Edges, adjacency: dict, seed: int, progress) -> np.ndarray:
    """Each METIS part keeps the edges inside it; the others are placed by score."""
    part = metis.k_way(adjacency, edges.parts, edges.degrees + 1, seed=seed, progress=progress)
    inside = part[edges.sources] == part[edges.destinations]
    owner = np.where(inside, part[edges.sources], -1).astype(np.int32)
    del part, inside
    progress("vertex cut, placing cut edges")
    return edges.place_rest(owner)


def _expanded(edges: _Edges, seed: int, progress) -> tuple[np.ndarray, np.ndarray]:
    """Neighbour expansion to the mean of edges a part; what it leaves is placed by score.

    Returns the part of each edge, and the order in which nodes joined the cores, (N,); N for those that did not.
    """
    progress("vertex cut, neighbour expansion")
    owner = np.full(edges.num_edges, -1, np.int32)
    joined = np.full(edges.num_nodes, edges.num_nodes, np.int64)
    start = np.random.default_rng(seed).permutation(edges.num_nodes)
    native.run(
        "expand",
        edges.num_nodes,
        edges.indptr,
        edges.neighbours,
        edges.edges,
        start,
        edges.parts,
        edges.num_edges // edges.parts,
        owner,
        joined,
    )
    return edges.place_rest(owner), joined
