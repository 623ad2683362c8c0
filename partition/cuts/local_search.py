"""The local search of edge cuts: it moves nodes, or clusters of nodes, between parts for fewer halo rows.

KaHyPar and Mt-KaHyPar minimise the same number, the connectivity metric of hypergraphs, but they allow one weight per
node only, and no lower bound on the load of a part (https://github.com/kahypar/kahypar/issues/126 and 221). This search
stays because it bounds nodes, edges and training nodes together, keeps a least load, and needs no library;
docs/benchmarks.md has its results.
"""

from __future__ import annotations

import numpy as np

from dgl_gt.partition.graph import Graph

from . import native
from .balance import Balance

_MAX_SWEEPS, _MIN_SWEEPS, _SWEPT_EDGES = 10, 4, 50_000_000  # more sweeps save about a percent of the halo rows
_TEMPERATURE = 0.5  # halo rows
_TIGHTNESS = 0.8  # used when there are several bounds, because they conflict


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


def refine(graph: Graph, owner: np.ndarray, balance: Balance, seed: int = 0, prices: np.ndarray | None = None) -> None:
    """Move nodes between parts; ``owner``, int32 (N,), is changed. Does nothing where the search is not available.

    With ``prices``, int64 (P, P), a halo row that part i holds and part j owns counts ``prices[i, j]`` instead of 1.
    """
    if is_available(graph, len(balance.shares)):
        sweeps = min(_MAX_SWEEPS, max(_MIN_SWEEPS, _SWEPT_EDGES // max(graph.num_edges, 1)))
        problem = _problem(owner, balance)
        mean = 1 if prices is None or len(prices) == 1 else prices.sum() / (prices.size - len(prices))
        options = {"sweeps": sweeps, "temperature": _TEMPERATURE * mean, "seed": seed}
        native.refine(*_in_edges(graph), **problem, **options, prices=prices)


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
