"""Tasks on nodes with labels missing here and there: losses, metrics and predictions of one process, on any ranks."""

import numpy as np
import pytest
import torch
from ranks import run_ranks

import dgl_gt
from dgl_gt.partition import from_edges, partition
from dgl_gt.train import predict
from dgl_gt.train.config import read_config
from dgl_gt.train.run import train

NODES = 90
SETTINGS = dict(epochs=4, layers=2, hidden=12, heads=6, dropout=0.1, lr=0.01, patience=0)
TASKS = {
    "classes": {"task": "node_classification"},
    "labels": {"task": "node_multilabel", "metric": "average_precision", "positive_weights": "balanced"},
    "numbers": {"task": "node_regression"},
    "several numbers": {"task": "node_regression", "loss": "huber", "metric": "r2"},
}
STRATEGIES = ["halo_h", "halo_kv", "gather", "heads", "ring", "mirror"]


def labels_of(kind, rng):
    """Labels of nodes, of which a fifth is unknown; for several numbers, some of a node's."""
    if kind == "classes":
        label = rng.integers(0, 3, NODES)
    elif kind == "labels":
        label = rng.integers(0, 2, (NODES, 4)).astype(np.int8)
    else:
        label = 100 + 40 * rng.standard_normal((NODES, 3) if kind == "several numbers" else NODES)
    unknown = rng.random(label.shape) < 0.2
    label[unknown] = np.nan if label.dtype.kind == "f" else -1
    return label


def graph_of(kind):
    rng = np.random.default_rng(3)
    src, dst = rng.integers(0, NODES - 4, (2, 500))  # the last nodes have no edges
    label = labels_of(kind, rng)
    known = (label == label) & (label >= 0) if label.dtype.kind == "i" else label == label
    split = np.where(known.reshape(NODES, -1).any(1), rng.integers(0, 3, NODES), 1)
    masks = {f"{name}_mask": split == number for number, name in enumerate(("train", "val", "test"))}
    feat = rng.standard_normal((NODES, 5)).astype(np.float32)
    return from_edges(src, dst, NODES, {"feat": feat, "label": label, **masks})


def run_on_rank(rank, folder, settings, strategies):
    torch.set_default_dtype(torch.float64)
    found = []
    for strategy in strategies:
        sg = dgl_gt.load(folder / ("vertex" if strategy == "mirror" else "edge"), strategy)
        result = train(sg, read_config(**SETTINGS, **settings))
        answer = predict(result.model, sg)
        answers = None if answer is None else {name: value.tolist() for name, value in answer._asdict().items()}
        found.append((result.losses, result.validations, result.test, answers))
    return found


@pytest.mark.parametrize("kind", TASKS)
def test_any_ranks_train_as_one(kind, tmp_path):
    graph, settings = graph_of(kind), TASKS[kind]
    partition(graph, 1, tmp_path / "1" / "edge")
    (expected,) = run_ranks(1, run_on_rank, tmp_path / "1", settings, ["halo_h"])[0]
    assert len(set(expected[0])) == len(expected[1]) == 4  # steps change the weights
    for parts in (2, 3, 4):
        folder = tmp_path / str(parts)
        partition(graph, parts, folder / "edge")
        partition(graph, parts, folder / "vertex", cut="vertex")
        strategies = [each for each in STRATEGIES if parts != 4 or each != "heads"]  # six heads
        for found in run_ranks(parts, run_on_rank, folder, settings, strategies):
            for strategy, (losses, validations, test, answers) in zip(strategies, found, strict=True):
                for mine, theirs in ((losses, expected[0]), (validations, expected[1]), (test, expected[2])):
                    np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-12, err_msg=f"{strategy}, {parts}")
                for name, values in (answers or {}).items():
                    np.testing.assert_allclose(values, expected[3][name], rtol=1e-5, atol=1e-6, err_msg=strategy)
