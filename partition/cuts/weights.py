"""Edge cuts that follow weights: the least weight of cut edges, and parts that are even in a weight of nodes.

METIS minimises the weight of cut edges. The local search after it counts halo rows, which would undo this, so it only
takes nodes from parts that are too full.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy  # imports its parts at their first use

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.figures.figures import balance_of
from dgl_gt.partition.graph import Graph

from . import metis
from .balance import Balance, with_default_bounds
from .local_search import even_out

_OPTION = {"edge": "cut_weights (--cut-weights)", "node": "node_weights (--node-weights)"}
_MEAN = 1000  # of scaled weights
_EXACT = 2**53  # whole numbers with a smaller sum are taken as they are


def check_weights(source, cut_weights: str | None = None, node_weights: str | None = None) -> None:
    """Raise :class:`InputError` unless a Graph or COOGraph has data of these names that can be weights.

    None stands for none. The numbers are checked by :func:`weights_of`.
    """
    for kind, name, data in (("edge", cut_weights, source.edge_data), ("node", node_weights, source.node_data)):
        if name is None:
            continue
        value = data.get(name) if isinstance(name, str) else None
        if value is None:
            present = ", ".join(data) or "none"
            raise InputError(
                f"{_OPTION[kind]} is {name!r}, but {source.name} has no such {kind} data; it has {present}"
            )
        if source.schema is not None and "/" in name:
            of = "node type" if kind == "node" else "relation"
            raise InputError(
                f"{_OPTION[kind]} is {name!r}, data of one {of}, and others would have no weights; leave it out"
            )
        if value.ndim != 1 or value.dtype.kind not in "iuf":
            raise InputError(
                f"{_OPTION[kind]} is {name!r}, {kind} data of {value.dtype} {value.shape}; weights are one number for each {kind}: "
                "name a column of integers or floats"
            )


def weights_of(graph: Graph, kind: str, name: str) -> np.ndarray:
    """The numbers of a column of ``"edge"`` or ``"node"`` data that are weights; :class:`InputError` for negative ones."""
    values = graph.edge_data[name] if kind == "edge" else graph.node_data[name]
    with np.errstate(over="ignore"):
        total = values.sum(dtype=np.float64)
    if not np.isfinite(total) or len(values) and values.min() < 0:
        raise InputError(
            f"{_OPTION[kind]} is {name!r} of {graph.name}, with weights from {values.min()} to {values.max()}; weights are at least "
            "0, and a float must hold their sum"
        )
    return values


def scaled(values: np.ndarray) -> np.ndarray:
    """Positive weights as METIS takes them, int64 of at least 1.

    Whole numbers stay as they are. Others get a mean of 1,000 and are rounded, so weights far below a thousandth of the
    mean all count as 1.
    """
    values = values.astype(np.float64, copy=False)
    if not len(values) or (values.sum() < _EXACT and (values == np.rint(values)).all() and values.min() >= 1):
        return values.astype(np.int64)
    values = values / max(values.max(), np.finfo(np.float64).tiny)  # so that the sum is finite
    return np.maximum(np.rint(values * (_MEAN / max(values.mean(), 1e-300))), 1).astype(np.int64)


def weighted_adjacency(graph: Graph, values: np.ndarray) -> scipy.sparse.csr_array:
    """The graph as METIS sees it, (N, N): undirected and without self-loops, with the weight of each pair of nodes.

    ``values``, (E,), are weights in the order of edge ids. Both directions and parallel edges add up. Pairs of weight
    0 are left out, because cutting them costs nothing.
    """
    n, ones = graph.num_nodes, values[graph.edge_ids].astype(np.float64)
    ones[graph.indices == graph.destinations()] = 0
    one_way = scipy.sparse.csr_array((ones, graph.indices, graph.indptr), shape=(n, n), copy=True)
    one_way.sum_duplicates()  # first, so that both directions of a pair have the same sum
    both = one_way + one_way.T.tocsr()
    both.eliminate_zeros()
    return scipy.sparse.csr_array((scaled(both.data), both.indices, both.indptr), shape=(n, n))


def weight_of_cut(graph: Graph, owner: np.ndarray, values: np.ndarray) -> float:
    """The weight of the edges whose ends have different owners."""
    is_cut = owner[graph.indices] != np.repeat(owner, graph.in_degrees())
    return float(values[graph.edge_ids[is_cut]].sum(dtype=np.float64))


def least_weight_assignment(
    graph: Graph, parts: int, adjacency, balance: Balance, attempt: int, seed: int, progress: Callable
) -> np.ndarray:
    """The part of each node, int32 (N,), in a cut by METIS with little weight of cut edges.

    ``adjacency`` is from :func:`weighted_adjacency`. Attempts differ in METIS's seed and, where the user gives bounds, in
    the node weights that METIS keeps even.
    """
    loads = [balance.step]
    if balance.is_strict:
        loads += [graph.in_degrees() + 1, np.ones(graph.num_nodes, np.int64)]
    turn, number = divmod(attempt, len(loads))
    owner = metis.k_way(adjacency, parts, loads[number], shares=balance.shares, seed=seed + turn, progress=progress)
    even_out(graph, owner, balance if balance.is_strict else with_default_bounds(balance, "step"))
    return owner


def quality_by_weights(graph: Graph, owner: np.ndarray, shares: np.ndarray, edge_values, node_values) -> dict:
    """The quality by weights, for those that are not None."""
    figures: dict[str, float] = {}
    if edge_values is not None:
        cut, total = weight_of_cut(graph, owner, edge_values), float(edge_values.sum(dtype=np.float64))
        figures |= {"cut_weight": cut, "cut_weight_ratio": min(cut / total, 1.0) if total else 0.0}
    if node_values is not None:
        loads = np.bincount(owner, node_values, len(shares))
        figures["weight_balance"] = balance_of(loads, shares)
    return figures
