"""Names, options and files of all sources."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from source_checks import edges, refused, written

from dgl_gt.partition import partition
from dgl_gt.partition.errors import InputError, LeftOutWarning, printable
from dgl_gt.partition.graph import from_edges
from dgl_gt.partition.sources.load import load_graph
from dgl_gt.partition.sources.options import split_source_name
from dgl_gt.partition.system import user_files


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
        ("sample:communities?nodes=3", ["nodes is 3", "from 10 to"]),
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
        ({"num_nodes": 0}, "num_nodes is 0"),
        ({"num_nodes": 3}, "2 nodes, not num_nodes = 3"),
        ({"num_nodes": 2.0}, "num_nodes is 2.0"),
        ({"undirected": scipy.sparse.eye_array(2)}, "shape (2, 2)>; it must be True or False"),
        ({"self_loops": np.zeros(2)}, "self_loops is array([0., 0.]); it must be True or False"),
        ({"random_features": 0}, "random_features is 0"),
        ({"random_features": True}, "random_features is True"),
        ({"random_features": 4, "seed": -1}, "seed is -1"),
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
    code = "import sys, dgl_gt.partition.sources.load; print({'torch', 'dgl', 'ogb', 'networkx', 'pandas'} & set(sys.modules))"
    root = Path(user_files.__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    assert done.stdout.strip() == "set()", done.stderr


# ---- files that would wait for ever, and names that no file has


def test_what_is_no_regular_file_is_refused_at_once(tmp_path):
    graph = from_edges([0], [1])
    for suffix in (".csv", ".npz", ".npy", ".graph", ".bin", ".txt.gz"):
        os.mkfifo(tmp_path / f"pipe{suffix}")
        refused(tmp_path / f"pipe{suffix}", f"pipe{suffix} is a pipe", "regular")
    for suffix in (".csv", ".npz", ".npy"):
        refused(graph, "is a pipe", node_data=tmp_path / f"pipe{suffix}")
        (tmp_path / f"device{suffix}").symlink_to("/dev/zero")
        refused(str(tmp_path / f"device{suffix}"), "is a device")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s.npz"))
        refused(tmp_path / "s.npz", "is a socket")


@pytest.mark.parametrize(
    "name, words",
    [
        ("a" * 250 + ".csv", ["no such file"]),
        ("a" * 300 + ".csv", ["File name too long"]),
        ("a" * 300, ["allowed are"]),
        ("a\0b.csv", ["\\x00", "null "]),
        ("~no-such-user/g.csv", ["home directory"]),
        ("g.csv/h.csv", ["no such file"]),
    ],
)
def test_names_that_no_file_has(tmp_path, monkeypatch, name, words):
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "g.csv", "0,1\n")
    refused(name, *words)
    if "allowed" not in words[0]:
        refused(from_edges([0], [1]), *words, node_data=name)


def test_messages_hold_no_escape_sequences(tmp_path):
    for name in ("\x1b[31mred.csv", "two\nlines.csv", "\u202ecsv.exe.csv", "\udcff.csv"):
        refused(tmp_path / name, "\\", "no such file")
    path = written(tmp_path / "g.csv", "src,dst,\x1b[31m\n0,1,x\n")
    assert printable(load_graph(path).left_out[0]) == "edge data \\x1b[31m (text)"
    path = written(tmp_path / "g.csv", "src,dst,\x1b[31m\n0,1,2\n0,1,y\n")
    refused(path, "\\x1b[31m")


# ---- arrays as sources


def test_arrays_tensors_and_pairs():
    torch = pytest.importorskip("torch")
    listed = [(0, 1), (1, 2)]
    src, dst = zip(*listed)
    for source in (
        (list(src), list(dst)),
        [list(src), list(dst)],
        (np.array(src), torch.tensor(dst)),
        (torch.tensor(src), torch.tensor(dst)),
        np.array([src, dst], np.int32),
        torch.tensor([src, dst]),
    ):
        graph = load_graph(source, node_data={"feat": torch.ones(3, 2)})
        assert edges(graph) == listed and graph.node_data["feat"].shape == (3, 2)
    refused(np.array(listed * 2), "(4, 2)", "(2, E)", "transpose")
    refused(np.array([[0.5], [1]]), "float64", "whole numbers")
    refused((np.arange(3), np.arange(2)), "(3,)", "(2,)")
    refused(([0], [[1], [2, 3]]), "destinations", "list")
    refused((1, 2, 3), "tuple", "(src, dst)", "from_edges")
    refused(object(), "object", "from_edges", "scipy")
    refused(graph, "'w'", "bfloat16", ".float()", node_data={"w": torch.ones(3, dtype=torch.bfloat16)})
    refused(graph, "'w'", "list", node_data={"w": [[1], [2, 3], [4]]})
    refused(graph, "node data 1", "name", node_data={1: np.ones(3)})


@pytest.mark.parametrize("form", ["coo", "csr", "csc"])
def test_scipy_matrices(form):
    adjacency = scipy.sparse.coo_array((np.ones(3), ([0, 2, 1], [1, 0, 1])), (4, 4))
    graph = load_graph(adjacency.asformat(form))
    assert sorted(edges(graph)) == [(0, 1), (1, 1), (2, 0)] and graph.num_nodes == 4 and graph.edge_data == {}
    weighted = load_graph(scipy.sparse.coo_array((np.array([5.0, 1.0]), ([0, 2], [1, 0])), (3, 3)).asformat(form))
    assert dict(zip(edges(weighted), weighted.edge_data["weight"])) == {(0, 1): 5, (2, 0): 1}
    refused(scipy.sparse.csr_array((2, 3)), "(2, 3)", "square")


def test_objects_say_how_many_nodes_they_have(tmp_path):
    """A number in a file may be a mistake."""
    adjacency = scipy.sparse.csr_array((np.ones(1), ([0], [1])), (1_100_000, 1_100_000))
    assert load_graph(adjacency).num_nodes == 1_100_000
    np.savez(tmp_path / "g.npz", edge_index=np.array([[0], [1]]), num_nodes=1_100_000)
    refused(tmp_path / "g.npz", "it states 1100000 nodes", "pass num_nodes (--num-nodes)")


def test_partition_takes_arrays_and_names_its_options(tmp_path):
    manifest = partition(np.array([[0, 1], [1, 2]]), 1, tmp_path / "out", undirected=True, self_loops=True)
    assert (manifest["nodes"], manifest["edges"], manifest["left_out"]) == (3, 7, [])
    with pytest.raises(TypeError, match=r"partition\(\) got an unexpected keyword argument 'selfloops'"):
        partition(np.array([[0, 1], [1, 2]]), 1, tmp_path / "new", selfloops=True)


# ---- graphs that do not fit into memory


def test_claims_beyond_the_memory(tmp_path):
    path = written(tmp_path / "g.csv", "0,1\n")
    refused(path, "1000000000000000 nodes", "MiB are available", num_nodes=10**15)
    refused(path, "random features", "MiB are available", random_features=10**13)
    refused("sample:communities?nodes=100000000000000", "nodes=100000000000000", "MiB")
    refused("sample:communities?nodes=1000&features=100000000000", "features=100000000000", "MiB")


def test_memory_that_runs_out_is_the_input_s_fault(tmp_path, monkeypatch):
    monkeypatch.setattr(user_files, "available_memory_bytes", lambda: 1 << 62)
    refused(written(tmp_path / "g.csv", "0,1\n"), "g.csv", "does not fit into memory", num_nodes=10**15)


def test_hostile_sources():
    script = Path(__file__).with_name("source_fuzz.py")
    environment = {**os.environ, "PYTHONPATH": str(Path(user_files.__file__).parents[2])}
    done = subprocess.run([sys.executable, script, "--cases", "400"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    assert counts["graph"] > 20 and counts["refused"] > 100


def test_names_of_directories_are_taken_as_they_are_written():
    """A source name is no URL: "+" and "%" stand for themselves."""
    found = split_source_name("ogb:ogbn-arxiv?root=/data/c++/50%2B", {"root": str})
    assert found == ("ogbn-arxiv", {"root": "/data/c++/50%2B"})


@pytest.mark.parametrize("key", ["__metadata__", "caf\udce9"])
@pytest.mark.parametrize("kind", ["node_data", "edge_data"])
def test_names_that_shards_cannot_hold_are_refused_before_the_work(key, kind):
    with pytest.raises(InputError, match="cannot hold this name"):
        from_edges([0, 1], [1, 0], **{kind: {key: np.zeros(2)}})


@pytest.mark.parametrize("num_nodes", ["3", 2.5, True])
def test_a_number_of_nodes_is_a_whole_number(num_nodes):
    with pytest.raises(InputError, match="num_nodes is "):
        from_edges([0, 1], [1, 0], num_nodes=num_nodes)


def test_random_features_of_hundreds_of_digits_are_refused():
    with pytest.raises(InputError, match="random_features is 999.*999"):
        load_graph(([0, 1], [1, 0]), random_features=int("9" * 400))


@pytest.mark.parametrize(
    ("name", "is_hinted"),
    [("Cora", True), ("ogbn-arxiv", True), ("abc:Cora", False), ("-", False), ("a b", False), ("x/Cora", False)],
)
def test_only_what_can_be_a_data_set_is_taken_for_one(name, is_hinted):
    with pytest.raises(InputError, match="DGLGraph, a Data or HeteroData of PyG, a networkx graph") as raised:
        load_graph(name)
    assert (f"ogb:{name}" in str(raised.value)) is is_hinted


def test_what_is_left_out_is_said_once(tmp_path):
    np.savez(tmp_path / "graph.npz", edge_index=[[0, 1], [1, 0]], other=[1])
    np.savez(tmp_path / "data.npz", label=[0, 1], other=[1])
    with pytest.warns(LeftOutWarning, match="other of graph.npz") as said:
        graph = load_graph(tmp_path / "graph.npz")
        partition(graph, 1, tmp_path / "shards")
    assert [warning.filename for warning in said] == [__file__]
    with pytest.warns(LeftOutWarning, match=r"left out: other of data.npz \(unknown key\)$") as said:
        graph = load_graph(graph, node_data=tmp_path / "data.npz")
    assert len(said) == 1 and len(graph.left_out) == 2
