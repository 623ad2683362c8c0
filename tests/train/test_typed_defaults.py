"""Typed graphs as new users have them: no features at all, and relations one way."""

import json
from pathlib import Path

import numpy as np
import pytest

from dgl_gt.cli.main import main
from dgl_gt.model_config import GraphTransformerConfig
from dgl_gt.partition import from_relations, partition
from dgl_gt.partition.cli import one_way_notes
from dgl_gt.partition.figures.figures import TypedWidths
from dgl_gt.partition.schema import Relation, Schema
from dgl_gt.train.config import TrainConfig, read_config, with_typed_defaults

pytestmark = pytest.mark.usefixtures("rank_here")

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
    assert with_typed_defaults(TrainConfig().changed(**settings), features).task.node_embedding == expected


@pytest.mark.parametrize(
    "settings, expected",
    [
        ({}, ("mean", False)),
        ({"hidden": 16}, ("mean", False)),
        ({"score": "dot"}, ("dot", False)),
        ({"score": "hgt", "norm_first": True}, ("hgt", True)),
        ({"norm_first": True}, ("mean", True)),
        ({"attention_dropout": 0.1}, ("dot", False)),
        ({"edge_features": "rating"}, ("dot", False)),
        ({"encodings": "hops"}, ("dot", True)),
    ],
)
def test_layers_of_typed_graphs_have_defaults_of_their_own(tmp_path, settings, expected):
    features = TypedWidths((("author", 0), ("paper", 5)), (WRITES,))
    config = with_typed_defaults(TrainConfig().changed(**settings), features)
    assert (config.model.score, config.model.norm_first) == expected
    assert config.model.dropout == (0.2 if "encodings" in settings else 0.5)
    again = with_typed_defaults(config, features)  # as rank after rank does
    assert again == config and TrainConfig().changed(**config.flat()) == config
    assert with_typed_defaults(read_config(None, **settings), features) == config


@pytest.mark.parametrize(
    "settings, expected",
    [
        ({}, ("adam", 0.005, "all")),
        ({"weight_decay": 0.0}, ("adamw", 0.0, "weights")),
        ({"weight_decay": 0.1}, ("adamw", 0.1, "weights")),
        ({"optimizer": "adamw"}, ("adamw", 0.0, "weights")),
        ({"decay": "all"}, ("adamw", 0.0, "all")),
        ({"task": "link"}, ("adamw", 0.0, "weights")),
        ({"encodings": "hops"}, ("adamw", 0.0, "weights")),
    ],
)
def test_classes_of_typed_nodes_are_learned_with_a_decay(settings, expected):
    features = TypedWidths((("author", 0), ("paper", 5)), (WRITES,))
    found = with_typed_defaults(TrainConfig().changed(**settings), features).optimizer
    assert (found.kind, found.weight_decay, found.decay) == expected


def test_trained_rows_alone_do_not_decay():
    found = with_typed_defaults(TrainConfig(), TypedWidths((("author", 0), ("paper", 0)), (WRITES,)))
    assert (found.optimizer.kind, found.optimizer.weight_decay) == ("adamw", 0.0)


def test_the_config_of_the_example_says_all_that_it_needs():
    config = read_config(Path(__file__).parents[2] / "examples/acm.yaml")
    assert with_typed_defaults(config, TypedWidths((("paper", 5), ("author", 0)), (WRITES,))) == config


def test_a_model_that_was_chosen_whole_is_kept():
    features = TypedWidths((("author", 0), ("paper", 5)), (WRITES,))
    chosen = TrainConfig(model=GraphTransformerConfig(score="hgt"))
    assert with_typed_defaults(chosen, features).model.score == "hgt"


def test_a_graph_with_one_type_keeps_its_defaults():
    config = TrainConfig()
    assert with_typed_defaults(config, 0) is config


def test_the_command_trains_rows_and_says_so(tmp_path, capfd):
    partition(bare_graph(), 2, tmp_path / "shards", undirected=True)
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
