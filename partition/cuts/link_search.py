"""Fits an edge cut to unequal ranks and links: parts get ranks, then nodes move where the slowest rank's step falls.

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

from .balance import Balance, with_default_bounds
from .local_search import is_available, refine
from .permutation import count_assignment

_PATIENCE, _MAX_OF_BEST = 2, 0.99  # the search ends after two rounds in a row that save less than 1 % of the step
_SIMILAR_LINKS = 2.0  # if bandwidths differ by a smaller factor, prices save nothing over a search for few halo rows
_MEAN_PRICE = 16  # prices are whole numbers
_MAX_WEIGHT = 8.0  # of a rank, over that of others


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
