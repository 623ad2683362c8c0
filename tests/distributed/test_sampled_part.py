"""Training steps on a sample of the copied rows: the policy ``sampled=Q``."""

import math

import numpy as np
import pytest
import torch
from ranks import run_ranks
from slow_case import slow

import dgl_gt
from dgl_gt.exchange.policy.training_graphs import sampled_part
from dgl_gt.partition import load_graph, partition
from dgl_gt.partition.graph import from_edges
from dgl_gt.run_files.run_record import PolicyOfRun
from dgl_gt.train.config import read_config
from dgl_gt.train.run import train

SHARE, WIDTH, HEADS = 0.375, 8, 2
CONFIG = read_config(epochs=6, layers=2, hidden=32, heads=4, dropout=0.2, lr=0.01, patience=0, seed=3)
STRATEGIES = ["halo_h", "halo_kv", "mirror"]


@pytest.fixture(scope="module")
def graph():
    """Classes that features tell, isolated nodes, and edges with a column of data."""
    graph = load_graph("sample:communities?nodes=200&features=8&classes=3&seed=1")
    sources, destinations = graph.edges()
    node_data = {key: np.concatenate([value, value[:4]]) for key, value in graph.node_data.items()}
    length = np.random.default_rng(0).random((len(sources), 1), dtype=np.float32)
    return from_edges(sources, destinations, graph.num_nodes + 4, node_data, {"length": length})


@pytest.fixture(scope="module", params=[slow(2), 3])
def shards(request, graph, tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts")
    partition(graph, request.param, folder / "edge")
    partition(graph, request.param, folder / "vertex", cut="vertex")
    return folder, request.param


def rows_of(node_ids):
    """Rows that depend on the node alone, so that ranks and one process have the same."""
    table = torch.randn(300, WIDTH, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    return table[node_ids]


def layers(kind):
    torch.manual_seed(0)
    if kind == "dot":
        made = [dgl_gt.nn.BiasedMHA(WIDTH, HEADS, attn_drop=0) for _ in range(2)]
    else:
        made = [dgl_gt.nn.GATConv(WIDTH, WIDTH // HEADS, HEADS, allow_zero_in_degree=True) for _ in range(2)]
    return torch.nn.ModuleList(made).double()


def run_layers(made, kind, graph, x, bias):
    for layer in made:
        x = layer(graph, x, bias) if kind == "dot" else layer(graph, x).flatten(1)
    return x


def attend_on_rank(rank, folder, strategy, kind):
    """Owned rows of two layers on a sample, gradients, and of each edge its id and the number of copies among its ends."""
    sg = dgl_gt.load(folder / ("vertex" if strategy == "mirror" else "edge"), strategy)
    sample = sampled_part(sg.view, SHARE, seed=11)
    made, x = layers(kind), rows_of(sample.node_ids).requires_grad_()
    bias = sample.edata["length"].double().expand(-1, HEADS).contiguous()
    out = run_layers(made, kind, sample, x, bias)
    (out * rows_of(sample.node_ids + 20)).sum().backward()
    sg.comm.sum_gradients(made.parameters())
    gradients = torch.cat([each.grad.flatten() for each in made.parameters()])
    owned, (src, dst) = sample.num_nodes(), sample.edges()
    copies = (src >= owned).int() + (dst >= owned).int()
    held = len(sample._shard.node_ids) - owned
    edges = sample.edge_ids, copies, torch.tensor([held, sg._shard.num_held - owned])
    return tuple(each.detach().numpy() for each in (sample.node_ids, out, x.grad, gradients, *edges))


@pytest.mark.parametrize(("strategy", "kind"), [*((each, "dot") for each in STRATEGIES), ("halo_kv", "additive")])
def test_a_step_on_a_sample_is_attention_with_lifted_scores(graph, shards, strategy, kind):
    folder, parts = shards
    found = run_ranks(parts, attend_on_rank, folder, strategy, kind)
    held, of_all = (sum(each[6][which] for each in found) for which in (0, 1))
    assert 0.15 * of_all < held < 0.65 * of_all
    ids, copies = (np.concatenate([each[which] for each in found]) for which in (4, 5))
    assert len(set(ids)) == len(ids) < graph.num_edges
    if strategy == "mirror":
        assert {0, 1, 2} == set(copies)
    if kind == "additive":  # which take no bias
        return
    sources, destinations = graph.edges()
    src, dst = (torch.from_numpy(each[ids]) for each in (sources, destinations))
    length = torch.from_numpy(graph.edge_data["length"][ids, 0])
    order = torch.argsort(dst, stable=True)
    counts = torch.bincount(dst, minlength=graph.num_nodes)
    csc = dgl_gt.CSC.build(torch.cat([counts.new_zeros(1), counts.cumsum(0)]), src[order], graph.num_nodes)
    bias = length.double() + math.log(1 / SHARE) * torch.from_numpy(copies).double()
    made, x = layers(kind), rows_of(torch.arange(graph.num_nodes)).requires_grad_()
    out = run_layers(made, kind, csc, x, bias[order, None].expand(-1, HEADS).contiguous())
    (out * rows_of(torch.arange(graph.num_nodes) + 20)).sum().backward()
    gradients = torch.cat([each.grad.flatten() for each in made.parameters()])
    for node_ids, own, own_gradient, of_parameters, *_ in found:
        np.testing.assert_allclose(own, out.detach()[node_ids], atol=1e-9)
        np.testing.assert_allclose(own_gradient, x.grad[node_ids], atol=1e-9)
        np.testing.assert_allclose(of_parameters, gradients, atol=1e-9 * float(gradients.abs().max()))


def runs_on_rank(rank, folder, strategy, changes):
    sg = dgl_gt.load(folder / ("vertex" if strategy == "mirror" else "edge"), strategy)
    found = [train(sg, CONFIG.changed(**each)) for each in changes]
    return [(each.losses, each.exchanged_bytes_per_epoch, each.policy) for each in found]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_runs_send_a_share_of_the_bytes(shards, strategy):
    folder, parts = shards
    names = ["exact", "sampled=1", "sampled=0.3", "sampled=0.3", "sampled=0.3,int8"]
    first, *others = run_ranks(parts, runs_on_rank, folder, strategy, [{"policy": name} for name in names])
    assert all(other == first for other in others)
    exact, of_all, sampled, again, packed = first
    assert of_all == exact and again == sampled
    for (losses, sent, policy), name, most in ((sampled, names[2], 0.6), (packed, names[4], 0.35)):
        assert policy == PolicyOfRun([{"mode": name}], exact[1])
        assert 0.01 * exact[1] < sent < most * exact[1]
        assert losses != exact[0] and np.isfinite(losses).all() and losses[-1] < losses[0]


def test_samples_with_all_that_layers_read(shards):
    """Edge features and their update, additive scores, batch statistics, kept exchanges and bfloat16."""
    folder, parts = shards
    convolution = {"architecture": "gnn", "score": "additive"}
    changes = [
        {"policy": "sampled=0.5"} | each
        for each in (
            {"edge_features": "length", "edge_update": True},
            convolution | {"norm": "batch", "attention_dropout": 0.2},
            convolution | {"score": "gcn", "heads": 1},
            {"precision": "bf16"},
            {},
            {"activation_checkpoint": "keep_exchanges"},
        )
    ]
    first, *others = run_ranks(parts, runs_on_rank, folder, "halo_h", changes)
    assert all(other == first for other in others)
    assert all(np.isfinite(losses).all() for losses, *_ in first) and first[4] == first[5]
