"""``degree``: how many in-edges and out-edges each node has."""

from __future__ import annotations

import numpy as np

from dgl_gt.partition.graph import Graph


def degree_encoding(graph: Graph) -> np.ndarray:
    """Return log(1 + in-degree) and log(1 + out-degree), float32, (N, 2); parallel edges and self-loops count."""
    out = np.bincount(graph.indices, minlength=graph.num_nodes)
    return np.log1p(np.stack([graph.in_degrees(), out], axis=1)).astype(np.float32)
