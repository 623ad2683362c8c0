"""TransformerConv against PyG's, with the same weights: results and gradients on every graph that a layer takes."""

import pytest
import torch
from dgl_or_skip import dgl
from torch.utils.checkpoint import checkpoint

import dgl_gt
from dgl_gt.nn import TransformerConv

pyg = pytest.importorskip("torch_geometric.nn")
NODES, WIDTH, EDGE_DIM = 7, 5, 3
OPTIONS = [
    {},
    {"heads": 3, "edge_dim": EDGE_DIM},
    {"heads": 4, "edge_dim": EDGE_DIM, "beta": True, "bias": False},
    {"heads": 2, "edge_dim": EDGE_DIM, "beta": True, "concat": False},
    {"heads": 8, "edge_dim": EDGE_DIM, "root_weight": False, "beta": True},
    {"heads": 8, "concat": False},
]
SRC, DST = torch.tensor([[0, 3, 3, 1, 1, 6, 2, 0], [0, 0, 2, 2, 2, 4, 6, 1]])  # parallel edges, isolated nodes
by_options = pytest.mark.parametrize("options", OPTIONS, ids=str)


def drawn(*shape, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def both(options, in_channels=WIDTH):
    """PyG's layer and ours, with the weights that a seed gives each."""
    layers = []
    for module in (pyg.TransformerConv, TransformerConv):
        torch.manual_seed(3)
        layers.append(module(in_channels, 4, **options).double())
    return layers


def results(layer, out, *inputs):
    """What a layer returned, and every gradient."""
    leaves = [*inputs, *layer.parameters()]
    upstream = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    found = torch.autograd.grad(out, leaves, upstream, allow_unused=True)
    return [out, *(torch.zeros_like(x) if grad is None else grad for x, grad in zip(leaves, found))]


def check_equal(found, expected):
    for got, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-11)


@by_options
def test_names_and_initial_weights(options):
    theirs, ours = (layer.state_dict() for layer in both(options))
    assert list(theirs) == list(ours)
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-7, atol=0)


@by_options
@pytest.mark.parametrize("kind", ["edge_index", "csc", "dgl", "data", "checkpointed"])
def test_equals_pyg(options, kind):
    theirs, ours = both(options)
    ours.load_state_dict(theirs.state_dict())
    x, edge_index = drawn(NODES, WIDTH), torch.stack([SRC, DST])
    edge = (drawn(len(SRC), EDGE_DIM, seed=1),) if "edge_dim" in options else ()
    graph = {
        "csc": lambda: dgl_gt.csc(edge_index, num_nodes=NODES),
        "dgl": lambda: dgl.graph((SRC, DST), num_nodes=NODES),
        "data": lambda: pytest.importorskip("torch_geometric.data").Data(edge_index=edge_index, num_nodes=NODES),
    }.get(kind, lambda: edge_index)()
    out = checkpoint(ours, graph, x, *edge, use_reentrant=False) if kind == "checkpointed" else ours(graph, x, *edge)
    check_equal(results(ours, out, x, *edge), results(theirs, theirs(x, edge_index, *edge), x, *edge))


@by_options
def test_a_block_has_the_destinations_first(options):
    theirs, ours = both(options)
    ours.load_state_dict(theirs.state_dict())
    x = drawn(NODES, WIDTH)
    edge = (drawn(len(SRC), EDGE_DIM, seed=1),) if "edge_dim" in options else ()
    block = dgl.create_block((SRC, DST % 4), num_src_nodes=NODES, num_dst_nodes=4)
    expected = theirs((x, x[:4]), torch.stack([SRC, DST % 4]), *edge)
    check_equal(results(ours, ours(block, x, *edge), x, *edge), results(theirs, expected, x, *edge))


@by_options
def test_pairs(options):
    theirs, ours = both(options, (WIDTH, 6))
    ours.load_state_dict(theirs.state_dict())
    x = drawn(NODES, WIDTH), drawn(5, 6, seed=2)
    edge = (drawn(len(SRC), EDGE_DIM, seed=1),) if "edge_dim" in options else ()
    ends = torch.stack([SRC, DST % 5])
    check_equal(results(ours, ours(ends, x, *edge), *x, *edge), results(theirs, theirs(x, ends, *edge), *x, *edge))


def test_dropout_drops_weights_alone():
    layer = TransformerConv(WIDTH, 4, 2, dropout=0.5, edge_dim=EDGE_DIM).double()
    x, edge, graph = drawn(NODES, WIDTH), drawn(len(SRC), EDGE_DIM, seed=1), torch.stack([SRC, DST])
    layer.dropout_seed = 3
    first = layer(graph, x, edge)
    assert torch.equal(layer(graph, x, edge), first)
    layer.dropout_seed = 4
    assert not torch.equal(layer(graph, x, edge), first)
    isolated = [3, 5]
    torch.testing.assert_close(first[isolated], layer.lin_skip(x[isolated]))
    assert not torch.equal(layer.eval()(graph, x, edge), first)


def test_projections_with_hooks_are_called():
    theirs, ours = both(OPTIONS[1])
    seen = []
    ours.lin_query.register_forward_hook(lambda *_: seen.append(1))
    x, edge, graph = drawn(NODES, WIDTH), drawn(len(SRC), EDGE_DIM, seed=1), torch.stack([SRC, DST])
    torch.testing.assert_close(ours(graph, x, edge), theirs(x, graph, edge))
    assert seen


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"heads": 0}, "heads"),
        ({"edge_dim": 0}, "edge_dim"),
        ({"dropout": 1.0}, "1.0"),
        ({"beta": 1}, "beta"),
        ({"in_channels": (4, 0)}, "in_channels"),
    ],
)
def test_arguments_that_cannot_be(options, named):
    with pytest.raises(ValueError, match=named):
        TransformerConv(**{"in_channels": 4, "out_channels": 2} | options)


@pytest.mark.parametrize("edge", [None, torch.zeros(8, 2), torch.zeros(8, EDGE_DIM + 1), torch.zeros(7, EDGE_DIM)])
def test_features_of_edges_that_do_not_fit(edge):
    with pytest.raises(ValueError, match="edge"):
        TransformerConv(WIDTH, 4, edge_dim=EDGE_DIM)(torch.stack([SRC, DST]), torch.zeros(NODES, WIDTH), edge)
    with pytest.raises(ValueError, match="edge_attr"):
        TransformerConv(WIDTH, 4)(torch.stack([SRC, DST]), torch.zeros(NODES, WIDTH), torch.zeros(8, 2))
