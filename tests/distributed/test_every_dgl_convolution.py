"""Every convolution of ``dgl.nn`` across two ranks, on ``sg.block`` and on ``sg.graph``, beside one process."""

import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from ranks import run_ranks
from torch import nn

import dgl_gt
from dgl_gt.partition import from_edges, partition

pytestmark = pytest.mark.needs_dgl
DOCUMENT = Path(__file__).parents[2] / "docs" / "strategies.md"
NODES, EDGES = 24, 70  # besides self-loops, without which some convolutions refuse
WIDTH, OUT = 4, 3


def perceptron(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, outputs), nn.Tanh())


class Weighted(nn.Module):
    """A convolution with edge weights that ``EdgeWeightNorm`` has made."""

    def __init__(self, d, norm):
        super().__init__()
        self.norm, self.conv = d.EdgeWeightNorm(norm), d.GraphConv(WIDTH, OUT, norm="none")

    def forward(self, g, feat, weight):
        return self.conv(g, feat, edge_weight=self.norm(g, weight))


def on_feat(conv, g, node, edge):
    return conv(g, node("feat"))


def on_edges(conv, g, node, edge):
    return conv(g, node("feat"), edge("weight"))


def on_types(conv, g, node, edge):
    return conv(g, node("feat"), edge("type"))


def on_weights(conv, g, node, edge):
    return conv(g, node("feat"), edge("positive"))


# Of each convolution how to make it, from dgl.nn, and how to call it, given what brings node and edge data.
CASES = {
    "AGNNConv": (lambda d: d.AGNNConv(), on_feat),
    "APPNPConv": (lambda d: d.APPNPConv(2, 0.1), on_feat),
    "AtomicConv": (
        lambda d: d.AtomicConv(*(torch.ones(2, 1) * scale for scale in (9.0, 0.5, 1.0))),
        lambda conv, g, node, edge: conv(g, node("feat")[:, :1], edge("positive")[:, None]),
    ),
    "CFConv": (lambda d: d.CFConv(WIDTH, 2, 6, OUT), on_edges),
    "ChebConv": (lambda d: d.ChebConv(WIDTH, OUT, 3), lambda conv, g, node, edge: conv(g, node("feat"), [2.0])),
    "DGNConv": (
        lambda d: d.DGNConv(WIDTH, OUT, ["dir1-av"], ["identity"], 1.0),
        lambda conv, g, node, edge: conv(g, node("feat"), eig_vec=node("feat")),
    ),
    "DotGatConv": (lambda d: d.DotGatConv(WIDTH, OUT, 2), on_feat),
    "EGATConv": (lambda d: d.EGATConv(WIDTH, 2, OUT, 2, 2), on_edges),
    "EGNNConv": (
        lambda d: d.EGNNConv(WIDTH, 6, OUT, 2),
        lambda conv, g, node, edge: conv(g, node("feat"), node("feat")[:, :3], edge("weight")),
    ),
    "EdgeConv": (lambda d: d.EdgeConv(WIDTH, OUT), on_feat),
    "EdgeGATConv": (lambda d: d.EdgeGATConv(WIDTH, 2, OUT, 2), on_edges),
    "EdgeWeightNorm('both')": (lambda d: Weighted(d, "both"), on_weights),
    "EdgeWeightNorm('right')": (lambda d: Weighted(d, "right"), on_weights),
    "GATConv": (lambda d: d.GATConv(WIDTH, OUT, 2, residual=True), on_feat),
    "GATv2Conv": (lambda d: d.GATv2Conv(WIDTH, OUT, 2, residual=True), on_feat),
    "GCN2Conv": (
        lambda d: d.GCN2Conv(WIDTH, 1),
        lambda conv, g, node, edge: conv(g, node("feat"), node("feat").square()),
    ),
    "GINConv": (lambda d: d.GINConv(perceptron(WIDTH, OUT), "max"), on_feat),
    "GINEConv": (
        lambda d: d.GINEConv(perceptron(WIDTH, OUT)),
        lambda conv, g, node, edge: conv(g, node("feat"), edge("weight").repeat(1, 2)),
    ),
    "GMMConv": (lambda d: d.GMMConv(WIDTH, OUT, 2, 3, "mean"), on_edges),
    "GatedGraphConv": (lambda d: d.GatedGraphConv(WIDTH, WIDTH, 2, 2), on_types),
    "GraphConv": (lambda d: d.GraphConv(WIDTH, OUT), on_feat),
    "GroupRevRes": (lambda d: d.GroupRevRes(d.GraphConv(WIDTH // 2, WIDTH // 2), 2), on_feat),
    "HGTConv": (
        lambda d: d.HGTConv(WIDTH, 2, 2, 2, 2, dropout=0.0),
        lambda conv, g, node, edge: conv(g, node("feat"), node("type"), edge("type")),
    ),
    "HeteroGraphConv": (
        lambda d: d.HeteroGraphConv({"_E": d.GraphConv(WIDTH, OUT)}),
        lambda conv, g, node, edge: conv(g, {"_N": node("feat")})["_N"],
    ),
    "NNConv": (lambda d: d.NNConv(WIDTH, OUT, nn.Linear(2, WIDTH * OUT), "mean"), on_edges),
    "PNAConv": (lambda d: d.PNAConv(WIDTH, OUT, ["mean", "max"], ["identity"], 1.0), on_feat),
    "RelGraphConv": (lambda d: d.RelGraphConv(WIDTH, OUT, 2, "basis", 2), on_types),
    "SAGEConv": (lambda d: d.SAGEConv(WIDTH, OUT, "lstm"), on_feat),
    "SGConv": (lambda d: d.SGConv(WIDTH, OUT, 2), on_feat),
    "TAGConv": (lambda d: d.TAGConv(WIDTH, OUT, 2), on_feat),
    "TWIRLSConv": (lambda d: d.TWIRLSConv(WIDTH, OUT, 6, 2, num_mlp_before=1), on_feat),
    "TWIRLSUnfoldingAndAttention": (
        lambda d: d.TWIRLSUnfoldingAndAttention(WIDTH, 1, 1, 2, attn_aft=1, tau=0.9, T=5),
        on_feat,
    ),
}
WORK_ON_BLOCK = {
    *("AGNNConv", "CFConv", "DotGatConv", "EGATConv", "EdgeConv", "EdgeGATConv", "EdgeWeightNorm('right')"),
    *("GATConv", "GATv2Conv", "GINConv", "GINEConv", "GMMConv", "GraphConv", "HGTConv", "HeteroGraphConv", "NNConv"),
    *("RelGraphConv", "SAGEConv"),
}
REFUSED_BY_BOTH = {"ChebConv", "DGNConv", "EdgeWeightNorm('both')", "PNAConv", "TWIRLSConv"}
NOT_TRIED = {  # they take an adjacency matrix, or need NVIDIA's library
    *("DenseChebConv", "DenseGraphConv", "DenseSAGEConv"),
    *("CuGraphGATConv", "CuGraphRelGraphConv", "CuGraphSAGEConv"),
}
SINGLE = ("APPNPConv", "TWIRLSConv", "TWIRLSUnfoldingAndAttention")  # of float32 edge weights that they make themselves


def sample():
    rng = np.random.default_rng(0)
    loops = np.arange(NODES)
    src, dst = (np.concatenate([loops, rng.integers(0, NODES, EDGES)]) for _ in range(2))
    src[-15:] = 3  # a hub
    node_data = {"feat": rng.standard_normal((NODES, WIDTH)), "type": rng.integers(0, 2, NODES)}
    weight = rng.standard_normal((len(src), 2))
    edge_data = {"weight": weight, "positive": np.exp(weight[:, 0]), "type": rng.integers(0, 2, len(src))}
    return from_edges(src, dst, NODES, node_data, edge_data)


def one_process(graph):
    """The graph as DGL's, edges in the user's order, and its data."""
    import dgl

    src, dst = np.empty((2, graph.num_edges), np.int64)
    src[graph.edge_ids], dst[graph.edge_ids] = graph.indices, graph.destinations()
    data = [{key: torch.from_numpy(each) for key, each in d.items()} for d in (graph.node_data, graph.edge_data)]
    return dgl.graph((torch.from_numpy(src), torch.from_numpy(dst)), num_nodes=graph.num_nodes), *data


def outcome(name, graph, ndata, edata, pull=lambda x: x):
    """Output, and gradients of features and parameters, of a convolution on these rows; or what it raises."""
    import dgl.nn

    torch.manual_seed(0)
    make, call = CASES[name]
    dtype = torch.float32 if name in SINGLE else torch.float64
    conv = make(dgl.nn).to(dtype)
    feat = ndata["feat"].detach().to(dtype, copy=True).requires_grad_()
    try:
        out = call(conv, graph, lambda key: pull(feat if key == "feat" else ndata[key]), edata.__getitem__)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    out = (out[0] if isinstance(out, tuple) else out).flatten(1)
    rows = out.detach().clone()  # GroupRevRes lets go of its output in backward
    (out * torch.linspace(-1, 2, out.shape[1], dtype=dtype)).square().sum().backward()
    grads = [(torch.zeros_like(each) if each.grad is None else each.grad).flatten() for each in conv.parameters()]
    return rows.numpy(), feat.grad.numpy(), torch.cat([torch.zeros(1, dtype=dtype), *grads]).numpy()


def on_rank(rank, halves, alone):
    """Of each convolution what it gives on the block and on the graph; and on the graph where rank 1 owns nothing."""
    warnings.simplefilter("ignore")
    sg, found = dgl_gt.load(halves), {}
    assert sg.block.num_src_nodes() > sg.num_nodes() > 0
    for name in CASES:
        # A convolution that raises leaves what it had set on the graph: hence a copy for each.
        on_block = outcome(name, sg.block.local_var(), sg.ndata, sg.edata, sg.pull)
        found[name] = on_block, outcome(name, sg.graph.local_var(), sg.ndata, sg.edata)
    lone = dgl_gt.load(alone)
    for name in ("GCN2Conv", "TAGConv", "EGNNConv"):
        found[f"{name} alone"] = (outcome(name, lone.graph, lone.ndata, lone.edata),)
    return found, sg.node_ids.numpy(), lone.node_ids.numpy()


def check(name, pieces, node_ids, expected):
    """What the ranks found, rows put in order and parameters' gradients summed, against one process."""
    order = np.argsort(np.concatenate(node_ids))
    rows, feat_grads, grads = zip(*pieces)
    found = np.concatenate(rows)[order], np.concatenate(feat_grads)[order], sum(grads)
    tolerance = 1e-5 if name in SINGLE else 1e-12
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance * abs(other).max(initial=1), err_msg=name)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_each_equals_one_process_or_is_refused(tmp_path):
    """Outputs, gradients of the features and of the parameters; never other numbers."""
    graph = sample()
    partition(graph, 2, tmp_path / "halves", owner=np.arange(NODES) % 2)
    partition(graph, 2, tmp_path / "alone", owner=np.zeros(NODES, int))
    expected = {name: outcome(name, *one_process(graph)) for name in CASES}
    assert not [result for result in expected.values() if isinstance(result, str)]
    found, ids, lone_ids = zip(*run_ranks(2, on_rank, tmp_path / "halves", tmp_path / "alone"))
    for each in found:
        refused = [{name for name in CASES if isinstance(each[name][way], str)} for way in (0, 1)]
        assert refused == [CASES.keys() - WORK_ON_BLOCK, REFUSED_BY_BOTH]
    for name in found[0]:
        for pieces in zip(*(each[name] for each in found)):
            if not isinstance(pieces[0], str):
                conv = name.removesuffix(" alone")
                check(conv, pieces, ids if name in CASES else lone_ids, expected[conv])


def test_no_convolution_is_left_out():
    import dgl.nn.pytorch.conv

    names = {re.match(r"\w+", name).group() for name in CASES}
    assert names | NOT_TRIED == {*dgl.nn.pytorch.conv.__all__, "HeteroGraphConv"}


def test_the_guide_lists_them():
    rows = re.findall(r"^\| `([^|]+?)` \| (yes|no) \| (yes|no) \|", DOCUMENT.read_text(), re.MULTILINE)
    listed = {name.replace("`", ""): (block == "yes", graph == "yes") for name, block, graph in rows}
    assert len(listed) == len(rows)
    assert listed == {name: (name in WORK_ON_BLOCK, name not in REFUSED_BY_BOTH) for name in CASES}
    assert all(f"`{name}`" in DOCUMENT.read_text() for name in NOT_TRIED)
