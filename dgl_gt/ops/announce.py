"""Announces passes over edges to torch's profiler, and to the recorder of training steps."""

from __future__ import annotations

import torch

EDGES = "dgl_gt::edges"
ADDITIVE_PASS = 0.85  # time of a pass with additive scores, as a share of one with dot products


def edge_range(edges: int, rows: int, sources: int, heads: int, head_dim: int, itemsize: int, passes: float):
    """Return a context for passes over edges, a range of ``torch.profiler`` with these numbers as its argument.

    Parameters
    ----------
    edges, rows, sources : int
        Numbers of edges, and of the rows at their ends.
    heads, head_dim, itemsize : int
        Shape (heads, head_dim) of the row that each edge reads, and the size of a number (bytes).
    passes : float
        How often the edges are read: once forward, and once each for the gradients of the two ends.
    """
    numbers = edges, rows, sources, heads, head_dim, itemsize, passes
    return torch.profiler.record_function(EDGES, " ".join(map(str, numbers)))
