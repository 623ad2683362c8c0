"""``random_walk``: how likely a random walk is back where it began, after each number of steps (arXiv:2110.07875).

These are the diagonals of the powers of the random walk matrix, and also of the symmetric matrix M = D**-1/2 A D**-1/2,
which is similar to it. For a symmetric matrix, row i of M**j gives two of them: its squared length is entry i of the
diagonal of M**2j, and its product with row i of M**(j + 1) that of M**(2j + 1). So half of the powers suffice.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import scipy  # imports its parts at their first use

from .adjacency import components, degrees, normalised

MAX_MULTIPLICATIONS = 10**10  # of the exact computation; about 20 s
PROBES = 256  # random vectors of the estimate
_BLOCK_BYTES = 1 << 24  # of a block of columns
BLOCK_PROBES = 32


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
