"""Features from the structure of a graph that has none: NetMF (Qiu et al., arXiv:1710.02971), of up to some 20,000 nodes.

It factorises what random walks of up to ten steps say of pairs of nodes, a dense matrix (N, N)::

    python examples/netmf.py ppi_multilabel.npz --width 128 --out netmf.npz
    dgl-gt partition ppi_multilabel.npz --node-data netmf.npz --self-loops --parts 1 --out ppi
"""

import argparse

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import svds

from dgl_gt.partition import load_graph

STEPS = 10


def netmf(graph, width):
    """Rows of nodes, float32 (N, width), for an undirected graph."""
    src, dst = graph.edges()
    count = graph.num_nodes
    adjacency = sparse.csr_matrix((np.ones(len(src), np.float32), (src, dst)), (count, count))
    adjacency.data[:] = 1  # parallel edges once
    degrees = np.maximum(np.asarray(adjacency.sum(1)).ravel(), 1)
    step = sparse.diags(1 / degrees) @ adjacency
    power = total = step.toarray()
    for _ in range(STEPS - 1):
        power = step @ power
        total = total + power
    logs = np.log(np.maximum(total * (adjacency.sum() / STEPS) / degrees, 1))
    left, values, _ = svds(sparse.csr_matrix(logs), width, v0=np.ones(count, np.float32))
    rows = left * np.sqrt(values)
    return (rows / rows.std()).astype(np.float32)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Features from the structure of a graph.")
    parser.add_argument("graph", help="any source of `dgl-gt partition`")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--out", required=True, metavar="FILE.npz")
    args = parser.parse_args()
    np.savez(args.out, x=netmf(load_graph(args.graph), args.width))
