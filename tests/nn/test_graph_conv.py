"""GraphConv: DGL's numbers, keys and refusals."""

import pytest
import torch
from dgl_or_skip import dgl

from dgl_gt.nn import GraphConv
from dgl_gt.nn.graph_conv import DEGREE_NORMS
from dgl_gt.structure import CSC


@pytest.mark.needs_dgl
@pytest.mark.parametrize("norm", DEGREE_NORMS)
@pytest.mark.parametrize("widths", [(6, 4), (4, 6)])
@pytest.mark.parametrize("options", [{}, {"bias": False}, {"activation": torch.tanh}])
def test_equals_dgl(sparse_graph, gradients, norm, widths, options):
    ours, theirs = (
        kind(*widths, norm, allow_zero_in_degree=True, **options).double() for kind in (GraphConv, dgl.nn.GraphConv)
    )
    theirs.load_state_dict(ours.state_dict())
    for graph in (sparse_graph, dgl.to_block(dgl.in_subgraph(sparse_graph, [3, 4, 5]), [3, 4, 5])):
        feat = torch.randn(graph.num_src_nodes(), widths[0], dtype=torch.float64, requires_grad=True)
        results = []
        for conv in (ours, theirs):
            rows = feat if conv is ours or not graph.is_block else (feat, feat[:3])
            out = conv(graph, rows)
            results.append((out, gradients(out, [feat, *conv.parameters()])))
        torch.testing.assert_close(*results, rtol=0, atol=1e-11)


@pytest.mark.needs_dgl
@pytest.mark.parametrize("norm", DEGREE_NORMS)
@pytest.mark.parametrize("widths", [(6, 4), (4, 6)])
def test_edge_weights_equal_dgls(sparse_graph, gradients, norm, widths):
    ours, theirs = (kind(*widths, norm, allow_zero_in_degree=True).double() for kind in (GraphConv, dgl.nn.GraphConv))
    theirs.load_state_dict(ours.state_dict())
    for graph in (sparse_graph, dgl.to_block(dgl.in_subgraph(sparse_graph, [3, 4, 5]), [3, 4, 5])):
        feat = torch.randn(graph.num_src_nodes(), widths[0], dtype=torch.float64, requires_grad=True)
        weight = torch.randn(graph.num_edges(), dtype=torch.float64)  # of both signs
        weight = weight.masked_fill(torch.arange(len(weight)) % 4 == 0, 0).requires_grad_()
        results = []
        for conv in (ours, theirs):
            rows = feat if conv is ours or not graph.is_block else (feat, feat[:3])
            out = conv(graph, rows, edge_weight=weight)
            results.append((out, gradients(out, [feat, weight, *conv.parameters()])))
        torch.testing.assert_close(*results, rtol=0, atol=1e-11)


@pytest.mark.needs_dgl
def test_initial_weights_are_dgls():
    states = []
    for kind in (GraphConv, dgl.nn.GraphConv):
        torch.manual_seed(0)
        states.append(kind(5, 3).state_dict())
    torch.testing.assert_close(*states, rtol=0, atol=0)


def path(nodes):
    """The graph 0 -> 1 -> 2 ..., in which nothing leads to 0."""
    indptr = torch.tensor([0, *range(nodes)])
    return CSC.build(indptr, torch.arange(nodes - 1, dtype=torch.int32), nodes)


def test_without_weight_sums_rows():
    x = torch.arange(6.0).view(3, 2)
    conv = GraphConv(2, 2, "none", weight=False, bias=False, allow_zero_in_degree=True)
    torch.testing.assert_close(conv(path(3), x), torch.tensor([[0.0, 0], [0, 1], [2, 3]]))


def test_weights_without_a_matrix():
    x = torch.arange(6.0).view(3, 2)
    conv = GraphConv(2, 2, "none", weight=False, bias=False, allow_zero_in_degree=True)
    found = conv(path(3), x, torch.tensor([-1.0, 0.5]))
    torch.testing.assert_close(found, torch.tensor([[0.0, 0], [0, -1], [1, 1.5]]))
    empty = CSC.build(torch.zeros(4, dtype=torch.int64), torch.zeros(0, dtype=torch.int32), 3)
    assert conv(empty, x, torch.zeros(0)).eq(0).all()
    for weights in (torch.ones(3), torch.ones(2, 1)):
        with pytest.raises(ValueError, match=r"edge_weight has shape \(.*\)"):
            conv(path(3), x, weights)


def test_low_precision_keeps_its_dtype():
    conv = GraphConv(2, 2, allow_zero_in_degree=True).bfloat16()
    assert conv(path(3), torch.ones(3, 2, dtype=torch.bfloat16)).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 2), "in_feats is 0"),
        ((2, 2, "sym"), "norm is 'sym'"),
        ((2, 3, "both", False), "without a weight they must be equal"),
    ],
)
def test_refuses_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        GraphConv(*arguments)


def test_refuses_rows():
    with pytest.raises(ValueError, match="make the module with in_feats equal to"):
        GraphConv(2, 2)(path(3), torch.ones(3, 3))
    with pytest.raises(ValueError, match="1 of 3 nodes have no in-edges, so they receive zeros"):
        GraphConv(2, 2)(path(3), torch.ones(3, 2))
