"""``laplacian``: eigenvectors of the symmetric normalised Laplacian (Dwivedi and Bresson, arXiv:2012.09699).

Each connected component has eigenvectors of its own, so components are solved one by one, small ones as dense matrices.
Each component has the eigenvalue 0 once, with a known vector, which says nothing but which component a node is in: it
is left out. So are isolated nodes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy  # imports its parts at their first use

from .eigenvectors import largest_eigenvectors
from .neighbours import components, degrees, normalised

MAX_DENSE = 512  # nodes of a component that is solved as a dense matrix
_DENSE_ENTRIES = 1 << 22  # of dense matrices that are solved together
_DIGITS = 9  # of eigenvalues that count as equal
_SAME = 1 - 1e-6  # of the largest magnitude: entries that count as largest


@dataclass(frozen=True)
class _Found:
    """Eigenvectors of one component, or of several of one size: C of them, each with S rows and k vectors."""

    values: np.ndarray  # of the Laplacian, float64, (C, k), ascending
    vectors: np.ndarray  # float64, (C, S, k)
    nodes: np.ndarray  # node of each row, (C, S)
    component: np.ndarray  # number of each component, (C,)


def laplacian_encoding(adjacency: scipy.sparse.csr_array, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the eigenvectors of the ``count`` smallest eigenvalues above 0, float32 (N, count), and the eigenvalues.

    Columns have length 1 and ascend by eigenvalue, float64 (at most ``count``,). The largest entry of a column, the
    first if there are several, is positive. Where the graph has fewer such eigenvectors, the last columns are zero.

    Raises
    ------
    InputError
        Eigenvectors of a component did not converge.
    """
    groups = [_best_of(each, count) for each in _solve(adjacency, count, seed)]
    keys = [
        (round(value, _DIGITS), group.component[index], column, group, index)
        for group in groups
        for index, values in enumerate(group.values)
        for column, value in enumerate(values)
    ]
    chosen = sorted(keys, key=lambda key: key[:3])[:count]
    encoding = np.zeros((adjacency.shape[0], count), np.float32)
    for place, (_, _, column, group, index) in enumerate(chosen):
        encoding[group.nodes[index], place] = _with_fixed_sign(group.vectors[index, :, column])
    return encoding, np.clip([group.values[index, column] for _, _, column, group, index in chosen], 0, 2)


def _with_fixed_sign(vector: np.ndarray) -> np.ndarray:
    """Return the vector or its negative; rounding errors do not decide which."""
    magnitude = np.abs(vector)
    first = np.argmax(magnitude >= _SAME * magnitude.max())
    return vector if vector[first] > 0 else -vector


def _best_of(group: _Found, count: int) -> _Found:
    """Return those components of a group that have one of its ``count`` smallest eigenvalues."""
    if len(group.values) <= count:
        return group
    best = np.sort(np.argsort(np.round(group.values[:, 0], _DIGITS), kind="stable")[:count])
    return _Found(group.values[best], group.vectors[best], group.nodes[best], group.component[best])


def _solve(adjacency: scipy.sparse.csr_array, count: int, seed: int):
    """Yield what was found in the components with an edge, for those of one size together."""
    matrix, component = normalised(adjacency), components(adjacency)
    sizes = np.bincount(component)
    by_component = np.argsort(component, kind="stable")
    starts = np.cumsum(sizes) - sizes
    for size in np.unique(sizes[sizes > 1]):
        same = np.flatnonzero(sizes == size)
        step = max(1, _DENSE_ENTRIES // int(size) ** 2) if size <= MAX_DENSE else 1
        for begin in range(0, len(same), step):
            chosen = same[begin : begin + step]
            nodes = by_component[starts[chosen][:, None] + np.arange(size)]
            solve = _solve_dense if size <= MAX_DENSE else _solve_sparse
            values, vectors = solve(matrix, adjacency, nodes, min(count, int(size) - 1), seed)
            yield _Found(1 - values, vectors, nodes, chosen)


def _solve_dense(matrix, adjacency, nodes: np.ndarray, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the largest eigenvalues below the trivial one, (C, count), descending, and their vectors."""
    many, size = nodes.shape
    rows = matrix[nodes.ravel()].tocoo()
    place = np.empty(matrix.shape[0], np.int64)
    place[nodes.ravel()] = np.tile(np.arange(size), many)
    dense = np.zeros((many, size, size))
    dense[rows.row // size, rows.row % size, place[rows.col]] = rows.data
    values, vectors = np.linalg.eigh(dense)
    wanted = slice(-2, -2 - count, -1)
    return values[:, wanted].copy(), vectors[:, :, wanted].copy()  # a view would keep all vectors in memory


def _solve_sparse(matrix, adjacency, nodes: np.ndarray, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return what :func:`_solve_dense` does, of one component."""
    nodes = nodes[0]
    part = matrix if len(nodes) == matrix.shape[0] else matrix[nodes][:, nodes]
    order = scipy.sparse.csgraph.reverse_cuthill_mckee(
        part, symmetric_mode=True
    )  # products are faster where neighbours lie near each other
    trivial = np.sqrt(degrees(adjacency)[nodes[order]])
    values, in_order = largest_eigenvectors(part[order][:, order], trivial / np.linalg.norm(trivial), count, seed)
    vectors = np.empty_like(in_order)
    vectors[order] = in_order
    return values[None], vectors[None]
