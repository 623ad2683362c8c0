"""The graph that encodings see: undirected, without parallel edges and self-loops, as METIS sees it."""

from __future__ import annotations

import numpy as np
import scipy  # imports its parts at their first use

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.graph import Graph, symmetrised

_MAX_ENTRIES = 2**31 - 1  # of an index type that scipy's graph routines take


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
