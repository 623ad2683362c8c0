"""The bytes of every strategy, against ranks that hand lists of rows to each other; seconds by hand."""

import dataclasses

import numpy as np
import pytest
from hand_made_figures import edge_figures, vertex_figures

from partition.cuts import metis
from partition.cuts.edge_cut import make_edge_cut
from partition.cuts.vertex_cut import make_vertex_cut
from partition.predict.figures import Figures
from partition.predict.model import Model
from partition.predict.step_memory import rank_memory_bytes, step_memory
from partition.predict.step_time import Speeds, step_seconds, step_time
from partition.predict.strategies import default_strategy
from partition.predict.traffic import exchange_traffic, hops_exchanged, schedule, step_bytes, step_traffic
from partition.shards.layout import Layout


@pytest.fixture(autouse=True)
def one_cluster(monkeypatch):
    """The order of rows inside parts is not looked at here, and takes a child process each time."""
    monkeypatch.setattr(metis, "clusters", lambda adjacency, owner, *_, **__: np.zeros(len(owner), np.int64))


MODEL = Model(layers=3, hidden=24, heads=12, itemsize=2)
ROW, LSE = 24 * 2, 12 * 4


class Wire:
    """Ranks' mail: rows of a known width, bytes counted at both ends."""

    def __init__(self, ranks):
        self.sent, self.received = np.zeros(ranks, int), np.zeros(ranks, int)

    def send(self, source, target, rows, row_bytes):
        """Deliver a list of rows; a rank's mail to itself is free."""
        if source != target:
            self.sent[source] += len(rows) * row_bytes
            self.received[target] += len(rows) * row_bytes
        return list(rows)


def owned_rows(parts, seed=0):
    """Uneven lists of nodes, one of them empty where there are three parts or more."""
    sizes = np.random.default_rng(seed).integers(1, 9, parts)
    if parts > 2:
        sizes[1] = 0
    ends = np.cumsum(sizes)
    return [list(range(end - size, end)) for size, end in zip(sizes, ends)]


def parts_of(owned, depth=1):
    """Figures of an edge cut whose parts own such lists of rows, and hold no halo."""
    none = [[0] * depth] * len(owned)
    return edge_figures([len(rows) for rows in owned], [[3] * depth] * len(owned), none, none)


def assert_counted(traffic, forward, backward):
    for name, counted in (
        ("sent", forward.sent),
        ("received", forward.received),
        ("sent_back", backward.sent),
        ("received_back", backward.received),
    ):
        assert getattr(traffic, name).tolist() == counted.tolist(), name
    assert traffic.sent.sum() == traffic.received.sum() and traffic.sent_back.sum() == traffic.received_back.sum()
    assert traffic.total_bytes == traffic.sent.sum() + traffic.sent_back.sum()


# ---- simulations -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [1, 2, 3, 4, 6])
def test_gather(parts):
    """Everyone gets the keys and values of all; their gradients go home, a partial sum from each rank."""
    owned, forward, backward = owned_rows(parts), Wire(parts), Wire(parts)
    everything = sorted(sum(owned, []))
    held = [sum((forward.send(j, i, owned[j], 2 * ROW) for j in range(parts)), []) for i in range(parts)]
    assert all(sorted(rows) == everything for rows in held)
    for home, rows in enumerate(owned):
        partial = sum((backward.send(i, home, [r for r in held[i] if r in rows], 2 * ROW) for i in range(parts)), [])
        assert sorted(partial) == sorted(rows * parts)
    traffic = exchange_traffic(parts_of(owned), MODEL, "gather")
    assert_counted(traffic, forward, backward)
    assert traffic.calls == 2 * (parts - 1)  # one with each other rank


@pytest.mark.parametrize("parts", [1, 2, 3, 4, 6])
def test_heads(parts):
    """Slices of Q, K and V go to the ranks of their heads, slices of the results come back; backward the same."""
    owned, forward, backward = owned_rows(parts), Wire(parts), Wire(parts)
    heads_each = MODEL.heads // parts
    slice_bytes = heads_each * (MODEL.hidden // MODEL.heads) * MODEL.itemsize
    for there, wire in ((3, forward), (1, backward)):  # q, k, v out and o back; dO out and dq, dk, dv back
        desk = [{} for _ in range(parts)]  # on each rank: all rows of its heads
        for i in range(parts):
            for j in range(parts):
                desk[j][i] = wire.send(i, j, owned[i], there * slice_bytes)
        assert all(sorted(sum(rows.values(), [])) == sorted(sum(owned, [])) for rows in desk)
        for j in range(parts):
            for i in range(parts):
                assert wire.send(j, i, desk[j][i], (4 - there) * slice_bytes) == owned[i]
    assert_counted(exchange_traffic(parts_of(owned), MODEL, "heads"), forward, backward)


@pytest.mark.parametrize("parts", [1, 2, 3, 4, 6])
def test_ring(parts):
    """Blocks of K, V go round once forward; backward again, and behind them their gradients, until these are home."""
    owned, forward, backward = owned_rows(parts), Wire(parts), Wire(parts)
    calls = 0

    def around(wire, blocks):
        return [wire.send((i - 1) % parts, i, blocks[(i - 1) % parts], 2 * ROW) for i in range(parts)]

    for wire in (forward, backward):
        blocks, seen = list(owned), [list(rows) for rows in owned]
        gradients = None
        for _ in range(parts - 1):
            blocks = around(wire, blocks)
            calls += 1
            for i in range(parts):
                seen[i] += blocks[i]
            if wire is backward:  # what has come with the block, and this rank's own; at its home, it is added last
                if gradients is not None:
                    gradients = around(wire, gradients)
                    calls += 1
                    assert gradients == blocks
                gradients = list(blocks)
        if wire is backward and parts > 1:
            gradients = around(wire, gradients)
            calls += 1
            assert gradients == owned
        assert all(sorted(rows) == sorted(sum(owned, [])) for rows in seen)
    traffic = exchange_traffic(parts_of(owned), MODEL, "ring")
    assert_counted(traffic, forward, backward)
    assert traffic.calls == calls


def test_local_moves_nothing():
    traffic = exchange_traffic(parts_of(owned_rows(1)), MODEL, "local")
    assert_counted(traffic, Wire(1), Wire(1))
    assert traffic.calls == 0
    for strategy in ("halo_h", "halo_kv", "gather", "heads", "ring"):
        assert exchange_traffic(parts_of(owned_rows(1)), MODEL, strategy).total_bytes == 0


def cut_with_owner(graph, parts, seed=0):
    owner = np.random.default_rng(seed).integers(0, parts, graph.num_nodes)
    if parts > 2:
        owner[owner == 1] = 0
    return make_edge_cut(graph, parts, owner=owner), owner


def wanted(graph, owner, part, depth):
    """Nodes other than its own within so many hops against the edges, by sets."""
    sources = [set() for _ in range(graph.num_nodes)]
    for s, d in zip(graph.indices.tolist(), graph.destinations().tolist()):
        sources[d].add(s)
    held = frontier = set(np.flatnonzero(owner == part).tolist())
    for _ in range(depth):
        frontier = set().union(*(sources[node] for node in frontier)) - held
        held = held | frontier
    return {node for node in held if owner[node] != part}


@pytest.mark.parametrize("parts", [1, 2, 4])
@pytest.mark.parametrize("strategy, depth", [("halo_h", 1), ("halo_h", 2), ("halo_h", 3), ("halo_kv", 1)])
def test_halo(awkward_graph, parts, strategy, depth):
    graph = awkward_graph(2, edges=140)
    cut, owner = cut_with_owner(graph, parts)
    figures = Layout(graph, cut, 3).figures
    forward, backward, width = Wire(parts), Wire(parts), ROW * (2 if strategy == "halo_kv" else 1)
    for part in range(parts):
        halo = wanted(graph, owner, part, depth)
        for home in range(parts):
            rows = [node for node in halo if owner[node] == home]
            forward.send(home, part, rows, width)
            backward.send(part, home, rows, width)
    traffic = exchange_traffic(figures, MODEL, strategy, depth)
    assert_counted(traffic, forward, backward)
    assert traffic.calls == (2 if parts > 1 else 0)
    assert (traffic.total_bytes > 0) == (parts > 1)


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_mirror(awkward_graph, parts):
    """Masters send rows to mirrors; those with in-edges send back a result and its log-sum-exps; backward reversed."""
    graph = awkward_graph(3)
    cut = make_vertex_cut(graph, parts)
    master = np.searchsorted(cut.ptr, cut.new_ids(), side="right") - 1
    out, back = set(), set()
    for s, d, part in zip(graph.indices.tolist(), graph.destinations().tolist(), cut.edge_part.tolist()):
        out |= {(node, part) for node in (s, d) if master[node] != part}
        back |= {(d, part)} if master[d] != part else set()
    forward, backward = Wire(parts), Wire(parts)
    for node, part in out:
        forward.send(master[node], part, [node], ROW)
        backward.send(part, master[node], [node], ROW)
    for node, part in back:
        forward.send(part, master[node], [node], ROW + LSE)
        backward.send(master[node], part, [node], ROW + LSE)
    figures = Layout(graph, cut).figures
    assert default_strategy(figures) == "mirror"
    assert_counted(exchange_traffic(figures, MODEL), forward, backward)


# ---- refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [exchange_traffic, step_bytes, rank_memory_bytes])
def test_what_cannot_be_is_refused(function):
    edge = parts_of(owned_rows(4), depth=2)
    vertex = vertex_figures(*([count] * 4 for count in (4, 9, 3, 2, 1, 2)))
    for figures, strategy, message in (
        (edge, "mirror", "strategy mirror does not run on the partition, which holds an edge cut; use halo, gather"),
        (edge, "local", "strategy local runs on one part, and the partition has 4; use halo"),
        (edge, "halos", "strategy is 'halos'; it must be one of local, halo_h"),
        (edge, "halo", "strategy is 'halo'; it must be one of local, halo_h"),
        *(
            (vertex, name, f"strategy {name} does not run on the partition, which holds a vertex cut; use mirror")
            for name in ("local", "halo_h", "gather", "ring")
        ),
    ):
        with pytest.raises(ValueError, match=message):
            function(figures, MODEL, strategy)
    for heads, hidden, message in (
        (6, 24, "heads is 6, which 4 ranks cannot share evenly; choose a multiple of 4"),
        (2, 24, "heads is 2, which 4 ranks cannot share evenly"),
        (8, 25, "hidden is 25; with strategy heads it must be a multiple of 8 heads"),
    ):
        with pytest.raises(ValueError, match=message):
            function(edge, Model(hidden=hidden, heads=heads), "heads")
    for figures, strategy, depth in (
        (edge, "halo_h", 0),
        (edge, "halo_h", -1),
        (edge, "halo_h", 3),
        (edge, None, 3),
        (edge, "halo_kv", 2),
        (edge, "gather", 2),
        (edge, "ring", 0),
        (vertex, None, 2),
        (vertex, "mirror", 0),
    ):
        with pytest.raises(ValueError, match=f"depth is {depth}"):
            function(figures, MODEL, strategy, depth)


# ---- steps -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layers", range(1, 8))
@pytest.mark.parametrize("depth", range(1, 9))
def test_layers_between_exchanges(layers, depth):
    """Play a forward pass: a rank holds rows so many hops out, each layer takes one, an exchange brings them back."""
    exchanges, hops, computed = [], depth if depth > 1 else 0, []  # deeper halos start with their input features
    for layer in range(layers):
        left = layers - layer
        if hops == 0:
            exchanges.append(min(depth, left))
            hops = depth
        computed.append(min(hops, left) - 1)  # later layers before the next exchange need no more
        hops -= 1
    assert hops_exchanged(layers, depth) == exchanges
    scheduled = schedule(layers, depth)
    assert [layer.inner_hops for layer in scheduled] == computed
    assert sum(layer.follows_exchange for layer in scheduled) == len(exchanges)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_bytes_of_a_step(awkward_graph, depth):
    graph = awkward_graph(1, edges=140)
    figures = Layout(graph, cut_with_owner(graph, 3)[0], 3).figures
    rows = figures.copies_by_hop.sum(axis=0)
    moved = {1: 3 * rows[0], 2: rows[0], 3: 0}[depth]  # with two hops the second exchange is for one layer alone
    assert step_bytes(figures, MODEL, "halo_h", depth) == 2 * ROW * moved


HAND = edge_figures(
    owned=[4, 8],
    edges=[[10, 6], [14, 4]],
    halo=[[3, 2], [2, 1]],
    sent=[[2, 1], [3, 2]],
    shares=[1 / 3, 2 / 3],
    cut_edges=[5, 7],
)
EVEN = dataclasses.replace(HAND, shares=np.array([0.5, 0.5]))
FREE = Speeds(link_bytes_per_s=np.inf, latency_s=0.0, flops_per_s=np.inf, gather_bytes_per_s=np.inf)
TWO = Model(layers=2, hidden=4, heads=2, ffn=2, itemsize=4)  # rows of 16 bytes


def seconds(strategy="halo_h", depth=1, model=TWO, figures=HAND, **speeds):
    return step_seconds(figures, model, dataclasses.replace(FREE, **speeds), strategy, depth)


def test_seconds_of_the_link():
    """Forward rank 0 receives 3 rows and sends 2, backward the reverse: 3 + 3 rows of 16 bytes; links have no share."""
    assert seconds(link_bytes_per_s=8.0) == pytest.approx(2 * (3 + 3) * 16 / 8)
    assert seconds("halo_kv", link_bytes_per_s=8.0) == pytest.approx(2 * (3 + 3) * 32 / 8)
    assert seconds(depth=2, link_bytes_per_s=8.0) == 0
    three = dataclasses.replace(TWO, layers=3)  # an exchange of one hop before the third layer
    assert seconds(depth=2, model=three, link_bytes_per_s=8.0) == pytest.approx((3 + 3) * 16 / 8)
    # gather: rank 1 sends 8 rows of K, V to rank 0; backward rank 0 sends them home
    assert seconds("gather", link_bytes_per_s=8.0) == pytest.approx(2 * (8 + 8) * 32 / 8)


def test_seconds_of_latency():
    assert seconds(latency_s=1.0) == pytest.approx(2 * 2)
    assert seconds("heads", latency_s=1.0) == pytest.approx(2 * 4)
    assert seconds("ring", latency_s=1.0) == pytest.approx(2 * 3)
    assert seconds(depth=2, latency_s=1.0) == 0


def test_seconds_of_gathering():
    """Three passes over the edges, two rows each; rank 0 is taken to run at 2/3 of the mean, rank 1 at 4/3."""
    per_edge = 3 * 2 * 16 / 96
    assert seconds(gather_bytes_per_s=96.0) == pytest.approx(2 * max(10 * 3 / 2, 14 * 3 / 4) * per_edge)
    # depth 2: the first layer also computes ring 1, whose in-edges are 6 and 4
    assert seconds(depth=2, gather_bytes_per_s=96.0) == pytest.approx((16 + 10) * 3 / 2 * per_edge)
    assert seconds("heads", gather_bytes_per_s=96.0) == pytest.approx(2 * 12 * 3 / 2 * per_edge)
    assert seconds(gather_bytes_per_s=96.0, figures=EVEN) == pytest.approx(2 * 14 * per_edge)


def test_seconds_of_products():
    """Three products of 2 C^2 operations: output and feed-forward (1 + 4), queries, keys and values."""
    one = 3 * 2 * 4 * 4 / 96

    def rank(computed, projected):
        return (5 * computed + computed + 2 * projected) * one

    halo = 2 * max(rank(4, 7) * 3 / 2, rank(8, 10) * 3 / 4)
    assert seconds(flops_per_s=96.0) == pytest.approx(halo)
    owned = 2 * max(rank(4, 4) * 3 / 2, rank(8, 8) * 3 / 4)
    for strategy in ("halo_kv", "gather", "heads", "ring"):
        assert seconds(strategy, flops_per_s=96.0) == pytest.approx(owned)
    first = max(rank(7, 9) * 3 / 2, rank(10, 11) * 3 / 4)
    assert seconds(depth=2, flops_per_s=96.0) == pytest.approx(first + halo / 2)


def test_seconds_of_a_vertex_cut():
    figures = vertex_figures(owned=[4, 5], edges=[9, 7], mirrors=[3, 2], sent=[2, 3], returned=[1, 2], returns=[2, 1])
    one = dataclasses.replace(TWO, layers=1)
    # rank 0 in all: out 2 rows and 1 result, in 3 rows and 2 results; a result is a row and two float32
    assert seconds(None, model=one, figures=figures, link_bytes_per_s=8.0) == pytest.approx(2 * (3 * 16 + 2 * 24) / 8)
    assert seconds(None, model=one, figures=figures, latency_s=1.0) == 6
    assert seconds(None, model=one, figures=figures, gather_bytes_per_s=96.0) == pytest.approx(9 * 3 * 2 * 16 / 96)
    # keys, values and queries of all held rows; output and feed-forward at the master
    products = max(5 * 4 + 3 * 7, 5 * 5 + 3 * 7) * 3 * 2 * 16 / 96
    assert seconds(None, model=one, figures=figures, flops_per_s=96.0) == pytest.approx(products)


# ---- memory ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["halo_h", "halo_kv"])
def test_memory_grows_with_copies_and_with_nothing_else_of_theirs(strategy):
    before = rank_memory_bytes(HAND, MODEL, strategy)
    for extra in (1, 10, 1000):
        more = dataclasses.replace(HAND, copies_by_hop=HAND.copies_by_hop + [[extra, 0], [0, 0]])
        after = rank_memory_bytes(more, MODEL, strategy)
        kept = {"halo_h": 3, "halo_kv": 2}[strategy] * MODEL.layers * extra * ROW
        assert after[0] >= before[0] + kept and after[1] == before[1]


def test_memory_grows_with_depth_owned_rows_edges_and_disk():
    depths = [rank_memory_bytes(HAND, MODEL, "halo_h", depth) for depth in (1, 2)]
    assert (depths[1] > depths[0]).all()
    for more in (
        dataclasses.replace(HAND, owned=HAND.owned + [1, 0]),
        dataclasses.replace(HAND, edges_by_hop=HAND.edges_by_hop + [[1, 0], [0, 0]]),
    ):
        change = rank_memory_bytes(more, MODEL, "halo_h") - rank_memory_bytes(HAND, MODEL, "halo_h")
        assert change[0] > 0 and change[1] == 0


def test_memory_of_data():
    """All that shards store where the model's features are not known; else features in float32, and what is kept."""
    sizes = {"node_data": {"feat": ("float64", (6,)), "a": ("bool", (9,))}, "edge_data": {"b": ("int16", ())}}
    stored, known = dataclasses.replace(HAND, **sizes), dataclasses.replace(MODEL, features=6)
    all_of_it = [(48 + 9) * 9 + 2 * 16, (48 + 9) * 11 + 2 * 18]  # of every hop
    for strategy, depth in (("halo_h", 1), ("halo_h", 2), ("gather", 1)):
        shard = step_memory(stored, MODEL, strategy, depth).shard - step_memory(HAND, MODEL, strategy, depth).shard
        assert shard.tolist() == all_of_it
        nothing = dataclasses.replace(stored, node_data={"feat": ("float64", (6,))}, edge_data={})
        rest = step_memory(stored, known, strategy, depth).shard - step_memory(nothing, known, strategy, depth).shard
        assert rest.tolist() == [9 * 4 + 2 * 10, 9 * 8 + 2 * 14]
        wider = step_memory(stored, dataclasses.replace(known, features=7), strategy, depth).shard
        rows = [9, 11] if depth == 2 else [4, 8]
        assert (wider - step_memory(stored, known, strategy, depth).shard).tolist() == [4 * row for row in rows]


def test_memory_by_hand():
    """One layer on one part of 10 rows and 30 edges, rows of 16 bytes, feed-forward of twice that; no features."""
    one = edge_figures(owned=[10], edges=[[30]], halo=[[0]], sent=[[0]])
    memory = step_memory(one, dataclasses.replace(TWO, layers=1), "local")
    # the encoder's row; of the layer its input, two norms and their sum, q, k, v, result, twice the wide rows
    rows = 1 + 2 + 2 + 4 + 4
    assert memory.activations[0] == 10 * 16 * (rows + 3) + 10 * (16 + 8)  # and three of gradients; statistics and lse
    assert memory.shard[0] == 30 * 24 + 10 * 24 + 10 * 16  # and two degrees of each row
    assert memory.exchange[0] == memory.parameters[0] == memory.optimiser[0] == 0
    assert memory.total[0] == memory.activations[0] + memory.shard[0]


def test_memory_of_mirrors_and_of_what_keeps_all():
    none = [0, 0]
    held = [
        int(rank_memory_bytes(vertex_figures([4, 4], [9, 9], [mirrors, 0], none, none, none), MODEL)[0])
        for mirrors in (0, 1, 5)
    ]
    assert held[0] < held[1] < held[2]
    ring, gather = (rank_memory_bytes(HAND, MODEL, strategy) for strategy in ("ring", "gather"))
    assert (ring < gather).all()


@pytest.mark.parametrize("strategy", ["halo_h", "halo_kv", "gather", "ring"])
def test_what_is_computed_again_is_not_kept(strategy):
    none, keep, repeat = (
        rank_memory_bytes(HAND, MODEL, strategy, 1, activation_checkpoint)
        for activation_checkpoint in ("none", "keep_exchanges", "full")
    )
    assert (repeat < keep).all() and (keep < none).all()
    traffics = {
        activation_checkpoint: step_traffic(HAND, MODEL, strategy, 1, activation_checkpoint)
        for activation_checkpoint in ("none", "keep_exchanges", "full")
    }
    assert traffics["keep_exchanges"][0].total_bytes == traffics["none"][0].total_bytes
    for once, again in zip(traffics["none"], traffics["full"]):
        assert (again.sent == 2 * once.sent).all() and (again.sent_back == once.sent_back).all()
        assert again.calls == once.calls + {"gather": 1, "ring": 1}.get(strategy, 1)
    times = [
        step_time(HAND, MODEL, Speeds(), strategy, 1, activation_checkpoint).total_s
        for activation_checkpoint in ("none", "keep_exchanges", "full")
    ]
    assert times == sorted(times) and len(set(times)) == 3


def test_seconds_of_what_else_a_step_does():
    """Near edges at their own rate, operations on rows, overheads, gradients; overlap hides what it can."""
    near = dataclasses.replace(EVEN, near_edges=np.array([7, 7]))
    per_edge = 3 * 2 * 16 / 96
    assert seconds(gather_bytes_per_s=96.0, near_bytes_per_s=192.0, figures=near) == pytest.approx(
        2 * (7 / 2 + 7) * per_edge
    )
    assert seconds(edge_s=1.0, figures=near) == pytest.approx(2 * 14)
    assert seconds(head_s=1.0, figures=near) == pytest.approx(2 * 14 * TWO.heads)
    assert seconds(attend_s=1.0, figures=near) == pytest.approx(2 * 8 * TWO.hidden)
    assert seconds("heads", attend_s=1.0, figures=near) == pytest.approx(2 * 12 / 2 * TWO.hidden)
    # every rank visits all edges, with its share of the heads
    assert seconds("heads", edge_s=1.0, figures=near) == pytest.approx(2 * 24)
    assert seconds("heads", head_s=1.0, figures=near) == pytest.approx(2 * 24 * TWO.heads / 2)
    assert seconds(layer_s=1.0, figures=near) == pytest.approx(2)
    assert seconds(reduce_bytes_per_s=4.0, figures=near) == pytest.approx(TWO.parameters)
    time = step_time(near, TWO, dataclasses.replace(FREE, link_bytes_per_s=8.0, edge_s=1.0, overlap=1.0), "halo_h")
    assert time.exchange_s == pytest.approx(2 * 6 * 16 / 8) and time.attention_s == pytest.approx(28)
    assert time.hidden_s == pytest.approx(2 * min(12, 14 / 2))  # half of the edges need no row of another rank
    waiting = step_time(near, TWO, dataclasses.replace(FREE, link_bytes_per_s=8.0), "halo_h", overlap=False)
    assert waiting.hidden_s == 0 and waiting.total_s == waiting.exchange_s


@pytest.mark.parametrize(("layers", "hidden_s"), [(2, 0), (3, 7.5), (4, 0), (5, 7.5)])
def test_a_deep_halo_hides_the_exchange_of_a_layer_alone(layers, hidden_s):
    """Half of that layer's edges, 10 at two thirds of the speed; exchanges before two layers are not hidden."""
    speeds = dataclasses.replace(FREE, link_bytes_per_s=1.0, edge_s=1.0, overlap=1.0)
    time = step_time(HAND, dataclasses.replace(TWO, layers=layers), speeds, "halo_h", 2)
    assert time.hidden_s == pytest.approx(hidden_s)


def test_seconds_of_unequal_ranks_and_links():
    even = dataclasses.replace(EVEN, received_rows=np.array([[0, 3], [2, 0]]))
    slow = np.array([48.0, 96.0])
    per_edge = 3 * 2 * 16 / 96
    assert seconds(gather_bytes_per_s=slow, flops_per_s=np.full(2, np.inf), figures=even) == pytest.approx(
        2 * max(2 * 10, 14) * per_edge
    )
    link = np.array([[1e9, 4.0], [8.0, 1e9]])  # into rank 0 at 4 bytes a second, into rank 1 at 8
    assert seconds(link_bytes_per_s=link, figures=even) == pytest.approx(2 * 6 * 16 / 4)


# ---- figures -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Figures)])
def test_a_missing_count_is_an_error(name):
    values = vars(HAND)
    with pytest.raises(TypeError, match=name):
        Figures(**{key: value for key, value in values.items() if key != name})
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(HAND, name, values[name])


def test_near_edges_that_are_not_counted_are_not_guessed():
    unordered = dataclasses.replace(HAND, near_edges=None)
    assert step_seconds(unordered, TWO, FREE) == step_seconds(HAND, TWO, FREE)
    with pytest.raises(ValueError, match="near edges are not counted"):
        seconds(figures=unordered, near_bytes_per_s=1e9)


def test_cut_edges_decide_what_an_exchange_hides():
    """Of either cut; edges between owned rows are attended while rows travel."""
    speeds = dataclasses.replace(FREE, link_bytes_per_s=1e-9, edge_s=1.0, overlap=1.0)
    none = [0, 0]
    vertex = vertex_figures([4, 5], [9, 7], [3, 2], [3, 2], none, none, cut_edges=[3, 1])
    edge = dataclasses.replace(EVEN, cut_edges=np.array([5, 1]))
    for figures, strategy, hidden in ((vertex, "mirror", 12 / 16 * 9), (edge, "halo_h", 18 / 24 * 14)):
        assert step_time(figures, TWO, speeds, strategy).hidden_s == pytest.approx(2 * hidden)
