"""Shortest paths from one end of an edge to the other and back, against the distances of all pairs."""

import dense_oracle as oracle
import numpy as np
import pytest

from dgl_gt.partition import add_expander_edges, add_virtual_nodes, encode
from dgl_gt.partition.graph import from_edges
from dgl_gt.partition.transforms import shortest_path

PATH = from_edges([0, 1, 2, 3, 4], [1, 2, 3, 4, 0], 7)  # a cycle of five, one way, and two isolated nodes
STAR = from_edges([0] * 30 + list(range(1, 31)), [*range(1, 31)] + [0] * 30, 31)
EMPTY = from_edges([], [], 4)
ONE = from_edges([0, 0], [0, 0], 1)


def expected(plain, graph, most):
    """By the definition, edge by edge."""
    adjacency = np.zeros((plain.num_nodes, plain.num_nodes))
    adjacency[plain.edges()] = 1
    hops = np.full((graph.num_nodes, graph.num_nodes), np.inf)
    hops[: plain.num_nodes, : plain.num_nodes] = oracle.distances(adjacency)
    return [
        [0, 0] if u == v else [min(hops[u, v], most + 1), min(hops[v, u], most + 1)]
        for u, v in zip(*(ends.tolist() for ends in graph.edges()))
    ]


@pytest.fixture(params=[*range(6), "path", "star", "empty", "one"])
def plain(request, awkward_graph):
    if isinstance(request.param, int):
        return awkward_graph(request.param, edges=[120, 180, 400][request.param % 3])
    return {"path": PATH, "star": STAR, "empty": EMPTY, "one": ONE}[request.param]


@pytest.mark.parametrize("most", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("hubs", [0, 3, 70, None])
def test_against_all_pairs(plain, most, hubs, monkeypatch):
    """With some nodes as hubs, with all, with none, and as the program chooses."""
    monkeypatch.setattr(shortest_path, "BLOCK_WALKS", 50)
    monkeypatch.setattr(shortest_path, "_PAIRS", 40)
    if hubs is not None:
        monkeypatch.setattr(
            shortest_path, "_choose_hubs", lambda forward, *_: np.argsort(-np.diff(forward.indptr))[:hubs]
        )
    graphs = [plain, add_virtual_nodes(plain, 2)]
    graphs += [add_virtual_nodes(add_expander_edges(plain, 4), 1)] if plain.num_nodes > 4 else []
    for graph in graphs:
        made = encode(graph, f"shortest_path={most}")
        values = made.edge_data["shortest_path"]
        assert values.dtype == np.uint8 and values.shape == (graph.num_edges, 2)
        np.testing.assert_array_equal(values, np.reshape(expected(plain, graph, most), (-1, 2)))
        assert made.encodings["shortest_path"] == {"columns": 2, "most": most}


def test_edges_of_every_kind():
    graph = add_virtual_nodes(from_edges([0, 1, 2, 2, 0], [1, 2, 0, 2, 1], 4), 1)
    values = encode(graph, "shortest_path=3").edge_data["shortest_path"].tolist()
    assert values[:5] == [[1, 2], [1, 2], [1, 2], [0, 0], [1, 2]] and values[5:] == [[4, 4]] * 8
    assert "shortest_path" not in encode(graph, "shortest_path=3").node_data


def test_chosen_hubs_save_work(monkeypatch):
    """Two hubs with a thousand leaves each: walks through them are many, and without them there are none."""
    leaves = np.arange(2, 2002)
    hub = leaves % 2
    src, dst = np.concatenate([hub, leaves, [0, 1]]), np.concatenate([leaves, hub, [1, 0]])
    chosen = []
    choose = shortest_path._choose_hubs
    monkeypatch.setattr(shortest_path, "_choose_hubs", lambda *args: chosen.append(choose(*args)) or chosen[-1])
    graph = add_expander_edges(from_edges(src, dst, 2002), 4)
    values = encode(graph, "shortest_path=4").edge_data["shortest_path"][
        graph.num_edges - graph.transforms["expander"]["edges"] :
    ]
    assert {0, 1} <= set(chosen[0].tolist()) and len(chosen[0]) < 200
    u, v = (each[-len(values) :] for each in graph.edges())
    both = (u > 1) & (v > 1)
    assert (values[both] == np.where(u % 2 == v % 2, 2, 3)[both, None]).all()
