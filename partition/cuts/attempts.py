"""METIS makes the first edge cuts, later attempts improve the best of them, and the best cut is kept."""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import Callable
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import scipy  # imports its parts at their first use

from dgl_gt.partition.graph import Graph

from . import clusters, metis
from .balance import Balance, fill_empty_parts, with_default_bounds
from .local_search import is_available, refine, refine_multilevel
from .weights import least_weight_assignment, weight_of_cut, weighted_adjacency

_POPULATION = 12  # candidates that later attempts recombine


class _InitialPartition(NamedTuple):
    """What METIS is asked for, and what the local search after it keeps even."""

    objective: str  # "cut" or "volume"
    weight: str  # of a node for METIS: "step" (time that it adds to its rank), "edges" (in-edges + 1) or "node" (1)
    tolerance: float  # METIS's: a part's weight over its share, at most
    balances_nodes: bool  # whether the search keeps nodes even, too: less memory, but more halo rows


class _Candidate(NamedTuple):
    """An assignment of nodes to parts that an attempt has made."""

    score: tuple[float, float]  # largest load over its bound, at least 1, and predicted step (s) or weight
    owner: np.ndarray
    even: tuple[str, ...]  # what the search kept even besides what the user bounds, see :func:`_kept_even`
    attempt: int  # counted from 1


# The initial partitions of attempts 1 to 6. Attempts 7 to 12 use the same six with ``balances_nodes`` inverted.
_INITIAL_PARTITIONS = [
    _InitialPartition("cut", "step", 1.03, False),
    _InitialPartition("volume", "step", 1.03, False),
    _InitialPartition("volume", "node", 1.03, True),
    _InitialPartition("volume", "edges", 1.09, False),
    _InitialPartition("cut", "edges", 1.03, True),
    _InitialPartition("cut", "node", 1.03, False),
]


def best_assignment(
    graph: Graph,
    parts: int,
    undirected: scipy.sparse.csr_array,
    balance: Balance,
    attempts: int,
    predicted_step_s: Callable[[np.ndarray], float],
    seed: int,
    progress: Callable,
    edge_weights: np.ndarray | None = None,
) -> np.ndarray:
    """Make attempts and return the part of each node, int32 (N,), in the best of them.

    The best candidate keeps the bounds that were asked for, or exceeds them least, and has the lowest
    ``predicted_step_s(owner)``; with ``edge_weights``, (E,), the least weight of cut edges. If none of the attempts keeps
    these bounds, more follow, until one does or there are as many as initial partitions.
    """
    num_initial = len(_INITIAL_PARTITIONS)
    adjacency = None if edge_weights is None else weighted_adjacency(graph, edge_weights)
    population: list[_Candidate] = []
    has_kept_bounds, started_s = not balance.is_strict, time.monotonic()
    for attempt in range(max(attempts, num_initial if balance.is_strict else 0)):
        if attempt >= attempts and has_kept_bounds:
            break
        report = _attempt_progress(progress, attempt, attempts, started_s)
        if adjacency is not None:
            owner, even = least_weight_assignment(graph, parts, adjacency, balance, attempt, seed, report), ()
        elif attempt < 2 * num_initial or len(population) < 2 or not is_available(graph, parts):
            owner, even = _partition(graph, parts, undirected, balance, attempt, seed, report)
        else:
            owner, even = _recombine(graph, population, balance, attempt, seed, report)
        fill_empty_parts(owner, parts)
        has_kept_bounds = has_kept_bounds or balance.largest_load(owner) <= 1
        if attempts == 1 and has_kept_bounds:
            return owner
        cost = predicted_step_s(owner) if edge_weights is None else weight_of_cut(graph, owner, edge_weights)
        score = max(balance.largest_load(owner), 1.0) if balance.is_strict else 1.0, cost
        if score not in (candidate.score for candidate in population):
            insort(population, _Candidate(score, owner, even, attempt + 1), key=attrgetter("score"))
            del population[_POPULATION if attempts > 2 * num_initial else 1 :]
    best = population[0]
    text = f"predicted step {best.score[1]:.3g} s" if edge_weights is None else f"weight of cut edges {best.score[1]:g}"
    progress(f"attempt {best.attempt} is kept: {text}")
    return best.owner


def _attempt_progress(progress: Callable, attempt: int, attempts: int, started_s: float) -> Callable:
    """A progress callback that names the attempt and the time left, where there are several attempts."""
    total = max(attempt + 1, attempts)
    if total == 1:
        return progress
    left = ""
    if 0 < attempt < attempts:
        left_s = (time.monotonic() - started_s) / attempt * (attempts - attempt)
        left = f", about {left_s:.0f} s left"
    return lambda stage: progress(f"attempt {attempt + 1} of {total}{left}: {stage}")


def _partition(graph: Graph, parts: int, undirected, balance: Balance, attempt: int, seed: int, progress: Callable):
    """An initial partition by METIS, refined by the local search; and what was kept even."""
    turn, number = divmod(attempt, len(_INITIAL_PARTITIONS))
    initial = _INITIAL_PARTITIONS[number]
    weights = {"step": balance.step, "edges": graph.in_degrees() + 1, "node": np.ones(graph.num_nodes, np.int64)}
    cut = clusters.k_way if is_available(graph, parts) else metis.k_way  # clusters need the search after them
    owner = cut(
        undirected,
        parts,
        weights[initial.weight],
        objective=initial.objective,
        tolerance=initial.tolerance,
        shares=balance.shares,
        seed=seed + turn // 2,
        progress=progress,
    )
    progress("edge cut, local search")
    even = _kept_even(balance, initial.balances_nodes, bool(turn % 2))
    refine(graph, owner, with_default_bounds(balance, *even), seed)
    return owner, even


def _kept_even(balance: Balance, balances_nodes: bool, inverted: bool) -> tuple[str, ...]:
    """What an attempt keeps even besides what the user bounds: steps, nodes, both or nothing.

    If the user bounds edges but not nodes, two more bounds would conflict with that one and cost halo rows. So an
    attempt has at most one more: nodes if ``balances_nodes``, otherwise steps; inverted, steps if ``balances_nodes``,
    otherwise none. The predicted step decides between attempts.
    """
    if "edges" in balance.kinds and "nodes" not in balance.kinds:
        if inverted:
            return ("step",) if balances_nodes else ()
        return ("nodes",) if balances_nodes else ("step",)
    return ("step", "nodes") if balances_nodes != inverted else ("step",)


def _recombine(
    graph: Graph, population: list[_Candidate], balance: Balance, attempt: int, seed: int, progress: Callable
):
    """Return an improved copy of a candidate, made by moving clusters of nodes, and what was kept even.

    At first any nodes may share a cluster; later, only nodes that a second candidate keeps together, too.
    """
    progress("edge cut, search of clusters")
    drawn = np.random.default_rng([abs(seed), attempt]).choice(len(population), min(3, len(population)), replace=False)
    better, other = (population[i] for i in sorted(drawn)[:2])
    owner = better.owner.copy()
    if attempt < 3 * len(_INITIAL_PARTITIONS):
        groups = np.zeros(graph.num_nodes, np.int64)
    else:
        groups = owner.astype(np.int64) * len(balance.shares) + other.owner
    bounds = with_default_bounds(balance, *better.even)
    refine_multilevel(graph, owner, bounds, groups, seed + attempt)
    return owner, better.even
