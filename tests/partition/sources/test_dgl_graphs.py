"""Graphs, files and data sets of DGL."""

import hashlib
import sys

import numpy as np
import pytest
from source_checks import edges, refused

from dgl_gt.partition.cuts import metis
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.graph import from_edges
from dgl_gt.partition.sources.load import load_graph
from dgl_gt.partition.system import child_process


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


def test_columns_of_dgl_are_named(dgl):
    kept = load_graph(dgl.to_homogeneous(dgl.heterograph({("a", "to", "a"): ([0], [0])}))).left_out
    assert [note.partition(" (")[0] for note in kept] == [
        f"{kind} data {key}" for kind in ("node", "edge") for key in ("_ID", "_TYPE")
    ] or sorted(note.split()[2] for note in kept) == ["_ID", "_ID", "_TYPE", "_TYPE"]
    assert all("another name to keep it" in note for note in kept)


def test_graph_to_dgl_and_back(dgl):
    graph = from_edges(
        [2, 0, 1, 0],
        [0, 1, 1, 1],
        4,
        {"feat": np.arange(8, dtype=">f8").reshape(4, 2), "train_mask": np.array([True, False, False, False])},
        {"weight": np.arange(4, dtype=np.int32)},
    )
    made = graph.to_dgl()
    assert isinstance(made, dgl.DGLGraph) and made.num_nodes() == 4
    back = load_graph(made)
    assert edges(back) == edges(graph) and back.edge_data["weight"].tolist() == [0, 1, 2, 3]
    assert back.node_data["feat"].tolist() == graph.node_data["feat"].tolist()
    assert back.node_data["train_mask"].dtype == bool


def test_a_file_that_ends_dgl_by_a_signal(dgl, tmp_path):
    path = tmp_path / "g.bin"
    dgl.save_graphs(str(path), [dgl.graph(([0, 1], [1, 2]))])
    whole = path.read_bytes()
    path.write_bytes(whole[:24] + (2**62).to_bytes(8, "little") + whole[32:])
    refused(path, str(path), "signal", "damaged")


def test_labels_of_a_file_of_dgl_are_named(dgl, tmp_path):
    torch = sys.modules["torch"]
    dgl.save_graphs(str(tmp_path / "g.bin"), [dgl.graph(([0, 1], [1, 2]))], {"kind": torch.ones(1)})
    assert load_graph(tmp_path / "g.bin").left_out == ("kind (a label of the whole graph)",)


@pytest.mark.parametrize("form", ["coo", "csr", "csc"])
def test_graphs_in_one_sparse_format(dgl, tmp_path, form):
    graph = dgl.graph(([0, 2, 1], [1, 2, 0])).formats(form)
    assert sorted(edges(load_graph(graph))) == [(0, 1), (1, 0), (2, 2)]
    dgl.save_graphs(str(tmp_path / "g.bin"), [graph])
    assert sorted(edges(load_graph(tmp_path / "g.bin"))) == [(0, 1), (1, 0), (2, 2)]


def test_a_file_that_needs_more_memory_than_its_size_suggests(tmp_path, monkeypatch):
    """The child, whose memory is bounded, reports it."""
    (tmp_path / "hungry.py").write_text(
        "import sys\nfrom dgl_gt.partition.system.child_process import serve\n\n\n"
        "def records():\n    yield {'reading': 'part 1'}, {}\n    raise MemoryError\n\n\nserve(sys.argv[2], records())\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(InputError, match="g.bin: reading part 1 needs more memory than its size suggests"):
        list(child_process.read_in_child("hungry", tmp_path / "g.bin", "DGL"))


def test_no_directory_for_temporary_files(tmp_path, monkeypatch):
    def none_is_usable():
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(child_process.tempfile, "gettempdir", none_is_usable)
    with pytest.raises(InputError, match="cannot write temporary files: No usable temporary directory.*set TMPDIR"):
        list(child_process.read_in_child("dgl_gt.partition.sources.dgl_graphs", tmp_path / "g.bin", "DGL"))
    with pytest.raises(InputError, match="cannot write temporary files: No usable temporary directory.*set TMPDIR"):
        with metis._shared_arrays({"xadj": np.arange(3)}):
            pass


def test_a_data_set_larger_than_the_memory(monkeypatch):
    """The message does not advise to check the network."""
    dgl = pytest.importorskip("dgl")

    def fail(*_, **__):
        raise MemoryError("no room")

    monkeypatch.setattr(dgl.data.CoraGraphDataset, "__getitem__", fail)
    monkeypatch.setattr(dgl.data.CoraGraphDataset, "__init__", lambda self, raw_dir=None, verbose=True: None)
    monkeypatch.setattr(dgl.data.CoraGraphDataset, "__len__", lambda self: 1)
    with pytest.raises(InputError, match="does not fit into memory"):
        load_graph("dgl:cora")
