"""Shards of more parts than there are ranks: neighbouring parts are one part of a rank, and all numbers stay the same."""

import numpy as np
import pytest
import torch
from ranks import run_ranks
from typed import typed_graph
from unequal_ranks import profile_of

import dgl_gt
from dgl_gt.partition import InputError, from_edges, partition, read_figures, read_manifest
from dgl_gt.partition.figures.figures import dealt_parts
from dgl_gt.plan import planned_step
from dgl_gt.plan.planned_step import check_memory
from dgl_gt.plan.trial import load_fastest
from dgl_gt.train.config import read_config
from dgl_gt.train.run import train

PARTS, NODES = 4, 90
SETTINGS = dict(epochs=2, layers=2, hidden=12, heads=6, dropout=0.1, attention_dropout=0.2, lr=0.01, patience=0)


@pytest.fixture(scope="module")
def graph():
    """A hub, self-loops, parallel edges, and two nodes without edges."""
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, NODES - 2, (2, 4 * NODES))
    hub = np.arange(40)
    src, dst = np.concatenate([src, src[:20], hub, hub]), np.concatenate([dst, dst[:20], 0 * hub, hub])
    nodes = {"feat": rng.random((NODES, 5)).astype(np.float32), "label": np.arange(NODES) % 3}
    nodes |= {f"{split}_mask": np.arange(NODES) % 3 == each for each, split in enumerate(("train", "val", "test"))}
    edges = {"weight": rng.random(len(src)).astype(np.float32)}
    return from_edges(src, dst, NODES, nodes, edges)


@pytest.fixture(scope="module")
def shards(graph, tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    for parts in (1, 2, PARTS):
        partition(graph, parts, folder / str(parts), link_split="0.6,0.2,0.2")
    partition(graph, PARTS, folder / "vertex", cut="vertex", link_split="0.6,0.2,0.2")
    return folder


def trained(rank, path, settings, strategies):
    torch.set_default_dtype(torch.float64)
    found = []
    for strategy in strategies:
        sg = dgl_gt.load(path, strategy)
        result = train(sg, read_config(**settings))
        found.append((result.losses, result.validations, [result.test]))
    return found


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"edge_features": "weight"},
        {"task": "link_prediction"},
        {"architecture": "gnn", "heads": 1, "attention_dropout": 0},
    ],
    ids=["nodes", "edge features", "links", "gcn"],
)
def test_fewer_ranks_give_the_same_numbers(shards, ranks, more):
    (expected,) = run_ranks(1, trained, shards / "1", SETTINGS | more, [None])[0]
    strategies = [None] if ranks == 1 else ["halo_h", "halo_kv", "gather", "ring"] + ["heads"] * ("heads" not in more)
    for results in run_ranks(ranks, trained, shards / str(PARTS), SETTINGS | more, strategies):
        for found in results:
            for mine, theirs in zip(found, expected, strict=True):
                np.testing.assert_allclose(mine, theirs, rtol=1e-9)


@pytest.mark.parametrize("ranks", [1, 3])
def test_parts_of_a_vertex_cut_become_those_of_an_edge_cut(shards, ranks):
    settings = SETTINGS | {"edge_features": "weight"}
    (expected,) = run_ranks(1, trained, shards / "1", settings, [None])[0]
    for results in run_ranks(ranks, trained, shards / "vertex", settings, [None] + ["ring"] * (ranks > 1)):
        for found in results:
            for mine, theirs in zip(found, expected, strict=True):
                np.testing.assert_allclose(mine, theirs, rtol=1e-9)


def described(rank, path, parts_per_rank=None):
    sg = dgl_gt.load(path, parts_per_rank=parts_per_rank)
    held = sg.srcdata["feat"]
    torch.testing.assert_close(sg.pull(sg.ndata["feat"]), held)
    whole = sg.gather(sg.ndata["feat"])
    return sg.manifest["ptr"], read_figures(sg.manifest), whole.numpy(), sg.num_edges(), sorted(sg.edge_ids.tolist())


def test_figures_are_those_of_parts_on_hosts(shards, graph):
    stored = read_figures(read_manifest(shards / str(PARTS)))
    results = run_ranks(2, described, shards / str(PARTS))
    for _ptr, figures, whole, _edges, _ids in results:
        assert figures.parts == 2 and figures.nodes == NODES
        np.testing.assert_array_equal(figures.received_rows, stored.hosts[2].received_rows)
        np.testing.assert_array_equal(figures.cut_edges, stored.hosts[2].cut_edges)
        np.testing.assert_array_equal(figures.owned, stored.owned.reshape(2, 2).sum(1))
        np.testing.assert_array_equal(whole, graph.node_data["feat"])
    assert sum(each[3] for each in results) == int(stored.edges.sum())
    assert not set(results[0][4]) & set(results[1][4])


@pytest.mark.parametrize("name", [str(PARTS), "vertex"])
def test_as_many_parts_as_asked_for(shards, graph, name):
    """Every node and edge is on one rank, its edges with the destination, and rows arrive where the figures say."""
    stored, results = read_figures(read_manifest(shards / name)), run_ranks(2, described, shards / name, [3, 1])
    assert results[0][1].owned.tolist() == [stored.owned[:3].sum(), stored.owned[3]]
    for _ptr, figures, whole, _edges, _ids in results:
        assert figures.edges.sum() == stored.edges.sum() and figures.cut == "edge"
        np.testing.assert_array_equal(whole, graph.node_data["feat"])
    ids = results[0][4] + results[1][4]
    assert len(ids) == len(set(ids)) == stored.edges.sum()


@pytest.mark.parametrize(
    ("shares", "speeds", "dealt"),
    [
        ([0.25] * 4, [1, 1], [2, 2]),
        ([0.25] * 4, [3, 1], [3, 1]),
        ([0.25] * 4, [1000, 1, 1], [2, 1, 1]),
        ([0.25] * 4, [1, 1, 1000], [1, 1, 2]),
        ([0.7, 0.1, 0.1, 0.1], [1, 1], [1, 3]),
        ([0.2] * 5, [1], [5]),
    ],
)
def test_parts_are_dealt_by_speed(shares, speeds, dealt):
    assert dealt_parts(np.array(shares), speeds) == dealt


def test_what_cannot_be_joined(shards, tmp_path):
    partition(typed_graph(), 3, tmp_path / "shards")
    with pytest.raises(InputError, match="start 3"):
        dgl_gt.load(tmp_path / "shards")
    for dealt in ([PARTS, 0], [3], 4, ["4"]):
        with pytest.raises(InputError, match="--parts-per-rank"):
            dgl_gt.load(shards / "4", parts_per_rank=dealt)
    with pytest.raises(InputError, match="strategy is mirror"):
        dgl_gt.load(shards / "vertex", "mirror")


def loaded_by_speed(rank, paths, profile, parts_per_rank=None):
    sg, _, plan = load_fastest(paths, read_config(**SETTINGS), profile, parts_per_rank=parts_per_rank)
    return sg.manifest.get("bounds"), plan.choice.parts


def test_a_slow_rank_takes_fewer_parts(shards):
    """Rank 0 has a third of the speed of rank 1. Another cut may have another number of parts."""
    profile, four = profile_of([1.0, 3.0]), shards / str(PARTS)
    assert run_ranks(2, loaded_by_speed, [four], profile) == [([0, 1, PARTS], PARTS)] * 2
    for given, bounds in (None, [0, 1, PARTS]), ([3, 1], [0, 3, PARTS]):
        for found in run_ranks(2, loaded_by_speed, [four, shards / "2"], profile, given):
            assert found in [(bounds, PARTS), (None, 2)]


def checked_on_hosts(rank, path):
    planned_step._SAFE_SHARE = 0
    sg = dgl_gt.load(path, "mesh=2")
    check_memory(path, sg, read_config(**SETTINGS))
    return sg.strategy.is_of_use(read_figures(sg.manifest))


def test_parts_that_ranks_share_have_no_counts_of_hosts(graph, tmp_path):
    """Runs on hosts are not predicted, and not refused."""
    partition(graph, 8, tmp_path / "eight")
    assert run_ranks(4, checked_on_hosts, tmp_path / "eight") == [False] * 4
