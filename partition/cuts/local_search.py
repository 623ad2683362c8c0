"""The local search of edge cuts: it moves nodes, or clusters of nodes, between parts for fewer halo rows.

KaHyPar and Mt-KaHyPar minimise the same number, the connectivity metric of hypergraphs, but they allow one weight per
node only, and no lower bound on the load of a part (https://github.com/kahypar/kahypar/issues/126 and 221). This search
stays because it bounds nodes, edges and training nodes together, keeps a least load, and needs no library;
docs/benchmarks.md has its results.

It also fits an edge cut to unequal ranks and links: parts get ranks, then nodes move where the slowest rank's step falls.
GLAD (Zeng et al., "GNN at the Edge", arXiv 2210.17281) lays a graph out over unequal servers by cuts between pairs of
parts. Here the local search of edge cuts makes the moves, between any parts, with a price for each halo row: the time
that it takes on the link between its owner and its holder. A sum of prices does not see which rank is slowest, so the
prices of a rank grow with its share of the exchange, round after round, and a round counts if the predicted step falls.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dgl_gt.partition.figures.costs import Costs
from dgl_gt.partition.figures.figures import Figures
from dgl_gt.partition.figures.mapping import Mapping, best_mapping
from dgl_gt.partition.figures.profile import Profile
from dgl_gt.partition.graph import Graph

from . import native
from .balance import Balance, with_default_bounds
from .permutation import count_assignment

_MAX_SWEEPS, _MIN_SWEEPS, _SWEPT_EDGES = 10, 4, 50_000_000  # more sweeps save about a percent of the halo rows
TEMPERATURE = 0.5  # halo rows
_TIGHTNESS = 0.8  # used when there are several bounds, because they conflict
_PATIENCE, _MAX_OF_BEST = 2, 0.99  # the search ends after two rounds in a row that save less than 1 % of the step
_SIMILAR_LINKS = 2.0  # if bandwidths differ by a smaller factor, prices save nothing over a search for few halo rows
_MEAN_PRICE = 16  # prices are whole numbers
_MAX_WEIGHT = 8.0  # of a rank, over that of others


def is_available(graph: Graph, parts: int) -> bool:
    """Whether a graph can be searched.

    It cannot where the package has no compiled extension, where ids do not fit into 32 bits, and where a count for each
    node and part would take far more memory than the edges.
    """
    return (
        native.counts_fit(graph.num_nodes, graph.num_edges, parts)
        and graph.indices.dtype == np.int32
        and native.is_available()
    )


def sweeps_for(num_edges: int) -> int:
    """How many sweeps a search of a graph makes."""
    return min(_MAX_SWEEPS, max(_MIN_SWEEPS, _SWEPT_EDGES // max(num_edges, 1)))


def refine(graph: Graph, owner: np.ndarray, balance: Balance, seed: int = 0, prices: np.ndarray | None = None) -> None:
    """Move nodes between parts; ``owner``, int32 (N,), is changed. Does nothing where the search is not available.

    With ``prices``, int64 (P, P), a halo row that part i holds and part j owns counts ``prices[i, j]`` instead of 1.
    """
    if is_available(graph, len(balance.shares)):
        sweeps = sweeps_for(graph.num_edges)
        mean = 1 if prices is None or len(prices) == 1 else prices.sum() / (prices.size - len(prices))
        problem, temperature = _problem(owner, balance), TEMPERATURE * mean
        native.refine(*_in_edges(graph), **problem, sweeps=sweeps, temperature=temperature, seed=seed, prices=prices)


def even_out(graph: Graph, owner: np.ndarray, balance: Balance) -> None:
    """Move nodes out of parts that exceed their bounds, and no others; ``owner``, int32 (N,), is changed.

    Does nothing where the search is not available.
    """
    if is_available(graph, len(balance.shares)):
        native.refine(*_in_edges(graph), **_problem(owner, balance), sweeps=0, temperature=0.0, seed=0)


def refine_multilevel(graph: Graph, owner: np.ndarray, balance: Balance, groups: np.ndarray, seed: int = 0) -> None:
    """Move clusters of nodes between parts, and then nodes; ``owner``, int32 (N,), is changed.

    Only nodes with the same number in ``groups``, int64 (N,), may share a cluster.
    """
    native.refine_multilevel(*_in_edges(graph), **_problem(owner, balance), groups=groups, seed=seed)


def _in_edges(graph: Graph) -> tuple[np.ndarray, np.ndarray]:
    return np.ascontiguousarray(graph.indptr, np.int64), np.ascontiguousarray(graph.indices)


def _problem(owner: np.ndarray, balance: Balance) -> dict:
    return {
        "weights": balance.weights,
        "floors": balance.floors(),
        "capacities": balance.capacities(_TIGHTNESS if len(balance.kinds) > 1 else 1.0),
        "owner": owner,
    }


# ---- unequal ranks and links -------------------------------------------------------------------------------------------


def fit_to_ranks(
    graph: Graph, owner, balance: Balance, costs: Costs, profile: Profile, seed: int, progress, *, moves_nodes: bool
) -> tuple[np.ndarray, Balance, Mapping]:
    """The rank of each node, int32 (N,), the balance with the shares of ranks, and the mapping of parts.

    ``owner``, int32 (N,), is the part of each node; without ``moves_nodes``, the nodes of a part stay together. To cut
    the graph by hosts first, and then inside each host, was worse on four graphs of five.
    """
    mapping = best_mapping(count_assignment(graph, owner, balance.shares), costs, profile)
    ranks = np.array(mapping.rank_of_part, np.int32)
    owner, balance = ranks[owner], replace(balance, shares=balance.shares[np.argsort(ranks)])
    links = profile.links(len(ranks))[~np.eye(len(ranks), dtype=bool)]
    if moves_nodes and links.max() > _SIMILAR_LINKS * links.min() and is_available(graph, len(ranks)):
        owner, step_s = refined_on_links(graph, owner, balance, costs, profile, seed, progress)
        mapping = replace(mapping, predicted_s=step_s)
    return owner, balance, mapping


def refined_on_links(graph: Graph, owner, balance: Balance, costs: Costs, profile: Profile, seed: int, progress):
    """The best assignment of all rounds to ranks, int32 (N,), starting from ``owner``, and its predicted step (s)."""
    byte_s, weight = 1 / profile.links(len(balance.shares)), np.ones(len(balance.shares))
    bounds, without_gain, number = with_default_bounds(balance, "step"), 0, 0
    figures = count_assignment(graph, owner, balance.shares)
    best = _score(figures, balance, owner, costs, profile)
    while without_gain < _PATIENCE:
        number += 1
        progress(f"edge cut, search on links, round {number}")
        trial = owner.copy()
        refine(graph, trial, bounds, seed + number, prices=_prices(byte_s, weight))
        found = count_assignment(graph, trial, balance.shares)
        score = _score(found, balance, trial, costs, profile)
        without_gain += 1
        if score < best:
            without_gain = 0 if score[1] < _MAX_OF_BEST * best[1] else without_gain
            owner, figures, best = trial, found, score
        exchange_s = (costs.received_bytes(figures) * byte_s).sum(axis=1)
        weight = weight * np.sqrt(exchange_s / max(exchange_s.mean(), 1e-300))
        weight = np.clip(weight, weight.max() / _MAX_WEIGHT, None)
    return owner, best[1]


def _score(
    figures: Figures, balance: Balance, owner: np.ndarray, costs: Costs, profile: Profile
) -> tuple[float, float]:
    """By how much bounds are exceeded, those that the user gave and the memory of ranks; and the predicted step (s)."""
    room = np.asarray(profile.memory_bytes) - np.asarray(profile.process_bytes)
    excess = float((costs.rank_memory_bytes(figures) / np.maximum(room, 1.0)).max())
    excess = max(excess, balance.largest_load(owner) if balance.is_strict else 0.0)
    return max(excess, 1.0), costs.step_seconds(figures, profile)


def _prices(byte_s: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Price of a halo row that rank i holds and rank j owns, int64 (P, P): its way there, and its gradient's way back."""
    price = weight[:, None] * byte_s
    price = price + price.T
    apart = ~np.eye(len(weight), dtype=bool)
    price = _MEAN_PRICE * price / max(price[apart].mean(), 1e-300)
    return np.rint(np.clip(price, 1, 2**30)).astype(np.int64) * apart
