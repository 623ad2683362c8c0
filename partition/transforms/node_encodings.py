"""Encodings of nodes by products and searches on the graph that they see: ``random_walk``, ``anchors`` and ``hops``.

That graph is undirected, without parallel edges and self-loops, as METIS sees it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import scipy  # imports its parts at their first use

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.graph import Graph, symmetrised
from dgl_gt.partition.system.mapped_arrays import release_pages

_MAX_ENTRIES = 2**31 - 1  # of an index type that scipy's graph routines take
MAX_MULTIPLICATIONS = 10**10  # of the exact computation; about 20 s
PROBES = 256  # random vectors of the estimate
_BLOCK_BYTES = 1 << 24  # of a block of columns
BLOCK_PROBES = 32
_CHUNK_ROWS = 1 << 14


def simple_adjacency(graph: Graph) -> scipy.sparse.csr_array:
    """The symmetric adjacency without self-loops, (N, N), bool, all stored values true."""
    matrix = symmetrised(graph)
    if matrix.nnz > _MAX_ENTRIES:
        raise InputError(
            f"{graph.name}: encodings are computed for fewer than 2**30 undirected edges, and this graph has "
            f"{matrix.nnz // 2:,}; choose degree alone, or leave encode (--encode) out"
        )
    matrix.sort_indices()
    matrix.indices, matrix.indptr = matrix.indices.astype(np.int32), matrix.indptr.astype(np.int32)
    return matrix


def degrees(adjacency: scipy.sparse.csr_array) -> np.ndarray:
    """The number of neighbours of each node, int64, (N,)."""
    return np.diff(adjacency.indptr).astype(np.int64)


def normalised(adjacency: scipy.sparse.csr_array, dtype=np.float64) -> scipy.sparse.csr_array:
    """D**-1/2 A D**-1/2, (N, N), where D holds the degrees; rows of isolated nodes are empty.

    Its powers have the diagonals of the random walk matrix's powers, to which it is similar.
    """
    count = degrees(adjacency)
    scale = (1 / np.sqrt(np.maximum(count, 1))).astype(dtype)
    values = scale[adjacency.indices]
    values *= np.repeat(scale, count)
    return scipy.sparse.csr_array((values, adjacency.indices, adjacency.indptr), adjacency.shape)


def components(adjacency: scipy.sparse.csr_array) -> np.ndarray:
    """The connected component of each node, int32, (N,)."""
    return scipy.sparse.csgraph.connected_components(adjacency, directed=False)[1]


# ---- random_walk: how likely a random walk is back where it began, after each number of steps (arXiv:2110.07875)
#
# These are the diagonals of the powers of the random walk matrix, and also of the symmetric matrix M = D**-1/2 A D**-1/2,
# which is similar to it. For a symmetric matrix, row i of M**j gives two of them: its squared length is entry i of the
# diagonal of M**2j, and its product with row i of M**(j + 1) that of M**(2j + 1). So half of the powers suffice.


def is_exact(nodes: int, entries: int, steps: int) -> bool:
    """Return whether the exact computation is affordable; ``entries`` are those of the adjacency, both directions."""
    return nodes * entries * -(-steps // 2) <= MAX_MULTIPLICATIONS


def block_bytes(nodes: int) -> int:
    """The size of a block of columns of the exact computation (bytes)."""
    return 8 * nodes * _block_columns(nodes)


def _block_columns(nodes: int) -> int:
    return min(nodes, max(1, _BLOCK_BYTES // (8 * nodes)))


def random_walk_encoding(adjacency: scipy.sparse.csr_array, steps: int, seed: int) -> tuple[np.ndarray, int]:
    """The probability of being back after 1 to ``steps`` steps, float32 (N, steps).

    Also returns how many of the columns are exact: all of them, or the first two, after which the others are unbiased
    estimates from ``PROBES`` random vectors.
    """
    if is_exact(adjacency.shape[0], adjacency.nnz, steps):
        return _exact(adjacency, steps), steps
    return _estimate(adjacency, steps, seed), min(2, steps)


def _exact(adjacency: scipy.sparse.csr_array, steps: int) -> np.ndarray:
    matrix, nodes = normalised(adjacency), adjacency.shape[0]
    result = np.zeros((nodes, steps), np.float32)
    block = _block_columns(nodes)
    for start in range(0, nodes, block):
        here = np.arange(start, min(start + block, nodes))
        columns = np.zeros((nodes, len(here)))
        columns[here, here - start] = 1
        for step, products in _products(matrix, columns, steps):
            result[here, step - 1] = products.sum(axis=0)
    return result


def _products(matrix, columns: np.ndarray, steps: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yield each number of steps with the products, entry by entry, of the powers of the matrix times ``columns``."""
    for power in range((steps + 1) // 2):
        following = matrix @ columns
        yield 2 * power + 1, columns * following
        if 2 * power + 2 <= steps:
            yield 2 * power + 2, following * following
        columns = following


def _estimate(adjacency: scipy.sparse.csr_array, steps: int, seed: int) -> np.ndarray:
    """Hutchinson's estimate: the mean of z * (matrix z) over random signs z is the diagonal.

    What walks of any length have in common is known: the node's share of the degrees in its component. It is removed
    from the signs and added to the result, so that only the rest is estimated.
    """
    matrix, nodes = normalised(adjacency, np.float32), adjacency.shape[0]
    count, component = degrees(adjacency), components(adjacency)
    volume = np.bincount(component, count)[component]
    limit = count / np.maximum(volume, 1)
    root, rng = np.sqrt(limit).astype(np.float32)[:, None], np.random.default_rng(seed)
    of_component = scipy.sparse.csr_array(
        (np.ones(nodes, np.float32), component, np.arange(nodes + 1)), (nodes, int(component.max()) + 1)
    )
    mean = np.zeros((nodes, steps))
    for _ in range(0, PROBES, BLOCK_PROBES):
        signs = 2 * rng.integers(0, 2, (nodes, BLOCK_PROBES), np.int8).astype(np.float32) - 1
        signs -= root * (of_component @ (of_component.T @ (root * signs)))
        for step, products in _products(matrix, signs, steps):
            mean[:, step - 1] += products.sum(axis=1, dtype=np.float64)
    mean /= PROBES
    mean += limit[:, None]
    mean[:, 0] = 0  # no walk is back after one step
    if steps > 1:
        squares = normalised(adjacency)
        squares.data **= 2
        mean[:, 1] = squares.sum(axis=1)
    return mean.astype(np.float32)


# ---- anchors: how near each node is to landmarks, by breadth-first search (after arXiv:2312.01342)


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


# ---- hops: the features of a node's surroundings, hop by hop (after RpHGNN, arXiv:2310.14481)


def hop_encoding(adjacency: scipy.sparse.csr_array, feat: np.ndarray, hops: int, width: int | None, seed: int):
    """Return M feat, M**2 feat, ... M**hops feat side by side, float32 (N, hops * F); M is the normalised adjacency.

    Where ``feat`` has more than ``width`` columns, it is multiplied first by a random matrix that preserves inner
    products on average (normally distributed, of variance 1 / width).
    """
    rows = np.concatenate([*starting_rows(feat, width, seed)])
    matrix, columns = normalised(adjacency, np.float32), rows.shape[1]
    result = np.empty((len(rows), hops * columns), np.float32)
    for hop in range(hops):
        rows = matrix @ rows
        check_finite(rows)
        result[:, hop * columns : (hop + 1) * columns] = rows
    return result


def check_finite(rows: np.ndarray) -> None:
    """Raise :class:`InputError` where features have left the range of float32."""
    if not np.isfinite(rows).all():
        raise InputError(
            "hops: feat holds numbers beyond the range of float32 (3.4e38); scale the features, or leave hops out of encode "
            "(--encode)"
        )


def starting_rows(feat: np.ndarray, width: int | None, seed: int) -> Iterator[np.ndarray]:
    """Yield the features that are propagated, float32, (n, F) or (n, width), some nodes at a time."""
    feat = feat.reshape(len(feat), -1)
    columns = feat.shape[1]
    projection = None
    if width is not None and columns > width:
        values = np.random.default_rng(seed).standard_normal((columns, width))
        projection = (values / np.sqrt(width)).astype(np.float32)
    for start in range(0, len(feat), _CHUNK_ROWS):
        with np.errstate(over="ignore", invalid="ignore"):  # the caller checks the result
            chunk = feat[start : start + _CHUNK_ROWS].astype(np.float32)
            chunk = chunk if projection is None else chunk @ projection
        release_pages(feat)
        yield chunk
