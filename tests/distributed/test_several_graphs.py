"""A model that learns from several graphs in turn, on any ranks as on one process."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from ranks import run_ranks

import dgl_gt
from dgl_gt.cli.main import main
from dgl_gt.partition import InputError, from_edges, partition
from dgl_gt.train.config import read_config
from dgl_gt.train.run import train, train_and_save

pytestmark = pytest.mark.usefixtures("rank_here")

SETTINGS = dict(epochs=3, layers=2, hidden=12, heads=6, dropout=0.1, lr=0.01, patience=0)
TASKS = ["pretrain", "node_classification", "link_prediction"]
NODES = {"A": 90, "B": 60}


def graph_of(name, **changed):
    count = NODES[name]
    rng = np.random.default_rng(count)
    src, dst = rng.integers(0, count - 2, (2, 4 * count))
    nodes = {"feat": rng.random((count, 5)).astype(np.float32), "label": np.arange(count) % 3}
    nodes |= {f"{split}_mask": np.arange(count) % 3 == each for each, split in enumerate(("train", "val", "test"))}
    return from_edges(src, dst, count, nodes | changed)


def write(folder, parts, **options):
    """The graph A with an edge cut, and B with a vertex cut; with links split off if there is a task on them."""
    links = {"link_split": "0.6,0.2,0.2"} if options.pop("linked", False) else {}
    for name in NODES:
        cut = "vertex" if name == "B" and parts > 1 else "edge"
        partition(graph_of(name), parts, folder / name, cut=cut, **links, **options)


def run_on_rank(rank, folder, settings, strategies):
    torch.set_default_dtype(torch.float64)
    found = []
    for strategy in strategies:
        sg = dgl_gt.load(folder / "A", strategy)
        also = [dgl_gt.load(folder / "B", group=sg.comm)]
        result = train(sg, read_config(**settings), also=also)
        found.append((result.losses, result.validations, [result.test], result.exchanged_bytes_per_epoch))
    return found


@pytest.mark.parametrize("task", TASKS)
def test_any_ranks_train_as_one(task, tmp_path):
    settings = SETTINGS | {"task": task}
    write(tmp_path / "1", 1, linked=task == "link_prediction")
    (expected,) = run_ranks(1, run_on_rank, tmp_path / "1", settings, [None])[0]
    for parts in (2, 3):
        write(tmp_path / str(parts), parts, linked=task == "link_prediction")
        for found in run_ranks(parts, run_on_rank, tmp_path / str(parts), settings, ["halo_h", "ring", "heads"]):
            for each in found:
                for mine, theirs in zip(each[:3], expected[:3]):
                    np.testing.assert_allclose(mine, theirs, rtol=1e-9)
                assert each[3] > 0


def test_losses_and_metrics_are_means_over_the_graphs(tmp_path):
    write(tmp_path, 1)
    config = read_config(**SETTINGS | {"task": "pretrain", "epochs": 1, "dropout": 0.0, "lr": 1e-12})
    graphs = [dgl_gt.load(tmp_path / name) for name in NODES]
    pair = [graphs[0], dgl_gt.load(tmp_path / "B", group=graphs[0].comm)]
    alone = [train(sg, config) for sg in graphs]
    both = train(pair[0], config, also=pair[1:])
    for name in ("losses", "validations"):
        np.testing.assert_allclose(getattr(both, name), np.mean([getattr(each, name) for each in alone], 0), rtol=1e-6)


def test_a_run_is_kept_and_goes_on(tmp_path, capfd):
    write(tmp_path, 1)
    shards = [str(tmp_path / name) for name in NODES]
    arguments = ["--task", "pretrain", "--hidden", "12", "--heads", "2", "--checkpoint-every", "1", "--nproc", "1"]

    def run(out, epochs, *more):
        code = main(
            [
                "train",
                "--shards",
                shards[0],
                "--shards",
                shards[1],
                *arguments,
                "--out",
                str(tmp_path / out),
                "--epochs",
                epochs,
                *more,
            ]
        )
        return json.loads((tmp_path / out / "record.json").read_text()) if code == 0 else code

    whole = run("whole", "4")
    assert [each["nodes"] for each in (whole["graph"], *whole["also"])] == list(NODES.values())
    run("parts", "2")
    assert run("parts", "4", "--resume")["losses"] == whole["losses"]
    shards.reverse()
    assert run("parts", "5", "--resume") == 2
    assert "graph 2: number of nodes" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--shards", "A", "wide"], "width"),
        (["--shards", "A", "many"], "width"),
        (["--shards", "A", "named"], "class names"),
        (["--shards", "A", "B", "--node-embedding", "4"], "--node-embedding is 4"),
        (["--shards", "A", "two"], "2 parts"),
        (["--shards", "A", "B", "--task", "node_regression"], "node_regression"),
        (["--shards", "A", "B", "--strategy", "auto"], "--strategy is auto"),
        (["A", "--shards", "B"], "--shards B"),
        ([], "DIR"),
        (["--shards", "A", "nowhere"], "nowhere"),
    ],
)
def test_graphs_that_do_not_fit_together(arguments, named, tmp_path, monkeypatch, capfd):
    write(tmp_path, 1)
    ones = np.ones((60, 7), np.float32)
    partition(graph_of("B", feat=ones), 1, tmp_path / "wide")
    partition(graph_of("B", label=np.arange(60) % 5), 1, tmp_path / "many")
    partition(replace(graph_of("B"), class_names=("x", "y", "z")), 1, tmp_path / "named")
    partition(graph_of("B"), 2, tmp_path / "two")
    monkeypatch.chdir(tmp_path)
    assert main(["train", *arguments, "--epochs", "1"]) == 2
    assert named in capfd.readouterr().err


def test_graphs_of_other_ranks_and_policies(tmp_path):
    write(tmp_path, 1)
    sg, other = (dgl_gt.load(tmp_path / name) for name in NODES)
    with pytest.raises(InputError, match="sg.comm"):
        train(sg, read_config(**SETTINGS), also=[other])
    also = [dgl_gt.load(tmp_path / "B", group=sg.comm)]
    with pytest.raises(InputError, match="policy is bf16"):
        train_and_save(sg, read_config(**SETTINGS | {"policy": "bf16"}), tmp_path / "run", also=also)
    assert not (tmp_path / "run").exists()
