"""Rows of nodes and tables: what ``predict`` writes besides classes, on other graphs, too."""

import csv

import numpy as np
import pytest
import torch

import dgl_gt
from dgl_gt.cli.main import main
from dgl_gt.partition import InputError, from_edges, partition
from dgl_gt.train import embed, load_model, predict

pytestmark = pytest.mark.usefixtures("rank_here")

QUICK = ["--nproc", "1", "--epochs", "2", "--hidden", "8", "--heads", "2", "--layers", "1", "--patience", "0"]
NODES = 40


def graph(nodes=NODES, extra=0):
    """With ``extra``, the same graph after it has grown by some nodes that nothing points away from."""
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, nodes, (2, 5 * nodes))
    feat = rng.standard_normal((nodes + 40, 4)).astype(np.float32)[: nodes + extra]
    new = np.arange(nodes, nodes + extra)
    masks = {f"{name}_mask": np.arange(nodes + extra) % 3 == i for i, name in enumerate(("train", "val", "test"))}
    data = {"feat": feat, "label": np.arange(nodes + extra) % 2, **masks}
    return from_edges(np.r_[src, rng.integers(0, nodes, extra)], np.r_[dst, new], nodes + extra, data)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    partition(graph(), 1, "shards", link_split="0.6,0.2,0.2")
    return tmp_path


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--architecture", "gnn", "--set", "model.jumping=concat"],
        ["--architecture", "polynormer", "--set", "local_epochs=1"],
        ["--set", "model.global_attention=sgformer"],
        ["--node-embedding", "4"],
    ],
)
def test_the_last_projection_of_the_embeddings_gives_the_predictions(folder, options):
    assert main(["train", "shards", *QUICK, *options, "--out", "run"]) == 0
    model, sg = load_model("run"), dgl_gt.load("shards")
    rows, answer = embed(model, sg).embedding, predict(model, sg)
    inner = model.nodes if hasattr(model, "nodes") else model
    is_global = "polynormer" in options and inner.uses_global  # the best epoch may be one of the layers alone
    output = inner.global_output if is_global else inner.output
    with torch.no_grad():
        probability = output(torch.from_numpy(rows)).softmax(1)
    np.testing.assert_allclose(probability, answer.probability, rtol=0, atol=1e-6)


def test_embeddings_of_links_give_their_scores(folder):
    assert main(["train", "shards", *QUICK, "--task", "link_prediction", "--out", "run"]) == 0
    assert main(["predict", "shards", "--model", "run", "--out", "links.npz"]) == 0
    assert main(["predict", "shards", "--model", "run", "--out", "rows.npz", "--embeddings"]) == 0
    links, rows = np.load("links.npz"), np.load("rows.npz")["embedding"]
    scores = (rows[links["source"]] * rows[links["destination"]]).sum(1) * 8**-0.5
    np.testing.assert_allclose(scores, links["score"], rtol=0, atol=1e-6)


def test_a_model_of_the_users_has_no_known_rows(folder):
    class Own(torch.nn.Module):
        def forward(self, graph, feat):
            return feat

    with pytest.raises(InputError, match="Own"):
        embed(Own(), dgl_gt.load("shards"))


def test_parquet_has_the_columns_of_the_csv(folder):
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    for options in ([], ["--task", "link_prediction"]):
        assert main(["train", "shards", *QUICK, *options, "--out", "run", "--force"]) == 0
        for name in ("out.csv", "out.parquet"):
            assert main(["predict", "shards", "--model", "run", "--out", name, "--force"]) == 0
        table = parquet.read_table("out.parquet")
        with open("out.csv") as file:
            head, *lines = csv.reader(file)
        assert table.column_names == head and table.num_rows == len(lines)
        for name, column in zip(head, zip(*lines)):
            np.testing.assert_allclose(table[name].to_numpy(), np.array(column, float), rtol=1e-6)


def test_a_graph_that_has_grown_keeps_the_predictions_of_what_has_not_changed(folder):
    """New nodes that no old one reads get predictions, and the old ones keep theirs."""
    assert main(["train", "shards", *QUICK, "--out", "run"]) == 0
    model = load_model("run")
    partition(graph(), 1, "whole")
    partition(graph(extra=10), 1, "grown")
    old, new = (predict(model, dgl_gt.load(name)) for name in ("whole", "grown"))
    assert len(new.prediction) == NODES + 10
    np.testing.assert_allclose(new.probability[:NODES], old.probability, rtol=0, atol=1e-6)


def test_another_ending_is_refused(folder, capsys):
    assert main(["predict", "shards", "--model", "run", "--out", "x.json"]) == 2
    assert "x.json" in capsys.readouterr().err
