"""Data sets of PyG in the form that PyG stores on disk, and other graphs of PyG."""

import pickle

import numpy as np
import pytest
import scipy.sparse as sp
from source_checks import edges, refused

from dgl_gt.partition import load_graph, partition

pytest.importorskip("torch_geometric", reason="PyG is not installed: pip install torch_geometric")


@pytest.fixture
def cora(tmp_path):
    """The root of Planetoid after the download: files for 510 nodes, of which 2 are in training, 500 in validation and 3 in the test."""
    raw = tmp_path / "Cora" / "raw"
    raw.mkdir(parents=True)
    nodes, rng = 510, np.random.default_rng(0)
    feat = rng.integers(0, 2, (nodes, 4)).astype(np.float32)
    label = np.eye(3, dtype=np.int64)[rng.integers(0, 3, nodes)]
    test = [508, 507, 509]
    parts = {
        "x": feat[:2],
        "allx": feat[:507],
        "tx": feat[test],
        "y": label[:2],
        "ally": label[:507],
        "ty": label[test],
    }
    for name, values in parts.items():
        with open(raw / f"ind.cora.{name}", "wb") as stream:
            pickle.dump(sp.csr_matrix(values) if name.endswith("x") else values, stream, 2)
    with open(raw / "ind.cora.graph", "wb") as stream:
        pickle.dump({node: [(node + 1) % nodes, (node - 1) % nodes] for node in range(nodes)}, stream, 2)
    (raw / "ind.cora.test.index").write_text("".join(f"{node}\n" for node in test))
    return tmp_path


class Bomb:
    def __reduce__(self):
        return pytest.fail, ("a pickle was run",)


def test_a_processed_data_set_is_read_and_no_pickle_beside_it(cora):
    from torch_geometric.datasets import Planetoid

    data = Planetoid(str(cora), "Cora")[0]
    for path in (*(cora / "Cora" / "raw").iterdir(), *(cora / "Cora" / "processed").glob("pre_*")):
        path.write_bytes(pickle.dumps(Bomb()))
    source = f"pyg:cora?root={cora}"
    for name in (source, f"pyg:Planetoid/Cora?root={cora}", str(cora / "Cora" / "processed" / "data.pt")):
        graph = load_graph(name)
        assert graph.num_nodes == 510 and np.array_equal(np.stack(graph.edges()), data.edge_index)
        assert np.array_equal(graph.node_data["feat"], data.x) and np.array_equal(graph.node_data["label"], data.y)
        assert [graph.node_data[f"{each}_mask"].sum() for each in ("train", "val", "test")] == [2, 500, 3]
    assert partition(source, 2, cora / "shards")["source"] == source


def test_pyg_processes_what_it_has_not(cora, capfd):
    graph = load_graph(f"pyg:Cora?root={cora}")
    assert graph.num_edges == 1020 and (cora / "Cora" / "processed" / "data.pt").exists()
    assert capfd.readouterr().out == ""
    assert load_graph("pyg:KarateClub").num_nodes == 34  # made by a rule, without files


def test_a_class_with_folders_of_its_own(tmp_path):
    (tmp_path / "Photo" / "raw").mkdir(parents=True)
    adj, attr = sp.csr_matrix(np.eye(4, k=1, dtype=np.float32)), sp.csr_matrix(np.eye(4, dtype=np.float32))
    arrays = {f"{name}_{part}": getattr(each, part) for name, each in (("adj", adj), ("attr", attr)) for part in
              ("data", "indices", "indptr", "shape")}  # fmt: skip
    np.savez(tmp_path / "Photo" / "raw" / "amazon_electronics_photo.npz", labels=np.arange(4), **arrays)
    graph = load_graph(f"pyg:photo?root={tmp_path}")
    assert graph.num_nodes == 4 and graph.num_edges == 6 and graph.node_data["label"].tolist() == [0, 1, 2, 3]


def test_what_is_no_data_set_of_one_graph_is_refused(cora, tmp_path):
    import torch
    from torch_geometric.data import Data, InMemoryDataset

    refused("pyg:Corra", "Corra", "Cora")
    refused("pyg:Planetoid", "Planetoid", "NAME")
    refused("pyg:Reddit/x", "Reddit", "no name")
    refused("pyg:KarateClub?folder=x", "folder", "root")
    refused(f"pyg:Planetoid/Korra?root={tmp_path}", "Korra", "root")
    processed = cora / "Cora" / "processed"
    processed.mkdir()
    torch.save(Bomb(), processed / "data.pt")
    refused(f"pyg:Cora?root={cora}", "data.pt", "_Fail")
    two = [Data(x=torch.rand(2, 1), edge_index=torch.tensor([[0], [1]]))] * 2
    InMemoryDataset.save(two, processed / "data.pt")
    refused(f"pyg:Cora?root={cora}", "several graphs", "data.pt")


def test_a_heterodata_of_one_relation_is_a_graph(tmp_path):
    import torch
    from torch_geometric.data import HeteroData

    data = HeteroData(note="a word")
    data["paper"].x, data["paper"].y = torch.rand(3, 2), torch.tensor([0, 1, 0])
    data["paper", "cites", "paper"].edge_index = torch.tensor([[0, 1, 1], [1, 2, 2]])
    data["paper", "cites", "paper"].weight = torch.rand(3)  # as many as nodes, and not named edge_...
    torch.save(data, tmp_path / "cites.pt")
    for source in (data, tmp_path / "cites.pt"):
        with pytest.warns(match="note"):
            graph = load_graph(source)
        assert edges(graph) == [(0, 1), (1, 2), (1, 2)] and {*graph.node_data} == {"feat", "label"}
        assert np.array_equal(graph.edge_data["weight"], data["paper", "cites", "paper"].weight)
    data["paper", "extends", "paper"].edge_index = torch.tensor([[2], [0]])
    del data.note, data["paper", "cites", "paper"].weight
    for graph in (load_graph(data), load_graph(data.to_homogeneous())):
        assert [str(each) for each in graph.schema.edges] == ["paper,cites,paper", "paper,extends,paper"]
        assert [*graph.schema.edges.values()] == [3, 1]
