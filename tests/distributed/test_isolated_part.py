"""Training steps on parts of a vertex cut alone: the policy ``alone``."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from ranks import run_ranks
from slow_case import slow

import dgl_gt
from dgl_gt.exchange.policy.policy import read_policy
from dgl_gt.exchange.policy.training_graphs import TrainingGraphs, shares_of_nodes
from dgl_gt.partition import InputError, load_graph, partition
from dgl_gt.partition.graph import from_edges
from dgl_gt.partition.shards.counts import read_figures
from dgl_gt.plan.policy_costs import kept_bytes
from dgl_gt.run_files.run_record import PolicyOfRun
from dgl_gt.train.config import read_config
from dgl_gt.train.loop import forward
from dgl_gt.train.model import build_model
from dgl_gt.train.run import prepare, train

CONFIG = read_config(epochs=5, layers=2, hidden=32, heads=4, dropout=0.0, lr=0.01, patience=0, seed=3, policy="alone")
CONVOLUTION = {"architecture": "gnn", "score": "additive"}


@pytest.fixture(scope="module")
def graph():
    """Classes that features tell, isolated nodes, and edges with two columns of data."""
    graph = load_graph("sample:communities?nodes=300&features=8&classes=3&seed=1")
    sources, destinations = graph.edges()
    rng = np.random.default_rng(0)
    isolated = 5
    node_data = {key: np.concatenate([value, value[:isolated]]) for key, value in graph.node_data.items()}
    edge_data = {"length": rng.random((len(sources), 2), dtype=np.float32)}
    return from_edges(sources, destinations, graph.num_nodes + isolated, node_data, edge_data)


@pytest.fixture(scope="module", params=[slow(2), 3])
def shards(request, graph, tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts")
    partition(graph, request.param, folder / "vertex", cut="vertex")
    partition(graph, request.param, folder / "edge")
    return folder, request.param


def step_on_rank(rank, folder, changes):
    """The loss and the gradients of a step, the part's edges by user's ids, and the shares of nodes by user's id."""
    sg = dgl_gt.load(folder / "vertex")
    config = CONFIG.changed(**changes)
    graphs = TrainingGraphs(sg, read_policy(config.exchange.policy), 3)
    if "edges" in config.exchange.policy:
        check_samples(sg, graphs, TrainingGraphs(sg, read_policy(config.exchange.policy), 3))
    task, model = prepare(sg, config.changed(seed=0), graphs=graphs)
    model, (batch,) = model.double(), task.batches(0)
    batch = replace(batch, inputs=replace(batch.inputs, feat=batch.inputs.feat.double()))
    loss, graph = task.loss(forward(model, task, batch, 0, 0), batch), batch.inputs.graph
    loss.backward()
    sg.comm.sum_gradients(model.parameters())
    gradients = torch.cat([each.grad.flatten() for each in model.parameters()]).numpy()
    ends = [graph.node_ids[each].numpy() for each in graph.edges()]
    shares = np.zeros(sg.manifest["nodes"])
    shares[graph.node_ids.numpy()] = shares_of_nodes(sg.view).numpy()
    return float(loss.detach()), gradients, ends, shares


def check_samples(sg, graphs, again):
    """Steps take one of ten samples of the part's edges, the same in each run, with the edges' own data."""
    steps = [graphs.of_step(step) for step in range(30)]
    drawn = {tuple(graph.edge_ids.tolist()) for graph in steps}
    assert 5 < len(drawn) <= 10 == len({tuple(graph.edge_ids.tolist()) for graph in graphs._masked})
    assert all(torch.equal(a.edge_ids, again.of_step(step).edge_ids) for step, a in enumerate(steps))
    length = dict(zip(sg.edge_ids.tolist(), sg.edata["length"].tolist()))
    for graph in steps[:3]:
        assert [length[edge] for edge in graph.edge_ids.tolist()] == graph.edata["length"].tolist()
    shards = [graph.view.shard for graph in graphs._masked]
    kept = [each for s in shards for each in (s.degrees, s.edge_data["length"], *vars(s.csc()).values())]
    kept = {each.data_ptr(): each.nbytes for each in kept if isinstance(each, torch.Tensor)}
    predicted = kept_bytes([], graphs.policy, read_figures(sg.manifest))[sg.comm.rank]
    assert sum(kept.values()) == pytest.approx(predicted, rel=0.1)


def expected_step(graph, found, changes):
    """The loss and the gradients of a step on each rank's edges, on all nodes in one process."""
    config, data = CONFIG.changed(**changes), graph.node_data
    label, is_train = torch.from_numpy(data["label"]).long(), torch.from_numpy(data["train_mask"])
    classes = int(label.max()) + 1
    torch.manual_seed(0)
    model = build_model(config, data["feat"].shape[1], classes).double()
    in_degrees, total = np.diff(graph.indptr), 0.0
    for rank, (_, _, (sources, destinations), shares) in enumerate(found):
        here = np.bincount(destinations, minlength=graph.num_nodes)
        weights = np.where(in_degrees > 0, here / np.maximum(in_degrees, 1), 1.0 if rank == 0 else 0.0)
        weights = (
            shares if "edges" in config.exchange.policy else weights
        )  # edges that a step leaves out count in the loss
        order = np.argsort(destinations, kind="stable")
        indptr = np.concatenate([[0], np.cumsum(here)])
        csc = dgl_gt.CSC.build(torch.from_numpy(indptr), torch.from_numpy(sources[order]), graph.num_nodes)
        logits = model(csc, torch.from_numpy(data["feat"]).double())
        losses = torch.nn.functional.cross_entropy(logits, label, reduction="none")
        total = total + (losses * torch.from_numpy(weights))[is_train].sum() / int(is_train.sum())
    total.backward()
    return float(total.detach()), torch.cat([each.grad.flatten() for each in model.parameters()]).numpy()


SOME_EDGES = {"policy": "alone,edges=0.5"}


@pytest.mark.parametrize(
    "changes",
    [{}, CONVOLUTION, SOME_EDGES, CONVOLUTION | {"score": "gcn", "heads": 1} | SOME_EDGES],
    ids=["transformer", "convolution", "half of the edges", "half of the edges of a convolution"],
)
def test_a_step_is_that_of_each_parts_edges_alone(graph, shards, changes):
    folder, parts = shards
    found = run_ranks(parts, step_on_rank, folder, changes)
    np.testing.assert_allclose(sum(each[3] for each in found), 1.0, atol=1e-6)  # every node counts once
    edges = sum(len(each[2][0]) for each in found)
    if changes.get("policy") == SOME_EDGES["policy"]:
        assert 0.4 * graph.num_edges < edges < 0.6 * graph.num_edges
    else:
        assert edges == graph.num_edges
    loss, gradients = expected_step(graph, found, changes)
    assert sum(each[0] for each in found) == pytest.approx(loss, abs=1e-6)
    for each in found:
        np.testing.assert_allclose(each[1], gradients, atol=1e-6)


def runs_on_rank(rank, folder, changes):
    sg = dgl_gt.load(folder / "vertex")
    found = [train(sg, CONFIG.changed(**each)) for each in changes]
    return [(each.losses, each.test, each.exchanged_bytes_per_epoch, each.policy) for each in found]


def test_steps_send_no_rows_and_evaluations_are_exact(shards):
    folder, parts = shards
    changes = [{}, {"policy": "exact"}, {"epochs": 1, "lr": 1e-9}, {"epochs": 1, "lr": 1e-9, "policy": "exact"}]
    changes += [SOME_EDGES, SOME_EDGES]
    alone, exact, first_alone, first_exact, some, again = run_ranks(parts, runs_on_rank, folder, changes)[0]
    assert some == again and some[2] == 0 and some[0] != alone[0] and some[0][-1] < some[0][0]
    assert alone[2] == 0 and exact[2] > 0
    assert alone[3] == PolicyOfRun([{"mode": "alone"}], exact[2])
    assert alone[0] != exact[0] and alone[0][-1] < alone[0][0]
    assert first_alone[1] == first_exact[1]  # the weights are those of the beginning


def test_options_that_read_more_than_attention(shards):
    """Batch statistics, edge features and their update, encodings' dropout, class weights, entropies and checkpoints."""
    folder, parts = shards
    changes = [
        {"norm": "batch", "dropout": 0.3, "attention_dropout": 0.2},
        {"edge_features": "length", "edge_update": True},
        {"edge_features": "length", "edge_update": True, "norm": "batch"} | SOME_EDGES,
        {"label_smoothing": 0.1, "class_weights": "balanced", "entropy_unlabelled": 0.3, "entropy_labelled": 0.1},
        {"activation_checkpoint": "full"},
        {},
    ]
    first, *others = run_ranks(parts, runs_on_rank, folder, changes)
    assert all(other == first for other in others)
    assert all(np.isfinite(losses).all() and losses[-1] < losses[0] for losses, *_ in first)
    assert first[4] == first[5]


def refused_on_rank(rank, folder):
    found = []
    for cut, change in (("edge", {}), ("vertex", {"global_attention": "sgformer"})):
        try:
            train(dgl_gt.load(folder / cut), CONFIG.changed(**change))
        except InputError as error:
            found.append(str(error))
    return found


def test_what_does_not_fit_is_refused(shards):
    for of_edge_cut, of_model in run_ranks(shards[1], refused_on_rank, shards[0]):
        assert of_edge_cut.startswith("policy 'alone' needs a vertex cut, and this is an edge cut")
        assert of_model.startswith(
            "with policy 'alone', each rank trains on its part in isolation, but global_attention is 'sgformer'"
        )
