"""Encodings by brute force, on dense matrices, and the graphs that they are compared on."""

import numpy as np

from dgl_gt.partition.graph import from_edges


def simple(graph):
    """Dense adjacency without direction, parallel edges and self-loops, (N, N)."""
    matrix = np.zeros((graph.num_nodes, graph.num_nodes))
    src, dst = graph.edges()
    for u, v in zip(src.tolist(), dst.tolist()):
        if u != v:
            matrix[u, v] = matrix[v, u] = 1
    return matrix


def normalised(adjacency):
    with np.errstate(divide="ignore"):
        scale = np.where(adjacency.sum(0) > 0, adjacency.sum(0) ** -0.5, 0)
    return scale[:, None] * adjacency * scale


def distances(adjacency):
    """Hops between all pairs, infinite where no path is, (N, N)."""
    hops = np.where(adjacency > 0, 1.0, np.inf)
    np.fill_diagonal(hops, 0)
    for middle in range(len(hops)):
        hops = np.minimum(hops, hops[:, middle, None] + hops[None, middle])
    return hops


def laplacian_values(adjacency):
    """Eigenvalues above 0 of the normalised Laplacian without isolated nodes, ascending."""
    kept = adjacency.sum(0) > 0
    if not kept.any():
        return np.zeros(0)
    values = np.linalg.eigvalsh(np.eye(kept.sum()) - normalised(adjacency)[kept][:, kept])
    pieces = sum(1 for row in np.unique(np.isfinite(distances(adjacency)), axis=0) if row.sum() > 1)
    return values[pieces:]


def random_walk(adjacency, steps):
    degree = adjacency.sum(1, keepdims=True)
    walk = np.divide(adjacency, degree, out=np.zeros_like(adjacency), where=degree > 0)
    return np.stack([np.diag(np.linalg.matrix_power(walk, step)) for step in range(1, steps + 1)], axis=1)


def pieces(seed):
    """Two random pieces of different density, a triangle, two equal paths, isolated nodes; shuffled ids."""
    rng = np.random.default_rng(seed)
    one, other = rng.integers(0, 14, (2, 30)), rng.integers(14, 24, (2, 25))
    paths = np.array([[27, 28, 29, 31, 32, 33], [28, 29, 30, 32, 33, 34]])
    edges = np.concatenate([one, other, [[24, 25, 26], [25, 26, 24]], paths], axis=1)
    edges = np.concatenate([edges, edges[:, :5], edges[::-1, 5:9], [[3, 15], [3, 15]]], axis=1)  # parallel, back, loops
    names = rng.permutation(40)
    feat = rng.standard_normal((40, 6)).astype(np.float32)
    return from_edges(*names[edges], 40, {"feat": feat, "label": rng.integers(0, 3, 40)}, name="pieces")
