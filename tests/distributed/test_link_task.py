"""Link prediction on any ranks: losses, metrics and predicted links of one process."""

import numpy as np
import pytest
import torch
from ranks import run_ranks

import dgl_gt
from dgl_gt.partition import encode, from_edges, partition
from dgl_gt.train import predict
from dgl_gt.train.config import read_config
from dgl_gt.train.run import train

NODES, EDGES = 90, 500
SETTINGS = dict(task="link_prediction", epochs=4, layers=2, hidden=12, heads=6, dropout=0.1, lr=0.01, patience=0, top=3)
TASKS = {
    "undirected": {"encodings": "degree"},
    "directed, several steps": {"loss": "bpr", "negatives": "swap", "pairs_per_step": 70, "decoder": "mlp"},
    "several pairs": {
        "loss": "margin",
        "negatives": "degree",
        "negatives_per_link": 3,
        "metric": "mrr",
        "decoder": "dot",
    },
    "trained rows": {"loss": "square", "node_embedding": 8, "negatives_may_be_links": True, "metric": "hits@5"},
    "undirected, both ways": {"decoder": "bilinear", "edge_features": "length", "metric": "average_precision"},
    "without targets": {"pairs_per_step": 100, "exclude": "target", "score": "gcn", "architecture": "gnn", "heads": 1},
    "directed, without targets": {"exclude": "target", "edge_features": "length", "pairs_per_step": 100},
}
STRATEGIES = ["halo_h", "halo_kv", "gather", "heads", "ring", "mirror"]


def graph_of(kind):
    rng = np.random.default_rng(3)
    src, dst = rng.integers(0, NODES - 4, (2, EDGES))  # the last nodes have no edges
    length = rng.random(EDGES).astype(np.float32)
    if "directed" not in kind or "undirected" in kind:
        src, dst, length = np.r_[src, dst], np.r_[dst, src], np.r_[length, length]
    nodes = {} if kind == "trained rows" else {"feat": rng.standard_normal((NODES, 5)).astype(np.float32)}
    return encode(from_edges(src, dst, NODES, nodes, {"length": length}), "degree")


def run_on_rank(rank, folder, settings, strategies):
    torch.set_default_dtype(torch.float64)
    found = []
    for strategy in strategies:
        sg = dgl_gt.load(folder / ("vertex" if strategy == "mirror" else "edge"), strategy)
        result = train(sg, read_config(**SETTINGS | settings))
        answer = predict(result.model, sg)
        answers = None if answer is None else {name: value.tolist() for name, value in answer._asdict().items()}
        found.append((result.losses, result.validations, result.test, answers))
    return found


@pytest.mark.parametrize("kind", ["undirected", "trained rows", "directed, without targets"])
def test_ranks_without_links_or_without_nodes_take_part(kind, tmp_path):
    """Part 2 has the nodes without edges, and part 3 no node."""
    graph, settings = graph_of(kind), TASKS[kind]
    owner = np.where(np.arange(NODES) < NODES - 4, np.arange(NODES) % 2, 2)
    partition(graph, 1, tmp_path / "1" / "edge", link_split="0.6,0.2,0.2")
    (expected,) = run_ranks(1, run_on_rank, tmp_path / "1", settings, ["halo_h"])[0]
    partition(graph, 4, tmp_path / "4" / "edge", owner=owner, link_split="0.6,0.2,0.2")
    for ((losses, validations, test, _),) in run_ranks(4, run_on_rank, tmp_path / "4", settings, ["halo_h"]):
        for mine, theirs in ((losses, expected[0]), (validations, expected[1]), (test, expected[2])):
            np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", TASKS)
def test_any_ranks_train_as_one(kind, tmp_path):
    graph, settings = graph_of(kind), TASKS[kind]
    partition(graph, 1, tmp_path / "1" / "edge", link_split="0.6,0.2,0.2")
    (expected,) = run_ranks(1, run_on_rank, tmp_path / "1", settings, ["halo_h"])[0]
    assert len(set(expected[0])) == len(expected[1]) == 4  # steps change the weights
    for parts in (2, 3, 4):
        folder = tmp_path / str(parts)
        partition(graph, parts, folder / "edge", link_split="0.6,0.2,0.2")
        partition(graph, parts, folder / "vertex", cut="vertex", link_split="0.6,0.2,0.2")
        cannot = parts == 4 or "without targets" in kind  # six heads; and `heads` reads the structure of other parts
        strategies = [each for each in STRATEGIES if each != "heads" or not cannot]
        for found in run_ranks(parts, run_on_rank, folder, settings, strategies):
            for strategy, (losses, validations, test, answers) in zip(strategies, found, strict=True):
                for mine, theirs in ((losses, expected[0]), (validations, expected[1]), (test, expected[2])):
                    np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-12, err_msg=f"{strategy}, {parts}")
                for name, values in (answers or {}).items():
                    np.testing.assert_allclose(values, expected[3][name], rtol=1e-9, atol=1e-12, err_msg=strategy)
