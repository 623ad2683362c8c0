"""Graphs with types from DGL and PyG: objects, files, and graphs that were made homogeneous."""

import sys

import numpy as np
import pytest
from source_checks import refused

from dgl_gt.partition import from_relations, load_graph
from dgl_gt.partition.schema import Relation

WRITES, CITES, NONE = ("author", "writes", "paper"), ("paper", "cites", "paper"), ("paper", "on", "topic")
COUNTS = {"author": 3, "paper": 4, "topic": 2}
EDGES = {WRITES: ([2, 0, 1, 0], [0, 1, 1, 1]), CITES: ([3], [0]), NONE: ([], [])}
FEAT = {"author": np.eye(3, 2, dtype=np.float32), "paper": np.arange(8, dtype=np.float32).reshape(4, 2)}
LABEL = np.array([1, 0, -1, 1])
MASKS = {f"{each}_mask": row for each, row in zip(("train", "val", "test"), np.eye(4, dtype=bool)[[0, 1, 3]])}


@pytest.fixture
def made():
    """The graph that all sources below hold."""
    node_data = {"author": {"feat": FEAT["author"]}, "paper": {"feat": FEAT["paper"], "label": LABEL, **MASKS}}
    return from_relations(COUNTS, EDGES, node_data, {WRITES: {"weight": np.arange(4, dtype=np.float32)}})


@pytest.fixture
def heterograph(made):
    pytest.importorskip("dgl")
    return made.to_dgl()


@pytest.fixture
def hetero_data():
    torch, pyg = pytest.importorskip("torch"), pytest.importorskip("torch_geometric.data")
    data = pyg.HeteroData()
    data["author"].x, data["paper"].x = (torch.from_numpy(FEAT[each]) for each in ("author", "paper"))
    data["paper"].y, data["topic"].num_nodes = torch.from_numpy(LABEL), 2
    for key, mask in MASKS.items():
        data["paper"][key] = torch.from_numpy(mask)
    for relation, ends in EDGES.items():
        data[relation].edge_index = torch.tensor(ends, dtype=torch.int64)
    data[WRITES].weight = torch.arange(4.0)
    return data


def same(graph, made):
    assert (graph.schema, graph.node_data.keys()) == (made.schema, made.node_data.keys())
    assert np.array_equal(graph.edges(), made.edges()) and graph.edge_data.keys() == made.edge_data.keys()
    for key, value in (graph.node_data | graph.edge_data).items():
        expected = (made.node_data | made.edge_data)[key]
        assert value.dtype == expected.dtype and np.array_equal(value, expected), key


def test_heterograph(heterograph, made):
    heterograph.nodes["paper"].data["_ID"] = heterograph.nodes("paper")
    graph = load_graph(heterograph)
    same(graph, made)
    assert [note.partition(" (")[0] for note in graph.left_out] == ["node data _ID"]


def test_file_of_a_heterograph(heterograph, made, tmp_path):
    sys.modules["dgl"].save_graphs(str(tmp_path / "g.bin"), [heterograph])
    same(load_graph(tmp_path / "g.bin"), made)


def test_heterograph_of_one_node_type(tmp_path):
    dgl = pytest.importorskip("dgl")
    graph = load_graph(dgl.heterograph({("n", "a", "n"): ([0], [1]), ("n", "b", "n"): ([0, 1], [1, 1])}))
    assert [*graph.schema.edges.values()] == [1, 2] and dict(graph.schema.nodes) == {"n": 2}


@pytest.mark.parametrize("as_file", [False, True])
def test_homogeneous_of_dgl_keeps_its_types(as_file, tmp_path):
    dgl = pytest.importorskip("dgl")
    torch = sys.modules["torch"]
    graph = dgl.heterograph({WRITES: EDGES[WRITES], CITES: EDGES[CITES]}, COUNTS | {"topic": 0})
    for each in ("author", "paper"):
        graph.nodes[each].data["feat"] = torch.from_numpy(FEAT[each])
    flat = dgl.to_homogeneous(graph, ndata=["feat"])
    if as_file:
        dgl.save_graphs(str(tmp_path / "g.bin"), [flat])
    loaded = load_graph(tmp_path / "g.bin" if as_file else flat)
    assert dict(loaded.schema.nodes) == {"0": 3, "1": 4} and loaded.node_names is None
    assert {key: count for key, count in loaded.schema.edges.items() if count} == {
        Relation("0", str(graph.get_etype_id(WRITES)), "1"): 4,
        Relation("1", str(graph.get_etype_id(CITES)), "1"): 1,
    }
    for number, each in enumerate(("author", "paper")):
        assert np.array_equal(loaded.node_data[f"{number}/feat"], FEAT[each])
    assert any("numbers" in note for note in loaded.notes)


def test_files_without_edges(tmp_path):
    np.save(tmp_path / "ids.npy", np.zeros(4, np.int64))
    ids = np.load(tmp_path / "ids.npy", mmap_mode="r")
    assert from_relations({"a": 3}, {("a", "to", "a"): (ids[:0], ids[:0])}).num_edges == 0


def test_types_in_any_order():
    """Nodes and edges are put in the order of their types, and the user's numbers of the nodes are kept."""
    dgl = pytest.importorskip("dgl")
    torch = sys.modules["torch"]
    graph = dgl.graph(([3, 0, 1], [0, 3, 2]), num_nodes=4)
    graph.ndata["_TYPE"] = torch.tensor([1, 0, 0, 0])
    graph.edata["_TYPE"] = torch.tensor([1, 0, 2])
    graph.ndata["feat"] = torch.arange(4.0)[:, None]
    graph.edata["w"] = torch.tensor([5, 6, 7])
    loaded = load_graph(graph)
    assert loaded.node_names.tolist() == [1, 2, 3, 0] and loaded.node_data["0/feat"].ravel().tolist() == [1, 2, 3]
    assert [str(each) for each in loaded.schema.edges] == ["1,0,0", "0,1,1", "0,2,0"]
    assert np.stack(loaded.edges()).tolist() == [[3, 2, 0], [2, 3, 1]]
    assert loaded.edge_data["0,2,0/w"].tolist() == [7]
    graph.edata["_TYPE"] = torch.tensor([0, 0, 1])
    refused(graph, "0,0,1", "edge 1", "'1'", "'0'")


def test_hetero_data(hetero_data, made):
    same(load_graph(hetero_data), made)


def test_file_of_hetero_data(hetero_data, made, tmp_path):
    sys.modules["torch"].save(hetero_data, tmp_path / "g.pt")
    same(load_graph(tmp_path / "g.pt"), made)


@pytest.mark.parametrize("as_file", [False, True])
def test_homogeneous_of_pyg_keeps_its_types_and_names(hetero_data, made, as_file, tmp_path):
    torch = sys.modules["torch"]
    hetero_data["topic"].x = torch.full((2, 2), torch.nan)
    hetero_data[CITES].weight, hetero_data[NONE].weight = torch.zeros(1), torch.zeros(0)
    flat = hetero_data.to_homogeneous()
    if as_file:
        torch.save(flat, tmp_path / "g.pt")
    graph = load_graph(tmp_path / "g.pt" if as_file else flat)
    assert graph.schema == made.schema and np.array_equal(graph.edges(), made.edges())
    assert all(np.array_equal(graph.node_data[f"{each}/feat"], FEAT[each]) for each in ("author", "paper"))
    assert "topic/feat" not in graph.node_data  # NaN stands for none
    assert graph.node_data["paper/label"].tolist() == LABEL.tolist()
    assert graph.edge_data[f"{','.join(WRITES)}/weight"].tolist() == [0, 1, 2, 3]


def test_padding_of_pyg_is_left_out(hetero_data):
    flat = hetero_data.to_homogeneous()  # it fills labels and masks of other types
    graph = load_graph(flat)
    assert sorted(key for key in graph.node_data if not key.startswith("paper/")) in ([], ["author/feat"])


def test_columns_of_the_user_are_no_types():
    torch, pyg = pytest.importorskip("torch"), pytest.importorskip("torch_geometric.data")
    edges = torch.tensor([[0, 1, 2], [1, 2, 0]])
    data = pyg.Data(edge_index=edges, node_type=torch.tensor([0, 1, 1]), edge_type=torch.tensor([0, 0, 1]), num_nodes=3)
    graph = load_graph(data)
    assert graph.schema is None and graph.node_data["node_type"].tolist() == [0, 1, 1]


def test_hetero_data_that_is_wrong(hetero_data):
    torch = sys.modules["torch"]
    hetero_data["topic"].num_nodes = None
    refused(hetero_data, "'topic'", "num_nodes")
    hetero_data["topic"].num_nodes = 2
    hetero_data["topic"].text = ["a", "b"]
    assert load_graph(hetero_data).left_out == ("topic/text (it has no row for each)",)
    hetero_data[NONE].edge_index = torch.tensor([[0], [2]])
    refused(hetero_data, "paper,on,topic", "2", "0..1")
    del hetero_data[NONE].edge_index
    hetero_data[NONE].adj = torch.eye(2)
    refused(hetero_data, "paper,on,topic", "edge_index")
