"""networkx graphs."""

import pytest
from source_checks import edges, refused

from partition.sources import load_graph


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
