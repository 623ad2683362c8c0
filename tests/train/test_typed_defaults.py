"""Typed graphs as new users have them: no features at all, and relations one way."""

import json

import numpy as np
import pytest

from dgl_gt.cli.main import main
from dgl_gt.partition import from_relations, partition
from dgl_gt.partition.cli import one_way_notes
from dgl_gt.partition.figures.figures import TypedWidths
from dgl_gt.partition.schema import Relation, Schema
from dgl_gt.train.config import TrainConfig, with_trained_rows

WRITES = Relation("author", "writes", "paper")


def bare_graph():
    """Authors and papers without features; labels of papers are those of their authors."""
    rng = np.random.default_rng(0)
    author = np.concatenate([np.arange(20), rng.integers(0, 20, 80)])
    mask = np.arange(100) % 4
    label = author % 2
    data = {"label": label, "train_mask": mask > 1, "val_mask": mask == 0, "test_mask": mask == 1}
    return from_relations({"author": 20, "paper": 100}, {WRITES: (author, np.arange(100))}, {"paper": data})


@pytest.mark.parametrize(
    "widths, settings, expected",
    [
        ((0, 0), {}, 64),
        ((0, 0), {"hidden": 16, "heads": 2}, 16),
        ((0, 0), {"node_embedding": 3}, 3),
        ((0, 0), {"encodings": "hops"}, 0),
        ((0, 5), {}, 0),
    ],
)
def test_rows_are_trained_where_no_type_has_features(widths, settings, expected):
    features = TypedWidths(tuple(zip(("author", "paper"), widths)), (WRITES,))
    assert with_trained_rows(TrainConfig().changed(**settings), features).task.node_embedding == expected


def test_a_graph_with_one_type_keeps_its_error():
    config = TrainConfig()
    assert with_trained_rows(config, 0) is config


@pytest.mark.parametrize("parts", [1, 2])
def test_the_command_trains_rows_and_says_so(tmp_path, capfd, parts):
    partition(bare_graph(), parts, tmp_path / "shards", undirected=True)
    options = ["--epochs", "30", "--hidden", "16", "--heads", "2", "--out", str(tmp_path / "run"), "--json"]
    assert main(["train", str(tmp_path / "shards"), *options]) == 0
    printed = capfd.readouterr()
    assert printed.err.count("--node-embedding 16") == 1
    assert json.loads(printed.out)["metric"]["test"] > 0.8  # in-degrees alone tell nothing of the classes
    asked = ["predict", str(tmp_path / "shards"), "--model", str(tmp_path / "run"), "--out", str(tmp_path / "p.npz")]
    assert main(asked) == 0


def test_relations_one_way_are_named(tmp_path, capfd):
    assert one_way_notes(None) == []
    cites = Relation("paper", "cites", "paper")
    nodes = {"author": 1, "paper": 1, "term": 1}
    assert one_way_notes(Schema(nodes, {cites: 0})) == []
    (note,) = one_way_notes(Schema(nodes, {cites: 0, WRITES: 0, Relation("paper", "has", "term"): 0}))
    assert "author,writes,paper" in note and "paper,has,term" in note and "cites" not in note and "--undirected" in note
    assert one_way_notes(Schema(nodes, {WRITES: 0, Relation("paper", "by", "author"): 0})) == []
    np.savez(
        tmp_path / "g.npz",
        node_types=["author", "paper"],
        num_nodes=[2, 2],
        author_writes_paper=np.array([[0, 1], [1, 0]]),
    )
    for options, count in ([], 1), (["--undirected"], 0):
        out = str(tmp_path / f"out{count}")
        assert main(["partition", str(tmp_path / "g.npz"), "--parts", "1", "--out", out, *options]) == 0
        assert capfd.readouterr().err.count("no relation leads back") == count
