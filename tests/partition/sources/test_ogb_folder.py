"""Folders of text files in the form of OGB's raw data sets."""

import gzip
import shutil

import numpy as np
import pytest
from source_checks import refused, written

from dgl_gt.cli.main import main
from dgl_gt.partition import load_graph
from dgl_gt.partition.graph import SPLIT_MASKS

N, E = 6, 9
RNG = np.random.default_rng(0)
EDGES = RNG.integers(0, N, (E, 2))
FILES = {
    "raw/edge": EDGES,
    "raw/num-node-list": [[N]],
    "raw/num-edge-list": [[E]],
    "raw/node-feat": RNG.random((N, 3)).round(3),
    "raw/node_year": [[2000 + i] for i in range(N)],
    "raw/edge-feat": RNG.random((E, 2)).round(3),
    "raw/edge_reltype": [[i % 2] for i in range(E)],
    "raw/node-label": [["0.0"], ["1.0"], ["nan"], ["2.0"], ["0.0"], ["1.0"]],
    "split/time/train": [[5], [0]],
    "split/time/valid": [[1]],
    "split/time/test": [[3], [4]],
}


def text(rows) -> str:
    return "".join(",".join(map(str, row)) + "\n" for row in rows)


@pytest.fixture(params=[".csv.gz", ".csv"])
def folder(tmp_path, request):
    root = tmp_path / "mine"
    for name, rows in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        written(root / f"{name}{request.param}", text(np.asarray(rows).tolist()))
    return root


def file(folder, name):
    return next(folder.glob(f"{name}.csv*"))


@pytest.mark.parametrize("place", ["root", "raw"])
def test_a_folder(folder, place):
    graph = load_graph(folder if place == "root" else str(folder / "raw"))
    assert (np.stack(graph.edges(), 1) == EDGES).all() and graph.num_nodes == N and graph.name == "mine"
    assert graph.node_data["feat"].dtype == graph.edge_data["feat"].dtype == np.float32
    np.testing.assert_allclose(graph.node_data["feat"], FILES["raw/node-feat"], rtol=1e-6)
    np.testing.assert_allclose(graph.edge_data["feat"], FILES["raw/edge-feat"], rtol=1e-6)
    assert graph.node_data["label"].tolist() == [0, 1, -1, 2, 0, 1]
    assert graph.node_data["node_year"].tolist() == FILES["raw/node_year"]
    assert graph.edge_data["edge_reltype"].dtype == np.int64
    masks = [np.flatnonzero(graph.node_data[key]).tolist() for key in SPLIT_MASKS]
    assert masks == [[0, 5], [1], [3, 4]] and "--undirected" in graph.notes[0]


def test_a_folder_is_read_as_ogb_reads_it(folder):
    read_graph_raw = pytest.importorskip("ogb.io.read_graph_raw")
    if file(folder, "raw/edge").suffix != ".gz":
        pytest.skip("ogb reads packed files alone")
    (theirs,), ours = read_graph_raw.read_csv_graph_raw(str(folder / "raw")), load_graph(folder)
    assert (theirs["edge_index"] == np.stack(ours.edges())).all() and theirs["num_nodes"] == ours.num_nodes
    for key in ("node_feat", "edge_feat"):
        assert np.array_equal(theirs[key], (ours.node_data if key[0] == "n" else ours.edge_data)["feat"])


def test_only_edges_and_the_number_of_nodes_are_needed(folder):
    for name in FILES.keys() - {"raw/edge", "raw/num-node-list"}:
        file(folder, name).unlink()
    graph = load_graph(folder)
    assert graph.num_edges == E and not graph.node_data and not graph.edge_data


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("raw/edge", "", ["raw/edge.csv", "0 rows for 9 edges"]),
        ("raw/edge", text(EDGES[:4]), ["raw/edge.csv", "4 rows for 9 edges"]),
        ("raw/edge", "0\n" * E, ["raw/edge.csv", "1 columns"]),
        ("raw/edge", "0,1\n" * 8 + "0,6", ["raw/edge.csv", "row 9", "node 6"]),
        ("raw/edge", "0,1\n" * 8 + "0,x", ["raw/edge.csv", "line 9", "'0,x'"]),
        ("raw/edge", "src,dst\n" + "0,1\n" * 8, ["raw/edge.csv", "line 1", "'src,dst'"]),
        ("raw/edge", b"\xff\xfe0\x00", ["raw/edge.csv", "not UTF-8"]),
        ("raw/num-node-list", "3\n3\n", ["num-node-list", "2 graphs"]),
        ("raw/num-node-list", "", ["num-node-list", "0 graphs"]),
        ("raw/node-feat", "1,2,3\n" * 5, ["node-feat.csv", "5 rows for 6 nodes"]),
        ("raw/node-feat", "1,2,3\n" * 5 + "1,2\n", ["node-feat.csv", "line 6"]),
        ("raw/edge-feat", "1\n" * 8, ["edge-feat.csv", "8 rows for 9 edges"]),
        ("raw/node-label", "one\n" * 6, ["node-label.csv", "line 1", "'one'"]),
        ("split/time/train", "6\n", ["time/train.csv", "row 1", "node 6"]),
        ("split/time/test", "", ["time/test.csv", "0 columns"]),
        ("split/time/test", "3,4\n", ["time/test.csv", "2 columns"]),
        ("raw/edge_reltype", "1e400\n" * 9, ["mine", "edge_reltype"]),
        ("split/time/valid", None, ["no valid.csv.gz"]),
    ],
)
def test_folders_that_are_refused(folder, name, content, words, capfd):
    path = file(folder, name)
    path.unlink() if content is None else written(path, content)
    refused(folder, *words)
    assert main(["partition", str(folder), "--parts", "2", "--out", str(folder / "out")]) == 2
    assert words[0] in capfd.readouterr().err and not (folder / "out").exists()


def test_what_is_cut_short_or_has_types_is_refused(folder):
    if file(folder, "raw/edge").suffix == ".gz":
        path, whole = file(folder, "raw/edge"), gzip.compress(text(EDGES).encode())
        path.write_bytes(whole[:-9])
        refused(folder, "edge.csv.gz", "incomplete")
        path.write_bytes(whole)
    shutil.copytree(folder / "split/time", folder / "split/random")
    refused(folder, "split", "random, time")
    (folder / "raw/relations").mkdir()
    refused(folder, "raw", "several types")
