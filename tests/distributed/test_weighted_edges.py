"""Weighted graph convolution and weighted attention: ranks have the numbers of the whole graph, gradients too."""

import numpy as np
import pytest
import torch
from ranks import run_ranks
from slow_case import slow
from torch import nn
from whole_graph import csc_of

import dgl_gt
from dgl_gt.exchange.policy.training_graphs import sampled_part
from dgl_gt.nn import GraphConv, GraphTransformerLayer
from dgl_gt.nn.graph_conv import DEGREE_NORMS
from dgl_gt.partition import partition
from dgl_gt.partition.figures.strategies import NAMES

FEATURES, HEADS, WIDTH = 5, 12, 24
WAYS = [(name, 1) for name in NAMES if name != "local"] + [("halo", 2)]


class Weighted(nn.Module):
    """A layer of each normalisation with weights of both signs, or two of attention with their logarithms."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        if kind == "attention":
            options = {"dropout": 0.0, "attn_dropout": 0.0}
            self.layers = nn.ModuleList(GraphTransformerLayer(WIDTH, WIDTH, HEADS, **options) for _ in range(2))
            self.first = nn.Linear(FEATURES, WIDTH)
        else:
            widths, options = (FEATURES, 8, 3, 6, 2), {"allow_zero_in_degree": True}
            norms = zip(widths[:-1], widths[1:], DEGREE_NORMS)
            self.layers = nn.ModuleList(GraphConv(*each, **options, activation=torch.tanh) for each in norms)

    def forward(self, graphs, feat, weight):
        if self.kind == "attention":
            feat, weight = self.first(feat), weight.abs().add(0.1).log().unsqueeze(1).expand(-1, HEADS)
        for graph, layer in zip(graphs, self.layers):
            feat = layer(graph, feat, weight)
        return feat


def run_model(graph, feat, weight, kind):
    """One step's output and gradients: of features, of weights, and of parameters."""
    torch.manual_seed(0)
    model = Weighted(kind).double()
    feat, weight = feat.double().requires_grad_(), weight.double().requires_grad_()
    graphs = [graph] * len(model.layers)
    if isinstance(graph, dgl_gt.ShardedGraph):
        graphs = graph.views(len(model.layers))
    out = model(graphs, feat, weight)
    (out * torch.linspace(-1, 1, out.shape[1], dtype=torch.float64)).pow(2).sum().backward()
    if isinstance(graph, dgl_gt.ShardedGraph):
        graph.comm.sum_gradients(model.parameters())
    return out.detach(), feat.grad, weight.grad, {name: p.grad.numpy() for name, p in model.named_parameters()}


def on_rank(rank, folder, feat, ways, kind):
    found = {}
    for strategy, depth in ways:
        sg = dgl_gt.load(folder / ("vertex" if strategy == "mirror" else "edge"), strategy, depth)
        out, grad, weight_grad, parameters = run_model(sg, feat[sg.node_ids], sg.edata["weight"], kind)
        of_edges = sg.edge_ids.numpy(), weight_grad.numpy()
        found[strategy, depth] = sg.gather(out).numpy(), sg.gather(grad).numpy(), of_edges, parameters
    return found


@pytest.mark.parametrize("parts", [1, slow(2), 3])
@pytest.mark.parametrize("kind", ["convolution", "attention"])
def test_every_strategy_has_the_numbers_of_the_whole_graph(awkward_graph, tmp_path, parts, kind):
    graph = awkward_graph(parts)
    weight = np.random.default_rng(parts).standard_normal(graph.num_edges)
    graph.edge_data["weight"] = np.where(np.arange(graph.num_edges) % 5 == 0, 0, weight)
    partition(graph, parts, tmp_path / "edge", halo_depth=2)
    partition(graph, parts, tmp_path / "vertex", cut="vertex")
    feat = torch.randn(graph.num_nodes, FEATURES, generator=torch.Generator().manual_seed(1))
    whole = run_model(csc_of(graph), feat, torch.from_numpy(graph.edge_data["weight"]), kind)
    out, grad, weight_grad, parameters = whole
    exact = {"rtol": 1e-9, "atol": 1e-9 * max(abs(each).max() for each in parameters.values())}
    of_ranks = run_ranks(parts, on_rank, tmp_path, feat, WAYS, kind)
    for results in of_ranks:
        for way, (found, found_grad, _, found_parameters) in results.items():
            np.testing.assert_allclose(found, out, rtol=1e-9, atol=1e-12, err_msg=way)
            np.testing.assert_allclose(found_grad, grad, **exact, err_msg=way)
            for name, each in parameters.items():
                np.testing.assert_allclose(found_parameters[name], each, **exact, err_msg=f"{way} {name}")
    for way in WAYS:
        ids, grads = (np.concatenate([results[way][2][i] for results in of_ranks]) for i in (0, 1))
        assert sorted(ids) == list(range(graph.num_edges)), way
        np.testing.assert_allclose(grads, weight_grad[ids], **exact, err_msg=way)


def sampled(rank, folder):
    sg = sampled_part(dgl_gt.load(folder).view, 0.5, 1)
    with pytest.raises(ValueError, match="edge_weight is not available with the transmission policy sampled"):
        GraphConv(FEATURES, 2)(sg, torch.ones(sg.num_nodes(), FEATURES), sg.edata["weight"][:, 0])
    return True


def test_samples_of_edges_have_no_weighted_sums(awkward_graph, tmp_path):
    partition(awkward_graph(0), 2, tmp_path / "edge")
    assert run_ranks(2, sampled, tmp_path / "edge") == [True, True]


def refused(rank, folder):
    sg = dgl_gt.load(folder)
    with pytest.raises(ValueError, match=rf"edge_weight has shape \(1, 1\); allowed: \({sg.num_edges()},\)"):
        GraphConv(FEATURES, 2)(sg, torch.ones(sg.num_nodes(), FEATURES), torch.ones(1, 1))
    return True


def test_weights_of_another_shape(awkward_graph, tmp_path):
    partition(awkward_graph(0), 2, tmp_path / "edge")
    assert run_ranks(2, refused, tmp_path / "edge") == [True, True]
