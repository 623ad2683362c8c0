"""Clusters of nodes with many edges inside them: METIS cuts large graphs by them, and rows of a part lie in their order.

Label propagation finds them in a few passes over the edges (Raghavan, Albert and Kumara 2007), under a bound on their
weight (Meyerhenke, Sanders and Schulz, "Partitioning complex networks via size-constrained clustering", 2014).
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import scipy  # imports its parts at their first use

from . import metis, native

CLUSTER_NODES = 1000  # rows of one cluster stay in a core's cache while attention reads them
_GROWTH = 4  # factor by which clusters become heavier, from level to level
_MIN_SHRINKAGE = 1.05  # a level whose number of clusters shrinks by a smaller factor is the last
_SWEEPS = 3
_CLUSTERS_PER_PART = 64  # at least; METIS must be able to balance what they weigh
_MAX_CLUSTERS = 0.5  # clusters over nodes; with more, METIS's own coarsening does as well
_MIN_ENTRIES = 2_000_000  # both directions of an edge count; METIS takes half a second for this many


def order_in_parts(undirected: scipy.sparse.csr_array, owner: np.ndarray, *, seed: int = 0) -> np.ndarray:
    """Return the nodes sorted by part, (N,), and inside each part by clusters, so that neighbours are near each other.

    ``undirected`` is from :func:`dgl_gt.partition.graph.symmetrised`, and ``owner``, (N,), the part of each node. The order
    of a part depends on its own nodes and the edges between them alone.
    """
    by_part = np.argsort(owner, kind="stable")
    ptr = np.concatenate([[0], np.cumsum(np.bincount(owner))])
    place = np.empty(len(owner), undirected.indices.dtype)  # of each node in its part
    orders = [by_part[:0]]
    for part, (begin, end) in enumerate(pairwise(ptr)):
        nodes = by_part[begin:end]
        place[nodes] = np.arange(len(nodes))
        rows = undirected[nodes]
        inside = owner[rows.indices] == part  # scipy's own selection of columns takes time in proportion to N
        row = np.repeat(np.arange(len(nodes)), np.diff(rows.indptr))[inside]
        indptr = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=len(nodes)))])
        edges = (rows.data[inside], place[rows.indices[inside]], indptr)
        orders.append(nodes[order_of_part(scipy.sparse.csr_array(edges, shape=(len(nodes),) * 2), seed=seed)])
    return np.concatenate(orders)


def order_of_part(undirected: scipy.sparse.csr_array, *, seed: int = 0) -> np.ndarray:
    """Return the nodes of one part, (n,), in the order of clusters; ``undirected``, (n, n), holds the edges between them.

    Clusters of about 1,000 nodes lie in the order of clusters of clusters. Without the compiled extension, the order is
    reverse Cuthill-McKee's.
    """
    undirected.sort_indices()
    if undirected.shape[0] <= 1:
        return np.arange(undirected.shape[0])
    if not _are_available(undirected):
        return np.asarray(scipy.sparse.csgraph.reverse_cuthill_mckee(undirected, symmetric_mode=True), np.int64)
    level, weights = _csr(undirected), np.ones(undirected.shape[0], np.int64)
    groups = np.zeros(len(weights), np.int32)
    levels, heaviest = [], CLUSTER_NODES
    while True:
        options = {"heaviest": heaviest, "sweeps": _SWEEPS, "seed": seed}
        cluster = native.find_clusters(*level, node_weights=weights, groups=groups, **options)
        levels.append(cluster)
        count = int(cluster.max(initial=-1)) + 1
        if count * _MIN_SHRINKAGE >= len(cluster):
            break
        level, weights = native.contract(*level, cluster), _sums(cluster, weights, count)
        groups, heaviest = groups[:count], min(_GROWTH * heaviest, undirected.shape[0])
    place = np.arange(count)
    for cluster in reversed(levels[1:]):
        place = np.argsort(np.argsort(place[cluster], kind="stable"))
    return np.argsort(place[levels[0]], kind="stable")


def k_way(
    undirected: scipy.sparse.csr_array,
    parts: int,
    weights: np.ndarray,
    *,
    objective: str = "cut",
    seed: int = 0,
    progress=None,
    **options,
) -> np.ndarray:
    """Split a graph as :func:`dgl_gt.partition.cuts.metis.k_way` does; for few cut edges, a large graph is contracted to clusters.

    METIS then sees clusters in place of nodes, and takes a fraction of the time and memory. A later step must move or
    place single nodes or edges. For other objectives, which depend on single nodes, METIS always sees the nodes.
    """
    options |= {"seed": seed, "progress": progress}
    if objective == "cut" and undirected.nnz >= _MIN_ENTRIES and _are_available(undirected):
        if progress:
            progress("clusters of nodes")
        edges = _csr(undirected)
        heaviest = max(1, int(weights.sum()) // (_CLUSTERS_PER_PART * parts))
        groups, weights = np.zeros(len(weights), np.int32), np.ascontiguousarray(weights, np.int64)
        limits = {"heaviest": heaviest, "sweeps": _SWEEPS, "seed": seed}
        cluster = native.find_clusters(*edges, node_weights=weights, groups=groups, **limits)
        count = int(cluster.max()) + 1
        if count <= _MAX_CLUSTERS * len(weights):
            indptr, indices, edge_weights = native.contract(*edges, cluster)
            coarse = scipy.sparse.csr_array((edge_weights, indices, indptr), shape=(count, count))
            return metis.k_way(coarse, parts, _sums(cluster, weights, count), **options)[cluster]
    return metis.k_way(undirected, parts, weights, objective=objective, **options)


def _are_available(undirected: scipy.sparse.csr_array) -> bool:
    return native.is_available() and undirected.shape[0] < 2**31


def _csr(undirected: scipy.sparse.csr_array) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """``indptr``, neighbours and edge weights as the compiled loops take them; None where all edges weigh one."""
    weights = None if undirected.dtype == bool else np.ascontiguousarray(undirected.data, np.int64)
    return (
        np.ascontiguousarray(undirected.indptr, np.int64),
        np.ascontiguousarray(undirected.indices, np.int32),
        weights,
    )


def _sums(cluster: np.ndarray, weights: np.ndarray, count: int) -> np.ndarray:
    """The weight of each cluster, int64; exact below 2**53."""
    return np.bincount(cluster, weights, count).astype(np.int64)
