"""Edges that are added to a graph: self-loops and reverse edges."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import scipy  # imports its parts at their first use

from .errors import InputError
from .graph import Graph, from_edges


def with_self_loops(graph: Graph) -> Graph:
    """Return the graph with a self-loop at every node; new edges get the ids after the existing ones."""
    has_loop = np.zeros(graph.num_nodes, dtype=bool)
    dst = graph.destinations()
    has_loop[dst[graph.indices == dst]] = True
    new = np.flatnonzero(~has_loop)
    return _with_edges(graph, new, new, "self-loops")


def with_reverse_edges(graph: Graph) -> Graph:
    """Return the graph with v -> u for every edge u -> v; new edges get the ids after the existing ones."""
    n = graph.num_nodes
    forward = scipy.sparse.csr_array((np.ones(graph.num_edges, bool), graph.indices, graph.indptr), (n, n), copy=True)
    forward.sum_duplicates()
    missing = (forward.T.tocsr() > forward).tocoo()  # rows are destinations
    return _with_edges(graph, missing.col, missing.row, "reverse edges")


def _with_edges(graph: Graph, src: np.ndarray, dst: np.ndarray, what: str) -> Graph:
    if not len(src):
        return graph
    if graph.edge_data:
        raise InputError(
            f"{graph.name}: {what} cannot be added, as their edge data ({', '.join(graph.edge_data)}) are unknown; "
            "add them to the source, with these data"
        )
    return with_more_edges(graph, src, dst, graph.num_nodes)


def with_more_edges(graph: Graph, src: np.ndarray, dst: np.ndarray, num_nodes: int) -> Graph:
    """Return the graph with more edges, which get the next ids, and ``num_nodes`` nodes; callers extend the data."""
    old_src, old_dst = graph.edges()
    edges = from_edges(np.concatenate([old_src, src]), np.concatenate([old_dst, dst]), num_nodes)
    return replace(graph, indptr=edges.indptr, indices=edges.indices, edge_ids=edges.edge_ids)
