"""Node types and relations in what inspect prints and in the page of a report."""

import json

import numpy as np
import pytest
from html_page import Page

from dgl_gt.cli.main import main
from dgl_gt.partition import from_relations, partition
from dgl_gt.partition.report.write import write_report


@pytest.fixture(scope="module", params=["edge", "vertex"])
def shards(request, tmp_path_factory):
    rng = np.random.default_rng(0)
    edges = {
        ("user", "rates", "item"): (rng.integers(0, 40, 150), rng.integers(0, 30, 150)),
        ("item", "like", "item"): rng.integers(0, 30, (2, 60)),
        ("item", "in", "shop"): ([], []),
    }
    masks = {"train_mask": np.arange(40) < 25, "val_mask": np.arange(40) >= 30, "label": np.arange(40) % 2}
    data = {"user": masks, "item": {"feat": np.eye(30, 4)}}
    graph = from_relations(
        {"user": 40, "item": 30, "shop": 0}, edges, data, {("item", "like", "item"): {"w": np.ones(60)}}
    )
    out = tmp_path_factory.mktemp(request.param) / "out"
    return graph, partition(graph, 3, out, cut=request.param), out


def cut_edges(graph, manifest, out):
    """The cut edges of each relation, counted from the owners of the nodes or of the edges."""
    from dgl_gt.partition.shards.files import ShardReader

    reader, found = ShardReader(out, manifest), np.zeros(3, int)
    for part in range(3):
        arrays, owned = reader.structure(part, "indptr", "indices", "edge_ids"), reader.rows(part)[0]
        rows = np.repeat(np.arange(len(arrays["indptr"]) - 1), np.diff(arrays["indptr"]))
        is_cut = (rows >= owned) | (arrays["indices"] >= owned)
        found += np.bincount(graph.schema.relation_of(arrays["edge_ids"][is_cut]), minlength=3)
    return found.tolist()


def test_inspect(shards, capfd):
    graph, manifest, out = shards
    assert main(["inspect", str(out), "--json"]) == 0
    types = json.loads(capfd.readouterr().out)["types"]
    assert [each["nodes"] for each in types["nodes"].values()] == [40, 30, 0]
    assert [each["cut_edges"] for each in types["edges"].values()] == cut_edges(graph, manifest, out)
    assert types["nodes"]["item"]["data"] == {"feat": "float64 x 4"} and types["nodes"]["shop"]["balance"] == 1
    assert types["edges"]["item,like,item"]["data"] == {"w": "float64"}
    copies = sum(part["halo" if manifest["cut"] == "edge" else "mirrors"] for part in manifest["per_part"])
    assert sum(each["copies"] for each in types["nodes"].values()) == copies
    assert main(["inspect", str(out)]) == 0
    text = capfd.readouterr().out
    assert "user,rates,item" in text and "feat float64 x 4" in text


def test_page(shards, tmp_path):
    graph, manifest, out = shards
    numbers = write_report(out, tmp_path / "report.html")
    tables = Page((tmp_path / "report.html").read_text()).tables
    relations = next(rows for rows in tables if rows[0][0] == "Relation")
    assert [row[1:3] for row in relations[1:]] == [
        [f"{each['edges']:,}", f"{each['cut_edges']:,}"] for each in numbers["types"]["edges"].values()
    ]
    types = next(rows for rows in tables if rows[0][0] == "Node type")
    assert [row[1] for row in types[1:]] == ["40", "30", "0"]
    assert numbers["random"]["train_balance"] >= 1 and numbers["quality"]["train_balance"] >= 1


def test_a_graph_without_types_has_none(tmp_path, capfd):
    assert (
        main(["partition", "sample:communities?nodes=100", "--parts", "2", "--out", str(tmp_path / "o"), "--json"]) == 0
    )
    assert json.loads(capfd.readouterr().out)["types"] is None
    write_report(tmp_path / "o", tmp_path / "report.html")
    assert "Types and relations" not in (tmp_path / "report.html").read_text()
