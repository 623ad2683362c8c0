"""``anchors``: how near each node is to landmarks, by breadth-first search (after arXiv:2312.01342)."""

from __future__ import annotations

import numpy as np
import scipy  # imports its parts at their first use

from .adjacency import degrees


def anchor_encoding(adjacency: scipy.sparse.csr_array, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The nearness of each node to ``count`` landmarks, float32 (N, count), and the landmarks, int64.

    The nearness is 1 / (1 + hops): 1 at the landmark itself, and 0 where no path leads to it. Where fewer nodes than
    ``count`` have a neighbour, the last columns are zero.
    """
    landmarks = choose_landmarks(adjacency, count)
    weights = np.ones(adjacency.nnz)  # the type that scipy's search would convert to each time
    graph = scipy.sparse.csr_array((weights, adjacency.indices, adjacency.indptr), adjacency.shape)
    nearness = np.zeros((graph.shape[0], count), np.float32)
    for column, landmark in enumerate(landmarks):
        reached, hops = hops_from(graph, landmark)
        nearness[reached, column] = 1 / (1 + hops)
    return nearness, landmarks


def choose_landmarks(adjacency: scipy.sparse.csr_array, count: int) -> np.ndarray:
    """The landmarks, int64, at most ``count``.

    Nodes are looked at by falling degree, those of equal degree by rising id. A node becomes a landmark unless it has a
    landmark as neighbour, so that landmarks spread. If these are too few, the others follow in the same order. Isolated
    nodes are left out.
    """
    count_of = degrees(adjacency)
    by_degree = np.argsort(-count_of, kind="stable")[: np.count_nonzero(count_of)]
    is_near, landmarks = np.zeros(len(count_of), bool), list[np.integer]()
    for node in by_degree:
        if len(landmarks) == count:
            break
        if not is_near[node]:
            landmarks.append(node)
            is_near[adjacency.indices[adjacency.indptr[node] : adjacency.indptr[node + 1]]] = True
    others = by_degree[~np.isin(by_degree, landmarks)]
    return np.concatenate([np.array(landmarks, np.int64), others[: count - len(landmarks)]])


def hops_from(graph: scipy.sparse.csr_array, start: int) -> tuple[np.ndarray, np.ndarray]:
    """The nodes that can be reached from a node, and how many hops away they are, int64 each."""
    order, parents = scipy.sparse.csgraph.breadth_first_order(graph, start, directed=True, return_predecessors=True)
    place = np.empty(graph.shape[0], np.int64)
    place[order] = np.arange(len(order))
    parent_places = place[parents[order[1:]]]  # ascending: nodes are found in the order of their parents
    ends = [0, 1]  # of each hop's nodes in `order`
    while ends[-1] < len(order):
        ends.append(1 + int(np.searchsorted(parent_places, ends[-1])))
    return order, np.repeat(np.arange(len(ends) - 1), np.diff(ends))
