"""Shards of more parts than there are ranks: neighbouring parts are one part of a rank, and all numbers stay the same."""

import numpy as np
import pytest
import torch
from ranks import run_ranks

import dgl_gt
from dgl_gt.partition import InputError, from_edges, partition, read_figures, read_manifest
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
    for parts in (1, PARTS):
        partition(graph, parts, folder / str(parts), link_split="0.6,0.2,0.2")
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


def described(rank, path):
    sg = dgl_gt.load(path)
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


@pytest.mark.parametrize("options", [{"cut": "vertex"}], ids=["vertex cut"])
def test_what_cannot_be_joined(graph, tmp_path, options):
    partition(graph, 3, tmp_path / "shards", **options)
    with pytest.raises(InputError, match="start 3"):
        dgl_gt.load(tmp_path / "shards")
