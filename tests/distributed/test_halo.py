"""One layer of attention on shards against the same on the whole graph: outputs and every gradient."""

import numpy as np
import pytest
import torch
from ranks import run_ranks
from slow_case import slow
from whole_graph import csc_of

import dgl_gt
from dgl_gt.nn import GraphTransformerLayer
from dgl_gt.partition import partition
from dgl_gt.partition.errors import InputError

TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5}


def run_layer(graph, feat, bias, dtype, gather_nodes, gather_edges):
    """Forward and backward through a layer with attention dropout on; results in the user's order."""
    torch.manual_seed(0)
    layer = GraphTransformerLayer(8, 16, 4, norm_first=True, dropout=0.0, attn_dropout=0.4).to(dtype)
    layer.attn.dropout_seed = 7
    feat, bias = (x.to(dtype, copy=True).requires_grad_() for x in (feat, bias))
    out = layer(graph, feat, bias)
    (out * torch.linspace(-1, 1, 8, dtype=dtype)).pow(2).sum().backward()
    if isinstance(graph, dgl_gt.ShardedGraph):
        graph.comm.sum_gradients(layer.parameters())
    nodes = [gather_nodes(x).double().numpy() for x in (out.detach(), feat.grad)]
    parameters = {name: parameter.grad.double().numpy() for name, parameter in layer.named_parameters()}
    return nodes[0], nodes[1], gather_edges(bias.grad).double().numpy(), parameters


def on_rank(rank, directory, feat, bias):
    return {dtype: in_dtype(rank, directory, feat, bias, dtype) for dtype in TOLERANCE}


def in_dtype(rank, directory, feat, bias, dtype):
    sg = dgl_gt.load(directory)
    edges = torch.cat(sg.comm.gather_rows(sg.edge_ids))

    def gather_edges(x):
        rows = torch.cat(sg.comm.gather_rows(x))
        return torch.empty_like(rows).index_copy_(0, edges, rows)

    result = run_layer(sg, feat[sg.node_ids], bias[sg.edge_ids], dtype, sg.gather, gather_edges)
    width_bytes = 8 * torch.finfo(dtype).bits // 8
    assert (
        sg.comm.received_bytes
        == (sg.manifest["per_part"][rank]["halo"] + sg.manifest["per_part"][rank]["sent"]) * width_bytes
    )
    assert sg.comm.sent_bytes == sg.comm.received_bytes
    return result


OWNERS = {
    "random": lambda rng, n, parts: rng.integers(0, parts, n),
    "empty part": lambda rng, n, parts: rng.integers(0, max(parts - 1, 1), n),
    "all on the last": lambda rng, n, parts: np.full(n, parts - 1),
}


@pytest.fixture(scope="module")
def on_ranks(tmp_path_factory):
    """Graph, inputs and results of this many parts with such owners: ranks are started once for both dtypes."""
    made = {}

    def run(make_graph, parts, owners):
        if (parts, owners) in made:
            return made[parts, owners]
        graph, shards = make_graph(parts), tmp_path_factory.mktemp("halo") / "shards"
        owner = OWNERS[owners](np.random.default_rng(parts), graph.num_nodes, parts)
        partition(graph, parts, shards, owner=owner)
        feat = torch.randn(graph.num_nodes, 8, generator=torch.Generator().manual_seed(1))
        bias = torch.randn(graph.num_edges, 4, generator=torch.Generator().manual_seed(2))
        made[parts, owners] = graph, feat, bias, run_ranks(parts, on_rank, shards, feat, bias)
        return made[parts, owners]

    return run


@pytest.mark.parametrize("parts", [1, slow(2), 3, slow(4)])
@pytest.mark.parametrize("owners", OWNERS)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_layer_is_the_same_on_any_number_of_ranks(awkward_graph, on_ranks, parts, owners, dtype):
    graph, feat, bias, results = on_ranks(awkward_graph, parts, owners)
    expected = run_layer(csc_of(graph), feat, bias, dtype, lambda x: x, lambda x: x)
    tolerance = TOLERANCE[dtype]
    for out, feat_grad, bias_grad, parameters in (of_rank[dtype] for of_rank in results):
        np.testing.assert_allclose(out, expected[0], rtol=0, atol=tolerance * abs(expected[0]).max())
        np.testing.assert_allclose(feat_grad, expected[1], rtol=0, atol=tolerance * abs(expected[1]).max())
        np.testing.assert_allclose(bias_grad, expected[2], rtol=0, atol=tolerance * abs(expected[2]).max())
        scale = max(abs(grad).max() for grad in expected[3].values())
        for name, grad in expected[3].items():
            np.testing.assert_allclose(parameters[name], grad, rtol=0, atol=tolerance * scale, err_msg=name)


def pull(rank, directory):
    sg = dgl_gt.load(directory)
    x = sg.node_ids.double()[:, None].clone().requires_grad_()
    held = sg.pull(x)
    held.sum().backward()
    return held.detach().numpy()[:, 0], sg.gather(x.grad).numpy()[:, 0]


def test_pull_brings_held_rows_and_counts_every_holder(awkward_graph, tmp_path):
    graph = awkward_graph(0)
    owner = np.random.default_rng(0).integers(0, 3, graph.num_nodes)
    partition(graph, 3, tmp_path / "shards", owner=owner)
    holders = np.zeros(graph.num_nodes)
    results = run_ranks(3, pull, tmp_path / "shards")
    for rank, (held, _) in enumerate(results):
        sources = graph.indices[owner[graph.destinations()] == rank]
        assert set(held) == set(np.flatnonzero(owner == rank)) | set(sources)
        holders[held.astype(int)] += 1
    assert (results[0][1] == holders).all()


def gat(graph, h, feat_rows):
    """Two of DGL's own GAT layers, on a whole graph or on a block a layer; the loss is a sum over rows."""
    from dgl.nn import GATConv

    torch.manual_seed(0)
    layers = torch.nn.ModuleList(
        [GATConv(5, 4, 2, allow_zero_in_degree=True), GATConv(8, 3, 1, allow_zero_in_degree=True)]
    )
    sharded = isinstance(graph, dgl_gt.ShardedGraph)
    for layer in layers:
        h = layer(graph.block, graph.pull(h)) if sharded else layer(graph, h)
        h = h.flatten(1)
    (h * feat_rows[:, :3]).sum().backward()
    if sharded:
        graph.comm.sum_gradients(layers.parameters())
    return h.detach(), torch.cat([parameter.grad.flatten() for parameter in layers.parameters()]).numpy()


def gat_on_rank(rank, directory):
    sg = dgl_gt.load(directory)
    out, grads = gat(sg, sg.ndata["feat"], sg.ndata["feat"])
    return sg.gather(out).numpy(), grads


@pytest.mark.needs_dgl
def test_dgls_own_gat_trains_across_ranks(awkward_graph, tmp_path):
    import dgl

    graph = awkward_graph(5)
    partition(graph, 3, tmp_path / "shards")
    g = dgl.graph((torch.from_numpy(graph.indices), torch.from_numpy(graph.destinations())), num_nodes=graph.num_nodes)
    feat = torch.from_numpy(graph.node_data["feat"])
    out, grads = gat(g, feat, feat)
    for rank_out, rank_grads in run_ranks(3, gat_on_rank, tmp_path / "shards"):
        np.testing.assert_allclose(rank_out, out.numpy(), rtol=0, atol=1e-5 * abs(out.numpy()).max())
        np.testing.assert_allclose(rank_grads, grads, rtol=0, atol=1e-5 * abs(grads).max())


def load_error(rank, directory):
    try:
        dgl_gt.load(directory)
    except InputError as error:
        return str(error)


def test_load_refuses_another_number_of_ranks_on_every_rank(awkward_graph, tmp_path):
    partition(awkward_graph(0), 1, tmp_path / "shards")
    for message in run_ranks(2, load_error, tmp_path / "shards"):
        assert "has 1 part, but the number of ranks is 2; start at most 1" in message


def test_one_damaged_part_stops_every_rank(awkward_graph, tmp_path):
    partition(awkward_graph(0), 2, tmp_path / "shards")
    path = tmp_path / "shards" / "part1" / "structure.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    for message in run_ranks(2, load_error, tmp_path / "shards"):
        assert "structure.safetensors is damaged" in message
