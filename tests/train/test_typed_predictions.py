"""Predictions on typed graphs name the nodes of their types."""

import csv

import numpy as np
import pytest

import dgl_gt
from dgl_gt.cli.main import main
from dgl_gt.train import load_model, score_pairs

pytestmark = pytest.mark.usefixtures("rank_here")

USERS, ITEMS = 12, 9
QUICK = ["--epochs", "1", "--hidden", "8", "--heads", "2", "--node-embedding", "4"]
LINKS = ["--link-split", "0.6,0.2,0.2", "--relation", "user,rates,item"]


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """Users with names who rate items with numbers for names, and shards of the graph, and of it with split links."""
    folder = tmp_path_factory.mktemp("typed")
    src, dst = (each.ravel() for each in np.meshgrid(np.arange(USERS), np.arange(0, ITEMS, 2)))
    kinds = np.arange(len(src)) % 3
    edges, columns = "user,rates,item", {"edge_data/user,rates,item/label": kinds}
    nodes = {"node_data/user/label": np.arange(USERS) % 2}
    for number, name in enumerate(("train", "val", "test")):
        columns[f"edge_data/{edges}/{name}_mask"] = kinds == number
        nodes[f"node_data/user/{name}_mask"] = np.arange(USERS) % 3 == number
    names = {
        "node_names/user": np.array([f"u{each}" for each in range(USERS)]),
        "node_names/item": np.arange(ITEMS) + 500,
    }
    sizes = {"node_types": np.array(["item", "user"]), "num_nodes": np.array([ITEMS, USERS])}
    ends = {f"edge_index/{edges}": np.stack([src, dst])}
    np.savez(folder / "g.npz", **ends, **columns, **nodes, **names, **sizes)
    for name, more in (("whole", []), ("links", LINKS)):
        command = ["partition", str(folder / "g.npz"), "--parts", "1", "--undirected", "--out", str(folder / name)]
        assert main([*command, *more]) == 0
    return folder


def predicted(folder, shards, task, file, *more):
    run = folder / f"run of {task}"
    if not run.exists():
        assert main(["train", str(folder / shards), "--task", task, *QUICK, "--out", str(run)]) == 0
    out = folder / file
    assert main(["predict", str(folder / shards), "--model", str(run), "--out", str(out), "--force", *more]) == 0
    if out.suffix == ".npz":
        return np.load(out)
    with open(out) as lines:
        return list(csv.DictReader(lines))


def test_nodes_of_the_learned_type(shards):
    rows = predicted(shards, "whole", "node_classification", "nodes.csv")
    assert [each["node"] for each in rows] == [f"u{each}" for each in range(USERS)]
    arrays = predicted(shards, "whole", "node_classification", "nodes.npz")
    assert arrays["node_names"].tolist() == [f"u{each}" for each in range(USERS)]


def test_ends_of_the_learned_relation(shards):
    rows = predicted(shards, "whole", "edge_classification", "edges.csv")
    graph = np.load(shards / "g.npz")
    source, destination = graph["edge_index/user,rates,item"]
    assert [each["source"] for each in rows] == [f"u{each}" for each in source]
    assert [each["destination"] for each in rows] == [str(500 + each) for each in destination]
    arrays = predicted(shards, "whole", "edge_classification", "edges.npz")
    assert (arrays["source"] == source).all() and (arrays["destination"] == destination).all()
    assert len(arrays["source_names"]) == USERS and len(arrays["destination_names"]) == ITEMS


def test_links_and_pairs(shards):
    for each in predicted(shards, "links", "link_prediction", "links.csv"):
        assert each["source"][0] == "u" and 500 <= int(each["destination"]) < 500 + ITEMS
    (shards / "pairs.csv").write_text("u11,500\nu0,508\n")
    rows = predicted(shards, "links", "link_prediction", "pairs-out.csv", "--pairs", str(shards / "pairs.csv"))
    assert [(each["source"], each["destination"]) for each in rows] == [("u11", "500"), ("u0", "508")]
    with dgl_gt.load(shards / "links") as sg:
        found = score_pairs(load_model(shards / "run of link_prediction"), sg, np.array([[11, 0], [0, 8]]))
    np.testing.assert_allclose(found.score, [float(each["score"]) for each in rows], rtol=1e-6)


def test_a_pair_of_another_type_is_named(shards, capfd):
    (shards / "pairs.csv").write_text("source,destination\nu11,u0\n")
    run, out = str(shards / "run of link_prediction"), shards / "none.csv"
    command = [
        "predict",
        str(shards / "links"),
        "--model",
        run,
        "--pairs",
        str(shards / "pairs.csv"),
        "--out",
        str(out),
    ]
    assert main(command) == 2
    assert "names node u0," in capfd.readouterr().err and not out.exists()


def test_a_model_of_links_on_a_graph_without_split_links(shards):
    """The model says between which types its links are."""
    predicted(shards, "links", "link_prediction", "links.csv")
    run, out = shards / "run of link_prediction", shards / "whole.csv"
    assert main(["predict", str(shards / "whole"), "--model", str(run), "--out", str(out)]) == 0
    with open(out) as lines:
        rows = list(csv.DictReader(lines))
    assert {each["source"][0] for each in rows} == {"u"} and all(500 <= int(each["destination"]) < 509 for each in rows)
