"""Every convolution of PyG across two ranks, unchanged, beside one process: results and gradients."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from ranks import run_ranks
from slow_case import slow
from torch import nn

import dgl_gt
from dgl_gt.partition import from_edges, partition
from dgl_gt.pyg.layers import REFUSED

pytest.importorskip("torch_geometric", reason="PyG is not installed: pip install torch_geometric")
DOCUMENT = Path(__file__).parents[2] / "docs" / "strategies.md"
NODES, EDGES, WIDTH, OUT = 24, 70, 4, 3


def mlp(inputs, outputs=OUT):
    return nn.Sequential(nn.Linear(inputs, outputs), nn.Tanh())


def on_x(conv, x, edge_index, data):
    return conv(x, edge_index)


def on_edges(conv, x, edge_index, data):
    return conv(x, edge_index, data["length"])


def on_weights(conv, x, edge_index, data):
    return conv(x, edge_index, data["weight"])


def on_types(conv, x, edge_index, data):
    return conv(x, edge_index, data["kind"])


def on_points(conv, x, edge_index, data):
    return conv(x, x[:, :3], edge_index)


# Of each convolution how to make it, from torch_geometric.nn, and how to call it.
CASES = {
    "SimpleConv": (lambda p: p.SimpleConv("mean"), on_weights),
    "GCNConv": (lambda p: p.GCNConv(WIDTH, OUT), on_weights),
    "SAGEConv": (lambda p: p.SAGEConv(WIDTH, OUT, project=True), on_x),
    "GraphConv": (lambda p: p.GraphConv(WIDTH, OUT), on_weights),
    "GatedGraphConv": (lambda p: p.GatedGraphConv(WIDTH, 2), on_x),
    "ResGatedGraphConv": (lambda p: p.ResGatedGraphConv(WIDTH, OUT), on_x),
    "GATConv": (lambda p: p.GATConv(WIDTH, OUT, 2, edge_dim=2), on_edges),
    "GATv2Conv": (lambda p: p.GATv2Conv(WIDTH, OUT, 2, edge_dim=2), on_edges),
    "TransformerConv": (lambda p: p.TransformerConv(WIDTH, OUT, 2, edge_dim=2, beta=True), on_edges),
    "AGNNConv": (lambda p: p.AGNNConv(), on_x),
    "TAGConv": (lambda p: p.TAGConv(WIDTH, OUT, 2), on_weights),
    "GINConv": (lambda p: p.GINConv(mlp(WIDTH), train_eps=True), on_x),
    "GINEConv": (lambda p: p.GINEConv(mlp(WIDTH), edge_dim=2), on_edges),
    "ARMAConv": (lambda p: p.ARMAConv(WIDTH, OUT, 2, 2), on_weights),
    "SGConv": (lambda p: p.SGConv(WIDTH, OUT, 2), on_weights),
    "SSGConv": (lambda p: p.SSGConv(WIDTH, OUT, 0.1, 2), on_weights),
    "APPNP": (lambda p: p.APPNP(3, 0.1), on_weights),
    "MFConv": (lambda p: p.MFConv(WIDTH, OUT), on_x),
    "RGCNConv": (lambda p: p.RGCNConv(WIDTH, OUT, 2), on_types),
    "FastRGCNConv": (lambda p: p.FastRGCNConv(WIDTH, OUT, 2), on_types),
    "RGATConv": (lambda p: p.RGATConv(WIDTH, OUT, 2), on_types),
    "SignedConv": (
        lambda p: p.SignedConv(WIDTH, OUT, True),
        lambda conv, x, edge_index, data: conv(x, edge_index[:, data["kind"] == 0], edge_index[:, data["kind"] == 1]),
    ),
    "DNAConv": (
        lambda p: p.DNAConv(WIDTH, 2),
        lambda conv, x, edge_index, data: conv(torch.stack([x, x.sin()], 1), edge_index, data["weight"]),
    ),
    "PointNetConv": (lambda p: p.PointNetConv(mlp(WIDTH + 3)), on_points),
    "GMMConv": (lambda p: p.GMMConv(WIDTH, OUT, 2, 3), on_edges),
    "NNConv": (lambda p: p.NNConv(WIDTH, OUT, nn.Linear(2, WIDTH * OUT), "mean"), on_edges),
    "CGConv": (lambda p: p.CGConv(WIDTH, 2), on_edges),
    "EdgeConv": (lambda p: p.EdgeConv(mlp(2 * WIDTH)), on_x),
    "PPFConv": (
        lambda p: p.PPFConv(mlp(WIDTH + 4)),
        lambda conv, x, edge_index, data: conv(x, x[:, :3], x[:, 1:] / x[:, 1:].norm(dim=1, keepdim=True), edge_index),
    ),
    "FeaStConv": (lambda p: p.FeaStConv(WIDTH, OUT, 2), on_x),
    "PointTransformerConv": (lambda p: p.PointTransformerConv(WIDTH, OUT), on_points),
    "LEConv": (lambda p: p.LEConv(WIDTH, OUT), on_weights),
    "PNAConv": (
        lambda p: p.PNAConv(WIDTH, OUT, ["mean", "max", "std"], ["identity", "attenuation"], torch.ones(40)),
        on_x,
    ),
    "ClusterGCNConv": (lambda p: p.ClusterGCNConv(WIDTH, OUT, 0.1), on_x),
    "GENConv": (lambda p: p.GENConv(WIDTH, OUT, learn_t=True, edge_dim=2, norm="layer"), on_edges),
    "GCN2Conv": (
        lambda p: p.GCN2Conv(WIDTH, 0.1),
        lambda conv, x, edge_index, data: conv(x, x.sin(), edge_index, data["weight"]),
    ),
    "WLConvContinuous": (lambda p: p.WLConvContinuous(), on_weights),
    "FiLMConv": (lambda p: p.FiLMConv(WIDTH, OUT, 2), on_types),
    "FAConv": (
        lambda p: p.FAConv(WIDTH, dropout=0.0),
        lambda conv, x, edge_index, data: conv(x, x.sin(), edge_index),
    ),
    "EGConv": (lambda p: p.EGConv(WIDTH, 4, ["symnorm", "max"], 2, 2), on_x),
    "PDNConv": (lambda p: p.PDNConv(WIDTH, OUT, 2, 5), on_edges),
    "GeneralConv": (lambda p: p.GeneralConv(WIDTH, OUT, 2, attention=True), on_edges),
    "HEATConv": (
        lambda p: p.HEATConv(WIDTH, OUT, 2, 2, 3, 2, 3, 2),
        lambda conv, x, edge_index, data: conv(x, edge_index, (x[:, 0] > 0).long(), data["kind"], data["length"]),
    ),
    "LGConv": (lambda p: p.LGConv(), on_weights),
    "PointGNNConv": (lambda p: p.PointGNNConv(mlp(WIDTH, 3), mlp(3 + WIDTH, 5), mlp(5, WIDTH)), on_points),
    "AntiSymmetricConv": (lambda p: p.AntiSymmetricConv(WIDTH, num_iters=2), on_x),
    "MixHopConv": (lambda p: p.MixHopConv(WIDTH, OUT, [0, 1, 2]), on_weights),
}


def sample():
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, NODES - 2, (2, EDGES))  # the last two nodes are isolated
    src[-15:] = 3  # a hub
    src[:3] = dst[:3]  # self-loops
    src[src == 5], dst[dst == 6] = 7, 8  # no edge leaves the one, none reaches the other
    edges = {"length": rng.random((EDGES, 2)), "weight": rng.random(EDGES) + 0.5, "kind": rng.integers(0, 2, EDGES)}
    return from_edges(src, dst, NODES, {"feat": rng.standard_normal((NODES, WIDTH))}, edges)


def outcome(name, x, edge_index, data, sg=None):
    """The result, and gradients of features and parameters."""
    import torch_geometric.nn

    torch.manual_seed(0)
    make, call = CASES[name]
    conv = make(torch_geometric.nn).double()
    for each in conv.parameters():  # RGATConv leaves one as memory has it
        nn.init.uniform_(each, 0.1, 0.5)
    x = x.clone().requires_grad_()
    if sg is not None:
        dgl_gt.pyg.distribute(conv, sg)
    out = call(conv, x, edge_index, data)
    out = torch.cat(out, 1) if isinstance(out, tuple) else out
    (out.sin() * torch.arange(1.0, out.shape[1] + 1)).sum().backward()
    if sg is not None:
        sg.comm.sum_gradients(conv.parameters())
    return [
        out.detach(),
        x.grad,
        *(each.grad if each.grad is not None else 0 * each.detach() for each in conv.parameters()),
    ]


def on_rank(rank, folder, names):
    sg = dgl_gt.load(folder)
    found = {}
    for name in names:
        out, grad, *rest = outcome(name, sg.ndata["feat"], sg.edge_index, sg.edata, sg)
        found[name] = [each.numpy() for each in (sg.gather(out), sg.gather(grad), *rest)]
    return found


FAILS_WITHOUT_EDGES = ["FeaStConv"]  # also by itself
OTHERS = [name for name in CASES if name not in FAILS_WITHOUT_EDGES]


@pytest.mark.parametrize(("parts", "names"), [(2, FAILS_WITHOUT_EDGES), slow(2, OTHERS), (3, OTHERS)])
def test_convolutions_across_ranks_give_the_numbers_of_one_process(parts, names, tmp_path):
    graph = sample()
    owner = np.arange(NODES) % 2 if parts == 3 else None  # the third part has no node
    partition(graph, parts, tmp_path / "shards", owner=owner)
    edge_index = torch.from_numpy(np.stack(graph.edges()).astype(np.int64))
    data = {name: torch.from_numpy(each) for name, each in graph.edge_data.items()}
    ranks = run_ranks(parts, on_rank, tmp_path / "shards", names)
    for name in names:
        expected = outcome(name, torch.from_numpy(graph.node_data["feat"]), edge_index, data)
        for found in ranks:
            assert len(found[name]) == len(expected)
            for mine, theirs in zip(found[name], expected):
                np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-11, err_msg=name)


def test_every_convolution_is_tried_or_refused_by_name():
    from torch_geometric.nn import conv

    needs_a_library = {"SplineConv"}  # pyg-lib, which has no wheel for every torch
    assert {*conv.__all__} - {"MessagePassing"} - needs_a_library == CASES.keys() | REFUSED.keys()
    assert not CASES.keys() & REFUSED.keys()
    text = DOCUMENT.read_text().partition("## PyG's own layers")[2].partition("\n## ")[0]
    works, refused = " ".join(text.split()).partition("two and three ranks:")[2].split("| refused, by name |")
    assert {*re.findall(r"`(\w+)`", works)} == CASES.keys()
    assert REFUSED.keys() <= {*re.findall(r"`(\w+)`", refused)}
