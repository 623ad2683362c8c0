"""Vertex cut: every edge has one owner; a node touched by edges of several parts has one master and mirrors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy  # imports its parts at their first use

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.graph import Graph, symmetrised

from . import metis, native
from .balance import shares
from .clusters import k_way, order_in_parts
from .permutation import Permutation, check_parts, slice_pointers

_TOLERANCE = 1.05  # a part's edges over the mean, at most
_ROUNDING = 1e-12
_HDRF_BALANCE = 0.3  # larger values make more copies for a balance that the capacity gives already
_LEVEL_ROUNDS = 10
_LEVEL_DEGREE = 64  # nodes with more edges rarely leave a part without new copies
LARGEST_ID = 2**31 - 1


@dataclass(frozen=True)
class VertexCut(Permutation):
    """The master of every node, as a permutation with slice pointers, and the part of every edge.

    Attributes
    ----------
    order : ndarray of integers, (N,)
        The user's node id of each new id.
    ptr : ndarray, int64, (P + 1,)
        The slice pointers: part i is the master of the new ids ``ptr[i]:ptr[i + 1]``.
    mapping : Mapping or None
        The rank of each part; None where no profile was given.
    edge_part : ndarray, int32, (E,)
        The part of the edge at each position of the graph's CSR.
    shares : ndarray, float64, (P,)
        The share of the whole load that each part was to take.
    """

    edge_part: np.ndarray
    shares: np.ndarray

    def _renumbered(self, rank_of_part: np.ndarray, parts: np.ndarray) -> dict:
        return {"edge_part": rank_of_part.astype(np.int32)[self.edge_part], "shares": self.shares[parts]}

    def part_edges(self, graph: Graph, index: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return sources, destinations and ids of a part's edges in the user's numbering, in the order of the CSR."""
        positions = np.flatnonzero(self.edge_part == index)
        target = np.searchsorted(graph.indptr, positions, side="right") - 1
        return graph.indices[positions], target, graph.edge_ids[positions]


def make_vertex_cut(
    graph: Graph, parts: int, *, seed: int = 0, by_metis: bool = True, target_weights=None, progress=None
) -> VertexCut:
    """Give each edge to a part, so that few nodes are copied and the parts hold about equally many copies.

    Of two cuts the better one is kept: the one whose largest part holds fewer copies, then the one with fewer copies in
    all. The first is METIS's: its parts, balanced by degree, keep the edges inside them, and the others are placed by
    HDRF's score [1]_. The second is neighbour expansion [2]_, with the rest placed by the same score. In both, nodes
    with few edges then leave the parts that hold the most copies. A part holds at most 1.05 times its share of the
    edges. Masters are chosen so that the parts own and send about equally many rows; inside a part, rows are in the
    order of clusters.

    Parameters
    ----------
    graph : Graph
    parts : int
        P, 1 <= P <= N.
    seed : int
        The same seed gives the same cut.
    by_metis : bool
        If false, the cut is neighbour expansion's alone, with the rows of each part in the order in which it reached
        them. METIS needs most of the memory.
    target_weights : sequence of float, (P,), optional
        Edges of each part relative to the others; equal by default. Masters and copies follow.
    progress : callable, optional
        Called as ``progress(stage)``.

    Returns
    -------
    VertexCut

    Raises
    ------
    InputError
        P or a weight is out of range, the graph has more than 2**31 - 1 nodes or edges, or the package has no compiled
        extension.

    References
    ----------
    .. [1] F. Petroni et al., "HDRF: Stream-based partitioning for power-law graphs", CIKM 2015.
    .. [2] C. Zhang et al., "Graph edge partitioning via neighborhood heuristic", KDD 2017.
    """
    parts, seed = check_parts(graph.num_nodes, parts), metis.check_seed(seed)
    if max(graph.num_nodes, graph.num_edges) > LARGEST_ID:
        raise InputError(
            f"{graph.name} has {graph.num_nodes} nodes and {graph.num_edges} edges; a vertex cut takes at most "
            f"{LARGEST_ID} of each: make an edge cut"
        )
    progress = progress or (lambda stage: None)
    edges = _Edges(graph, shares(parts, target_weights))
    expanded, joined = _expanded(edges, seed, progress)
    if not by_metis:
        progress("vertex cut, balancing copies")
        edge_part = edges.with_balanced_copies(expanded)
        return _with_masters(graph, edges, edge_part, lambda master: np.lexsort((joined, master)))
    undirected = symmetrised(graph)
    candidates = [expanded, *([_by_metis(edges, undirected, seed, progress)] if parts > 1 else [])]
    progress("vertex cut, balancing copies")
    edge_part = min((edges.with_balanced_copies(owner) for owner in candidates), key=edges.copies_held)
    del expanded, candidates
    progress("clusters inside parts")
    return _with_masters(graph, edges, edge_part, lambda master: order_in_parts(undirected, master, seed=seed))


def _with_masters(graph: Graph, edges: _Edges, edge_part: np.ndarray, order_by: Callable) -> VertexCut:
    """The cut with a master for each node; ``order_by(master)`` sorts the nodes by master, and inside the parts."""
    master = native.choose_masters(edges.count_copies(edge_part)[0], edges.parts, edges.capacity)
    order = order_by(master).astype(graph.indices.dtype)
    return VertexCut(order, slice_pointers(master, edges.parts), edge_part, edges.shares)


def capacities_of(num_edges: int, shares: np.ndarray) -> np.ndarray:
    """Return how many edges each part of a vertex cut takes at most, int64, (P,)."""
    return np.ceil(_TOLERANCE * num_edges * shares * (1 - _ROUNDING)).astype(np.int64)


class _Edges:
    """A graph's edges, numbered by CSR position, as the compiled loops take them."""

    def __init__(self, graph: Graph, shares: np.ndarray):
        self.num_nodes, self.num_edges, self.parts = graph.num_nodes, graph.num_edges, len(shares)
        self.shares, self.capacity = shares, capacities_of(graph.num_edges, shares)
        # A graph made by from_edges has these dtypes already.
        self.sources = np.ascontiguousarray(graph.indices, np.int32)
        self.destinations = np.ascontiguousarray(graph.destinations(), np.int32)
        self.by_node = native.list_by_node(np.ascontiguousarray(graph.indptr, np.int64), self.sources)
        self.degrees = np.diff(self.by_node[0])

    def count_copies(self, owner: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the parts that hold each node, (N, ceil(P / 64)) bits, and the edges of each part, (P,)."""
        return native.count_copies(self.sources, self.destinations, owner, num_nodes=self.num_nodes, parts=self.parts)

    def place_rest(self, owner: np.ndarray) -> np.ndarray:
        """Place the edges without an owner by HDRF's score, those between nodes of low degree first."""
        copies, sizes = self.count_copies(owner)
        rest = np.flatnonzero(owner < 0).astype(np.int32)
        sums = self.degrees[self.sources[rest]] + self.degrees[self.destinations[rest]]
        native.place_by_hdrf(
            rest[np.argsort(sums, kind="stable")],
            self.sources,
            self.destinations,
            degrees=self.degrees,
            copies=copies,
            sizes=sizes,
            owner=owner,
            balance=_HDRF_BALANCE,
            capacity=self.capacity,
        )
        return owner

    def with_balanced_copies(self, owner: np.ndarray) -> np.ndarray:
        """Move nodes with few edges out of the parts that hold the most copies; changes and returns ``owner``.

        Does nothing where a count for each node and part would take far more memory than the edges.
        """
        if native.counts_fit(self.num_nodes, self.num_edges, self.parts):
            listed = np.flatnonzero((self.degrees > 0) & (self.degrees <= _LEVEL_DEGREE))
            listed = listed[np.argsort(self.degrees[listed], kind="stable")]
            limits = {"parts": self.parts, "capacity": self.capacity, "rounds": _LEVEL_ROUNDS}
            native.level_copies(*self.by_node, listed=listed, **limits, owner=owner)
        return owner

    def copies_held(self, owner: np.ndarray) -> tuple[float, int]:
        """Return the largest ratio of a part's copies to its share, and the number of copies in all parts."""
        copies, _ = self.count_copies(owner)
        held = [
            int(np.count_nonzero(copies[:, p // 64] >> np.uint64(p % 64) & np.uint64(1))) for p in range(self.parts)
        ]
        return float((held / self.shares).max()), sum(held)


def _by_metis(edges: _Edges, undirected: scipy.sparse.csr_array, seed: int, progress: Callable) -> np.ndarray:
    """The part of each edge by METIS: edges inside a METIS part stay there, and the others are placed by HDRF's score."""
    part = k_way(undirected, edges.parts, edges.degrees + 1, shares=edges.shares, seed=seed, progress=progress)
    inside = part[edges.sources] == part[edges.destinations]
    owner = np.where(inside, part[edges.sources], -1).astype(np.int32)
    del part, inside
    progress("vertex cut, placing cut edges")
    return edges.place_rest(owner)


def _expanded(edges: _Edges, seed: int, progress: Callable) -> tuple[np.ndarray, np.ndarray]:
    """The part of each edge by neighbour expansion, with the rest placed by score.

    Also returns the order in which nodes joined the cores, (N,); N for nodes that did not.
    """
    progress("vertex cut, neighbour expansion")
    owner = np.full(edges.num_edges, -1, np.int32)
    joined = np.full(edges.num_nodes, edges.num_nodes, np.int64)
    native.expand_neighbours(
        *edges.by_node,
        start=np.random.default_rng(seed).permutation(edges.num_nodes),
        parts=edges.parts,
        capacity=np.floor(edges.num_edges * edges.shares * (1 + _ROUNDING)).astype(np.int64),
        owner=owner,
        joined=joined,
    )
    return edges.place_rest(owner), joined
