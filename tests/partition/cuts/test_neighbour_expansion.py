"""Vertex cuts by neighbour expansion without METIS."""

import numpy as np
import pytest
from memory_cases import Said

from dgl_gt.partition import load_graph
from dgl_gt.partition.cuts.vertex_cut import make_vertex_cut
from dgl_gt.partition.graph import from_edges


@pytest.mark.parametrize("parts", [1, 2, 3, 7, 54])
@pytest.mark.parametrize("seed", [0, 1])
def test_expansion_alone_is_a_vertex_cut(awkward_graph, seed, parts):
    graph, said = awkward_graph(seed), Said()
    cut = make_vertex_cut(graph, parts, seed=seed, by_metis=False, progress=said)
    assert not any("METIS" in stage for stage in said.stages)
    assert sorted(cut.order.tolist()) == list(range(graph.num_nodes)) and cut.parts == parts
    assert cut.ptr[0] == 0 and cut.ptr[-1] == graph.num_nodes and (np.diff(cut.ptr) >= 0).all()
    edges_of = np.bincount(cut.edge_part, minlength=parts)
    assert len(edges_of) == parts and edges_of.max() <= np.ceil(1.05 * graph.num_edges / parts)
    assert cut.edge_part.min() >= 0
    master = np.repeat(np.arange(parts), np.diff(cut.ptr))[cut.new_ids()]
    held = {(node, part) for ends in (graph.indices, graph.destinations()) for node, part in zip(ends, cut.edge_part)}
    touched = {node for node, _ in held}
    assert all((node, master[node]) in held for node in touched), "a master holds edges of its node"
    again = make_vertex_cut(graph, parts, seed=seed, by_metis=False)
    assert (again.order == cut.order).all() and (again.edge_part == cut.edge_part).all()


def test_expansion_alone_of_graphs_with_hardly_an_edge():
    for pairs in ([], [(0, 1)], [(2, 2)]):
        src, dst = np.array(pairs, int).reshape(-1, 2).T
        cut = make_vertex_cut(from_edges(src, dst, 6), 3, by_metis=False)
        assert np.diff(cut.ptr).max() <= 3 and len(cut.edge_part) == len(pairs)


def test_expansion_alone_is_nearly_as_good(real_graph):
    graph, parts = load_graph(real_graph("email_enron")), 4
    figures = {}
    for by_metis in (True, False):
        cut = make_vertex_cut(graph, parts, by_metis=by_metis)
        keys = [ends * np.int64(parts) + cut.edge_part for ends in (graph.indices, graph.destinations())]
        copies = np.bincount(np.unique(np.concatenate(keys)) % parts, minlength=parts)
        figures[by_metis] = copies.max(), copies.sum()
    (largest, all_copies), (best_largest, best_all) = figures[False], figures[True]
    assert all_copies <= 1.05 * best_all and largest <= 1.8 * best_largest, "its first parts hold more copies"


def test_rows_of_expansion_alone_lie_in_its_order(real_graph):
    graph = load_graph(real_graph("amazon_computer"))
    cut = make_vertex_cut(graph, 2, by_metis=False)
    in_order, by_id = cut.new_ids().astype(int), np.empty(graph.num_nodes, int)
    for begin, end in zip(cut.ptr, cut.ptr[1:]):
        by_id[np.sort(cut.order[begin:end])] = np.arange(begin, end)
    src, dst = graph.indices, graph.destinations()
    inner = (in_order[src] < cut.ptr[1]) == (in_order[dst] < cut.ptr[1])
    near, near_by_id = ((np.abs(row[src] - row[dst]) < 1000)[inner].mean() for row in (in_order, by_id))
    assert near > 1.4 * near_by_id
