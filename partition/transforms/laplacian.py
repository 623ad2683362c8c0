"""``laplacian``: eigenvectors of the symmetric normalised Laplacian (Dwivedi and Bresson, arXiv:2012.09699).

Each connected component has eigenvectors of its own, so components are solved one by one, small ones as dense matrices.
Each component has the eigenvalue 0 once, with a known vector, which says nothing but which component a node is in: it
is left out. So are isolated nodes.

For large components, ARPACK's Lanczos method needs one product with the matrix per step, but spends most of its time on
keeping its vectors orthogonal. So it is given a polynomial of the matrix: a Chebyshev polynomial, which is small on all
eigenvalues below a cutoff and grows quickly above it. This divides the number of steps by the degree of the polynomial.
The cutoff is a lower bound on the last eigenvalue that is wanted, from two rounds of subspace iteration.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy  # imports its parts at their first use

from dgl_gt.partition.errors import InputError

from .node_encodings import components, degrees, normalised

MAX_DENSE = 512  # nodes of a component that is solved as a dense matrix
SPARE = 8  # vectors of subspace iteration beyond those wanted
_DENSE_ENTRIES = 1 << 22  # of dense matrices that are solved together
_DIGITS = 9  # of eigenvalues that count as equal
_SAME_SIZE = 1 - 1e-6  # of the largest magnitude: entries that count as largest
_DEGREE = 15  # of the polynomial
_MARGIN = 0.1  # between the cutoff and the bound, as a share of what lies above the bound
_MIN_CUTOFF = -0.5
_TOLERANCE, _LOOSE_TOLERANCE = 1e-5, 1e-2
_LARGEST_ERROR = 1e-4  # of a vector v of length 1: the length of M v - value v
_SAME = 1e-8  # eigenvalues that differ by less count as one that occurs several times
_MAX_RESTARTS = 100


@dataclass(frozen=True)
class _Found:
    """Eigenvectors of one component, or of several of one size: C of them, each with S rows and k vectors."""

    values: np.ndarray  # of the Laplacian, float64, (C, k), ascending
    vectors: np.ndarray  # float64, (C, S, k)
    nodes: np.ndarray  # node of each row, (C, S)
    component: np.ndarray  # number of each component, (C,)


def laplacian_encoding(adjacency: scipy.sparse.csr_array, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The eigenvectors of the ``count`` smallest eigenvalues above 0, float32 (N, count), and the eigenvalues.

    Columns have length 1 and ascend by eigenvalue, float64 (at most ``count``,). The largest entry of a column, the
    first if there are several, is positive. Where the graph has fewer such eigenvectors, the last columns are zero.
    :class:`InputError` where eigenvectors of a component do not converge.
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
    """The vector or its negative; rounding errors do not decide which."""
    magnitude = np.abs(vector)
    first = np.argmax(magnitude >= _SAME_SIZE * magnitude.max())
    return vector if vector[first] > 0 else -vector


def _best_of(group: _Found, count: int) -> _Found:
    """Those components of a group that have one of its ``count`` smallest eigenvalues."""
    if len(group.values) <= count:
        return group
    best = np.sort(np.argsort(np.round(group.values[:, 0], _DIGITS), kind="stable")[:count])
    return _Found(group.values[best], group.vectors[best], group.nodes[best], group.component[best])


def _solve(adjacency: scipy.sparse.csr_array, count: int, seed: int):
    """What was found in the components with an edge, for those of one size together."""
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
    """The largest eigenvalues below the trivial one, (C, count), descending, and their vectors."""
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
    """What :func:`_solve_dense` finds, of one component."""
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


def lanczos_vectors(count: int, size: int) -> int:
    """How many vectors of the matrix's size ARPACK holds for ``count`` eigenvectors."""
    return min(2 * count + 16, size)


def largest_eigenvectors(matrix, known: np.ndarray, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The ``count`` largest eigenvalues of a matrix other than that of ``known``, descending, and their vectors.

    The matrix, (S, S), is symmetric, with eigenvalues from -1 to 1 and S far above ``count``; ``known``, (S,), has
    length 1 and the eigenvalue 1. Lanczos' method may miss further copies of an eigenvalue that occurs several times.
    So the space orthogonal to the vectors found is searched for a larger eigenvalue, until there is none.
    """
    rng = np.random.default_rng(seed)
    values, vectors = _search(matrix, known[:, None], count, _TOLERANCE, rng)
    while True:
        found = np.column_stack([known, vectors])
        if _search(matrix, found, 1, _LOOSE_TOLERANCE, rng)[0][0] <= values[-1] + _SAME:
            return values, vectors
        others = _search(matrix, found, count, _TOLERANCE, rng)[1]
        values, vectors = _rayleigh_ritz(matrix, np.column_stack([vectors, others]), count)


def _search(matrix, known: np.ndarray, count: int, tolerance: float, rng) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues and vectors other than the known ones, (S, known)."""

    def filtered(x: np.ndarray) -> np.ndarray:
        x = _filtered(matrix, x, cutoff)
        x -= known @ (known.T @ x)
        return x

    size = matrix.shape[0]
    block = rng.standard_normal((size, count + SPARE))
    cutoff = 0.0
    for _ in range(2):
        block = np.linalg.qr(filtered(block))[0]
        ritz = np.linalg.eigvalsh(block.T @ (matrix @ block))
        bound = float(ritz[-count])  # at most the eigenvalue that is wanted last
        cutoff = max(_MIN_CUTOFF, bound - _MARGIN * (1 - bound))
    start = block.sum(axis=1)
    del block
    operator = scipy.sparse.linalg.LinearOperator((size, size), lambda x: filtered(x.ravel()), dtype=np.float64)
    try:
        _, vectors = scipy.sparse.linalg.eigsh(
            operator,
            count,
            which="LA",
            v0=start,
            ncv=lanczos_vectors(count, size),
            tol=tolerance,
            maxiter=_MAX_RESTARTS,
        )
    except scipy.sparse.linalg.ArpackNoConvergence as error:
        raise _not_converged(count, len(error.eigenvalues), size) from None
    values, vectors = _rayleigh_ritz(matrix, vectors, count)
    errors = np.linalg.norm(matrix @ vectors - vectors * values, axis=0)
    if tolerance == _TOLERANCE and errors.max() > _LARGEST_ERROR:
        raise _not_converged(count, int(np.count_nonzero(errors <= _LARGEST_ERROR)), size)
    return values, vectors


def _rayleigh_ritz(matrix, vectors: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The ``count`` largest eigenvalues within the space of some vectors, descending, and their vectors."""
    vectors = np.linalg.qr(vectors)[0]
    values, turn = np.linalg.eigh(vectors.T @ (matrix @ vectors))
    return values[: -1 - count : -1], vectors @ turn[:, : -1 - count : -1]


def _filtered(matrix, x: np.ndarray, cutoff: float) -> np.ndarray:
    """The Chebyshev polynomial of the matrix times x; it is 1 at the eigenvalue 1, and small from -1 to ``cutoff``."""
    middle, half = (cutoff - 1) / 2, (cutoff + 1) / 2
    before, now = x, (matrix @ x - middle * x) / half
    for _ in range(_DEGREE - 1):
        following = matrix @ now
        following -= middle * now
        following *= 2 / half
        following -= before
        before, now = now, following
    now /= np.cosh(_DEGREE * np.arccosh(max(1.0, (1 - middle) / half)))
    return now


def _not_converged(count: int, converged: int, size: int) -> InputError:
    least = f"laplacian={converged}, or " if converged else ""
    return InputError(
        f"laplacian={count}: {converged} of {count} eigenvectors of a component of {size:,} nodes converged within "
        f"{_MAX_RESTARTS} restarts; choose {least}random_walk or anchors, which need no eigenvectors"
    )
