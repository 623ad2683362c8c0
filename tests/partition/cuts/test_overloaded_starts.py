"""The local search from starts in which parts hold more than they may."""

import numpy as np
import pytest
from search_cases import compiled, loads_of, pulled, random_graph, search

from dgl_gt.partition.cuts.balance import make_balance
from dgl_gt.partition.graph import from_edges


@compiled
@pytest.mark.parametrize("parts", [2, 3, 65])
@pytest.mark.parametrize("sweeps", [0, 10])
def test_an_overload_of_nodes_always_goes(parts, sweeps):
    for seed in range(20):
        graph = random_graph(seed, nodes=140)
        owner = np.random.default_rng(seed).integers(0, max(parts // 2, 1), 140)  # half of the parts are empty
        room, weights = np.full((parts, 1), -(-140 // parts)), np.ones((140, 1), np.int64)
        found = search(graph, owner, room, weights, sweeps, 0.5, seed)
        assert (loads_of(found, weights, parts) <= room).all()


@compiled
@pytest.mark.parametrize("parts", [2, 4])
def test_overloads_of_three_kinds_go_where_there_is_ample_room(parts):
    for seed in range(25):
        graph = random_graph(seed, nodes=120)
        heaviest = int(graph.in_degrees().max())
        balance = make_balance(graph, parts, {"nodes": 1.4, "edges": 1.4 + heaviest * parts / graph.num_edges})
        train = graph.node_data["train_mask"].astype(np.int64)
        weights = np.column_stack([balance.weights, train])
        room = np.column_stack([balance.capacities(), np.full(parts, train.sum() * 1.4 // parts + 1)])
        owner = np.random.default_rng(seed).integers(0, parts, 120) % (parts - 1)
        found = search(graph, owner, room, weights, 10, 0.5, seed)
        assert (loads_of(found, weights, parts) <= room.astype(int)).all(), seed


@compiled
def test_two_parts_overloaded_in_different_kinds_help_each_other():
    """Part 0 has too many nodes and part 1 too many edges: nodes without edges go one way, the others back."""
    src, dst = np.repeat(np.arange(20), 2) + 20, np.repeat(np.arange(20), 2)  # nodes 0 to 19 have two in-edges each
    graph = from_edges(src, dst, 60)
    owner = np.where(np.arange(60) < 18, 1, 0)
    weights = np.stack([np.ones(60, int), graph.in_degrees()], 1)
    room = np.array([[33, 22], [33, 22]])
    found = search(graph, owner, room, weights)
    assert (loads_of(found, weights, 2) <= room).all()


@compiled
def test_relief_moves_nobody_who_brings_none():
    """Part 0 has too many training nodes, by five, and one edge too many; other nodes must not fill up part 1."""
    # 0..9: train, fed by 30..39 in part 0; 10..29: fed by 40..59 in part 1, where they would rather be
    graph = from_edges(np.arange(30, 60), np.arange(30), 60)
    weights = np.stack([graph.in_degrees(), np.arange(60) < 10], 1).astype(np.int64)
    owner = np.where(np.arange(60) < 40, 0, 1)
    found = search(graph, owner, np.array([[29, 5], [6, 5]]), weights, 0)
    assert (loads_of(found, weights, 2) <= [[29, 5], [6, 5]]).all()


@compiled
def test_what_weighs_nothing_fits_into_a_full_part():
    """No part has room for the in-edges of the hub, but its neighbours, which have no in-edges, move to its part."""
    graph = from_edges(np.arange(1, 21), np.zeros(20, int), 30)
    owner = np.arange(30) % 2
    found = search(graph, owner, np.full((2, 1), 10), graph.in_degrees()[:, None], 2, 0.0)
    assert (found[0], len(pulled(graph, found))) == (0, 0)
