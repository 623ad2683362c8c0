"""Predictions come back with the user's names of nodes and of classes."""

import csv

import numpy as np
import pytest

from dgl_gt.cli.main import main
from dgl_gt.train import load_model
from dgl_gt.train.predictions import write_predictions
from dgl_gt.train.tasks.classification import NodeClasses

pytestmark = pytest.mark.usefixtures("rank_here")

QUICK = [
    "--epochs",
    "80",
    "--metric",
    "accuracy",
    "--dropout",
    "0",
    "--lr",
    "0.02",
    "--hidden",
    "8",
    "--heads",
    "2",
    "--layers",
    "1",
    "--json",
]


def people(folder, count=40):
    """Write a ring of people and a table of them, in another order: even ones cook, odd ones paint, and one is unknown."""
    names = [f"ann, {i}" for i in range(count)]
    with open(folder / "friends.csv", "w", newline="") as file:
        csv.writer(file).writerows([("source", "target"), *((names[i], names[(i + 2) % count]) for i in range(count))])
    with open(folder / "people.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["id", "job", "train_mask", "val_mask", "test_mask", "side"])
        for i in reversed(range(count)):
            job = "" if i == 5 else ("cook", "painter")[i % 2]
            rows.writerow([names[i], job, int(i < 20 and i != 5), int(20 <= i < 30), int(i >= 30), i % 2 + i / 1000])
    return names[::-1]


@pytest.mark.parametrize("parts", [1, 2])
def test_names_come_back(tmp_path, monkeypatch, capsys, parts):
    monkeypatch.chdir(tmp_path)
    names = people(tmp_path)
    options = ["--node-data", "people.csv", "--label", "job", "--parts", str(parts), "--out", "shards"]
    assert main(["partition", "friends.csv", *options]) == 0
    assert "note: people.csv: label from job (none for 1 of 40 nodes); feat from side" in capsys.readouterr().err
    assert main(["train", "shards", "--nproc", str(parts), "--out", "model", *QUICK]) == 0
    assert load_model("model").class_names == ["cook", "painter"]
    assert main(["predict", "shards", "--nproc", str(parts), "--model", "model", "--out", "p.csv"]) == 0
    with open("p.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["node"] for row in rows] == names
    assert list(rows[0]) == ["node", "prediction", "probability_cook", "probability_painter"]
    jobs = {row["node"]: row["prediction"] for row in rows}
    assert all(jobs[f"ann, {i}"] == ("cook", "painter")[i % 2] for i in range(20, 40))
    assert main(["predict", "shards", "--nproc", str(parts), "--model", "model", "--out", "p.npz"]) == 0
    with np.load("p.npz") as file:
        assert file["node_names"].tolist() == names and file["class_names"].tolist() == ["cook", "painter"]
        chosen = np.array([file["class_names"][i] for i in file["prediction"]])
    assert chosen.tolist() == [row["prediction"] for row in rows]


def test_classes_without_nodes_have_no_column(tmp_path):
    probability = np.full((3, 2), 0.5, np.float32)
    write_predictions(tmp_path / "p.csv", NodeClasses(np.array([0, 1, 0]), probability), class_names=["a", "b", "z"])
    assert (tmp_path / "p.csv").read_text().splitlines()[:2] == [
        "node,prediction,probability_a,probability_b",
        "0,a,0.5,0.5",
    ]
    write_predictions(tmp_path / "p.npz", NodeClasses(np.array([0, 1, 0]), probability), class_names=["a", "b", "z"])
    with np.load(tmp_path / "p.npz") as file:
        assert file["class_names"].tolist() == ["a", "b"]


def test_a_table_holds_what_a_float32_holds(tmp_path):
    probability = np.random.default_rng(0).random((200, 2), np.float32)
    write_predictions(tmp_path / "p.csv", NodeClasses(probability.argmax(1), probability))
    read = np.genfromtxt(tmp_path / "p.csv", delimiter=",", names=True)
    for column in range(2):
        assert np.array_equal(read[f"probability_{column}"].astype(np.float32), probability[:, column])
