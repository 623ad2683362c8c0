"""OGB's node property data sets in the form that OGB stores on disk."""

import sys
from pathlib import Path

import numpy as np
import pytest
from source_checks import edges, refused, written

from dgl_gt.partition import partition
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.shards.files import read_links
from dgl_gt.partition.sources import ogb_datasets
from dgl_gt.partition.sources.load import load_graph


def packed_csv(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    return written(path, "\n".join(",".join(map(str, row)) for row in rows) + "\n")


@pytest.fixture
def arxiv(tmp_path):
    """A directory in the state after ogb's download and before ogb first reads it."""
    pytest.importorskip("ogb", reason="ogb is not installed: pip install ogb")
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
    refused("ogb:ogbn-mag", "types")
    refused("ogb:ogbn-arxiv?dir=x", "'dir'", "root")
    (arxiv / "raw" / "edge.csv.gz").write_bytes(b"rubbish")
    refused(source, "could not load", "remove")
    (arxiv / "raw" / "edge.csv.gz").unlink()
    refused(source, "could not load", "remove")
    (arxiv / "RELEASE_v1.txt").unlink()
    refused(source, "RELEASE_v1.txt", "remove it")


def test_ogb_of_many_labels(arxiv):
    packed_csv(arxiv / "raw" / "node-label.csv.gz", [(0, 1)] * 5)
    label = load_graph(f"ogb:ogbn-arxiv?root={arxiv.parent}").node_data["label"]
    assert label.dtype == np.int8 and label.tolist() == [[0, 1]] * 5


def test_ogb_not_on_disk(tmp_path, monkeypatch):
    pytest.importorskip("ogb", reason="ogb is not installed: pip install ogb")

    def unreachable(*args, **kwargs):
        raise OSError("no route to host")

    monkeypatch.setattr("urllib.request.urlopen", unreachable)
    refused(f"ogb:ogbn-arxiv?root={tmp_path}", "could not load", "no route", "?root=")

    class Answer:
        @staticmethod
        def info():
            return {"Content-Length": str(3 << 30)}

    monkeypatch.setattr("urllib.request.urlopen", lambda *args, **kwargs: Answer())
    refused(f"ogb:ogbn-products?root={tmp_path}", "over 1 GiB", "?root=")


def test_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ogb.nodeproppred", None)
    refused("ogb:ogbn-arxiv", "needs ogb", "pip install ogb")
    monkeypatch.setitem(sys.modules, "dgl.data", None)
    refused("dgl:cora", "needs dgl", "pip install")


@pytest.mark.parametrize("bad", [5, -1])
def test_ogb_split_out_of_range(arxiv, bad):
    packed_csv(arxiv / "split" / "time" / "valid.csv.gz", [(bad,)])
    refused(f"ogb:ogbn-arxiv?root={arxiv.parent}", "its valid split names a node outside 0..4", "damaged")


@pytest.mark.parametrize("error", [MemoryError("no room"), InputError("torch is missing")])
def test_ogb_errors_that_no_download_mends(arxiv, monkeypatch, error):
    """The message does not advise to remove a copy that is sound."""

    def fail(*_):
        raise error

    monkeypatch.setattr(ogb_datasets, "_read_split", fail)
    with pytest.raises(InputError) as caught:
        load_graph(f"ogb:ogbn-arxiv?root={arxiv.parent}")
    assert str(error) in str(caught.value) and "remove" not in str(caught.value)


# ---- links


def links_folder(root, name, split, **sets):
    """A directory in the state after ogb's download: five nodes, three edges, and the split as ogb stores it."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("ogb", reason="ogb is not installed: pip install ogb")
    folder = root / name.replace("-", "_")
    packed_csv(folder / "raw" / "edge.csv.gz", [(0, 1), (3, 2), (2, 0)])
    packed_csv(folder / "raw" / "num-node-list.csv.gz", [(5,)])
    packed_csv(folder / "raw" / "num-edge-list.csv.gz", [(3,)])
    packed_csv(folder / "raw" / "node-feat.csv.gz", [(i, i + 0.5) for i in range(5)])
    packed_csv(folder / "raw" / "node_year.csv.gz", [(2010 + i,) for i in range(5)])
    (folder / "split" / split).mkdir(parents=True)
    for key, values in sets.items():
        torch.save({kind: np.array(each) for kind, each in values.items()}, folder / "split" / split / f"{key}.pt")
    written(folder / "RELEASE_v1.txt", "")
    return f"ogb:{name}?root={root}"


def test_ogb_links_with_shared_negatives(tmp_path, no_questions):
    source = links_folder(
        *(tmp_path, "ogbl-ddi", "target"),
        train={"edge": [[0, 1], [3, 2], [2, 0]]},
        valid={"edge": [[0, 4]], "edge_neg": [[1, 3]]},
        test={"edge": [[1, 4]], "edge_neg": [[1, 2], [3, 4]]},
    )
    graph = load_graph(source)
    assert graph.num_edges == 6 and graph.link_split["test_neg"].tolist() == [[1, 2], [3, 4]]
    manifest = partition(source, 1, tmp_path / "shards")
    assert manifest["links"]["pairs"] == {"train": 3, "val": 1, "test": 1, "val_neg": 1, "test_neg": 2}
    assert not manifest["links"]["own_negatives"]


def test_ogb_links_with_negatives_of_each(tmp_path, no_questions):
    ends = {"source_node": [0, 4], "target_node": [3, 1]}
    source = links_folder(
        *(tmp_path, "ogbl-citation2", "time"),
        train={"source_node": [0, 3, 2], "target_node": [1, 2, 0]},
        valid=ends | {"target_node_neg": [[2, 4], [0, 3]]},
        test={"source_node": [1], "target_node": [2], "target_node_neg": [[4, 3]]},
    )
    manifest = partition(source, 1, tmp_path / "shards")
    links = read_links(tmp_path / "shards", manifest)
    assert manifest["links"]["own_negatives"] and "node_year" in manifest["node_data"]
    assert links["val_neg"].tolist() == [[0, 0, 4, 4], [2, 4, 0, 3]] and links["test_neg"].tolist() == [[1, 1], [4, 3]]


def test_ogb_links_refused(tmp_path):
    pytest.importorskip("ogb", reason="ogb is not installed: pip install ogb")
    refused("ogb:ogbl-wikikg2", "types", "ogbl-ddi")
    refused("ogb:ogbl-ddj", "'ogbl-ddj'", "ogbl-ddi")
    source = links_folder(tmp_path, "ogbl-ddi", "target", train={"edge": [[0, 1]]}, valid={"edge": [[0, 4]]})
    refused(source, "could not load")
