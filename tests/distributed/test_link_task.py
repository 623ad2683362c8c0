"""Link prediction on any ranks: losses, metrics and predicted links of one process."""

import numpy as np
import pytest
from ranks import run_ranks
from tasks_on_ranks import STRATEGIES, check_ranks, on_ranks, trained_alone

import dgl_gt
from dgl_gt.partition import InputError, encode, from_edges, partition
from dgl_gt.train import load_model, predictions, score_pairs
from dgl_gt.train.config import read_config
from dgl_gt.train.run import train, train_and_save

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
    "negatives of each": {"metric": "mrr", "decoder": "mlp"},
    "directed, negatives of each": {"metric": "hits@3", "node_embedding": 4},
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


def split_of(kind, graph, folder):
    """Shares; or for negatives of each link a file with 30 links for validation, in the graph's order, and 20 for test."""
    if "of each" not in kind:
        return graph, SPLIT
    src, dst = graph.edges()
    is_edge = np.zeros((NODES, NODES), bool)
    is_edge[src, dst] = True
    if "directed" not in kind:
        src, dst = np.minimum(src, dst), np.maximum(src, dst)
    links = np.unique(np.stack([src, dst])[:, src != dst], axis=1)
    links = np.random.default_rng(0).permutation(links, axis=1)[:, :50]
    free = np.argwhere(~is_edge & ~np.eye(NODES, dtype=bool))
    negatives = np.random.default_rng(1).choice(free, (50, 7))
    np.savez(
        folder / "links.npz",
        **{f"{name}_edge": links[:, rows] for name, rows in (("val", slice(30)), ("test", slice(30, 50)))},
        **{f"{name}_neg": negatives[rows] for name, rows in (("val", slice(30)), ("test", slice(30, 50)))},
    )
    is_held = np.zeros((NODES, NODES), bool)
    is_held[tuple(links)] = True
    if "directed" not in kind:
        is_held |= is_held.T
    src, dst = graph.edges()
    kept = ~is_held[src, dst]
    data = {name: value[kept] for name, value in graph.edge_data.items()}
    return from_edges(src[kept], dst[kept], NODES, graph.node_data, data), str(folder / "links.npz")


@on_ranks(TASKS)
def test_any_ranks_train_as_one(kind, parts, tmp_path):
    settings = SETTINGS | TASKS[kind]
    graph, split = split_of(kind, graph_of(kind), tmp_path)
    expected = trained_alone(graph, settings, tmp_path, link_split=split)
    cannot = parts == 4 or "without targets" in kind  # six heads; and `heads` reads the structure of other parts
    strategies = [each for each in STRATEGIES if each != "heads" or not cannot]
    check_ranks(graph, settings, tmp_path, expected, parts, strategies, link_split=split)


def scores_on_rank(rank, folder, pairs):
    predictions._PAIRS = 7
    sg = dgl_gt.load(folder)
    answer = score_pairs(load_model(folder.parent / "model"), sg, pairs)
    return None if answer is None else answer._asdict()


@pytest.mark.parametrize("kind", ["undirected, both ways", "directed, several steps"])
def test_any_ranks_score_pairs_as_one(kind, tmp_path):
    graph, settings = graph_of(kind), SETTINGS | TASKS[kind]
    for parts, owner in ((1, None), (3, np.where(np.arange(NODES) < NODES - 4, np.arange(NODES) % 2, 2))):
        partition(graph, parts, tmp_path / str(parts), link_split=SPLIT, owner=owner)
    train_and_save(dgl_gt.load(tmp_path / "1"), read_config(**settings), tmp_path / "model")
    pairs = np.random.default_rng(0).integers(0, NODES, (2, 50))
    (expected,) = run_ranks(1, scores_on_rank, tmp_path / "1", pairs)
    for wrong in ([[0], [-1]], [[0], [NODES]], [[0.5], [1.5]]):
        with pytest.raises(InputError, match="pairs"):
            score_pairs(load_model(tmp_path / "model"), dgl_gt.load(tmp_path / "1"), wrong)
    first, *others = run_ranks(3, scores_on_rank, tmp_path / "3", pairs)
    assert (first["source"] == pairs[0]).all() and (first["destination"] == pairs[1]).all()
    assert others == [None, None] and len(set(expected["score"].tolist())) > 40
    np.testing.assert_allclose(first["score"], expected["score"], rtol=1e-5, atol=1e-6)


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
