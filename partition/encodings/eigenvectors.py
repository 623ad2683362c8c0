"""The largest eigenvalues of a sparse symmetric matrix with eigenvalues from -1 to 1, other than one that is known.

ARPACK's Lanczos method needs one product with the matrix per step, but spends most of its time on keeping its vectors
orthogonal. So it is given a polynomial of the matrix: a Chebyshev polynomial, which is small on all eigenvalues below a
cutoff and grows quickly above it. This divides the number of steps by the degree of the polynomial. The cutoff is a
lower bound on the last eigenvalue that is wanted, from two rounds of subspace iteration.
"""

from __future__ import annotations

import numpy as np
import scipy  # imports its parts at their first use

from dgl_gt.partition.errors import InputError

SPARE = 8  # vectors of subspace iteration beyond those wanted
_DEGREE = 15
_MARGIN = 0.1  # between the cutoff and the bound, as a share of what lies above the bound
_MIN_CUTOFF = -0.5
_TOLERANCE, _LOOSE_TOLERANCE = 1e-5, 1e-2
_LARGEST_ERROR = 1e-4  # of a vector v of length 1: the length of M v - value v
_SAME = 1e-8  # eigenvalues that differ by less count as one that occurs several times
_MAX_RESTARTS = 100


def lanczos_vectors(count: int, size: int) -> int:
    """Return how many vectors of the matrix's size ARPACK holds for ``count`` eigenvectors."""
    return min(2 * count + 16, size)


def largest_eigenvectors(matrix, known: np.ndarray, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the ``count`` largest eigenvalues other than that of ``known``, descending, and their vectors.

    Lanczos' method may miss further copies of an eigenvalue that occurs several times. So the space orthogonal to the
    vectors found is searched for a larger eigenvalue, until there is none.

    Parameters
    ----------
    matrix : sparse array, float64, (S, S)
        Symmetric, with S far above ``count``.
    known : ndarray, float64, (S,)
        Eigenvector of length 1 with the eigenvalue 1.

    Raises
    ------
    InputError
        The eigenvectors did not converge within ``_MAX_RESTARTS`` restarts.
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
    """Return eigenvalues and vectors other than the known ones, (S, known)."""

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
    """Return the ``count`` largest eigenvalues within the space of some vectors, descending, and their vectors."""
    vectors = np.linalg.qr(vectors)[0]
    values, turn = np.linalg.eigh(vectors.T @ (matrix @ vectors))
    return values[: -1 - count : -1], vectors @ turn[:, : -1 - count : -1]


def _filtered(matrix, x: np.ndarray, cutoff: float) -> np.ndarray:
    """Return the Chebyshev polynomial of the matrix times x; it is 1 at the eigenvalue 1, and small from -1 to ``cutoff``."""
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
