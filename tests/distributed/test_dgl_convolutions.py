"""DGL's own convolutions on ``sg.block`` and ``sg.pull``: those that train across ranks, and those that cannot."""

import numpy as np
import pytest
import torch
from ranks import run_ranks

import dgl_gt
from partition import partition
from partition.errors import InputError

WIDTH, OUT = 5, 4  # of the features, and of what each convolution makes


def linear(width):
    return torch.nn.Linear(width, OUT)


# Each makes a layer of its input's width; "edge_weight" in the name says that it takes one. With a residual DGL cannot
# view an empty tensor (``view(0, -1, out)``), so a rank must have a row.
TRAINS = {
    "GATConv": lambda nn, c: nn.GATConv(c, 2, 2, allow_zero_in_degree=True),
    "GATConv, residual": lambda nn, c: nn.GATConv(c, 2, 2, residual=True, allow_zero_in_degree=True),
    "GATv2Conv": lambda nn, c: nn.GATv2Conv(c, 2, 2, allow_zero_in_degree=True),
    "GATv2Conv, residual": lambda nn, c: nn.GATv2Conv(c, 2, 2, residual=True, allow_zero_in_degree=True),
    "GATv2Conv, shared weights": lambda nn, c: nn.GATv2Conv(c, 2, 2, share_weights=True, allow_zero_in_degree=True),
    "SAGEConv mean": lambda nn, c: nn.SAGEConv(c, OUT, "mean"),
    "SAGEConv pool": lambda nn, c: nn.SAGEConv(c, OUT, "pool"),
    "SAGEConv gcn": lambda nn, c: nn.SAGEConv(c, OUT, "gcn"),
    "SAGEConv mean, edge_weight": lambda nn, c: nn.SAGEConv(c, OUT, "mean"),
    "GINConv sum": lambda nn, c: nn.GINConv(linear(c), "sum", init_eps=0.3, learn_eps=True),
    "GINConv mean": lambda nn, c: nn.GINConv(linear(c), "mean"),
    "GINConv max": lambda nn, c: nn.GINConv(linear(c), "max"),
    "DotGatConv": lambda nn, c: nn.DotGatConv(c, 2, 2, allow_zero_in_degree=True),
    "GraphConv right": lambda nn, c: nn.GraphConv(c, OUT, norm="right", allow_zero_in_degree=True),
    "GraphConv none": lambda nn, c: nn.GraphConv(c, OUT, norm="none", allow_zero_in_degree=True),
    "GraphConv none, edge_weight": lambda nn, c: nn.GraphConv(c, OUT, norm="none", allow_zero_in_degree=True),
}
FAILS = {
    "GraphConv": lambda nn: nn.GraphConv(WIDTH, OUT, allow_zero_in_degree=True),
    "GraphConv left": lambda nn: nn.GraphConv(WIDTH, OUT, norm="left", allow_zero_in_degree=True),
    "TAGConv": lambda nn: nn.TAGConv(WIDTH, OUT, k=1),
    "SGConv": lambda nn: nn.SGConv(WIDTH, OUT, k=1, allow_zero_in_degree=True),
    "APPNPConv": lambda nn: nn.APPNPConv(1, 0.1),
}


def whole(graph):
    """The graph as DGL's, edges in the user's order."""
    import dgl

    src, dst = np.empty((2, graph.num_edges), np.int64)
    src[graph.edge_ids], dst[graph.edge_ids] = graph.indices, graph.destinations()
    return dgl.graph((torch.from_numpy(src), torch.from_numpy(dst)), num_nodes=graph.num_nodes)


def two_layers(name, graph, feat, weight):
    """Outputs, gradient of the features and of every parameter, of two layers with an activation between."""
    import dgl.nn

    torch.manual_seed(0)
    layers = torch.nn.ModuleList(TRAINS[name](dgl.nn, width) for width in (WIDTH, OUT)).double()
    is_sharded = isinstance(graph, dgl_gt.ShardedGraph)
    options = {"edge_weight": weight} if "edge_weight" in name else {}
    h = feat = feat.clone().requires_grad_()
    for layer in layers:
        h = layer(graph.block, graph.pull(h), **options) if is_sharded else layer(graph, h, **options)
        h = torch.nn.functional.elu(h.flatten(1))
    (h * torch.linspace(-1, 2, OUT, dtype=h.dtype)).square().sum().backward()
    if is_sharded:
        graph.comm.sum_gradients(layers.parameters())
    grads = {key: parameter.grad.numpy() for key, parameter in layers.named_parameters()}
    return h.detach(), feat.grad, grads


def names(empty):
    return [name for name in TRAINS if not (empty and "residual" in name)]


def on_rank(rank, directory, feat, depth, empty):
    sg = dgl_gt.load(directory, depth=depth)
    weight = torch.sigmoid(sg.edata["weight"][:, 0].double())
    results = []
    for name in names(empty):
        out, feat_grad, grads = two_layers(name, sg, feat[sg.node_ids], weight)
        results.append((sg.gather(out).numpy(), sg.gather(feat_grad).numpy(), grads))
    return results


def check(graph, feat, results, empty):
    one = whole(graph)
    weight = torch.sigmoid(torch.from_numpy(graph.edge_data["weight"][:, 0]))
    for name, (out, feat_grad, grads) in zip(names(empty), results, strict=True):
        expected = two_layers(name, one, feat, weight)
        np.testing.assert_allclose(out, expected[0], rtol=0, atol=1e-12 * abs(expected[0]).max(), err_msg=name)
        largest = max(abs(grad).max() for grad in expected[2].values())
        assert largest > 0
        for key, one_grad in {**expected[2], "features": expected[1].numpy()}.items():
            found = feat_grad if key == "features" else grads[key]
            np.testing.assert_allclose(found, one_grad, rtol=0, atol=1e-11 * largest, err_msg=f"{name} {key}")


@pytest.mark.parametrize(
    ("parts", "empty", "depth"), [(1, False, 1), (2, False, 2), (2, True, 1), (3, False, 1), (3, True, 1)]
)
def test_two_layers_are_those_of_one_process(awkward_graph, tmp_path, parts, empty, depth):
    """Outputs and every gradient, in float64; with isolated nodes, parallel edges, self-loops, or a part of no node."""
    graph = awkward_graph(parts)
    rng = np.random.default_rng(parts)
    owner = rng.integers(0, parts - 1, graph.num_nodes) if empty else rng.integers(0, parts, graph.num_nodes)
    partition(graph, parts, tmp_path / "shards", owner=owner, halo_depth=depth)
    feat = torch.from_numpy(graph.node_data["feat"]).double()
    for results in run_ranks(parts, on_rank, tmp_path / "shards", feat, depth, empty):
        check(graph, feat, results, empty)


def fails(rank, directory, feat):
    """Of each convolution that is not for blocks: the error on some rank, or its output."""
    import dgl.nn

    sg, results = dgl_gt.load(directory), []
    for make in FAILS.values():
        torch.manual_seed(0)
        conv, held, error, out = make(dgl.nn), sg.pull(feat[sg.node_ids]), None, None
        try:
            out = conv(sg.block, held)
        except Exception as caught:
            error = type(caught).__name__
        fits = error is None and len(out) == len(sg.node_ids)
        all_fit = not sg.comm.all_reduce(torch.tensor([not fits]).long(), "max")
        results.append(sg.gather(out).numpy() if all_fit else "raises or has other rows")
    return results


def test_convolutions_that_do_not_read_in_edges_alone_give_something_else(awkward_graph, tmp_path):
    """As the guide warns: they read out-degrees, or do not take blocks. Each works on the whole graph."""
    import dgl.nn

    graph = awkward_graph(3)
    owner = np.random.default_rng(0).integers(0, 2, graph.num_nodes)
    partition(graph, 2, tmp_path / "shards", owner=owner)
    feat = torch.from_numpy(graph.node_data["feat"])
    expected = {}
    for name, make in FAILS.items():
        torch.manual_seed(0)
        expected[name] = make(dgl.nn)(whole(graph), feat).detach().numpy()
    for results in run_ranks(2, fails, tmp_path / "shards", feat):
        found = dict(zip(FAILS, results, strict=True))
        for name in ("TAGConv", "SGConv", "APPNPConv"):
            assert isinstance(found[name], str), name
        for name in ("GraphConv", "GraphConv left"):
            assert abs(found[name] - expected[name]).max() > 0.01 * abs(expected[name]).max(), name


def test_a_vertex_cut_has_no_block(awkward_graph, tmp_path):
    partition(awkward_graph(0), 1, tmp_path / "shards", cut="vertex")
    with pytest.raises(InputError, match="a vertex cut has no block.*partition with --cut edge"):
        dgl_gt.load(tmp_path / "shards").block
