"""Later attempts at edge cuts: a cut is searched anew, clusters of nodes first."""

import re
from itertools import product

import numpy as np
import pytest
from xorshift import Xorshift64Star

from dgl_gt.partition.cuts import attempts, local_search, metis, native
from dgl_gt.partition.cuts.balance import make_balance
from dgl_gt.partition.cuts.edge_cut import make_edge_cut
from dgl_gt.partition.cuts.local_search import refine, refine_multilevel
from dgl_gt.partition.cuts.permutation import count_assignment
from dgl_gt.partition.graph import from_edges, symmetrised

pytestmark = pytest.mark.skipif(
    not native.is_available(), reason="the package was installed without its compiled extension"
)
BLOCKS, SIZE = 8, 100


def planted(seed):
    """A graph of eight communities, and the community of each node."""
    rng = np.random.default_rng(seed)
    nodes = BLOCKS * SIZE
    src = rng.integers(0, nodes, 8 * nodes)
    dst = src // SIZE * SIZE + rng.integers(0, SIZE, len(src))
    strays = rng.integers(0, nodes, (2, nodes // 3))
    return from_edges(np.append(src, strays[0]), np.append(dst, strays[1]), nodes), np.arange(nodes) // SIZE


def halo(graph, owner):
    found = count_assignment(graph, owner, np.ones(owner.max() + 1) / (owner.max() + 1))
    return int(found.copies_by_hop.sum())


def recombined(graph, owner, groups, balance, seed=0):
    """Return a new assignment by the compiled search."""
    owner = np.array(owner, np.int32)
    refine_multilevel(graph, owner, balance, np.array(groups, np.int64), seed)
    return owner


def test_communities_are_found_from_a_random_start_where_single_nodes_get_stuck():
    stuck = 0
    for seed in range(6):
        graph, communities = planted(seed)
        balance = make_balance(graph, BLOCKS, {"nodes": 1.1})
        start = np.random.default_rng(seed).permutation(communities).astype(np.int32)
        found = recombined(graph, start, np.zeros(len(start)), balance, seed)
        assert halo(graph, found) <= halo(graph, communities)
        refine(graph, start, balance, seed)
        stuck += halo(graph, start) > 1.1 * halo(graph, communities)
    assert stuck >= 2


def test_what_two_cuts_agree_on_stays_together():
    """One cut mixes two communities and the other cut two others; the result combines the best of both."""
    graph, communities = planted(0)
    balance = make_balance(graph, BLOCKS, {"nodes": 1.1})
    node, cuts = np.arange(len(communities)), []
    for one, two in ((0, 1), (2, 3)):
        cut = communities.copy()
        cut[(communities == one) & (node % 2 == 0)] = two
        cut[(communities == two) & (node % 2 == 0)] = one
        cuts.append(cut)
    found = recombined(graph, cuts[0], cuts[0] * BLOCKS + cuts[1], balance)
    assert halo(graph, found) <= halo(graph, communities) < min(halo(graph, cut) for cut in cuts)


def test_beside_a_bound_on_edges_an_attempt_keeps_steps_or_nodes_even_or_neither():
    graph = from_edges([0, 1, 2], [1, 2, 0], 4)
    found = {
        bounds: [
            attempts._kept_even(make_balance(graph, 3, kinds), *flags) for flags in product([False, True], repeat=2)
        ]
        for bounds, kinds in (("none", None), ("edges", {"edges": 1.1}), ("both", 1.1))
    }
    both = [("step",), ("step", "nodes"), ("step", "nodes"), ("step",)]
    assert found == {"none": both, "both": both, "edges": [("step",), (), ("nodes",), ("step",)]}


def test_a_bound_on_edges_leaves_steps_even():
    """Most nodes have no in-edges, so a bound on edges says nothing of them, but their rows take time."""
    rng = np.random.default_rng(0)
    graph = from_edges(rng.integers(0, 2000, 8000), rng.integers(0, 400, 8000), 2000)
    balance = make_balance(graph, 4, {"edges": 1.2})
    cut = make_edge_cut(graph, 4, max_imbalance={"edges": 1.2})
    loads = np.add.reduceat(balance.step[cut.order], cut.ptr[:-1])
    assert loads.max() / loads.mean() < 1.1


def test_nodes_that_nobody_keeps_together_are_searched_one_by_one():
    """The result is that of the local search (see test_local_search.py), which goes on with the next random numbers."""
    graph, communities = planted(2)
    balance = make_balance(graph, BLOCKS, {"nodes": 1.3})
    start = np.random.default_rng(0).permutation(communities).astype(np.int32)
    random, expected = Xorshift64Star(7), start.copy()
    for _ in range(graph.num_nodes - 1 + 2):  # the order of the search for clusters, and what the coarsest would draw
        random.next()
    problem = local_search._problem(expected, balance)
    native.refine(graph.indptr, graph.indices, **problem, sweeps=4, temperature=1.0, seed=random.equal_seed())
    found = recombined(graph, start, np.arange(graph.num_nodes), balance, seed=7)
    assert (found == expected).all() and (found != start).any()


@pytest.mark.parametrize("parts", [1, 2, 3, 65])
def test_bounds_hold_and_isolated_nodes_stay_on_awkward_graphs(awkward_graph, parts):
    for seed in range(8):
        graph = awkward_graph(seed, nodes=400, edges=1500)
        owner = np.random.default_rng(seed).integers(0, parts, 400)
        balance = make_balance(graph, parts, {"nodes": 1.5, "edges": 20.0, "train": 2.0})
        room = np.maximum(balance.capacities(0.8), balance.loads(owner))  # a part beyond it at the start may stay so
        within = (balance.loads(owner) <= balance.capacities(0.8)).all()
        isolated = np.bincount(np.append(graph.indices, graph.destinations()), minlength=400) == 0
        assert isolated.any()
        for groups in (np.zeros(400), np.arange(400), owner * parts + np.arange(400) % parts):
            found = recombined(graph, owner, groups, balance, seed)
            assert ((found >= 0) & (found < parts)).all()
            assert (balance.loads(found) <= room).all()
            assert not within or (found[isolated] == owner[isolated]).all()
            assert (found == recombined(graph, owner, groups, balance, seed)).all()


@pytest.mark.parametrize("edges", [0, 1])
def test_graphs_with_next_to_no_edges(edges):
    graph = from_edges(np.zeros(edges, int), np.ones(edges, int), 300)
    owner = np.arange(300) % 3
    balance = make_balance(graph, 3, {"nodes": 1.5})
    found = recombined(graph, owner, np.zeros(300), balance)
    assert halo(graph, found) == 0 and (found[2:] == owner[2:]).all()


def test_the_thirteenth_attempt_and_later_ones_search_the_best_anew(monkeypatch):
    graph, communities = planted(1)
    asked, ranked, stages, rng = [], [], [], np.random.default_rng(0)

    def k_way(adjacency, parts, weights, **options):  # a poor METIS
        asked.append(options["seed"])
        return rng.permutation(communities).astype(np.int32)

    def rank(owner):
        ranked.append(halo(graph, owner))
        return ranked[-1]

    monkeypatch.setattr(metis, "k_way", k_way)
    monkeypatch.setattr(attempts, "refine", lambda *_: None)
    balance = make_balance(graph, BLOCKS)
    found = attempts.best_assignment(
        graph, BLOCKS, symmetrised(graph), balance, 24, rank, 3, lambda stage: stages.append(stage)
    )
    assert asked == [3] * 12 and len(ranked) == 24
    said = [re.fullmatch(r"attempt (\d+) of 24(, about \d+ s left)?: (.*)", stage).groups() for stage in stages[:-1]]
    assert [int(attempt) for attempt, *_ in said] == list(range(1, 25))
    assert [left is None for _, left, _ in said] == [True] + [False] * 23  # nothing is known before the first has ended
    assert [stage for *_, stage in said] == ["edge cut, local search"] * 12 + ["edge cut, search of clusters"] * 12
    best = ranked.index(min(ranked)) + 1
    assert stages[-1] == f"attempt {best} is kept: predicted step {min(ranked):.3g} s"
    assert halo(graph, found) == min(ranked) < min(ranked[:12])


def test_without_the_compiled_part_later_attempts_are_metis_again(monkeypatch, awkward_graph):
    graph, seeds, original = awkward_graph(0), [], metis.k_way

    def k_way(*arguments, **options):
        seeds.append(options["seed"])
        return original(*arguments, **options)

    monkeypatch.setattr(metis, "k_way", k_way)
    monkeypatch.setattr(native, "_loaded", lambda: None)
    make_edge_cut(graph, 2, seed=5, attempts=13)
    assert seeds == [5] * 12 + [6]


def test_the_same_seed_gives_the_same_cut_of_many_attempts(awkward_graph):
    graph = awkward_graph(6, nodes=200, edges=1200)
    one, two = (make_edge_cut(graph, 3, seed=4, attempts=15) for _ in range(2))
    assert (one.order == two.order).all() and (one.ptr == two.ptr).all()
