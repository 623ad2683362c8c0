"""Counts of an assignment, against sets and against the layout of the cut."""

import dataclasses

import numpy as np
import pytest
from hand_made_figures import assert_same_figures
from search_cases import pulled

from dgl_gt.partition.cuts import permutation
from dgl_gt.partition.cuts.edge_cut import make_edge_cut
from dgl_gt.partition.cuts.permutation import count_assignment, count_edge_cut
from dgl_gt.partition.shards.layout import Layout


@pytest.mark.parametrize("parts", [1, 2, 5, 65])
def test_counts_are_those_of_sets_and_of_the_layout(awkward_graph, monkeypatch, parts):
    monkeypatch.setattr(permutation, "_CHUNK_ROWS", 7)
    for seed in range(3):
        graph = awkward_graph(seed)
        owner = np.random.default_rng(seed).integers(0, parts, graph.num_nodes)
        owner[owner == 1] = 0
        found, copies = count_assignment(graph, owner, np.full(parts, 1 / parts)), pulled(graph, owner)
        source_part, part_of_edge = owner[graph.indices], owner[graph.destinations()]
        for part in range(parts):
            assert found.owned[part] == (owner == part).sum()
            assert found.copies_by_hop[part].tolist() == [sum(holder == part for _, holder in copies)]
            assert found.sent_by_hop[part].tolist() == [sum(owner[node] == part for node, _ in copies)]
            assert found.edges_by_hop[part].tolist() == [(part_of_edge == part).sum()]
            assert found.cut_edges[part] == ((part_of_edge == part) & (source_part != part)).sum()
        assert found.near_edges is None and found.hosts == {}
    if parts < 65:
        monkeypatch.setattr(permutation, "NEAR_ROWS", 9)
        cut = make_edge_cut(graph, parts, owner=owner)
        found, _ = count_edge_cut(graph, cut.order, cut.ptr, cut.shares)
        expected, place = Layout(graph, cut).figures, np.argsort(cut.order)
        assert_same_figures(found, expected)
        unordered = count_assignment(graph, owner, cut.shares)
        assert_same_figures(dataclasses.replace(unordered, near_edges=found.near_edges, hosts=found.hosts), expected)
        for part in range(parts):
            held = np.append(np.flatnonzero(owner == part), [node for node, holder in copies if holder == part])
            held = held.astype(int)[np.lexsort((place[held.astype(int)], owner[held.astype(int)] != part))]
            row = dict(zip(held.tolist(), range(len(held))))
            here = np.flatnonzero(part_of_edge == part)
            ends = zip(graph.indices[here].tolist(), graph.destinations()[here].tolist())
            assert found.near_edges[part] == sum(abs(row[s] - row[d]) < 9 for s, d in ends)


@pytest.mark.parametrize(("parts", "sizes"), [(1, []), (2, []), (4, [2]), (7, []), (12, [2, 3, 4, 6])])
def test_counts_of_hosts_are_those_of_sets(awkward_graph, parts, sizes):
    graph = awkward_graph(parts)
    owner = np.random.default_rng(parts).integers(0, parts, graph.num_nodes)
    owner[owner == 1] = 0
    hosts_of = Layout(graph, make_edge_cut(graph, parts, owner=owner)).figures.hosts
    assert list(hosts_of) == sizes
    for size, found in hosts_of.items():
        host, edges = owner // size, np.stack([graph.indices, graph.destinations()])
        crossing = host[edges[0]] != host[edges[1]]
        rows = {(host[dst], host[src], src) for src, dst in edges[:, crossing].T.tolist()}
        for there in range(parts // size):
            of_here = [
                [here for here, from_host, _ in rows if from_host == there].count(here) for here in range(parts // size)
            ]
            assert found.received_rows[:, there].tolist() == of_here
        assert found.cut_edges.tolist() == np.bincount(host[edges[1][crossing]], minlength=parts // size).tolist()
