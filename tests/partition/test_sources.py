"""Every way to name or hold a graph, and every way to get it wrong."""

import gzip
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from partition import files
from partition.errors import InputError
from partition.graph import from_edges
from partition.sources import load_graph

REAL = {  # nodes, stored edges, width of the features, classes
    "cora": (2708, 10556, 1433, 7),
    "tolokers": (11758, 1038000, 10, 2),
    "amazon_computer": (13752, 491722, 767, 10),
    "ogbn_arxiv_nofeat": (169343, 2315598, None, 40),
    "email_enron": (36692, 367662, None, None),
    "ogbl_ddi_train": (4267, 2135822, None, None),
}


def edges(graph):
    """The edges as (src, dst) in edge-id order."""
    src, dst = np.empty((2, graph.num_edges), np.int64)
    src[graph.edge_ids], dst[graph.edge_ids] = graph.indices, graph.destinations()
    return list(zip(src.tolist(), dst.tolist()))


def written(path, text):
    data = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def refused(source, *words, **options):
    """Loading raises InputError, in one line that holds all the words."""
    with pytest.raises(InputError) as caught:
        load_graph(source, **options)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message, message


@pytest.fixture
def small_blocks(monkeypatch):
    """Cut text into blocks of a few bytes, so that tiny files have many."""
    monkeypatch.setattr(files, "_BLOCK_BYTES", 7)


# ---- .npz


@pytest.mark.parametrize("name", REAL)
def test_real_graphs(name, real_graph):
    path = real_graph(name)
    nodes, count, width, classes = REAL[name]
    graph = load_graph(path)
    assert (graph.name, graph.num_nodes, graph.num_edges) == (name, nodes, count)
    assert ("feat" in graph.node_data) == (width is not None)
    if width:
        assert graph.node_data["feat"].shape == (nodes, width) and graph.node_data["feat"].dtype == np.float32
    if classes:
        assert graph.node_data["label"].max() + 1 == classes
        assert graph.node_data["train_mask"].dtype == bool
    with np.load(path) as archive:
        listed = archive["edge_index"]
    there = edges(graph)
    half = listed.shape[1]
    assert there[:half] == list(zip(*listed.tolist()))
    assert there[half:] == [(v, u) for u, v in there[:half]]


def test_npz_undirected_with_self_loop_and_edge_data(tmp_path):
    np.savez(
        tmp_path / "g.npz",
        edge_index=np.array([[0, 1, 1], [1, 1, 2]], np.int32),
        num_nodes=4,
        directed=False,
        edge_data_weight=np.array([5.0, 6.0, 7.0], np.float32),
        source="somewhere",
    )
    graph = load_graph(str(tmp_path / "g.npz"))
    assert edges(graph) == [(0, 1), (1, 1), (1, 2), (1, 0), (2, 1)]
    assert graph.edge_data["weight"].tolist() == [5, 6, 7, 5, 7]
    assert graph.num_nodes == 4 and graph.name == "g.npz"


def test_npz_without_directed_stays_as_listed(tmp_path):
    columns = {"label": np.array([[0], [1]]), "feat": np.eye(2)}
    np.savez(tmp_path / "g.npz", edge_index=np.array([[0, 1], [1, 0]]), name="two", **columns)
    graph = load_graph(tmp_path / "g.npz")
    assert edges(graph) == [(0, 1), (1, 0)]
    assert graph.node_data["label"].tolist() == [0, 1]
    assert graph.name == "two"


def test_npz_float_labels_and_integer_masks(tmp_path):
    np.savez(
        tmp_path / "g.npz",
        edge_index=np.array([[0], [1]]),
        num_nodes=3,
        y=np.array([2.0, np.nan, 1.0]),
        train_mask=np.array([[1, 0], [0, 0], [0, 1]], np.uint8),
        test_mask=np.array([0, 1, 0]),
    )
    data = load_graph(tmp_path / "g.npz").node_data
    assert data["label"].dtype == np.int64 and data["label"].tolist() == [2, -1, 1]
    assert data["train_mask"].dtype == bool
    assert data["train_mask"].tolist() == [[True, False], [False, False], [False, True]]
    assert data["test_mask"].tolist() == [[False, False], [True, True], [False, False]]


EDGE = {"edge_index": np.array([[0, 1], [1, 2]]), "num_nodes": 3}


@pytest.mark.parametrize(
    "arrays, words",
    [
        ({"x": np.eye(3)}, ["edge_index"]),
        ({"edge_index": np.array([0, 1])}, ["(2,)", "(2, E)"]),
        ({"edge_index": np.array([[0.0], [1.0]])}, ["float64"]),
        ({"edge_index": np.array([["a"], ["b"]])}, ["<U1"]),
        ({"edge_index": np.array([[0, 1], [1, 0]]), "directed": False}, ["0 and 1", "both ways"]),
        ({**EDGE, "num_nodes": 2}, ["node id 2", "0..1"]),
        ({**EDGE, "num_nodes": 2.5}, ["num_nodes", "float64"]),
        ({**EDGE, "num_nodes": np.array([3, 3])}, ["num_nodes", "(2,)"]),
        ({**EDGE, "x": np.eye(2)}, ["'feat'", "(2, 2)", "3"]),
        ({**EDGE, "x": np.array([[np.nan], [1], [1]])}, ["NaN"]),
        ({**EDGE, "y": np.array([0.5, 1, 1])}, ["label", "float64"]),
        ({**EDGE, "train_mask": np.array([0, 2, 1])}, ["train_mask", "2", "0 and 1"]),
        ({**EDGE, "train_mask": np.array(["a", "b", "c"])}, ["train_mask", "<U1"]),
        ({**EDGE, "edge_data_w": np.ones(3)}, ["edge_data_w", "(3,)", "2"]),
        ({**EDGE, "x_indptr": np.array([0, 1])}, ["x_indices, x_data, x_shape"]),
        ({**EDGE, "x": np.array([{}, {}, {}], dtype=object)}, ["damaged", "Object arrays"]),
    ],
)
def test_npz_refused(tmp_path, arrays, words):
    np.savez(tmp_path / "g.npz", **arrays)
    refused(tmp_path / "g.npz", *words)


@pytest.mark.parametrize(
    "indptr, indices", [([0, 1, 1], [0]), ([0, 1, 2, 9], [0, 1]), ([0, 1, 2, 2], [0, 5]), ([0, 2, 1, 2], [0, 1])]
)
def test_npz_sparse_features_refused(tmp_path, indptr, indices):
    sparse = {"x_indptr": np.array(indptr), "x_indices": np.array(indices), "x_data": np.ones(len(indices), np.float32)}
    np.savez(tmp_path / "g.npz", **EDGE, **sparse, x_shape=np.array([3, 2]))
    refused(tmp_path / "g.npz", "CSR")


def test_npz_damaged(tmp_path):
    path = tmp_path / "g.npz"
    np.savez_compressed(path, edge_index=np.random.default_rng(0).integers(0, 500, (2, 5000)))
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[500:600] = bytes(100)
    for damaged in (b"", b"rubbish" * 99, whole[: len(whole) // 2], whole[:-30], bytes(flipped), whole[100:]):
        path.write_bytes(damaged)
        refused(path, str(path), "damaged")


def test_npy_under_the_name_of_npz(tmp_path):
    np.save(tmp_path / "g.npy", np.eye(2))
    os.rename(tmp_path / "g.npy", tmp_path / "g.npz")
    refused(tmp_path / "g.npz", "not an .npz archive")


# ---- edge lists


@pytest.mark.parametrize(
    "name, text",
    [
        ("g.csv", "0,1\n1,2\n2,0\n"),
        ("g.csv", "src,dst\r\n0,1\r\n1,2\r\n2,0\r\n"),
        ("g.csv", "\ufeffsource,target\n0, 1\n1, 2\n2, 0"),
        ("g.csv", '"a","b"\n"0","1"\n"1","2"\n"2","0"\n'),
        ("g.csv", "0;1\n1;2\n2;0\n"),
        ("g.csv", "dst,src\n1,0\n2,1\n0,2\n"),
        ("g.csv", "line,to,from\n7,1,0\n7,2,1\n7,0,2\n"),
        ("g.tsv", "0\t1\tx y\n1\t2\tz\n2\t0\t\n"),
        ("g.txt", "# FromNodeId\tToNodeId\n0 1\n\n% more, 5\n1   2\n   \n  2 0  \n#\n"),
        ("g.txt", "from to\n0 1\n1 2\n# é\n2 0\n"),
        ("g.txt.gz", "0 1 3.5 a\n1 2 3\n2 0\n"),
        ("g.tsv.gz", "u\tv\n0\t1\n1\t2\n2\t0\n"),
    ],
)
@pytest.mark.parametrize("block", [7, 1 << 24])
def test_edge_list(tmp_path, monkeypatch, name, text, block):
    monkeypatch.setattr(files, "_BLOCK_BYTES", block)
    graph = load_graph(written(tmp_path / name, text))
    assert edges(graph) == [(0, 1), (1, 2), (2, 0)]
    assert graph.name == name and graph.indices.dtype == np.int32


def test_edge_list_columns_become_edge_data(tmp_path, small_blocks):
    text = "src,dst,time,weight,kind,mixed\n1,0,1600000000000,0.5,a,1\n0,1,3,2,b,2.5\n"
    graph = load_graph(written(tmp_path / "g.csv", text))
    assert set(graph.edge_data) == {"time", "weight", "mixed"}
    assert graph.edge_data["time"].dtype == np.int64 and graph.edge_data["time"].tolist() == [1600000000000, 3]
    assert graph.edge_data["weight"].dtype == np.float32 and graph.edge_data["weight"].tolist() == [0.5, 2]
    assert graph.edge_data["mixed"].tolist() == [1, 2.5]


def test_edge_list_against_a_plain_reading(tmp_path, small_blocks):
    listed = np.random.default_rng(0).integers(0, 50, (300, 2))
    path = written(tmp_path / "g.txt", "\n".join(f"{u} {v}" for u, v in listed))
    assert edges(load_graph(path)) == [tuple(edge) for edge in listed.tolist()]


def test_number_of_nodes_can_be_stated(tmp_path):
    path = written(tmp_path / "g.csv", "0,1\n")
    assert load_graph(path).num_nodes == 2
    assert load_graph(path, num_nodes=5).num_nodes == 5
    refused(path, "node id 1", "0..0", num_nodes=1)


@pytest.mark.parametrize(
    "text, words",
    [
        ("0,1\n1,x\n2,0\n", ["line 2", "'1,x'", "two node ids"]),
        ("# c\n\n0,1\n1\n2,0\n", ["line 4", "'1'"]),
        ("0 1\n1 2\n\n# c\n1.5 2\n", ["line 5", "'1.5 2'"]),
        ("0 1\n1.0 2\n", ["line 2"]),
        ("0 1\n-1 2\n", ["line 2", "'-1 2'"]),
        ("alice bob\nbob carol\n", ["line 2", "'bob carol'", "whole numbers"]),
        ("alice bob\n0 carol\n", ["line 2", "'0 carol'"]),
        ("src,dst,w\n0,1,2\n1,2,\n", ["line 3", "'1,2,'", "w"]),
        ("src,dst,w,w\n0,1,2,3\n", ["line 1", "'w'"]),
        ("0 99999999999999999999\n", ["line 1"]),
        ("0 123456789\n", ["123456789", "1 edges", "num_nodes"]),
        ("", ["nodes"]),
        ("# nothing\n", ["nodes"]),
        ("5\n", ["line 1"]),
    ],
)
def test_edge_list_refused(tmp_path, small_blocks, text, words):
    refused(written(tmp_path / "g.txt", text), "g.txt", *words)


@pytest.mark.parametrize(
    "data", [bytes(range(256)), b"\x89PNG\r\n\x1a\n\0\0", "0 1\n".encode("utf-16"), b"0 1\n1 \xff\n"]
)
def test_edge_list_that_is_not_text(tmp_path, data):
    refused(written(tmp_path / "g.csv", data), "g.csv", "text")


def test_edge_list_without_ends_of_line(tmp_path, small_blocks, monkeypatch):
    monkeypatch.setattr(files, "_LONGEST_LINE_BYTES", 20)
    refused(written(tmp_path / "g.txt", "1" * 50), "line 1", "end of line")


def test_gzip_damaged(tmp_path):
    whole = gzip.compress(b"0 1\n1 2\n" * 1000)
    for damaged in (whole[:-20], b"0 1\n", whole[:20] + b"\0" * 20):
        refused(written_raw(tmp_path / "g.txt.gz", damaged), "g.txt.gz", "damaged")


def written_raw(path, data):
    path.write_bytes(data)
    return path


def test_bad_line_is_found_among_many(tmp_path):
    lines = [f"{i} {i + 1}" for i in range(20_000)]
    lines[13_456] = "oops 1"
    refused(written(tmp_path / "g.txt", "\n".join(lines)), "line 13457", "'oops 1'")


# ---- node data beside the edges


NODES = "node,feat_a,label,train_mask,b,val_mask\n2,5,1,0,6.5,1\n0,1,0,True,2,false\n1,3,,false,4,0\n"


def test_node_table(tmp_path, small_blocks):
    path = written(tmp_path / "g.csv", "0,1\n")
    graph = load_graph(path, node_data=written(tmp_path / "n.csv", NODES))
    assert graph.num_nodes == 3
    assert graph.node_data["feat"].dtype == np.float32
    assert graph.node_data["feat"].tolist() == [[1, 2], [3, 4], [5, 6.5]]
    assert graph.node_data["label"].tolist() == [0, -1, 1]
    assert graph.node_data["train_mask"].tolist() == [True, False, False]
    assert graph.node_data["val_mask"].tolist() == [False, False, True]


def test_node_table_without_ids_or_features(tmp_path):
    path = written(tmp_path / "g.csv", "0,1\n")
    graph = load_graph(path, node_data=str(written(tmp_path / "n.tsv.gz", "y\n4\n5\n6\n")))
    assert graph.num_nodes == 3 and list(graph.node_data) == ["label"]
    assert graph.node_data["label"].tolist() == [4, 5, 6]


def test_node_npz_and_dict(tmp_path):
    path = written(tmp_path / "g.csv", "0,1\n")
    np.savez(tmp_path / "n.npz", x=np.eye(2, dtype=np.float32), y=np.array([1, 0]))
    graph = load_graph(path, node_data=tmp_path / "n.npz")
    assert set(graph.node_data) == {"feat", "label"}
    feat = np.eye(2, dtype=np.float32)
    assert load_graph(path, node_data={"feat": feat}).node_data["feat"] is feat
    labelled = load_graph(from_edges([0], [1]), node_data={"label": np.array([[1], [2]])})
    assert labelled.node_data["label"].tolist() == [1, 2]


@pytest.mark.parametrize(
    "text, words",
    [
        ("1,2\n3,4\n", ["header"]),
        ("", ["header"]),
        ("a,b\n", ["header"]),
        ("a,country\n1,fr\n2,de\n", ["'country'", "'fr'"]),
        ("a,b\n1,2\n3,\n", ["line 3", "2 columns"]),
        ("a,label\n1,2\n3,x\n", ["line 3"]),
        ("a,train_mask\n1,yes\n3,no\n", ["line 2"]),
        ("a,train_mask\n1,1\n3,2\n", ["train_mask", "2"]),
        ("node,a\n0,1\n0,2\n", ["0..1 once"]),
        ("node,a\n0,1\n2,2\n", ["0..1 once"]),
        ("node,id,a\n0,0,1\n1,1,2\n", ["node_id"]),
        ("a,A\n0,0\n1,1\n", ["'a'"]),
        ("a\n1\n2\n3\n", ["(3, 1)", "must be 2"]),
    ],
)
def test_node_table_refused(tmp_path, text, words):
    refused(from_edges([0], [1]), *words, node_data=written(tmp_path / "n.csv", text))


def test_node_data_refused(tmp_path):
    graph = from_edges([0], [1], node_data={"feat": np.eye(2)})
    np.savez(tmp_path / "n.npz", other=np.eye(2))
    refused(graph, "feat", "already", node_data={"feat": np.eye(2)})
    refused(graph, "list", node_data=[1, 2])
    refused(graph, ".parquet", ".npz", node_data="n.parquet")
    refused(graph, "no node data", "train_mask", node_data=tmp_path / "n.npz")
    refused(graph, "no such file", node_data=tmp_path / "absent.csv")


# ---- METIS files


@pytest.mark.parametrize(
    "text, expected, weight",
    [
        ("% c\n4 2\n2 3\n1\n% in between\n1\n\n", [(0, 1), (0, 2), (1, 0), (2, 0)], None),
        ("4 2\n2 3\n1\n1\n", [(0, 1), (0, 2), (1, 0), (2, 0)], None),
        ("4 2 000\n2 3\n1\n1\n\n\n\n", [(0, 1), (0, 2), (1, 0), (2, 0)], None),
        ("3 2 1\n2 5 3 6\n1 5\n1 6", [(0, 1), (0, 2), (1, 0), (2, 0)], [5, 6, 5, 6]),
        ("3 2 10\n9 2 3\n9 1\n9 1\n", [(0, 1), (0, 2), (1, 0), (2, 0)], None),
        ("3 2 011 2\n9 9 2 5 3 6\n9 9 1 5\n9 9 1 6\n", [(0, 1), (0, 2), (1, 0), (2, 0)], [5, 6, 5, 6]),
        ("3 2 111 2\n8 9 9 2 5 3 6\n8 9 9 1 5\n8 9 9 1 6\n", [(0, 1), (0, 2), (1, 0), (2, 0)], [5, 6, 5, 6]),
        ("2 0\n\n\n", [], None),
    ],
)
@pytest.mark.parametrize("block", [7, 1 << 24])
def test_metis(tmp_path, monkeypatch, text, expected, weight, block):
    monkeypatch.setattr(files, "_BLOCK_BYTES", block)
    graph = load_graph(written(tmp_path / "g.graph", text))
    assert edges(graph) == expected
    assert graph.num_nodes == int(text.removeprefix("% c\n").split()[0])
    assert (graph.edge_data["weight"].tolist() if weight else graph.edge_data) == (weight or {})


def test_metis_against_a_plain_writing(tmp_path, small_blocks):
    rng = np.random.default_rng(0)
    pairs = {(int(min(e)), int(max(e))) for e in rng.integers(0, 40, (90, 2)) if e[0] != e[1]}
    neighbours = [sorted(v for e in pairs for u, v in (e, e[::-1]) if u == i) for i in range(45)]
    lines = [f"45 {len(pairs)}", *(" ".join(str(v + 1) for v in row) for row in neighbours)]
    graph = load_graph(written(tmp_path / "g.graph.gz", "\n".join(lines)))
    assert edges(graph) == [(u, v) for u, row in enumerate(neighbours) for v in row]


@pytest.mark.parametrize(
    "text, words",
    [
        ("", ["header"]),
        ("% c\n", ["header"]),
        ("3\n", ["line 1", "'3'"]),
        ("3 x\n", ["line 1"]),
        ("3 2 2\n", ["line 1", "fmt"]),
        ("3 2\n2 3\n1\n", ["3 neighbours are listed", "4"]),
        ("5 2\n2 3\n1\n1\n", ["3 lines", "5 nodes", "cut short"]),
        ("2 2\n2\n1\n1\n", ["more lines", "2 nodes"]),
        ("3 1\n2 3\n1\n1\n", ["4 neighbours", "1 edges"]),
        ("3 2\n2 4\n1\n1\n", ["node 1 lists 4", "1..3"]),
        ("3 2\n2 0\n1\n1\n", ["node 1 lists 0"]),
        ("3 2\n2 3\n1\n2\n", ["not each lists the other"]),
        ("3 1\n1 1\n\n\n", ["lists itself"]),
        ("3 2\n2 3\n1 a\n1\n", ["line 3", "'1 a'"]),
        ("3 2\n2 3\n1.5\n1\n", ["line 3"]),
        ("3 2\n2-3\n1\n1\n", ["line 2"]),
        ("3 2 1\n2 5 3\n1 5\n1 6\n", ["node 1", "3 numbers", "pairs"]),
        ("3 2 10\n9 2 3\n\n9 1\n", ["node 2", "0 numbers"]),
    ],
)
def test_metis_refused(tmp_path, small_blocks, text, words):
    refused(written(tmp_path / "g.graph", text), "g.graph", *words)


# ---- DGL


@pytest.fixture
def dgl():
    return pytest.importorskip("dgl")


def test_dgl_graph(dgl):
    torch = sys.modules["torch"]
    graph = dgl.graph((torch.tensor([2, 0, 1, 0]), torch.tensor([0, 1, 1, 1])), num_nodes=4)
    graph.ndata["feat"] = torch.arange(8.0, requires_grad=True).reshape(4, 2)
    graph.ndata["train_mask"] = torch.tensor([1, 0, 0, 0], dtype=torch.uint8)
    graph.ndata["y"] = torch.arange(4)
    graph.edata["weight"] = torch.arange(4, dtype=torch.int32)
    graph.ndata[dgl.NID] = torch.arange(4)
    loaded = load_graph(graph)
    assert edges(loaded) == [(2, 0), (0, 1), (1, 1), (0, 1)]
    assert loaded.num_nodes == 4 and set(loaded.node_data) == {"feat", "train_mask", "y"}
    assert loaded.node_data["train_mask"].dtype == bool
    assert np.shares_memory(loaded.node_data["feat"], graph.ndata["feat"].detach().numpy())
    assert loaded.edge_data["weight"].tolist() == [0, 1, 2, 3]


def test_dgl_file(dgl, tmp_path):
    torch = sys.modules["torch"]
    graph = dgl.graph(([0, 1], [1, 2]), idtype=torch.int32)
    graph.ndata["train_mask"] = torch.tensor([True, False, False])
    graph.ndata["label"] = torch.tensor([[1.0], [float("nan")], [0.0]])
    dgl.save_graphs(str(tmp_path / "g.bin"), [graph])
    loaded = load_graph(tmp_path / "g.bin")
    assert edges(loaded) == [(0, 1), (1, 2)] and loaded.name == "g.bin"
    assert loaded.node_data["train_mask"].tolist() == [True, False, False]
    assert loaded.node_data["label"].tolist() == [1, -1, 0]
    dgl.save_graphs(str(tmp_path / "two.dgl"), [graph, graph])
    refused(tmp_path / "two.dgl", "2 graphs", "one")


def test_dgl_graph_refused(dgl):
    torch = sys.modules["torch"]
    hetero = dgl.heterograph({("a", "to", "b"): ([0], [0])})
    refused(hetero, "['a', 'b']", "homogeneous")
    refused(dgl.to_block(dgl.graph(([0], [1]))), "block")
    graph = dgl.graph(([0], [1]))
    graph.ndata["feat"] = torch.ones(2, 3, dtype=torch.bfloat16)
    refused(graph, "'feat'", "bfloat16", ".float()")


def test_dgl_file_damaged(dgl, tmp_path):
    path = tmp_path / "g.bin"
    dgl.save_graphs(str(path), [dgl.rand_graph(50, 200)])
    whole = path.read_bytes()
    for damaged in (b"", b"rubbish" * 99, whole[:100], whole[: len(whole) // 2]):
        path.write_bytes(damaged)
        refused(path, str(path), "dgl.save_graphs")
    refused(tmp_path / "absent.bin", "no such file")


@pytest.mark.parametrize("name", ["karate_club", "KarateClub", "karateclubdataset", "Karate-Club"])
def test_dgl_dataset(dgl, name):
    graph = load_graph(f"dgl:{name}")
    assert (graph.num_nodes, graph.num_edges, graph.name) == (34, 156, f"dgl:{name}")
    assert graph.node_data["label"].dtype == np.int64


def test_dgl_dataset_from_a_directory(dgl, tmp_path, capsys):
    torch = sys.modules["torch"]
    graph = dgl.graph(([0, 1], [1, 2]))
    graph.ndata["feat"] = torch.ones(3, 2)
    suffix = hashlib.sha1(b"https://data.dgl.ai/dataset/amazon_co_buy_photo.zip").hexdigest()[:8]
    dgl.save_graphs(str(tmp_path / f"amazon_co_buy_photo_{suffix}" / "dgl_graph_v1.bin"), [graph])
    loaded = load_graph(f"dgl:amazon_co_buy_photo?raw_dir={tmp_path}")
    assert edges(loaded) == [(0, 1), (1, 2)] and loaded.node_data["feat"].shape == (3, 2)
    assert capsys.readouterr().out == ""


def test_dgl_dataset_refused(dgl, tmp_path, monkeypatch, capsys):
    refused("dgl:corra", "'corra'", "cora")
    refused("dgl:zzzzzzzz", "allowed are", "pubmed")
    refused("dgl:tu", "no data set 'tu'")
    refused("dgl:cora?root=x", "'root'", "raw_dir")
    refused("dgl:cora?raw_dir=", "raw_dir=''")
    refused("dgl:karate_club?raw_dir=x", "takes no raw_dir")

    def unreachable(*args, **kwargs):
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr("requests.get", unreachable)
    refused(f"dgl:cora?raw_dir={tmp_path}", "download", "no route", "raw_dir")
    assert capsys.readouterr().out == ""


# ---- ogb


def packed_csv(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    return written(path, "\n".join(",".join(map(str, row)) for row in rows) + "\n")


@pytest.fixture
def arxiv(tmp_path):
    """A directory as ogb leaves it after download and before its first reading."""
    pytest.importorskip("ogb", reason="ogb is not installed: pip install 'dgl-gt[ogb]'")
    folder = tmp_path / "ogbn_arxiv"
    raw, split = folder / "raw", folder / "split" / "time"
    packed_csv(raw / "edge.csv.gz", [(0, 1), (3, 2), (2, 0)])
    packed_csv(raw / "num-node-list.csv.gz", [(5,)])
    packed_csv(raw / "num-edge-list.csv.gz", [(3,)])
    packed_csv(raw / "node-feat.csv.gz", [(i, i + 0.5) for i in range(5)])
    packed_csv(raw / "node-label.csv.gz", [(4,), (3,), (2,), (1,), (0,)])
    packed_csv(raw / "node_year.csv.gz", [(2010 + i,) for i in range(5)])
    packed_csv(split / "train.csv.gz", [(0,), (4,)])
    packed_csv(split / "valid.csv.gz", [(1,)])
    packed_csv(split / "test.csv.gz", [(2,), (3,)])
    packed_csv(folder / "mapping" / "nodeidx2paperid.csv.gz", [("node idx", "paper id"), (0, 9657784)])
    written(folder / "RELEASE_v1.txt", "")
    return folder


@pytest.fixture
def no_questions(monkeypatch):
    def asked(*args):
        raise AssertionError("asked on stdin")

    monkeypatch.setattr("builtins.input", asked)


def assert_is_arxiv(source):
    graph = load_graph(source)
    assert (graph.name, graph.num_nodes) == (source, 5)
    assert edges(graph) == [(0, 1), (3, 2), (2, 0)]
    data = graph.node_data
    assert data["feat"].dtype == np.float32 and data["feat"].tolist() == [[i, i + 0.5] for i in range(5)]
    assert data["label"].dtype == np.int64 and data["label"].tolist() == [4, 3, 2, 1, 0]
    for key, nodes in (("train_mask", [0, 4]), ("val_mask", [1]), ("test_mask", [2, 3])):
        assert np.flatnonzero(data[key]).tolist() == nodes
    assert data["node_year"].ravel().tolist() == [2010, 2011, 2012, 2013, 2014]


def test_ogb_before_and_after_ogb_itself(arxiv, no_questions, capsys):
    source = f"ogb:ogbn-arxiv?root={arxiv.parent}"
    assert_is_arxiv(source)
    assert capsys.readouterr().out == ""
    (arxiv / "processed").mkdir()
    sys.modules["ogb.nodeproppred"].NodePropPredDataset("ogbn-arxiv", root=str(arxiv.parent))
    assert (arxiv / "processed" / "data_processed").exists()
    assert_is_arxiv(source)
    written(arxiv / "processed" / "data_processed", "rubbish")
    assert_is_arxiv(source)


def test_ogb_split_as_tensors_or_arrays(arxiv):
    torch = pytest.importorskip("torch")
    if not hasattr(torch.serialization, "safe_globals"):
        pytest.skip("this torch cannot allow numpy arrays in a file by name")
    before = {str(allowed) for allowed in torch.serialization.get_safe_globals()}
    split = {"train": np.array([0, 4]), "valid": np.array([1]), "test": torch.tensor([2, 3])}
    torch.save(split, arxiv / "split" / "time" / "split_dict.pt")
    assert_is_arxiv(f"ogb:ogbn-arxiv?root={arxiv.parent}")
    assert {str(allowed) for allowed in torch.serialization.get_safe_globals()} == before
    torch.save({"train": Path("x")}, arxiv / "split" / "time" / "split_dict.pt")
    refused(f"ogb:ogbn-arxiv?root={arxiv.parent}", "could not load")


def test_ogb_label_missing_becomes_minus_one(arxiv, no_questions):
    written(arxiv / "raw" / "node-label.csv.gz", "4.0\nnan\n2.0\n1.0\n0.0\n")
    written(arxiv / "split" / "time" / "valid.csv.gz", "2\n")
    written(arxiv / "split" / "time" / "test.csv.gz", "1\n")
    graph = load_graph(f"ogb:ogbn-arxiv?root={arxiv.parent}")
    assert graph.node_data["label"].tolist() == [4, -1, 2, 1, 0]


def test_ogb_refused(arxiv, no_questions):
    source = f"ogb:ogbn-arxiv?root={arxiv.parent}"
    refused("ogb:ogbn-arxive", "'ogbn-arxive'", "ogbn-arxiv,")
    refused("ogb:ogbn-mag", "heterogeneous")
    refused("ogb:ogbn-arxiv?dir=x", "'dir'", "root")
    written_raw(arxiv / "raw" / "edge.csv.gz", b"rubbish")
    refused(source, "could not load", "remove")
    (arxiv / "raw" / "edge.csv.gz").unlink()
    refused(source, "raw/edge.csv.gz", "remove it")
    (arxiv / "RELEASE_v1.txt").unlink()
    refused(source, "RELEASE_v1.txt", "remove it")


def test_ogb_of_many_labels(arxiv):
    packed_csv(arxiv / "raw" / "node-label.csv.gz", [(0, 1)] * 5)
    refused(f"ogb:ogbn-arxiv?root={arxiv.parent}", "2 labels a node")


def test_ogb_not_on_disk(tmp_path, no_questions, monkeypatch):
    pytest.importorskip("ogb", reason="ogb is not installed: pip install 'dgl-gt[ogb]'")

    def unreachable(*args, **kwargs):
        raise OSError("no route to host")

    monkeypatch.setattr("urllib.request.urlopen", unreachable)
    refused(f"ogb:ogbn-arxiv?root={tmp_path}", "cannot be downloaded", "no route", "?root=")

    class Answer:
        headers = {"Content-Length": str(3 << 30)}

        def __enter__(self):
            return self

        def __exit__(self, *details):
            return None

    monkeypatch.setattr("urllib.request.urlopen", lambda *args, **kwargs: Answer())
    refused(f"ogb:ogbn-products?root={tmp_path}", "3.0 GiB", "?root=")


def test_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ogb.nodeproppred", None)
    refused("ogb:ogbn-arxiv", "needs ogb", "dgl-gt[ogb]")
    monkeypatch.setitem(sys.modules, "dgl.data", None)
    refused("dgl:cora", "needs dgl", "pip install")


# ---- networkx


def test_networkx():
    networkx = pytest.importorskip("networkx")
    graph = networkx.Graph()
    graph.add_nodes_from([(2, {"feat": [1.0, 2.0], "title": "c"}), (0, {"feat": [3, 4]}), (1, {"feat": [5, 6]})])
    graph.add_edge(0, 1, weight=2)
    graph.add_edge(2, 2, weight=3)
    graph.add_edge(1, 2, weight=4)
    loaded = load_graph(graph)
    assert sorted(edges(loaded)) == [(0, 1), (1, 0), (1, 2), (2, 1), (2, 2)]
    assert loaded.node_data["feat"].tolist() == [[3, 4], [5, 6], [1, 2]] and set(loaded.node_data) == {"feat"}
    weight = dict(zip(edges(loaded), loaded.edge_data["weight"]))
    assert weight == {(0, 1): 2, (1, 0): 2, (2, 2): 3, (1, 2): 4, (2, 1): 4}


def test_networkx_directed_multigraph_with_names():
    networkx = pytest.importorskip("networkx")
    graph = networkx.MultiDiGraph([("b", "a"), ("b", "a"), ("a", "c")])
    loaded = load_graph(graph)
    assert sorted(edges(loaded)) == [(0, 1), (0, 1), (1, 2)] and loaded.num_nodes == 3


def test_networkx_refused():
    networkx = pytest.importorskip("networkx")
    refused(networkx.Graph(), "0 nodes")
    graph = networkx.path_graph(3)
    graph.nodes[0]["label"] = 1
    refused(graph, "node 1", "'label'")
    networkx.set_node_attributes(graph, {0: [1], 1: [1, 2], 2: [1]}, "label")
    refused(graph, "'label'", "length")


# ---- options, names and files at large


def test_sample_by_name():
    name = "sample:communities?nodes=200&degree=4&classes=3&features=8&signal=0.7&seed=1"
    graph = load_graph(name)
    assert graph.name == name and graph.num_nodes == 200 and graph.node_data["feat"].shape == (200, 8)
    assert graph.node_data["label"].max() == 2


@pytest.mark.parametrize(
    "source, words",
    [
        ("sample:houses", ["'houses'", "sample:communities"]),
        ("sample:communities?node=5", ["'node'", "nodes, degree"]),
        ("sample:communities?nodes=many", ["nodes='many'", "whole number"]),
        ("sample:communities?degree=", ["degree=''", "number"]),
        ("sample:communities?nodes=100&nodes=200", ["'nodes'", "twice"]),
        ("sample:communities?nodes=3", ["nodes=3", "at least 10"]),
        ("cora", ["'cora'", ".npz", "dgl:cora"]),
        ("", ["allowed are"]),
        ("absent.npz", ["absent.npz", "no such file"]),
        ("absent.csv.gz", ["absent.csv.gz", "no such file"]),
        ("absent.graph", ["no such file"]),
        ("graph.pickle", ["graph.pickle", "allowed are", ".npz"]),
        ("graph.npz.gz", ["allowed are"]),
        ("http://example.org/graph", ["allowed are"]),
        (b"g.npz", ["bytes"]),
        (None, ["NoneType"]),
        (42, ["int"]),
    ],
)
def test_names_refused(source, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused(source, *words)


@pytest.mark.parametrize("suffix", [".npz", ".csv", ".graph", ".bin"])
def test_directory_and_forbidden_file(tmp_path, suffix):
    (tmp_path / f"d{suffix}").mkdir()
    refused(tmp_path / f"d{suffix}", "is a directory")
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    forbidden = written(tmp_path / f"f{suffix}", "0 1\n")
    forbidden.chmod(0)
    refused(forbidden, "no permission")


def test_home_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    written(tmp_path / "g.csv", "0,1\n")
    assert load_graph("~/g.csv").num_nodes == 2


@pytest.mark.parametrize(
    "options, word",
    [
        ({"num_nodes": 0}, "num_nodes=0"),
        ({"num_nodes": 3}, "num_nodes=3"),
        ({"num_nodes": 2.0}, "num_nodes=2.0"),
        ({"random_features": 0}, "random_features=0"),
        ({"random_features": True}, "random_features=True"),
        ({"random_features": 4, "seed": -1}, "seed=-1"),
    ],
)
def test_options_refused(options, word):
    refused(from_edges([0], [1]), word, **options)


def test_random_features():
    graph = from_edges([0, 1], [1, 2], name="g")
    feat = load_graph(graph, random_features=5, seed=1).node_data["feat"]
    assert feat.shape == (3, 5) and feat.dtype == np.float32
    assert np.array_equal(feat, load_graph(graph, random_features=5, seed=1).node_data["feat"])
    assert not np.array_equal(feat, load_graph(graph, random_features=5, seed=2).node_data["feat"])
    assert "feat" not in graph.node_data
    refused(load_graph(graph, random_features=5), "features already", random_features=5)


def test_graph_passes_through_and_edges_are_added(tmp_path):
    graph = from_edges([1, 0, 2, 1], [0, 1, 0, 0], 3)
    assert load_graph(graph) is graph
    both = load_graph(graph, undirected=True)
    assert edges(both) == [(1, 0), (0, 1), (2, 0), (1, 0), (0, 2)]
    assert edges(load_graph(graph, undirected=True, self_loops=True)) == edges(both) + [(0, 0), (1, 1), (2, 2)]
    assert edges(graph) == [(1, 0), (0, 1), (2, 0), (1, 0)]


def test_nothing_heavy_is_imported():
    code = "import sys, partition.sources; print({'torch', 'dgl', 'ogb', 'networkx', 'pandas'} & set(sys.modules))"
    root = Path(files.__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    assert done.stdout.strip() == "set()", done.stderr
