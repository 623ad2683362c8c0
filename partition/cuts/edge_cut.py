"""Edge cut: every node has one owner, and an edge lives with the owner of its destination."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from partition.errors import InputError
from partition.graph import Graph, symmetrised
from partition.predict.step_time import Speeds, step_seconds
from partition.predict.traffic import Model

from . import metis
from .attempts import best_assignment
from .balance import Balance, make_balance
from .permutation import CLUSTER_NODES, NEAR_ROWS, Permutation, check_parts, slice_pointers

_CHUNK_ROWS = 1 << 16
_MODEL, _SPEEDS = Model(), Speeds()


@dataclass(frozen=True)
class EdgeCut(Permutation):
    """The owner of every node, as a permutation with slice pointers.

    Attributes
    ----------
    shares : ndarray, float64, (K,)
        The share of the whole load that each part was to take.
    """

    shares: np.ndarray


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
    """Cut a graph into parts with METIS and local search; inside a part, rows are in the order of METIS clusters.

    Of several attempts the one with the lowest predicted step time is kept. The first twelve are by METIS with
    different objectives and node weights; later ones search the best so far anew (evolutionary partitioning, Sanders
    and Schulz 2012). All are by METIS where the package has no compiled part, or where a count for each node and part
    would take far more memory than the edges.

    Parameters
    ----------
    graph : Graph
    parts : int
        K, 1 <= K <= N.
    seed : int
        The same seed gives the same cut.
    owner : array of integers, (N,), optional
        The part of each node, if it is known already; parts may be empty.
    attempts : int
        The number of cuts to make, at least 1. If none of them keeps the bounds, more are made, six in all.
    max_imbalance, target_weights
        See :func:`partition.cuts.balance.make_balance`.
    model, speeds : Model, Speeds
        The model and the machines that the prediction assumes.
    progress : callable, optional
        Called as ``progress(stage)``, and as ``progress(stage, peak_memory_bytes)`` for child processes.

    Raises
    ------
    InputError
        K is out of range, ``owner`` has the wrong length or a part outside 0..K-1, or no attempt keeps the bounds.
    """
    if owner is None or parts < 1:
        check_parts(graph.num_nodes, parts)
    if attempts < 1:
        raise InputError(f"attempts is {attempts}; it must be at least 1")
    balance = make_balance(graph, parts, max_imbalance, target_weights)
    progress = progress or (lambda *_: None)
    undirected = symmetrised(graph)
    with metis.shared(xadj=undirected.indptr, adjncy=undirected.indices) as adjacency:
        del undirected
        in_order = partial(_in_cluster_order, graph, balance.shares, adjacency, seed, progress)
        if owner is not None:
            owner = _checked_owner(owner, graph.num_nodes, parts)
        elif parts == 1:
            owner = np.zeros(graph.num_nodes, np.int32)
        else:

            def rank(owner: np.ndarray) -> float:
                cut = None if speeds.near_bytes_per_s is None else in_order(owner)
                return step_seconds(counts(graph, owner, balance.shares, cut), model, speeds)

            owner = best_assignment(graph, parts, adjacency, balance, attempts, rank, seed, progress)
        _check_bounds(graph, balance, owner)
        return in_order(owner)


def _check_bounds(graph: Graph, balance: Balance, owner: np.ndarray) -> None:
    if balance.is_strict and balance.largest_load(owner) > 1:
        raise InputError(
            f"no cut of {graph.name} into {len(balance.shares)} parts kept the bounds: the best has "
            f"{balance.broken(owner)}; raise max_imbalance, or make fewer parts or a vertex cut"
        )


def _in_cluster_order(
    graph: Graph, shares: np.ndarray, adjacency: dict, seed: int, progress, owner: np.ndarray
) -> EdgeCut:
    """The edge cut of an assignment, with the rows of each part in the order of METIS clusters."""
    cluster = metis.clusters(adjacency, owner, len(shares), CLUSTER_NODES, seed=seed, progress=progress)
    order = np.lexsort((cluster, owner)).astype(graph.indices.dtype)
    return EdgeCut(order, slice_pointers(owner, len(shares)), shares)


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


def _checked_owner(owner, num_nodes: int, parts: int) -> np.ndarray:
    """The owners as int32; :class:`InputError` where they do not name a part for each node."""
    owner = np.asarray(owner)
    if owner.shape != (num_nodes,) or owner.dtype.kind not in "iu":
        raise InputError(f"owner must be {num_nodes} integers, one for each node, not {owner.dtype} {owner.shape}")
    if owner.min() < 0 or owner.max() >= parts:
        bad = owner.min() if owner.min() < 0 else owner.max()
        raise InputError(f"owner names part {bad}; parts are 0 to {parts - 1}")
    return owner.astype(np.int32)
