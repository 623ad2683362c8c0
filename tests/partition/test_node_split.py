"""Masks of nodes that are drawn for a graph without them."""

import numpy as np
import pytest

from dgl_gt.cli.main import main
from dgl_gt.partition import InputError, from_edges, load_graph, partition
from dgl_gt.partition.graph import SPLIT_MASKS


def graph(label=None, nodes=200):
    data = {} if label is None else {"label": np.asarray(label)}
    return from_edges(np.arange(nodes - 1), np.arange(1, nodes), nodes, data)


def masks(found):
    return np.stack([found.node_data[name] for name in SPLIT_MASKS])


@pytest.mark.parametrize("split", ["60/20/20", "0.6/0.2/0.2"])
def test_labelled_nodes_are_in_one_mask_each(split):
    label = np.where(np.arange(200) % 4 == 0, -1, np.arange(200) % 3)
    found = masks(load_graph(graph(label), split=split))
    assert (found.sum(0) == (label >= 0)).all() and found.sum(1).tolist() == [90, 30, 30]
    assert (found == masks(load_graph(graph(label), split=split))).all()
    assert (found != masks(load_graph(graph(label), split=split, seed=1))).any()
    assert masks(load_graph(graph(), split=split)).sum(1).tolist() == [120, 40, 40]


def test_each_class_is_split_by_itself():
    label = np.repeat([0, 5, -1], [180, 10, 10])
    found = masks(load_graph(graph(label), split="60/20/20", stratify=True))
    assert found[:, label == 5].sum(1).tolist() == [6, 2, 2] and found[:, label == 0].sum(1).tolist() == [108, 36, 36]
    assert not found[:, label < 0].any()


@pytest.mark.parametrize("label", [[-1.0, -2.5], [-1, -2]])
def test_numbers_below_zero_are_labels(label):
    assert masks(load_graph(graph(label * 100), split="60/20/20")).any(0).all()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"split": "60/20"}, "60/20"),
        ({"split": "60/20/30"}, "60/20/30"),
        ({"split": "1/0/0"}, "1/0/0"),
        ({"split": 3}, "3"),
        ({"split": b"60/20/20"}, "60/20/20"),
        ({"split": "98/1/1", "label": [0] * 10 + [-1] * 190}, "val_mask"),
        ({"split": "60/20/20", "label": [-1] * 200}, "no labelled node"),
        ({"split": "60/20/20", "stratify": True}, "stratify"),
        ({"split": "60/20/20", "stratify": True, "label": np.arange(200) / 3}, "stratify"),
        ({"stratify": True}, "split"),
    ],
)
def test_splits_that_cannot_be_are_refused(options, named):
    with pytest.raises(InputError) as caught:
        load_graph(graph(options.pop("label", None)), **options)
    assert named in str(caught.value)


def test_a_graph_with_masks_is_refused_and_others_are_trained(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    made = load_graph("sample:communities?nodes=300&classes=3")
    np.savez("g.npz", edge_index=np.stack(made.edges()), x=made.node_data["feat"], y=made.node_data["label"])
    assert main(["partition", "g.npz", "--parts", "2", "--split", "50/25/25", "--stratify", "--out", "shards"]) == 0
    assert main(["train", "shards", "--epochs", "2", "--hidden", "8"]) == 0
    with pytest.raises(InputError, match="train_mask"):
        partition("sample:communities?nodes=300", 1, "other", split="60/20/20")
    kept = partition("g.npz", 2, "bounded", cut="vertex", split="60/20/20", memory=2**32)
    assert {*SPLIT_MASKS} < {*kept["node_data"]}
