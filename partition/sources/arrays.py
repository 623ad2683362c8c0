"""Graphs given as arrays: an edge_index, a tuple of sources and destinations, a scipy sparse matrix."""

from __future__ import annotations

import numpy as np

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.graph import as_array

from .coo import COOGraph


def from_array(edge_index) -> COOGraph:
    """Make a COOGraph of an array or tensor of integers, (2, E), sources first."""
    edges = as_array(edge_index, "edge_index")
    if edges.ndim != 2 or len(edges) != 2:
        hint = "; transpose it" if edges.ndim == 2 and edges.shape[1] == 2 else ""
        raise InputError(f"an array of edges has shape {edges.shape}; it must be (2, E), sources first{hint}")
    return from_pair(*edges, name="edge_index")


def from_pair(src, dst, name: str = "(src, dst)") -> COOGraph:
    """Make a COOGraph of sources and destinations: arrays, tensors or lists of integers, (E,) each."""
    src, dst = as_array(src, "the sources of edges"), as_array(dst, "the destinations of edges")
    for ends in (src, dst):
        if ends.ndim != 1 or ends.shape != src.shape or (ends.dtype.kind not in "iu" and len(ends)):
            raise InputError(
                f"{name}: sources {src.dtype} {src.shape} and destinations {dst.dtype} {dst.shape} must be two lists "
                "of whole numbers (node ids) of the same length"
            )
    return COOGraph(src, dst, name=name)


def from_scipy(matrix, name: str = "scipy matrix") -> COOGraph:
    """Make a COOGraph of a square sparse matrix, (N, N): each stored entry (i, j) is an edge i -> j, in COO order.

    The values become edge data ``weight`` unless all of them are one.
    """
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise InputError(f"{name} has shape {matrix.shape}; an adjacency matrix must be square, (N, N)")
    if matrix.dtype.kind not in "biuf":
        raise InputError(f"{name} holds {matrix.dtype}; weights of edges must be numbers: take their absolute values")
    entries = matrix.tocoo()
    edge_data = {} if np.all(entries.data == 1) else {"weight": entries.data}
    return COOGraph(entries.row, entries.col, matrix.shape[0], {}, edge_data, name)


def as_names(values, what: str) -> np.ndarray:
    """Return the ids of nodes, one for each node: integers or str, (N,), different from each other."""
    names = as_array(values, what)
    if names.ndim != 1 or names.dtype.kind not in "iuU":
        raise InputError(f"{what} is {names.dtype} of shape {names.shape}; it must be whole numbers or text, (N,)")
    if names.dtype.kind == "U":
        odd = next(
            (name for name in names.tolist() if "\n" in name or any("\ud800" <= each <= "\udfff" for each in name)),
            None,
        )
        if odd is not None:
            raise InputError(f"{what}: {odd!r:.60} cannot be a line of a text file; rename this node")
    distinct, counts = np.unique(names, return_counts=True)
    if (counts > 1).any():
        raise InputError(f"{what}: {distinct[counts > 1][0]!s:.40} names several nodes; give each its own")
    return names
