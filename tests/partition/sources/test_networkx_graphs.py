"""networkx graphs."""

import numpy as np
import pytest
from source_checks import edges, refused

from dgl_gt.partition.sources.load import load_graph


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
    assert loaded.node_names.tolist() == ["b", "a", "c"]
    assert load_graph(graph, node_data={"label": np.array([5, 6, 7])}).node_data["label"].tolist() == [5, 6, 7]
    refused(graph, "names, such as b", ids="as-they-are")
    assert load_graph(networkx.Graph([(7, 3)])).node_names.tolist() == [7, 3]
    refused(networkx.Graph([(1, "1")]), "1 names several nodes")
    for name in ("a\nb", "\ud800"):
        refused(networkx.Graph([(name, "c")]), "rename this node")


def test_networkx_refused():
    networkx = pytest.importorskip("networkx")
    refused(networkx.Graph(), "0 nodes")
    graph = networkx.path_graph(3)
    graph.nodes[0]["label"] = 1
    refused(graph, "node 1", "'label'")
    networkx.set_node_attributes(graph, {0: [1], 1: [1, 2], 2: [1]}, "label")
    refused(graph, "'label'", "length")


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint8, int])
def test_networkx_nodes_of_any_integer_type_keep_their_numbers(kind):
    networkx = pytest.importorskip("networkx")
    graph = networkx.DiGraph([(kind(2), kind(0)), (kind(0), kind(1))])
    loaded = load_graph(graph, node_data={"label": np.array([5, 6, 7])})
    assert edges(loaded) in ([(2, 0), (0, 1)], [(0, 1), (2, 0)]) and loaded.left_out == ()


def test_networkx_other_names_are_numbered_in_order():
    networkx = pytest.importorskip("networkx")
    graph = networkx.DiGraph([(True, False)])
    loaded = load_graph(graph)
    assert edges(loaded) == [(0, 1)] and loaded.node_names.tolist() == ["True", "False"]


def test_networkx_attributes_keep_their_digits():
    networkx = pytest.importorskip("networkx")
    graph = networkx.path_graph(2)
    networkx.set_node_attributes(graph, {0: 1700000000.25, 1: 0.5}, "time")
    networkx.set_node_attributes(graph, {0: 0.25, 1: 0.5}, "exact")
    networkx.set_node_attributes(graph, {0: [0.1], 1: [0.5]}, "feat")
    networkx.set_edge_attributes(graph, 1700000000123456789, "ns")
    loaded = load_graph(graph)
    assert loaded.node_data["time"].tolist() == [1700000000.25, 0.5]
    assert loaded.node_data["exact"].dtype == np.float32 and loaded.node_data["feat"].dtype == np.float32
    assert loaded.edge_data["ns"].tolist() == [1700000000123456789] * 2
    for number in (2**53 + 1, 2**63):
        networkx.set_node_attributes(graph, {0: number, 1: 0.5}, "mixed")
        refused(graph, "'mixed'", str(number))


def test_a_number_and_its_text_are_not_one_name():
    networkx = pytest.importorskip("networkx")
    graph = networkx.DiGraph()
    graph.add_edge(0, 1, **{"5": 1.0})
    graph[0][1][5] = 2.0
    refused(graph, "'5'", "twice")


def test_networkx_attributes_left_out_are_named():
    networkx = pytest.importorskip("networkx")
    graph = networkx.path_graph(2)
    networkx.set_node_attributes(graph, "a", "title")
    networkx.set_edge_attributes(graph, None, "kind")
    loaded = load_graph(graph)
    assert loaded.left_out == ("node data title (no numbers)", "edge data kind (no numbers)")
