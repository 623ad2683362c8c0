"""HGTLayer and RelationalConv have the numbers of DGL's layers, whose weights they load."""

import pytest
import torch
from typed import typed_graph

from dgl_gt.nn import HGTLayer, RelationalConv, TypedLinear

dgl = pytest.importorskip("dgl")


def compared(theirs, ours, call):
    """Load the weights, and compare results and gradients on the same rows in float64."""
    theirs, ours = theirs.double(), ours.double()
    ours.load_state_dict(theirs.state_dict())
    graph = typed_graph().to_dgl()
    rows = torch.randn(graph.num_nodes(), 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    inputs = [rows.clone().requires_grad_() for _ in range(2)]
    results = call(theirs, dgl.to_homogeneous(graph), inputs[0]), ours(graph, inputs[1])
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-12)
    for result in results:
        (result * torch.linspace(-1, 1, result.shape[1], dtype=torch.float64)).pow(2).sum().backward()
    torch.testing.assert_close(inputs[1].grad, inputs[0].grad, rtol=1e-9, atol=1e-11)
    named = dict(ours.named_parameters())
    for name, parameter in theirs.named_parameters():
        torch.testing.assert_close(named[name].grad, parameter.grad, rtol=1e-9, atol=1e-10, msg=name)


@pytest.mark.parametrize(("head_size", "use_norm"), [(3, False), (5, True)])
def test_hgt(head_size, use_norm):
    torch.manual_seed(0)
    arguments = 12, head_size, 4, 3, 5, 0.0, use_norm
    theirs = dgl.nn.HGTConv(*arguments)
    with torch.no_grad():
        for each in (*theirs.relation_pri, theirs.skip):
            each.uniform_(-1, 2)
    compared(theirs, HGTLayer(*arguments), lambda layer, g, x: layer(g, x, g.ndata[dgl.NTYPE], g.edata[dgl.ETYPE]))


@pytest.mark.parametrize(
    "options", [{}, {"regularizer": "basis", "num_bases": 2, "layer_norm": True}, {"self_loop": False}]
)
def test_rgcn(options):
    torch.manual_seed(0)
    compared(
        dgl.nn.RelGraphConv(12, 6, 5, **options),
        RelationalConv(12, 6, 5, **options),
        lambda layer, g, x: layer(g, x, g.edata[dgl.ETYPE]),
    )


def test_typed_linear_is_dgls():
    torch.manual_seed(0)
    theirs, ours = dgl.nn.TypedLinear(12, 6, 3), TypedLinear(12, 6, 3)
    assert {k: v.shape for k, v in theirs.state_dict().items()} == {k: v.shape for k, v in ours.state_dict().items()}


@pytest.mark.parametrize(("types", "relations", "named"), [(2, 5, "2 node types"), (3, 4, "4 relations")])
def test_another_number_of_types(types, relations, named):
    graph = typed_graph().to_dgl()
    with pytest.raises(ValueError, match=named):
        HGTLayer(12, 3, 4, types, relations)(graph, torch.ones(graph.num_nodes(), 12))


def test_a_graph_of_one_type():
    with pytest.raises(ValueError, match="one type"):
        HGTLayer(12, 3, 4, 1, 1)(dgl.graph(([0, 1], [1, 0])), torch.ones(2, 12))
