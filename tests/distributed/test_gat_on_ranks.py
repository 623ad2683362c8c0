"""GATConv across ranks: the numbers of one process with every strategy, and the bytes that a trace predicts."""

import numpy as np
import pytest
import torch
from ranks import run_ranks
from slow_case import slow
from torch import nn
from whole_graph import csc_of

import dgl_gt
from dgl_gt.nn import GATConv
from dgl_gt.partition import partition
from dgl_gt.partition.figures.strategies import NAMES

FEATURES, HEADS, CLASSES = 5, 12, 3
WAYS = [(name, 1, overlap) for name in NAMES if name != "local" for overlap in (True, False)] + [("halo", 2, True)]


class Gat(nn.Module):
    """Two layers with all dropouts on, one with a residual."""

    def __init__(self):
        super().__init__()
        options = {"feat_drop": 0.2, "attn_drop": 0.3, "allow_zero_in_degree": True}
        self.first = GATConv(FEATURES, 2, HEADS, activation=nn.functional.elu, **options)
        self.second = GATConv(2 * HEADS, CLASSES, HEADS, residual=True, **options)

    def forward(self, graphs, feat):
        return self.second(graphs[1], self.first(graphs[0], feat).flatten(1)).mean(1)


def run_model(graph, feat):
    """One step's output and gradients."""
    torch.manual_seed(0)
    model = Gat().double()
    torch.manual_seed(4)  # the seed of masks, which all ranks take from rank 0
    feat = feat.double().requires_grad_()
    out = model(graph.views(2) if isinstance(graph, dgl_gt.ShardedGraph) else [graph] * 2, feat)
    (out * torch.linspace(-1, 1, CLASSES, dtype=torch.float64)).pow(2).sum().backward()
    if isinstance(graph, dgl_gt.ShardedGraph):
        graph.comm.sum_gradients(model.parameters())
    return out.detach(), feat.grad, {name: p.grad.numpy() for name, p in model.named_parameters()}


def on_rank(rank, folder, feat, ways):
    found = {}
    for strategy, depth, overlap in ways:
        sg = dgl_gt.load(folder / ("vertex" if strategy == "mirror" else "edge"), strategy, depth, overlap=overlap)
        out, grad, parameters = run_model(sg, feat[sg.node_ids])
        found[strategy, depth, overlap] = sg.gather(out).numpy(), sg.gather(grad).numpy(), parameters
    return found


@pytest.mark.parametrize("parts", [1, slow(2), 3, slow(4)])
def test_every_strategy_has_one_process_numbers(awkward_graph, tmp_path, parts):
    graph = awkward_graph(parts)
    partition(graph, parts, tmp_path / "edge", halo_depth=2)
    partition(graph, parts, tmp_path / "vertex", cut="vertex")
    feat = torch.randn(graph.num_nodes, FEATURES, generator=torch.Generator().manual_seed(1))
    whole = csc_of(graph)
    out, grad, parameters = run_model(whole, feat)
    largest = max(abs(each).max() for each in parameters.values())
    for results in run_ranks(parts, on_rank, tmp_path, feat, WAYS):
        for way, (found, found_grad, found_parameters) in results.items():
            np.testing.assert_allclose(found, out, rtol=0, atol=1e-12, err_msg=way)
            np.testing.assert_allclose(found_grad, grad, rtol=0, atol=1e-12 * largest, err_msg=way)
            for name, each in parameters.items():
                np.testing.assert_allclose(found_parameters[name], each, rtol=0, atol=1e-12 * largest, err_msg=name)


def gat_step(sg):
    torch.manual_seed(0)
    model = Gat()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step():
        optimizer.zero_grad()
        logits = model([sg, sg], sg.ndata["feat"])
        nn.functional.cross_entropy(logits, sg.ndata["label"], reduction="sum").backward()
        sg.comm.sum_gradients(model.parameters())
        optimizer.step()

    step.model = model
    return step


def counted(rank, directory, strategies):
    found = {}
    for strategy in strategies:
        sg = dgl_gt.load(directory, strategy)
        step = gat_step(sg)
        before = sg.comm.sent_bytes
        step()
        found[strategy] = sg.comm.sent_bytes - before
    return found


def test_bytes_of_a_step(awkward_graph, tmp_path):
    """A row of keys and values has D + 1 numbers per head, and one of h as many as the layer reads."""
    strategies = ["halo_h", "halo_kv", "gather", "ring"]
    partition(awkward_graph(2), 2, tmp_path / "edge")
    found = run_ranks(2, counted, tmp_path / "edge", strategies)
    for strategy in strategies:
        predicted = dgl_gt.report_costs(gat_step, tmp_path / "edge", strategy).sent_bytes
        assert predicted == sum(of_rank[strategy] for of_rank in found), strategy
    halo = dgl_gt.partition.read_manifest(tmp_path / "edge")["quality"]["halo"]
    row = HEADS * (2 + 1) + HEADS * (CLASSES + 1)
    assert sum(of_rank["halo_kv"] for of_rank in found) == 2 * 4 * halo * row
