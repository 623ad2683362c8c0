"""DGL's own convolutions on ``sg.block`` and ``sg.pull``, two layers deep, with options that change what they read."""

import numpy as np
import pytest
import torch
from ranks import run_ranks

import dgl_gt
from dgl_gt.partition import partition
from dgl_gt.partition.errors import InputError

pytestmark = pytest.mark.needs_dgl
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
    "GraphConv both": lambda nn, c: nn.GraphConv(c, OUT, allow_zero_in_degree=True),
    "GraphConv left": lambda nn, c: nn.GraphConv(c, OUT, norm="left", allow_zero_in_degree=True),
    "GraphConv right": lambda nn, c: nn.GraphConv(c, OUT, norm="right", allow_zero_in_degree=True),
    "GraphConv none": lambda nn, c: nn.GraphConv(c, OUT, norm="none", allow_zero_in_degree=True),
    "GraphConv none, edge_weight": lambda nn, c: nn.GraphConv(c, OUT, norm="none", allow_zero_in_degree=True),
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


def test_a_vertex_cut_has_no_block(awkward_graph, tmp_path):
    partition(awkward_graph(0), 1, tmp_path / "shards", cut="vertex")
    sg = dgl_gt.load(tmp_path / "shards")
    for make in (lambda: sg.block, lambda: sg.graph):
        with pytest.raises(InputError, match="a vertex cut has no block.*partition with --cut edge"):
            make()
