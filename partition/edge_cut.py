"""Edge cut: every node gets one owner, and an edge lives with the owner of its destination."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from . import metis, native
from .balance import Balance, make_balance, with_aims
from .cost import Model
from .errors import InputError
from .graph import Graph, symmetrised
from .step_time import Speeds, step_seconds

CLUSTER_NODES = 1000  # rows of one cluster stay in a core's cache while its edges are attended
_MOST_SWEEPS, _LEAST_SWEEPS, _SWEPT_EDGES = 10, 4, 50_000_000  # of the local search; more gives a percent
_TEMPERATURE = 0.5  # in halo rows
_TIGHTNESS = 0.8  # of several bounds, which get in each other's way
_CHUNK_ROWS = 1 << 16
_MODEL, _SPEEDS = Model(), Speeds()


@dataclass(frozen=True)
class Rows:
    """A permutation of the nodes and slice pointers: part i owns the new ids ``ptr[i]:ptr[i + 1]``.

    Attributes
    ----------
    order : ndarray of integers, (N,)
        ``order[new id]`` is the user's node id.
    ptr : ndarray, int64, (K + 1,)
    """

    order: np.ndarray
    ptr: np.ndarray

    @property
    def parts(self) -> int:
        return len(self.ptr) - 1

    def new_ids(self) -> np.ndarray:
        """The new id of every node of the user's numbering, (N,)."""
        new = np.empty_like(self.order)
        new[self.order] = np.arange(len(self.order), dtype=self.order.dtype)
        return new


@dataclass(frozen=True)
class EdgeCut(Rows):
    """The owner of every node; an edge lives with the owner of its destination.

    Attributes
    ----------
    shares : ndarray, float64, (K,)
        Of the whole load, by part: what the parts were to take.
    """

    shares: np.ndarray


class _Way(NamedTuple):
    """One way to ask METIS: its objective, what a node weighs, and how uneven it may be."""

    objective: str
    row_weight: float | None  # in-edges that a node itself weighs; None where in-edges do not count
    slack: float
    levels_nodes: (
        bool  # whether the search keeps nodes as even as edges: rows cost time and memory, evenness costs halo
    )


def _ways(graph: Graph) -> list[_Way]:
    """What the attempts try, in this order; then with nodes levelled in the others, then again with another seed."""
    mean = graph.num_edges / graph.num_nodes
    return [
        _Way("cut", 1, 1.03, True),
        _Way("volume", 1, 1.09, False),
        _Way("volume", 1 + mean, 1.03, True),
        _Way("volume", None, 1.03, False),
        _Way("cut", 1 + mean, 1.03, True),
        _Way("cut", None, 1.03, False),
    ]


def make_edge_cut(
    graph: Graph,
    parts: int,
    *,
    seed: int = 0,
    owner=None,
    attempts: int = 1,
    max_imbalance=None,
    target_weights=None,
    model: Model = _MODEL,
    speeds: Speeds = _SPEEDS,
    progress=None,
) -> EdgeCut:
    """Cut a graph into parts with METIS and local search; rows in cluster order inside parts.

    An attempt is METIS with one of two objectives (cut edges, or volume) and of three node weights (in-degree plus one,
    in-degree plus about the mean degree, or one), and then a local search that moves nodes for fewer halo rows and
    keeps the bounds. Kept is the attempt of the lowest predicted step time (:func:`partition.step_time.step_seconds`).

    Parameters
    ----------
    graph : Graph
    parts : int
        K, 1 <= K <= N.
    seed : int
        The same seed gives the same cut.
    owner : array of integers, (N,), optional
        The part of every node, where it is already known; parts may be empty.
    attempts : int
        How many ways are tried; the thirteenth is the first again with another seed.
    max_imbalance, target_weights
        See :func:`partition.balance.make_balance`. Where bounds are asked for and broken, more ways are tried, one of
        each kind.
    model, speeds
        For the prediction.
    progress : callable, optional
        Called as ``progress(stage)``, and as ``progress(stage, peak_memory_bytes)`` for child processes.

    Raises
    ------
    InputError
        K out of range, ``owner`` of the wrong length or with a part outside 0..K-1, bounds that no attempt kept.
    """
    if owner is None or parts < 1:
        check_parts(graph, parts)
    if attempts < 1:
        raise InputError(f"attempts is {attempts}; it must be at least 1")
    balance = make_balance(graph, parts, max_imbalance, target_weights)
    progress = progress or (lambda *_: None)
    undirected = symmetrised(graph)
    with metis.shared(xadj=undirected.indptr, adjncy=undirected.indices) as adjacency:
        del undirected
        if owner is not None:
            owner = _checked(owner, graph.num_nodes, parts)
        elif parts == 1:
            owner = np.zeros(graph.num_nodes, np.int32)
        else:
            tried = candidates(graph, parts, adjacency, balance, attempts, seed, progress)
            owner = _best(graph, parts, tried, balance, model, speeds)
        if balance.asked and balance.excess(owner) > 1:
            raise InputError(
                f"no cut of {graph.name} into {parts} parts kept the bounds: the best has {balance.broken(owner)}; "
                "raise max_imbalance (--max-imbalance), or make fewer parts or a vertex cut"
            )
        cluster = metis.clusters(adjacency, owner, parts, CLUSTER_NODES, seed=seed, progress=progress)
    order = np.lexsort((cluster, owner)).astype(graph.indices.dtype)
    ptr = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=parts))]).astype(np.int64)
    return EdgeCut(order, ptr, balance.shares)


def candidates(graph: Graph, parts: int, adjacency: dict, balance: Balance, attempts: int, seed: int, progress):
    """Assignments of nodes to parts, (N,) int32 each, one an attempt."""
    ways, kept = _ways(graph), not balance.asked
    for attempt in range(max(attempts, len(ways) if balance.asked else 0)):
        if attempt >= attempts and kept:
            return
        turn, way = attempt // len(ways), ways[attempt % len(ways)]
        weights = np.ones(graph.num_nodes, np.int64)
        if way.row_weight is not None:
            weights = graph.in_degrees() + round(way.row_weight)
        owner = metis.k_way(
            adjacency,
            parts,
            weights,
            objective=way.objective,
            slack=way.slack,
            shares=balance.shares,
            seed=seed + turn // 2,
            progress=progress,
        )
        progress("edge cut, local search")
        refine(graph, owner, with_aims(balance, graph, nodes=way.levels_nodes != turn % 2), seed)
        _fill_empty_parts(owner, parts)
        kept = kept or balance.excess(owner) <= 1
        yield owner


def _best(graph: Graph, parts: int, tried, balance: Balance, model: Model, speeds: Speeds) -> np.ndarray:
    """The assignment of the lowest predicted step time, among those that keep the bounds if any does."""

    def rank(owner: np.ndarray) -> tuple[float, float]:
        figures = {"cut": "edge", "parts": parts, "per_part": counts(graph, owner, parts), "shares": balance.shares}
        return max(balance.excess(owner), 1.0) if balance.asked else 1.0, step_seconds(figures, model, speeds)

    best, best_rank = next(tried), None
    for owner in tried:
        best_rank = best_rank or rank(best)
        if (new_rank := rank(owner)) < best_rank:
            best, best_rank = owner, new_rank
    return best


def refine(graph: Graph, owner: np.ndarray, balance: Balance, seed: int = 0) -> None:
    """Move nodes between parts so that they hold fewer halo rows and keep their capacities; ``owner`` is changed.

    Does nothing where the package has no compiled part, where ids do not fit into 32 bits, and where a count for each
    node and part would take far more memory than the edges.
    """
    parts = len(balance.shares)
    if (
        not native.counts_fit(graph.num_nodes, graph.num_edges, parts)
        or graph.indices.dtype != np.int32
        or not native.available()
    ):
        return
    native.run(
        "refine",
        graph.num_nodes,
        np.ascontiguousarray(graph.indptr, np.int64),
        np.ascontiguousarray(graph.indices),
        parts,
        len(balance.kinds),
        balance.weights,
        balance.floors(),
        balance.capacities(_TIGHTNESS if len(balance.kinds) > 1 else 1.0),
        min(_MOST_SWEEPS, max(_LEAST_SWEEPS, _SWEPT_EDGES // max(graph.num_edges, 1))),
        _TEMPERATURE,
        seed,
        np.empty((graph.num_nodes, parts), np.int32),
        owner,
    )


def counts(graph: Graph, owner: np.ndarray, parts: int) -> list[dict]:
    """The manifest's counts of each part of an assignment with one hop of halo, as the cost formulas read them."""
    owned = np.bincount(owner, minlength=parts)
    edges = np.bincount(owner, weights=graph.in_degrees(), minlength=parts)
    halo, copies = [], np.zeros(graph.num_nodes, np.int32)
    held = np.empty(graph.num_nodes, bool)
    for part in range(parts):
        held[:] = False
        for start in range(0, graph.num_nodes, _CHUNK_ROWS):
            begin, end = graph.indptr[[start, min(start + _CHUNK_ROWS, graph.num_nodes)]]
            here = owner[start : start + _CHUNK_ROWS] == part
            inside = np.repeat(here, np.diff(graph.indptr[start : start + _CHUNK_ROWS + 1]))
            held[graph.indices[begin:end][inside]] = True
        held &= owner != part
        halo.append(np.count_nonzero(held))
        copies += held
    sent = np.bincount(owner, weights=copies, minlength=parts)
    hops = {"halo_by_hop": halo, "edges_by_hop": edges, "sent_by_hop": sent}
    return [
        {"owned": int(owned[part]), **{key: [int(column[part])] for key, column in hops.items()}}
        for part in range(parts)
    ]


def check_parts(graph: Graph, parts: int) -> None:
    """Raise :class:`InputError` unless every part can have a node."""
    if not 1 <= parts <= graph.num_nodes:
        raise InputError(
            f"cannot split {graph.num_nodes} nodes into {parts} parts; choose 1 to {graph.num_nodes} parts"
        )


def _fill_empty_parts(owner: np.ndarray, parts: int) -> None:
    """Give each part that METIS left empty, as it does on tiny graphs, a node of the largest part."""
    counts = np.bincount(owner, minlength=parts)
    for part in np.flatnonzero(counts == 0):
        largest = int(counts.argmax())
        owner[np.flatnonzero(owner == largest)[-1]] = part
        counts[largest] -= 1
        counts[part] = 1


def _checked(owner, num_nodes: int, parts: int) -> np.ndarray:
    owner = np.asarray(owner)
    if owner.shape != (num_nodes,) or owner.dtype.kind not in "iu":
        raise InputError(f"owner must be {num_nodes} integers, one a node, not {owner.dtype} {owner.shape}")
    if owner.min() < 0 or owner.max() >= parts:
        bad = owner.min() if owner.min() < 0 else owner.max()
        raise InputError(f"owner names part {bad}; parts are 0..{parts - 1}")
    return owner.astype(np.int32)
