"""Link prediction on any ranks: losses, metrics and predicted links of one process."""

import numpy as np
import pytest
from ranks import run_ranks
from tasks_on_ranks import STRATEGIES, check_ranks, trained_alone

import dgl_gt
from dgl_gt.partition import InputError, encode, from_edges, partition
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
SPLIT = "0.6,0.2,0.2"


def graph_of(kind):
    rng = np.random.default_rng(3)
    src, dst = rng.integers(0, NODES - 4, (2, EDGES))  # the last nodes have no edges
    length = rng.random(EDGES).astype(np.float32)
    if "directed" not in kind or "undirected" in kind:
        src, dst, length = np.r_[src, dst], np.r_[dst, src], np.r_[length, length]
    nodes = {} if kind == "trained rows" else {"feat": rng.standard_normal((NODES, 5)).astype(np.float32)}
    return encode(from_edges(src, dst, NODES, nodes, {"length": length}), "degree")


@pytest.mark.parametrize("kind", ["undirected", "trained rows", "directed, without targets"])
def test_ranks_without_links_or_without_nodes_take_part(kind, tmp_path):
    """Part 2 has the nodes without edges, and part 3 no node."""
    graph, settings = graph_of(kind), SETTINGS | TASKS[kind]
    owner = np.where(np.arange(NODES) < NODES - 4, np.arange(NODES) % 2, 2)
    expected = trained_alone(graph, settings, tmp_path, link_split=SPLIT)
    check_ranks(graph, settings, tmp_path, expected, 4, ["halo_h"], owner=owner, link_split=SPLIT)


@pytest.mark.parametrize("kind", TASKS)
def test_any_ranks_train_as_one(kind, tmp_path):
    graph, settings = graph_of(kind), SETTINGS | TASKS[kind]
    expected = trained_alone(graph, settings, tmp_path, link_split=SPLIT)
    for parts in (2, 3, 4):
        cannot = parts == 4 or "without targets" in kind  # six heads; and `heads` reads the structure of other parts
        strategies = [each for each in STRATEGIES if each != "heads" or not cannot]
        check_ranks(graph, settings, tmp_path, expected, parts, strategies, link_split=SPLIT)


def refusals_on_rank(rank, folder):
    found = []
    for task in ("link_prediction", "node_classification"):
        config = read_config(task=task, node_embedding=4, policy="alone", epochs=1)
        with pytest.raises(InputError) as caught:
            train(dgl_gt.load(folder), config)
        found.append(str(caught.value))
    return found


def test_trained_rows_and_links_need_ranks_that_exchange_rows(tmp_path):
    partition("sample:communities?nodes=200", 2, tmp_path / "shards", cut="vertex", link_split=SPLIT)
    for messages in run_ranks(2, refusals_on_rank, tmp_path / "shards"):
        assert all("alone" in each for each in messages) and "node_embedding" in messages[1]
