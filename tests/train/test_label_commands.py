"""Tasks on the command line: from a file to predictions in the user's units, order and names."""

import csv
import json

import numpy as np
import pytest

from dgl_gt.cli.main import main

pytestmark = pytest.mark.usefixtures("rank_here")

NODES, EDGES = 60, 400
QUICK = ["--nproc", "1", "--epochs", "30", "--hidden", "16", "--heads", "2", "--patience", "0", "--lr", "0.02"]


@pytest.fixture
def graph(tmp_path, monkeypatch):
    """A function: writes a graph whose labels follow from its features, and makes its shards."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    edges = rng.integers(0, NODES, (2, EDGES))
    x = rng.standard_normal((NODES, 4)).astype(np.float32)
    names = np.array([f"n{each}" for each in range(NODES)])

    def make(of_edges=False, **labels):
        rows = EDGES if of_edges else NODES
        split = rng.integers(0, 3, rows)
        prefix = "edge_data_" if of_edges else ""
        masks = {f"{prefix}{name}_mask": split == i for i, name in enumerate(("train", "val", "test"))}
        if of_edges:  # as text and numbers in files; nodes have masks, too, which nothing reads
            masks = {key: mask.astype(np.float32) for key, mask in masks.items()}
            masks |= {f"{name}_mask": np.arange(NODES) % 3 == i for i, name in enumerate(("train", "val", "test"))}
        np.savez("g.npz", edge_index=edges, num_nodes=NODES, x=x, node_names=names, **masks, **labels)
        assert main(["partition", "g.npz", "--parts", "1", "--out", "shards", "--force"]) == 0
        return edges, x

    return make


def run(task, *options):
    """The record of a run, and the lines of its predictions."""
    assert main(["train", "shards", *QUICK, "--task", task, *options, "--out", "model", "--force"]) == 0
    assert main(["predict", "shards", "--nproc", "1", "--model", "model", "--out", "out.csv", "--force"]) == 0
    assert main(["report", "model", "-o", "report.html", "--force"]) == 0
    with open("out.csv") as file:
        return json.loads(open("model/record.json").read()), list(csv.reader(file))


def columns(lines, first):
    return np.array([[float(cell) for cell in line[first:]] for line in lines[1:]])


def test_numbers_come_back_in_their_units(graph, capfd):
    _, x = graph()
    target = 1e9 + 50 * x[:, 0]  # float32 steps are 64 here
    graph(node_data_price=target)
    record, lines = run("node_regression", "--label", "price", "--metric", "mae")
    assert lines[0] == ["node", "prediction"] and [line[0] for line in lines[1:]] == [f"n{i}" for i in range(NODES)]
    assert np.abs(columns(lines, 1)[:, 0] - target).mean() < 40
    metric = record["metric"]
    assert metric["name"] == "mae" and metric["lower_is_better"]
    assert metric["validation"] == min(record["validations"]) < record["validations"][0]
    assert "test MAE" in capfd.readouterr().out and "MAE" in open("report.html").read()


def test_several_labels(graph):
    _, x = graph()
    graph(y=(x[:, :3] > 0).astype(int))
    record, lines = run("node_multilabel")
    assert lines[0] == ["node", *(f"{name}_{i}" for name in ("prediction", "probability") for i in range(3))]
    found = columns(lines, 1)
    assert ((found[:, :3] == 1) == (found[:, 3:] > 0.5)).all() and ((x[:, :3] > 0) == found[:, :3]).mean() > 0.8
    assert record["metric"]["name"] == "f1_micro" and record["metric"]["test"] > 0.7


def test_edges_are_named_by_their_ends(graph):
    edges, x = graph()
    graph(of_edges=True, edge_data_kind=(x[edges[0], 0] > x[edges[1], 0]).astype(int))
    record, lines = run("edge_classification", "--label", "kind")
    assert lines[0] == ["edge", "source", "destination", "prediction", "probability_0", "probability_1"]
    assert [line[:3] for line in lines[1:]] == [[str(i), f"n{src}", f"n{dst}"] for i, (src, dst) in enumerate(edges.T)]
    assert record["metric"]["name"] == "roc_auc" and record["metric"]["test"] > 0.8


@pytest.mark.parametrize(
    ("task", "options", "words"),
    [
        ("node_regression", ["--metric", "f1_micro"], ["metric is 'f1_micro'", "rmse, mae, r2"]),
        ("node_classification", ["--label", "price"], ["'price'", "regression"]),
        ("node_multilabel", ["--label", "price"], ["'price'", "0, 1 or -1"]),
        ("node_regression", ["--label", "cost"], ["no node data 'cost'", "'price'"]),
        ("edge_regression", ["--label", "w"], ["no edge data 'train_mask'"]),
        ("edge_regression", ["--label", "w", "--edge-features", "w"], ["edge-features has 'w'", "learned"]),
        ("node_regression", ["--metric", "no_such_module:f", "--label", "price"], ["no_such_module"]),
    ],
)
def test_what_does_not_suit_is_refused(graph, capsys, task, options, words):
    graph(node_data_price=np.linspace(0, 1, NODES), edge_data_w=np.linspace(0, 1, EDGES))
    capsys.readouterr()
    assert main(["train", "shards", *QUICK, "--task", task, *options]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert all(word in said for word in words), said


def test_a_policy_that_leaves_out_edges_is_refused(graph, capsys):
    graph(of_edges=True, edge_data_kind=np.arange(EDGES) % 2)
    assert main(["partition", "g.npz", "--parts", "2", "--out", "two"]) == 0
    task = ["train", "two", *QUICK[2:], "--task", "edge_classification", "--label", "kind", "--epochs", "2"]
    for policy in ("alone", "sampled=0.5"):
        capsys.readouterr()
        assert main([*task, "--nproc", "2", "--policy", policy]) == 2
    assert main([*task, "--nproc", "2", "--policy", "int8", "--strategy", "halo_h"]) == 0


def test_no_file_names_a_function(graph, capsys):
    graph(y=np.arange(NODES) % 3)
    with open("c.yaml", "w") as file:
        file.write("task: {metric: 'os:getcwd'}\n")
    assert main(["train", "shards", *QUICK, "--config", "c.yaml"]) == 2
    assert "metric is 'os:getcwd'" in capsys.readouterr().err
    assert main(["train", "shards", *QUICK, "--config", "c.yaml", "--metric", "accuracy"]) == 0


def test_plans_of_edges_need_no_labels(graph):
    graph(of_edges=True, edge_data_kind=np.arange(EDGES) % 2)
    sections = ["--set", "task.kind=edge_multilabel", "--set", "task.decoder=dot"]
    assert main(["plan", "g.npz", "--world-size", "2", *sections, "--layers", "1", "--hidden", "8"]) == 0


def test_a_dot_product_is_one_number(graph, capsys):
    graph(of_edges=True, edge_data_kind=np.arange(EDGES) % 3)
    assert (
        main(["train", "shards", *QUICK, "--task", "edge_classification", "--label", "kind", "--decoder", "dot"]) == 2
    )
    assert "decoder is dot" in capsys.readouterr().err
