"""Edge cut: every node gets one owner, and an edge lives with the owner of its destination."""

from __future__ import annotations

import time
from bisect import insort
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from partition.errors import InputError
from partition.graph import Graph, symmetrised
from partition.predict.step_time import Speeds, step_seconds
from partition.predict.traffic import Model

from . import metis, native
from .balance import Balance, make_balance, with_aims

CLUSTER_NODES = 1000  # rows of one cluster stay in a core's cache while its edges are attended
_MOST_SWEEPS, _LEAST_SWEEPS, _SWEPT_EDGES = 10, 4, 50_000_000  # of the local search; more gives a percent
_TEMPERATURE = 0.5  # in halo rows
_POPULATION = 12  # cuts that later attempts recombine
_TIGHTNESS = 0.8  # of several bounds, which get in each other's way
_CHUNK_ROWS = 1 << 16
NEAR_ROWS = 1024  # so near that a processor's caches hold what lies between
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


class _Tried(NamedTuple):
    """An assignment, its place among others, whether the search kept nodes as even as edges, and when it was made."""

    order: tuple[float, float]
    owner: np.ndarray
    levels_nodes: bool
    attempt: int  # counted from 1


class _Way(NamedTuple):
    """One way to ask METIS: its objective, what a node weighs, and how uneven it may be."""

    objective: str
    row_weight: float | None  # in-edges that a node itself weighs; None where in-edges do not count
    slack: float
    levels_nodes: (
        bool  # whether the search keeps nodes as even as edges: rows cost time and memory, evenness costs halo
    )


def _ways(graph: Graph) -> list[_Way]:
    """What the attempts try, in this order, then with nodes levelled in the others."""
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
    keeps the bounds. From the thirteenth on, one of the twelve best so far is searched anew, moving clusters of nodes
    before nodes: clusters anywhere for six attempts, and then such as another of the twelve keeps together, too
    (evolutionary partitioning, Sanders and Schulz 2012). Kept is the attempt of the lowest predicted step time
    (:func:`partition.predict.step_time.step_seconds`).

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
        How many are made: up to twelve by METIS, the others of those; all by METIS where the package has no compiled
        part and where a count for each node and part would take far more memory than the edges.
    max_imbalance, target_weights
        See :func:`partition.cuts.balance.make_balance`. Where bounds are asked for and broken, more ways are tried, one of
        each kind.
    model, speeds
        For the prediction.
    progress : callable, optional
        Called as ``progress(stage)``.

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

        def in_order(owner: np.ndarray) -> EdgeCut:
            cluster = metis.clusters(adjacency, owner, parts, CLUSTER_NODES, seed=seed, progress=progress)
            order = np.lexsort((cluster, owner)).astype(graph.indices.dtype)
            ptr = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=parts))]).astype(np.int64)
            return EdgeCut(order, ptr, balance.shares)

        if owner is not None:
            owner = _checked(owner, graph.num_nodes, parts)
        elif parts == 1:
            owner = np.zeros(graph.num_nodes, np.int32)
        else:

            def rank(owner: np.ndarray) -> float:
                cut = None if speeds.near_bytes_per_s is None else in_order(owner)
                return step_seconds(counts(graph, owner, balance.shares, cut), model, speeds)

            owner = best_owner(graph, parts, adjacency, balance, attempts, rank, seed, progress)
        if balance.asked and balance.excess(owner) > 1:
            raise InputError(
                f"no cut of {graph.name} into {parts} parts kept the bounds: the best has {balance.broken(owner)}; "
                "raise max_imbalance, or make fewer parts or a vertex cut"
            )
        return in_order(owner)


def best_owner(graph: Graph, parts: int, adjacency: dict, balance: Balance, attempts: int, rank, seed: int, progress):
    """The assignment of nodes to parts, (N,) int32, of the lowest ``rank(owner)``; those beyond bounds that were asked
    for come last."""
    ways = _ways(graph)
    tried, kept = [], not balance.asked
    started_s = time.monotonic()
    for attempt in range(max(attempts, len(ways) if balance.asked else 0)):
        if attempt >= attempts and kept:
            break
        say = _of_attempt(progress, attempt, attempts, started_s)
        if attempt < 2 * len(ways) or len(tried) < 2 or not _is_searched(graph, parts):
            owner, levels_nodes = _by_metis(graph, parts, adjacency, balance, attempt, seed, say)
        else:
            owner, levels_nodes = _recombined(graph, tried, balance, attempt, seed, say)
        _fill_empty_parts(owner, parts)
        kept = kept or balance.excess(owner) <= 1
        if attempts == 1 and kept:
            return owner
        order = max(balance.excess(owner), 1.0) if balance.asked else 1.0, rank(owner)
        if order not in (each.order for each in tried):
            insort(tried, _Tried(order, owner, levels_nodes, attempt + 1), key=attrgetter("order"))
            del tried[_POPULATION if attempts > 2 * len(ways) else 1 :]
    best = tried[0]
    progress(f"attempt {best.attempt} is kept: predicted step {best.order[1]:.3g} s")
    return best.owner


def _of_attempt(progress, attempt: int, attempts: int, started_s: float):
    """A progress callback that names the attempt, where there are several, and about how long is left."""
    if max(attempt + 1, attempts) == 1:
        return progress
    left = ""
    if 0 < attempt < attempts:
        left_s = (time.monotonic() - started_s) / attempt * (attempts - attempt)
        left = f", about {left_s:.0f} s left"
    return lambda stage: progress(f"attempt {attempt + 1} of {max(attempt + 1, attempts)}{left}: {stage}")


def _by_metis(graph: Graph, parts: int, adjacency: dict, balance: Balance, attempt: int, seed: int, progress):
    ways = _ways(graph)
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
    levels_nodes = way.levels_nodes != turn % 2
    refine(graph, owner, with_aims(balance, graph, nodes=levels_nodes), seed)
    return owner, levels_nodes


def _recombined(graph: Graph, tried: list[_Tried], balance: Balance, attempt: int, seed: int, progress):
    """One of the best so far searched anew, clusters of nodes first: any at first, later those that another keeps."""
    progress("edge cut, search of clusters")
    drawn = np.random.default_rng([abs(seed), attempt]).choice(len(tried), min(3, len(tried)), replace=False)
    better, other = (tried[i] for i in sorted(drawn)[:2])
    owner = better.owner.copy()
    if attempt < 3 * len(_ways(graph)):
        together = np.zeros(graph.num_nodes, np.int64)
    else:
        together = owner * np.int64(len(balance.shares)) + other.owner
    _run("recombine", graph, with_aims(balance, graph, nodes=better.levels_nodes), (together, seed + attempt), owner)
    return owner, better.levels_nodes


def refine(graph: Graph, owner: np.ndarray, balance: Balance, seed: int = 0) -> None:
    """Move nodes between parts so that they hold fewer halo rows and keep their capacities; ``owner`` is changed.

    Does nothing where the package has no compiled part, where ids do not fit into 32 bits, and where a count for each
    node and part would take far more memory than the edges.
    """
    if _is_searched(graph, len(balance.shares)):
        sweeps = min(_MOST_SWEEPS, max(_LEAST_SWEEPS, _SWEPT_EDGES // max(graph.num_edges, 1)))
        _run("refine", graph, balance, (sweeps, _TEMPERATURE, seed), owner)


def _is_searched(graph: Graph, parts: int) -> bool:
    return (
        native.counts_fit(graph.num_nodes, graph.num_edges, parts)
        and graph.indices.dtype == np.int32
        and native.available()
    )


def _run(name: str, graph: Graph, balance: Balance, options: tuple, owner: np.ndarray) -> None:
    parts = len(balance.shares)
    native.run(
        name,
        graph.num_nodes,
        np.ascontiguousarray(graph.indptr, np.int64),
        np.ascontiguousarray(graph.indices),
        parts,
        len(balance.kinds),
        balance.weights,
        balance.floors(),
        balance.capacities(_TIGHTNESS if len(balance.kinds) > 1 else 1.0),
        *options,
        np.empty((graph.num_nodes, parts), np.int32),
        owner,
    )


def counts(graph: Graph, owner: np.ndarray, shares: np.ndarray, cut: EdgeCut | None = None) -> dict:
    """The manifest's counts of an assignment with one hop of halo, as the cost formulas read them.

    They are those of :class:`partition.shards.layout.Layout`, without its memory. ``near_edges`` depend on the order of rows
    inside parts, hence are counted only where the cut of the assignment is given.
    """
    parts = len(shares)
    owned = np.bincount(owner, minlength=parts)
    edges = np.bincount(owner, weights=graph.in_degrees(), minlength=parts)
    received, near, cut_edges = np.zeros((parts, parts), np.int64), [], 0
    held = np.empty(graph.num_nodes, bool)
    for part in range(parts):
        held[:] = False
        for _, sources in _chunks(graph, owner, part):
            held[sources] = True
            cut_edges += np.count_nonzero(owner[sources] != part)
        held &= owner != part
        received[part] = np.bincount(owner[held], minlength=parts)
        if cut is not None:
            near.append(_near_edges(graph, owner, part, held, cut))
    hops = {"halo_by_hop": received.sum(1), "edges_by_hop": edges, "sent_by_hop": received.sum(0)}
    per_part = [
        {"owned": int(owned[part]), **{key: [int(column[part])] for key, column in hops.items()}}
        for part in range(parts)
    ]
    return {
        "cut": "edge",
        "parts": parts,
        "shares": [float(share) for share in shares],
        "quality": {"cut_ratio": cut_edges / max(graph.num_edges, 1)},
        "per_part": [{**each, "near_edges": found} for each, found in zip(per_part, near)] or per_part,
        "received_rows": received.tolist(),
    }


def _chunks(graph: Graph, owner: np.ndarray, part: int):
    """Destinations and sources of a part's edges, some rows at a time."""
    for start in range(0, graph.num_nodes, _CHUNK_ROWS):
        begin, end = graph.indptr[[start, min(start + _CHUNK_ROWS, graph.num_nodes)]]
        degrees = np.diff(graph.indptr[start : start + _CHUNK_ROWS + 1])
        here = owner[start : start + _CHUNK_ROWS] == part
        rows = start + np.flatnonzero(here)
        yield np.repeat(rows, degrees[here]), graph.indices[begin:end][np.repeat(here, degrees)]


def _near_edges(graph: Graph, owner: np.ndarray, part: int, held: np.ndarray, cut: EdgeCut) -> int:
    """A part's edges whose rows lie near each other: owned rows in the cut's order, and then the halo's."""
    row = np.empty(graph.num_nodes, np.int64)
    mine = cut.order[cut.ptr[part] : cut.ptr[part + 1]]
    row[mine] = np.arange(len(mine))
    row[cut.order[held[cut.order]]] = np.arange(np.count_nonzero(held)) + len(mine)
    return sum(
        int(np.count_nonzero(np.abs(row[sources] - row[destinations]) < NEAR_ROWS))
        for destinations, sources in _chunks(graph, owner, part)
    )


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
