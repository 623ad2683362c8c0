"""Masks of nodes that are drawn for a graph without them."""

import numpy as np
import pytest

from dgl_gt.cli.main import main
from dgl_gt.partition import InputError, from_edges, load_graph, partition
from dgl_gt.partition.errors import SourceWarning
from dgl_gt.partition.graph import SPLIT_MASKS

pytestmark = pytest.mark.usefixtures("rank_here")


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


IDS = {"train_idx": [0, 4, 5], "val_idx": [1], "test_idx": [7, 2]}


@pytest.mark.parametrize("names", [("train_idx", "val_idx", "test_idx"), ("train_idx", "valid_idx", "test_idx")])
@pytest.mark.parametrize("place", ["graph", "node data"])
def test_ids_of_nodes_become_masks(tmp_path, names, place):
    split = dict(zip(names, (np.array(each) for each in IDS.values())))
    edges = {"edge_index": np.array([np.arange(7), np.arange(1, 8)])}
    np.savez(tmp_path / "g.npz", **edges, **(split if place == "graph" else {}))
    np.savez(tmp_path / "split.npz", **split)
    given = {} if place == "graph" else {"node_data": tmp_path / "split.npz"}
    found = masks(load_graph(tmp_path / "g.npz", **given))
    assert [np.flatnonzero(each).tolist() for each in found] == [sorted(each) for each in IDS.values()]


def test_ids_of_nodes_are_those_of_the_user(tmp_path):
    train, test = np.array([50, 9]), np.array([30])
    np.savez(tmp_path / "g.npz", edge_index=[[9, 30], [30, 50]], train_idx=train, test_idx=test, val_idx=[9])
    with pytest.raises(InputError, match="train_mask and val_mask overlap"):
        load_graph(tmp_path / "g.npz", ids="compact")
    np.savez(tmp_path / "g.npz", edge_index=[[9, 30, 70], [30, 50, 9]], train_idx=train, test_idx=test, idx_val=[70])
    found = load_graph(tmp_path / "g.npz", ids="compact")
    assert found.node_names.tolist() == [9, 30, 50, 70]
    assert masks(found).tolist() == [[1, 0, 1, 0], [0, 0, 0, 1], [0, 1, 0, 0]]
    (tmp_path / "e.csv").write_text("src,dst\na,b\nb,c\n")
    for kind in ("dict", "npy"):
        np.save(tmp_path / "train_idx.npy", np.array(["c", "a"]))
        data = {"train_idx": np.array(["c", "a"])} if kind == "dict" else tmp_path / "train_idx.npy"
        named = load_graph(tmp_path / "e.csv", node_data=data)
        assert named.node_data["train_mask"].tolist() == [True, False, True]
    assert load_graph(graph(), node_data={"train_idx": np.arange(3)}).node_data["train_mask"].sum() == 3


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"train_idx": np.array([0, 200])}, "train_idx names node 200"),
        ({"test_idx": np.array([-1])}, "test_idx names node -1"),
        ({"train_idx": np.ones(200, bool)}, "train_idx is bool"),
        ({"train_idx": np.ones((2, 2), int)}, r"train_idx is int64 \(2, 2\)"),
        ({"train_idx": np.array(["a"])}, "train_idx names node 'a'"),
        ({"train_idx": np.array([0]), "train_mask": np.arange(200) < 9}, "train_mask and train_idx"),
        ({"train_idx": np.array([0, 1]), "test_idx": np.array([1])}, "overlap"),
    ],
)
def test_ids_that_cannot_be_are_refused(given, named):
    with pytest.raises(InputError, match=named):
        load_graph(graph(), node_data=given)


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.float32])
@pytest.mark.parametrize("shape", [(200,), (200, 3)])
def test_a_validation_mask_is_drawn_from_the_training_nodes(dtype, shape):
    test = np.zeros(shape, dtype)
    test[150:] = 1
    train = np.zeros(shape, dtype)
    train[:100] = 1
    data = {"train_mask": train, "test_mask": test}
    with pytest.warns(SourceWarning, match="no val_mask"):
        found = load_graph((np.arange(199), np.arange(1, 200)), node_data=data)
    kept, drawn, _ = masks(found)
    assert (kept | drawn == train.astype(bool)).all() and not (kept & drawn).any()
    assert (drawn.reshape(200, -1).sum(0) == 10).all() and "no val_mask" in found.notes[-1]
    assert shape == (200,) or (drawn[:, 0] != drawn[:, 1]).any()
    with pytest.warns(SourceWarning):
        again, other = (load_graph((np.arange(199), np.arange(1, 200)), node_data=data, seed=each) for each in (0, 1))
    assert (masks(again) == masks(found)).all() and (masks(other) != masks(found)).any()
    assert (train[:100] == 1).all()


@pytest.mark.parametrize(
    "data", [{"train_mask": 5}, {"train_mask": 1, "test_mask": 5}, {"val_mask": 3, "test_mask": 3}]
)
def test_no_validation_mask_is_drawn(data):
    ends = iter([0, 50])
    given = {key: (np.arange(200) >= (first := next(ends))) & (np.arange(200) < first + n) for key, n in data.items()}
    assert {*load_graph(graph(), node_data=given).node_data} == {*data}


def test_the_command_says_that_it_draws_a_validation_mask(tmp_path, capsys):
    path = tmp_path / "g.npz"
    edges, ids = np.array([np.arange(99), np.arange(1, 100)]), np.arange(100)
    np.savez(path, edge_index=edges, x=np.ones((100, 2)), y=ids % 2, train_idx=ids[:60], test_idx=ids[60:])
    assert main(["partition", str(path), "--parts", "2", "--out", str(tmp_path / "out"), "--json"]) == 0
    said = capsys.readouterr()
    assert "note: g.npz: there is no val_mask" in said.err and "no val_mask" in said.out
    assert main(["train", str(tmp_path / "out"), "--epochs", "1", "--hidden", "8"]) == 0
