"""Graphs in .npz archives."""

import io
import os
import zipfile

import numpy as np
import pytest
from source_checks import edges, refused

from dgl_gt.partition.sources.load import load_graph
from dgl_gt.partition.system import user_files

REAL = {  # nodes, stored edges, width of the features, classes
    "cora": (2708, 10556, 1433, 7),
    "tolokers": (11758, 1038000, 10, 2),
    "amazon_computer": (13752, 491722, 767, 10),
    "ogbn_arxiv_nofeat": (169343, 2315598, None, 40),
    "email_enron": (36692, 367662, None, None),
    "ogbl_ddi_train": (4267, 2135822, None, None),
}


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


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        (np.array([[1.0], [np.nan], [0.0]]), np.array([1, -1, 0])),
        (np.array([0.5, np.nan, -3]), np.array([0.5, np.nan, -3])),
        (np.array([4, -2, 0]), np.array([4.0, -2, 0])),
        (np.array([0, 1, 1e300]), np.array([0, 1, 1e300])),
        (np.array([[1, 0], [np.nan, 1], [0, 0]]), np.array([[1, 0], [-1, 1], [0, 0]], np.int8)),
        (np.array([[True, False], [True, True], [False, False]]), np.array([[1, 0], [1, 1], [0, 0]], np.int8)),
        (np.array([[1, 0], [2, 1], [0, 0]]), np.array([[1.0, 0], [2, 1], [0, 0]])),
    ],
)
def test_labels_are_classes_several_labels_or_numbers(tmp_path, label, expected):
    np.savez(tmp_path / "g.npz", edge_index=np.array([[0], [1]]), num_nodes=3, y=label)
    found = load_graph(tmp_path / "g.npz").node_data["label"]
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == expected.dtype


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
        ({**EDGE, "train_mask": np.array([0, 2, 1])}, ["train_mask", "2", "0 and 1"]),
        ({**EDGE, "train_mask": np.array(["a", "b", "c"])}, ["train_mask", "<U1"]),
        ({**EDGE, "edge_data_w": np.ones(3)}, ["edge_data_w", "(3,)", "2"]),
        ({**EDGE, "x_indptr": np.array([0, 1])}, ["x_indices, x_data, x_shape"]),
        ({**EDGE, "x": np.array([{}, {}, {}], dtype=object)}, ["damaged", "Python objects"]),
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


# ---- unusual contents, and numbers that cannot be true


def npy(shape, descr="<i8", data=bytes(80)):
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": descr, "fortran_order": False, "shape": shape})
    return stream.getvalue() + data


@pytest.mark.parametrize(
    "shape", [(2, 10**12), (2, 2**62), (10**30,), (-1, 5), (2, -1), (True, 5), (2, True), (1.0, 5)], ids=str
)
@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, None])
def test_headers_that_lie(tmp_path, shape, method):
    path = tmp_path / ("g.npy" if method is None else "g.npz")
    if method is None:
        path.write_bytes(npy(shape))
    else:
        with zipfile.ZipFile(path, "w", method) as archive:
            archive.writestr("edge_index.npy", npy(shape))
    refused(path, path.name, "damaged")


def test_archive_that_unpacks_beyond_reason(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "g.npz", **EDGE, x=np.zeros((3, 100_000), np.float32))
    assert load_graph(tmp_path / "g.npz").node_data["feat"].shape == (3, 100_000)
    monkeypatch.setattr(user_files, "_TRUSTED_BYTES", 1 << 16)
    refused(tmp_path / "g.npz", "unpacks to over 500 times its size")
    monkeypatch.setattr(user_files, "_MAX_EXPANSION", 10_000)
    monkeypatch.setattr(user_files, "available_memory_bytes", lambda: 1 << 20)
    refused(tmp_path / "g.npz", "would need", "1 MiB are available")


def test_claims_of_nodes_and_features_beyond_the_memory(tmp_path):
    np.savez(tmp_path / "g.npz", edge_index=EDGE["edge_index"], num_nodes=10**15)
    refused(tmp_path / "g.npz", "it states 1000000000000000 nodes", "edges is 2", "num_nodes")
    refused(tmp_path / "g.npz", "1000000000000000 nodes", "MiB", num_nodes=10**15)
    np.savez(tmp_path / "g.npz", edge_index=EDGE["edge_index"], num_nodes=10**15, y=np.arange(3))
    refused(tmp_path / "g.npz", "1000000000000000 nodes", "MiB")
    sparse = {"x_indptr": np.zeros(4, int), "x_indices": np.zeros(0, int), "x_data": np.zeros(0)}
    np.savez(tmp_path / "g.npz", **EDGE, **sparse, x_shape=np.array([3, 10**15]))
    refused(tmp_path / "g.npz", "full matrix", "MiB")


@pytest.mark.parametrize(
    "arrays, words",
    [
        ({"train_mask": np.zeros(3, [("train_mask", "?")])}, ["train_mask", "0 and 1"]),
        ({"y": np.zeros(3, [("a", "f8")])}, ["label", "allowed are"]),
        ({"y": np.array([0, 1, np.inf])}, ["label", "infinite", "node 2"]),
        ({"y": np.zeros((3, 5, 2), np.float32)}, ["not float32 (3, 5, 2)"]),
        ({"x": np.zeros((3, 2), np.longdouble)}, ["'feat'", str(np.dtype(np.longdouble)), "64 bits"]),
        ({"edge_data_w": np.zeros(2, np.longdouble)}, ["'w'", "64 bits"]),
    ],
)
def test_dtypes_refused_at_reading(tmp_path, arrays, words):
    np.savez(tmp_path / "g.npz", **EDGE, **arrays)
    refused(tmp_path / "g.npz", *words)


def test_arrays_under_other_keys_are_named(tmp_path):
    np.savez(tmp_path / "g.npz", **EDGE, license="MIT", edge_weight=np.ones(2))
    assert load_graph(tmp_path / "g.npz").left_out == ("edge_weight of g.npz (unknown key)",)
    np.savez(tmp_path / "n.npz", y=np.arange(3), classes=np.array(["a", "b"]))
    graph = load_graph(tmp_path / "g.npz", node_data=tmp_path / "n.npz")
    assert graph.left_out[1:] == ("classes of n.npz (unknown key)",)


def test_words_for_no_label_are_said(tmp_path):
    np.savez(tmp_path / "g.npz", edge_index=np.array([[0, 1], [1, 2]]), y=np.array(["b", "None", "a"]))
    graph = load_graph(tmp_path / "g.npz")
    assert graph.node_data["label"].tolist() == [1, -1, 0] and "none for 1 of 3 nodes: None" in graph.notes[0]
