"""``hops``: the features of a node's surroundings, hop by hop (after RpHGNN, arXiv:2310.14481)."""

from __future__ import annotations

import numpy as np
import scipy  # imports its parts at their first use

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.system.mapped_arrays import release_pages

from .adjacency import normalised

_CHUNK_ROWS = 1 << 14


def hop_encoding(adjacency: scipy.sparse.csr_array, feat: np.ndarray, hops: int, width: int | None, seed: int):
    """Return M feat, M**2 feat, ... M**hops feat side by side, float32 (N, hops * F); M is the normalised adjacency.

    Where ``feat`` has more than ``width`` columns, it is multiplied first by a random matrix that preserves inner
    products on average (normally distributed, of variance 1 / width).
    """
    rows = starting_rows(feat, width, seed)
    matrix, columns = normalised(adjacency, np.float32), rows.shape[1]
    result = np.empty((len(rows), hops * columns), np.float32)
    for hop in range(hops):
        rows = matrix @ rows
        if not np.isfinite(rows).all():
            raise InputError(
                "hops: feat holds numbers beyond the range of float32 (3.4e38); scale the features, or leave hops out of encode "
                "(--encode)"
            )
        result[:, hop * columns : (hop + 1) * columns] = rows
    return result


def starting_rows(feat: np.ndarray, width: int | None, seed: int) -> np.ndarray:
    """The features that are propagated, float32, (N, F) or (N, width)."""
    feat = feat.reshape(len(feat), -1)
    columns = feat.shape[1]
    projection = None
    if width is not None and columns > width:
        values = np.random.default_rng(seed).standard_normal((columns, width))
        projection, columns = (values / np.sqrt(width)).astype(np.float32), width
    rows = np.empty((len(feat), columns), np.float32)
    for start in range(0, len(feat), _CHUNK_ROWS):
        with np.errstate(over="ignore", invalid="ignore"):  # the caller checks the result
            chunk = feat[start : start + _CHUNK_ROWS].astype(np.float32)
            rows[start : start + _CHUNK_ROWS] = chunk if projection is None else chunk @ projection
        release_pages(feat)
    return rows
