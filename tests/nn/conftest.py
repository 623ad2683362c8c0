"""Graphs that the tests of this folder share, and their dense counterparts for DGL's modules."""

import numpy as np
import pytest
import torch
from dgl_or_skip import dgl

from dgl_gt.ops.dropout import keyed_dropout

NODES = 24


def _random_edges(nodes, seed):
    """A directed graph as a boolean matrix [src, dst], with self-loops and one hub."""
    edges = np.random.default_rng(seed).random((nodes, nodes)) < 0.15
    np.fill_diagonal(edges, True)
    edges[:, 0] = True
    return edges


@pytest.fixture
def graph():
    """A directed graph in which every node has an in-edge; its edge ids follow no order of nodes."""
    src, dst = np.nonzero(_random_edges(NODES, seed=3))
    order = np.random.default_rng(4).permutation(len(src))
    return dgl.graph((src[order], dst[order]), num_nodes=NODES)


@pytest.fixture
def sparse_graph():
    """A directed graph with isolated nodes, nodes without in-edges, parallel edges and a self-loop."""
    return dgl.graph(([0, 0, 1, 4, 4, 5, 2], [1, 1, 2, 2, 4, 2, 6]), num_nodes=9)


@pytest.fixture
def densify():
    """``densify(graph, edge_bias) -> (bias or None, mask)`` as DGL's dense modules read them: [batch, query, key]."""

    def dense(graph, edge_bias=None):
        nodes = graph.num_nodes()
        src, dst = graph.edges()
        mask = torch.ones(1, nodes, nodes, dtype=torch.bool)
        mask[0, dst, src] = False
        if edge_bias is None:
            return None, mask
        empty = edge_bias.new_zeros(1, nodes, nodes, edge_bias.shape[1])
        return empty.index_put((torch.zeros_like(dst), dst, src), edge_bias), mask

    return dense


@pytest.fixture
def gradients():
    """``gradients(out, tensors)``: of a fixed, uneven weighting of ``out``; zeros where a tensor takes no part."""

    def of(out, tensors):
        weights = torch.linspace(-1.0, 2.0, out.numel(), dtype=out.dtype).view_as(out)
        return torch.autograd.grad((out * weights).sum(), tensors, materialize_grads=True)

    return of


class Keyed(torch.nn.Module):
    """The mask of one of our dropouts, on rows behind a batch dimension."""

    def __init__(self, ours):
        super().__init__()
        self.ours = ours

    def forward(self, h):
        return keyed_dropout(h[0], self.ours.p, self.ours.dropout_seed)[None]


@pytest.fixture
def share_masks():
    """``share_masks(dense, layer)``: DGL's dense layer drops the features that ours does, in the same places."""

    def share(dense, layer):
        dense.dropout, dense.ffn[2], dense.ffn[4] = map(Keyed, (layer.dropout, layer.ffn[2], layer.ffn[4]))

    return share
