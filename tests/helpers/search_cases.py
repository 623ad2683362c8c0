"""What the tests of the local search share: small graphs, counts in plain Python, and calls of the search."""

import numpy as np
import pytest

from dgl_gt.partition.cuts import native
from dgl_gt.partition.graph import from_edges

compiled = pytest.mark.skipif(
    not native.is_available(), reason="the package was installed without its compiled extension"
)


def pulled(graph, owner):
    """Return the halo rows as pairs: node, part that holds a copy."""
    return {
        (s, int(owner[d]))
        for s, d in zip(graph.indices.tolist(), graph.destinations().tolist())
        if owner[s] != owner[d]
    }


def random_graph(seed, nodes=None, awkward=True):
    """Return a small directed graph; an awkward one has a hub, parallel edges, self-loops and isolated nodes."""
    rng = np.random.default_rng(seed)
    nodes = nodes or int(rng.integers(4, 50))
    edges = int(rng.integers(0, 5 * nodes))
    src, dst = rng.integers(0, max(nodes - 2 * awkward, 1), (2, edges))
    if awkward:
        src[: edges // 8], dst[edges // 8 : edges // 4] = 0, 0
        some = rng.integers(0, max(edges, 1), edges // 5)
        src, dst = np.append(src, src[some]), np.append(dst, dst[some])
        loops = rng.integers(0, nodes, nodes // 6)
        src, dst = np.append(src, loops), np.append(dst, loops)
    else:
        pairs = np.unique(np.stack([src, dst])[:, src != dst], axis=1)
        src, dst = pairs[:, rng.permutation(pairs.shape[1])]
    return from_edges(src, dst, nodes, {"train_mask": np.arange(nodes) % 3 == 0})


def search(graph, owner, capacities, weights, sweeps=10, temperature=0.5, seed=0):
    """Return a new assignment by the compiled search."""
    owner = np.array(owner, np.int32)
    native.refine(
        graph.indptr,
        graph.indices,
        weights=np.ascontiguousarray(weights, np.int64),
        floors=np.zeros_like(capacities, np.int64),
        capacities=np.ascontiguousarray(capacities, np.int64),
        owner=owner,
        sweeps=sweeps,
        temperature=temperature,
        seed=seed,
    )
    return owner


def loads_of(owner, weights, parts):
    """Return the summed weights of the nodes of each part."""
    loads = np.zeros((parts, weights.shape[1]), np.int64)
    for node, part in enumerate(owner):
        loads[part] += weights[node]
    return loads
