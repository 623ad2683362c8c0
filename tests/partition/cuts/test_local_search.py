"""The local search of edge cuts, against the same search in plain Python, which counts halo rows by sets."""

import dataclasses
import math

import numpy as np
import pytest
from hand_made_costs import hand_made_costs, on_links
from hand_made_figures import assert_same_figures
from xorshift import Xorshift64Star

from partition import load_graph
from partition.cuts import metis, native, part_counts
from partition.cuts.balance import make_balance
from partition.cuts.edge_cut import make_edge_cut
from partition.cuts.local_search import refine
from partition.cuts.part_counts import count_assignment, count_edge_cut
from partition.cuts.vertex_cut import make_vertex_cut
from partition.errors import InputError
from partition.graph import from_edges
from partition.predict.costs import Costs, default_costs
from partition.shards.layout import Layout

REAL = ("email_enron", "amazon_computer", "tolokers")
compiled = pytest.mark.skipif(not native.is_available(), reason="the package was installed without its compiled part")


def pulled(graph, owner):
    """Return the halo rows as pairs: node, part that holds a copy."""
    return {
        (s, int(owner[d]))
        for s, d in zip(graph.indices.tolist(), graph.destinations().tolist())
        if owner[s] != owner[d]
    }


def halo(graph, owner):
    """Return the number of halo rows; unlike :func:`pulled`, this is quick enough for real graphs."""
    source, part = graph.indices.astype(np.int64), owner[graph.destinations()].astype(np.int64)
    remote = owner[source] != part
    return len(np.unique(source[remote] * (int(owner.max()) + 1) + part[remote]))


def random_graph(seed, nodes=None, awkward=True):
    """Return a small directed graph; an awkward one has a hub, parallel edges, self-loops and isolated nodes."""
    rng = np.random.default_rng(seed)
    nodes = nodes or int(rng.integers(4, 50))
    edges = int(rng.integers(0, 5 * nodes))
    src, dst = rng.integers(0, max(nodes - 2 * awkward, 1), (2, edges))
    if awkward:
        src[: edges // 8], dst[edges // 8 : edges // 4] = 0, 0
        some = rng.integers(0, max(edges, 1), edges // 5)
        src, dst = np.append(src, src[some]), np.append(dst, dst[some])
        loops = rng.integers(0, nodes, nodes // 6)
        src, dst = np.append(src, loops), np.append(dst, loops)
    else:
        pairs = np.unique(np.stack([src, dst])[:, src != dst], axis=1)
        src, dst = pairs[:, rng.permutation(pairs.shape[1])]
    return from_edges(src, dst, nodes, {"train_mask": np.arange(nodes) % 3 == 0})


def search(graph, owner, capacities, weights, sweeps=10, temperature=0.5, seed=0):
    """Return a new assignment by the compiled search."""
    owner = np.array(owner, np.int32)
    native.refine(
        graph.indptr,
        graph.indices,
        weights=np.ascontiguousarray(weights, np.int64),
        floors=np.zeros_like(capacities, np.int64),
        capacities=np.ascontiguousarray(capacities, np.int64),
        owner=owner,
        sweeps=sweeps,
        temperature=temperature,
        seed=seed,
    )
    return owner


def loads_of(owner, weights, parts):
    loads = np.zeros((parts, weights.shape[1]), np.int64)
    for node, part in enumerate(owner):
        loads[part] += weights[node]
    return loads


# ---- the same search in Python ---------------------------------------------------------------------------------------


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


# ---- what holds on any graph -------------------------------------------------------------------------------------


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
    monkeypatch.setattr(metis, "clusters", lambda adjacency, owner, *_, **__: np.zeros(len(owner), int))
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


# ---- overloaded starts -------------------------------------------------------------------------------------------


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


# ---- in the edge cut ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [1, 2, 5, 65])
def test_counts_are_those_of_sets_and_of_the_layout(awkward_graph, monkeypatch, parts):
    monkeypatch.setattr(part_counts, "_CHUNK_ROWS", 7)
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
        assert found.near_edges is None
    if parts < 65:
        monkeypatch.setattr(part_counts, "NEAR_ROWS", 9)
        cut = make_edge_cut(graph, parts, owner=owner)
        found, _ = count_edge_cut(graph, cut.order, cut.ptr, cut.shares)
        expected, place = Layout(graph, cut).figures, np.argsort(cut.order)
        assert_same_figures(found, expected)
        unordered = count_assignment(graph, owner, cut.shares)
        assert_same_figures(dataclasses.replace(unordered, near_edges=found.near_edges), expected)
        for part in range(parts):
            held = np.append(np.flatnonzero(owner == part), [node for node, holder in copies if holder == part])
            held = held.astype(int)[np.lexsort((place[held.astype(int)], owner[held.astype(int)] != part))]
            row = dict(zip(held.tolist(), range(len(held))))
            here = np.flatnonzero(part_of_edge == part)
            ends = zip(graph.indices[here].tolist(), graph.destinations()[here].tolist())
            assert found.near_edges[part] == sum(abs(row[s] - row[d]) < 9 for s, d in ends)


def test_attempts_are_ranked_by_the_seconds_that_are_reported(awkward_graph, monkeypatch):
    """They agree to the last digit."""
    draw = np.random.default_rng(0)
    monkeypatch.setattr(metis, "k_way", lambda *_, **__: draw.integers(0, 3, 60).astype(np.int32))
    monkeypatch.setattr(metis, "clusters", lambda adjacency, owner, *_, **__: np.arange(len(owner)) * 7 % 5)
    ranked, costs, step_seconds = [], hand_made_costs(), Costs.step_seconds
    monkeypatch.setattr(Costs, "step_seconds", lambda *given: ranked.append(step_seconds(*given)) or ranked[-1])
    graph = awkward_graph(1)
    cut = make_edge_cut(graph, 3, attempts=4, costs=costs)
    assert len(ranked) == 4 and min(ranked) == step_seconds(costs, Layout(graph, cut).figures)


def test_more_attempts_are_never_predicted_to_be_slower(awkward_graph, monkeypatch):
    graph, known, original = awkward_graph(2, nodes=300, edges=2400), {}, metis.k_way

    def k_way(adjacency, parts, weights, **options):  # METIS is slow to start
        key = (weights.tobytes(), options["objective"], options["seed"])
        if key not in known:
            known[key] = original(adjacency, parts, weights, **options)
        return known[key].copy()

    monkeypatch.setattr(metis, "k_way", k_way)
    monkeypatch.setattr(metis, "clusters", lambda adjacency, owner, *_, **__: np.zeros(len(owner), int))
    kept = set()
    for costs in (default_costs(), hand_made_costs(byte_s=1e-11), on_links(4e-8)):
        seconds = []
        for attempts in (1, 2, 4, 7):
            cut = make_edge_cut(graph, 3, attempts=attempts, costs=costs)
            seconds.append(costs.step_seconds(Layout(graph, cut).figures))
            kept.add((cut.order.tobytes(), cut.ptr.tobytes()))
        assert seconds == sorted(seconds, reverse=True)
    assert len(known) == 8 and len(kept) > 1  # two of the six weigh nodes by costs, of which two are alike


def test_twelve_attempts_differ_in_objective_weights_and_levels(awkward_graph, monkeypatch):
    graph, asked, stages = awkward_graph(1), [], []
    original = metis.k_way

    def k_way(adjacency, parts, weights, **options):
        asked.append((options["objective"], tuple(weights - graph.in_degrees()), options["seed"]))
        return original(adjacency, parts, weights, **options)

    monkeypatch.setattr(metis, "k_way", k_way)
    make_edge_cut(graph, 2, seed=5, attempts=12, progress=lambda stage, *_: stages.append(stage))
    assert len(asked) == 12 and len(set(asked)) == 6
    assert {objective for objective, *_ in asked[:6]} == {"cut", "volume"}
    assert len({weights for _, weights, _ in asked}) == 3
    assert asked[6:] == asked[:6] and {seed for *_, seed in asked} == {5}
    stages = {stage.rpartition(": ")[2] for stage in stages}
    assert {"METIS, 2 parts, cut", "METIS, 2 parts, volume", "edge cut, local search"} <= stages


def test_the_same_seed_gives_the_same_cut_of_many(awkward_graph):
    graph = awkward_graph(6, nodes=200, edges=1200)
    one, two = (make_edge_cut(graph, 3, seed=4, attempts=2) for _ in range(2))
    assert (one.order == two.order).all() and (one.ptr == two.ptr).all()


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
    with pytest.raises(InputError, match="compiled part"):
        make_vertex_cut(graph, 3)


def test_without_memory_for_counts_nothing_moves(awkward_graph, monkeypatch):
    monkeypatch.setattr(native, "_MOST_COUNTS", 0)
    monkeypatch.setattr(native, "_MOST_COUNTS_PER_EDGE", 0)
    graph = awkward_graph(0)
    owner = np.random.default_rng(0).integers(0, 3, 60).astype(np.int32)
    before = owner.copy()
    refine(graph, owner, make_balance(graph, 3), 0)
    assert (owner == before).all()
