"""Tasks on nodes and edges with labels missing here and there: losses, metrics and predictions of one process, on any ranks."""

import numpy as np
from tasks_on_ranks import STRATEGIES, check_ranks, on_ranks, trained_alone

from dgl_gt.partition import encode, from_edges

NODES, EDGES = 90, 500
SETTINGS = dict(epochs=4, layers=2, hidden=12, heads=6, dropout=0.1, lr=0.01, patience=0)
ON_EDGES = {"edge_features": "length", "encodings": "degree"}
TASKS = {
    "classes": {"task": "node_classification"},
    "labels": {"task": "node_multilabel", "metric": "average_precision", "positive_weights": "balanced"},
    "numbers": {"task": "node_regression"},
    "several numbers": {"task": "node_regression", "loss": "huber", "metric": "r2"},
    "classes of edges": {"task": "edge_classification", **ON_EDGES},
    "labels of edges": {"task": "edge_multilabel", "decoder": "bilinear", **ON_EDGES},
    "numbers of edges": {"task": "edge_regression", "decoder": "dot", "metric": "mae", "loss": "l1", **ON_EDGES},
}


def labels_of(kind, rng, rows):
    """Labels, of which a fifth is unknown; for several numbers, some of a row's."""
    if kind.startswith("classes"):
        label = rng.integers(0, 3, rows)
    elif kind.startswith("labels"):
        label = rng.integers(0, 2, (rows, 4)).astype(np.int8)
    else:
        label = 100 + 40 * rng.standard_normal((rows, 3) if kind == "several numbers" else rows)
    unknown = rng.random(label.shape) < 0.2
    label[unknown] = np.nan if label.dtype.kind == "f" else -1
    return label


def graph_of(kind):
    rng = np.random.default_rng(3)
    src, dst = rng.integers(0, NODES - 4, (2, EDGES))  # the last nodes have no edges
    rows = EDGES if kind.endswith("edges") else NODES
    label = labels_of(kind, rng, rows)
    known = (label >= 0 if label.dtype.kind == "i" else label == label).reshape(rows, -1).any(1)
    split = np.where(known, rng.integers(0, 3, rows), 1)
    learned = {f"{name}_mask": split == number for number, name in enumerate(("train", "val", "test"))}
    learned["label"] = label
    nodes = {"feat": rng.standard_normal((NODES, 5)).astype(np.float32)}
    edges = {"length": rng.random(EDGES).astype(np.float32)}
    (edges if kind.endswith("edges") else nodes).update(learned)
    graph = from_edges(src, dst, NODES, nodes, edges)
    return encode(graph, "degree")


@on_ranks(TASKS)
def test_any_ranks_train_as_one(kind, parts, tmp_path):
    graph, settings = graph_of(kind), SETTINGS | TASKS[kind]
    expected = trained_alone(graph, settings, tmp_path)
    strategies = [each for each in STRATEGIES if parts != 4 or each != "heads"]  # six heads
    check_ranks(graph, settings, tmp_path, expected, parts, strategies)
