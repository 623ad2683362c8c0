"""The local search of edge cuts, against the same search in plain Python, which counts halo rows by sets."""

import math

import numpy as np
import pytest
from search_cases import compiled, loads_of, pulled, random_graph, search
from xorshift import Xorshift64Star

from dgl_gt.partition import load_graph
from dgl_gt.partition.cuts import metis, native
from dgl_gt.partition.cuts.balance import make_balance
from dgl_gt.partition.cuts.edge_cut import make_edge_cut
from dgl_gt.partition.cuts.local_search import refine
from dgl_gt.partition.cuts.vertex_cut import make_vertex_cut
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.graph import from_edges

REAL = ("email_enron", "amazon_computer", "tolokers")


def halo(graph, owner):
    """Return the number of halo rows; unlike :func:`pulled`, this is quick enough for real graphs."""
    source, part = graph.indices.astype(np.int64), owner[graph.destinations()].astype(np.int64)
    remote = owner[source] != part
    return len(np.unique(source[remote] * (int(owner.max()) + 1) + part[remote]))


def searched_in_python(graph, owner, capacities, weights, sweeps, temperature, seed):
    """Run the sweeps from a start within the bounds; the cost of a move is the difference of two full counts."""
    parts, nodes, owner = len(capacities), graph.num_nodes, [int(part) for part in owner]
    random, order = Xorshift64Star(seed), list(range(nodes))
    ends = set(graph.indices.tolist()) | set(graph.destinations().tolist())
    loads = loads_of(owner, weights, parts)

    def fill(part):
        return max(load / max(room, 1) for load, room in zip(loads[part].tolist(), capacities[part].tolist()))

    for sweep in range(sweeps):
        now = temperature * max(0.0, 1 - sweep / max(1.0, sweeps - 2))
        for i in range(nodes - 1, 0, -1):
            j = random.next() % (i + 1)
            order[i], order[j] = order[j], order[i]
        for node in order:
            if node not in ends:
                continue
            offers, before, home = [], len(pulled(graph, owner)), owner[node]
            for part in range(parts):
                if part != home and (loads[part] + weights[node] <= capacities[part]).all():
                    owner[node] = part
                    offers.append((len(pulled(graph, owner)) - before, fill(part), part))
            owner[node] = home
            if not offers:
                continue
            cost, filled, best = min(offers)
            if (
                cost < 0
                or (cost == 0 and filled < fill(home))
                or (now > 0 and (random.next() >> 11) / 2**53 < math.exp(-cost / now))
            ):
                loads[home] -= weights[node]
                loads[best] += weights[node]
                owner[node] = best
    return owner


@compiled
@pytest.mark.parametrize("temperature, sweeps", [(0.0, 1), (0.0, 3), (0.5, 4), (2.0, 3)])
@pytest.mark.parametrize("seed", range(5))
def test_every_move_is_that_of_full_counts(seed, temperature, sweeps):
    graph = random_graph(seed, nodes=14, awkward=False)
    parts = 2 + seed % 3
    balance = make_balance(graph, parts, {"nodes": 1.6, "edges": 2.5})
    owner = np.random.default_rng(seed).integers(0, parts, 14)
    capacities = np.maximum(balance.capacities(), balance.loads(owner))
    expected = searched_in_python(graph, owner, capacities, balance.weights, sweeps, temperature, seed)
    assert search(graph, owner, capacities, balance.weights, sweeps, temperature, seed).tolist() == expected


@compiled
@pytest.mark.parametrize("what", ["self-loops", "doubled edges"])
def test_self_loops_and_parallel_edges_change_no_move(what):
    """They need no additional halo row."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        src = np.concatenate([np.arange(30), rng.integers(0, 30, 60)])  # nobody is isolated
        dst = np.concatenate([np.roll(np.arange(30), 1), rng.integers(0, 30, 60)])
        src, dst = np.unique(np.stack([src, dst])[:, src != dst], axis=1)
        more = (np.arange(30), np.arange(30)) if what == "self-loops" else (src, dst)
        plain = from_edges(src, dst, 30)
        other = from_edges(np.append(src, more[0]), np.append(dst, more[1]), 30)
        owner, weights = rng.integers(0, 3, 30), np.ones((30, 1), np.int64)
        one, two = (search(g, owner, np.full((3, 1), 15), weights, 3, 0.0, seed) for g in (plain, other))
        assert one.tolist() == two.tolist(), seed


@compiled
@pytest.mark.parametrize("parts", [2, 3, 5, 64, 65, 130])
def test_at_temperature_zero_the_halo_never_grows_and_bounds_hold(parts):
    improved = 0
    for seed in range(40):
        graph = random_graph(seed)
        rng = np.random.default_rng(seed)
        weights = np.stack([np.ones(graph.num_nodes), graph.in_degrees(), rng.integers(0, 3, graph.num_nodes)], 1)
        weights = weights.astype(np.int64)
        owner = rng.integers(0, parts, graph.num_nodes)
        room = loads_of(owner, weights, parts) + rng.integers(0, 4, (parts, 3))  # often none at all
        for sweeps in (1, 4):
            found = search(graph, owner, room, weights, sweeps, 0.0, seed)
            assert ((found >= 0) & (found < parts)).all()
            assert len(pulled(graph, found)) <= len(pulled(graph, owner))
            assert (loads_of(found, weights, parts) <= room).all()
            improved += len(pulled(graph, found)) < len(pulled(graph, owner))
    assert improved > 20


@compiled
@pytest.mark.parametrize("parts", [2, 3, 65, 130])
def test_heat_breaks_no_bound(parts):
    """The search makes moves that add halo rows, but none that exceeds a capacity."""
    for seed in range(30):
        graph = random_graph(seed, nodes=140)
        balance = make_balance(graph, parts, {"nodes": 1.3, "edges": 1.4, "train": 1.5})
        owner = np.random.default_rng(seed).integers(0, parts, 140)
        room = np.maximum(balance.capacities(), loads_of(owner, balance.weights, parts))
        for temperature in (0.5, 50.0):
            found = search(graph, owner, room, balance.weights, 10, temperature, seed)
            assert (loads_of(found, balance.weights, parts) <= room).all()


@compiled
def test_from_random_starts_the_halo_ends_smaller():
    """This holds with a temperature, too: the search ends in a minimum, and a random start is none."""
    for seed in range(100):
        graph = random_graph(seed, nodes=60)
        parts = 2 + seed % 4
        owner = np.random.default_rng(seed).integers(0, parts, 60).astype(np.int32)
        before = owner.copy()
        refine(graph, owner, make_balance(graph, parts, {"nodes": 2.0, "edges": 5.0}), seed)
        assert len(pulled(graph, owner)) <= len(pulled(graph, before))


@compiled
@pytest.mark.parametrize("name", REAL)
def test_on_real_graphs_the_halo_is_smaller_than_metis_leaves_it(real_graph, monkeypatch, name):
    graph, plain, original = load_graph(real_graph(name)), [], metis.k_way

    def k_way(*arguments, **options):
        plain.append(original(*arguments, **options))
        return plain[-1].copy()

    monkeypatch.setattr(metis, "k_way", k_way)
    make_edge_cut(graph, 4, attempts=6)
    balance, before = make_balance(graph, 4), [halo(graph, owner) for owner in plain]
    for owner, rows in zip(plain, before):
        found = owner.copy()
        refine(graph, found, balance, 0)
        assert (balance.loads(found) <= np.maximum(balance.capacities(), balance.loads(owner))).all()
        if balance.largest_load(owner) <= 1:
            assert halo(graph, found) < rows


@compiled
def test_the_seed_decides():
    graph = random_graph(0, nodes=200)
    balance, start = make_balance(graph, 4), np.random.default_rng(0).integers(0, 4, 200).astype(np.int32)
    found = []
    for seed in (0, 0, 1, 2**31 - 2):
        owner = start.copy()
        refine(graph, owner, balance, seed)
        found.append(owner.tolist())
    assert found[0] == found[1]
    assert found[0] != found[2] and found[2] != found[3]


@compiled
def test_isolated_nodes_stay_and_one_part_is_left_alone():
    graph = random_graph(3, nodes=40)
    touched = np.bincount(np.concatenate([graph.indices, graph.destinations()]), minlength=40) > 0
    assert not touched.all()
    owner = np.random.default_rng(0).integers(0, 3, 40)
    weights = np.ones((40, 1), np.int64)
    found = search(graph, owner, np.full((3, 1), 40), weights, 10, 5.0)
    assert (found[~touched] == owner[~touched]).all()
    assert not search(graph, np.zeros(40), np.full((1, 1), 40), weights).any()
    bare = from_edges(np.zeros(0, int), np.zeros(0, int), 40)
    assert (search(bare, owner, np.full((3, 1), 40), weights) == owner).all()


@compiled
def test_a_node_of_self_loops_alone_levels_edges():
    """It needs no halo row in any part, but its edges have weight."""
    graph = from_edges(np.arange(40), np.arange(40), 40)
    found = search(graph, np.zeros(40), np.full((2, 1), 40), np.ones((40, 1), np.int64), 2, 0.0)
    assert np.bincount(found, minlength=2).tolist() == [20, 20]


@compiled
def test_a_hub_joins_its_spokes():
    """All nodes point to the hub, so its part holds all of them; in their part the hub costs nothing."""
    spokes = 70
    graph = from_edges(np.arange(1, spokes + 1), np.zeros(spokes, int), spokes + 1)
    owner = np.where(np.arange(spokes + 1) > 0, 69, 3)
    weights = np.ones((spokes + 1, 1), np.int64)
    found = search(graph, owner, np.full((70, 1), spokes + 1), weights, 2, 0.0)
    assert len(pulled(graph, owner)) == spokes and not pulled(graph, found)


@compiled
def test_clusters_are_found_over_64_parts():
    """Each of 130 cliques has one of its 5 nodes in a wrong part; all return, whatever word holds their bit."""
    cliques = np.repeat(np.arange(130), 5)
    src, dst = np.nonzero((cliques[:, None] == cliques) & ~np.eye(650, dtype=bool))
    owner = cliques.copy()
    owner[::5] = (owner[::5] + 64) % 130
    found = search(from_edges(src, dst, 650), owner, np.full((130, 1), 7), np.ones((650, 1), np.int64), 2, 0.0)
    assert (found == cliques).all()


def test_more_parts_than_a_word_has_bits_and_as_many_as_nodes(awkward_graph):
    for nodes, parts in ((150, 65), (140, 130), (70, 70)):
        cut = make_edge_cut(awkward_graph(0, nodes=nodes, edges=600), parts)
        assert (np.diff(cut.ptr) > 0).all() and sorted(cut.order) == list(range(nodes))


def test_edge_cuts_do_without_the_compiled_part(awkward_graph, monkeypatch):
    monkeypatch.setattr(native, "_loaded", lambda: None)
    graph = awkward_graph(0, nodes=200, edges=1500)
    owner = np.random.default_rng(0).integers(0, 3, 200).astype(np.int32)
    before = owner.copy()
    refine(graph, owner, make_balance(graph, 3), 0)
    assert (owner == before).all()
    cut = make_edge_cut(graph, 3, attempts=2, max_imbalance=2.0)
    assert sorted(cut.order) == list(range(200)) and (np.diff(cut.ptr) > 0).all()
    with pytest.raises(InputError, match="compiled extension"):
        make_vertex_cut(graph, 3)


def test_without_memory_for_counts_nothing_moves(awkward_graph, monkeypatch):
    monkeypatch.setattr(native, "_MAX_COUNTS", 0)
    monkeypatch.setattr(native, "_MAX_COUNTS_PER_EDGE", 0)
    graph = awkward_graph(0)
    owner = np.random.default_rng(0).integers(0, 3, 60).astype(np.int32)
    before = owner.copy()
    refine(graph, owner, make_balance(graph, 3), 0)
    assert (owner == before).all()
