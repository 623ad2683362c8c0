"""Cuts keep the bounds and shares that are asked for, as counts by brute force show."""

import numpy as np
import pytest
from balance_cases import allowed, graph_of

from dgl_gt.partition import load_graph, partition
from dgl_gt.partition.cuts import metis
from dgl_gt.partition.cuts.balance import make_balance
from dgl_gt.partition.cuts.edge_cut import make_edge_cut
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.graph import from_edges
from dgl_gt.partition.shards.layout import Layout

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")


def owner_of(cut):
    return np.searchsorted(cut.ptr, cut.new_ids(), side="right") - 1


def brute_loads(graph, owner, parts):
    """Return the loads of each kind as lists of K; ``train`` has one list for each split."""
    train = graph.node_data.get("train_mask")
    splits = [] if train is None else train.reshape(graph.num_nodes, -1).T
    destinations = graph.destinations().tolist()
    return {
        "nodes": [[sum(o == part for o in owner) for part in range(parts)]],
        "edges": [np.bincount([owner[d] for d in destinations], minlength=parts).tolist()],
        "train": [[int(split[owner == part].sum()) for part in range(parts)] for split in splits],
    }


def assert_kept(graph, owner, weights, bounds):
    loads = brute_loads(graph, owner, len(weights))
    for kind, bound in bounds.items():
        for of_split in loads[kind]:
            for load, weight in zip(of_split, weights):
                assert load <= allowed(weight, sum(weights), sum(of_split), bound), (kind, of_split)


@pytest.mark.parametrize(
    "bounds",
    [1.3, 1.1, {"nodes": 1.0}, {"edges": 1.05}, {"edges": 1.2, "nodes": 1.3, "train": 1.0}],
    ids=str,
)
@pytest.mark.parametrize("splits, weights", [(None, [1, 1, 1]), (3, [1, 1, 2, 2])])
def test_bounds_hold_on_random_graphs(bounds, splits, weights):
    graph = graph_of(len(weights), splits=splits)
    cut = make_edge_cut(graph, len(weights), max_imbalance=bounds, target_weights=weights)
    named = bounds if isinstance(bounds, dict) else dict.fromkeys(("nodes", "edges", "train"), bounds)
    assert_kept(graph, owner_of(cut), weights, named)


REAL = [
    ("cora", 4, 1.05, [1, 1, 1, 1]),
    ("tolokers", 4, 1.2, [1, 2, 1, 2]),  # ten splits
    ("email_enron", 2, {"nodes": 1.05, "edges": 1.05}, [1, 1]),
    ("amazon_computer", 4, 1.05, [1, 1, 2, 2]),
]


@pytest.mark.parametrize("name, parts, bounds, weights", REAL)
def test_bounds_hold_on_real_graphs(real_graph, name, parts, bounds, weights):
    """Nodes that are dealt out by degree, in a few lines, keep these bounds; a cut must keep them, too."""
    graph = load_graph(real_graph(name))
    named = bounds if isinstance(bounds, dict) else dict.fromkeys(("nodes", "edges", "train"), bounds)
    dealt, target = np.empty(graph.num_nodes, int), np.array(weights) / sum(weights)
    train = graph.node_data.get("train_mask", np.zeros(graph.num_nodes, bool)).reshape(graph.num_nodes, -1)
    order = np.lexsort((graph.in_degrees(), *train.T))
    turns = np.array([part for part in range(parts) for _ in range(weights[part])])
    dealt[order] = turns[np.arange(graph.num_nodes) % len(turns)]
    loads = np.bincount(dealt, weights=graph.in_degrees()) / graph.num_edges / target
    assert loads.max() < 1.05, "so the bound on edges can be kept"
    cut = make_edge_cut(graph, parts, max_imbalance=bounds, target_weights=weights)
    assert_kept(graph, owner_of(cut), weights, named)


def test_loads_follow_the_shares_and_figures_are_relative_to_them():
    graph = load_graph("sample:communities?nodes=2000&seed=1")
    graph.node_data["train_mask"] = np.random.default_rng(0).random((2000, 2)) < 0.3
    weights = np.array([1, 1, 2, 2])
    cut = make_edge_cut(graph, 4, target_weights=weights.tolist())
    layout, loads = Layout(graph, cut), brute_loads(graph, owner_of(cut), 4)
    assert layout.figures.shares == pytest.approx(weights / 6)
    quality = layout.quality
    for key, kind in (("node_balance", "nodes"), ("edge_balance", "edges"), ("train_balance", "train")):
        expected = max(max(np.array(split) / (sum(split) * weights / 6)) for split in loads[kind])
        assert quality[key] == pytest.approx(expected)
    steps = make_balance(graph, 4).loads(owner_of(cut))[:, 0]  # these follow the shares
    relative = steps / steps.sum() * 6 / weights
    assert relative.max() < 1.12 and relative.min() > 0.7


@pytest.mark.parametrize("source, parts", [("random", 12), ("sample:communities?nodes=2000&seed=1", 32)])
def test_no_part_is_drained(source, parts):
    """If the others may take a tenth more, one of twelve parts could lose all its nodes, and its rank would be idle."""
    graph = graph_of(0, nodes=2000, edges=20000) if source == "random" else load_graph(source)
    owner = owner_of(make_edge_cut(graph, parts))
    steps = make_balance(graph, parts).loads(owner)
    assert steps.min() > 0.49 * steps.mean()


@pytest.mark.parametrize("loops", [False, True])
def test_shares_hold_without_edges_to_cut(loops):
    """METIS has nothing to do then; the nodes are dealt out by shares."""
    ends = np.arange(40) if loops else np.zeros(0, int)
    cut = make_edge_cut(from_edges(ends, ends, 40), 2, target_weights=[1, 3])
    assert abs(np.diff(cut.ptr)[0] - 10) <= 2
    assert np.diff(make_edge_cut(from_edges(ends, ends, 40), 4).ptr).tolist() == [10] * 4


@pytest.mark.parametrize("splits", [None, 4])
def test_figures_of_training_nodes(splits, tmp_path):
    graph = graph_of(3, splits=splits)
    owner = np.random.default_rng(0).choice([0, 2], 200, p=[0.7, 0.3])
    manifest = partition(graph, 3, tmp_path / "out", owner=owner, target_weights=[3, 1, 2])
    loads = brute_loads(graph, owner, 3)
    worst = max(max(np.array(split) / (sum(split) * np.array([3, 1, 2]) / 6)) for split in loads["train"])
    assert manifest["quality"]["train_balance"] == pytest.approx(worst)
    bare = from_edges([0, 1, 2], [1, 2, 0], 4)
    assert Layout(bare, make_edge_cut(bare, 2)).quality["train_balance"] is None


def test_bounds_on_given_owners():
    graph, owner = graph_of(0), np.arange(200) % 2
    make_edge_cut(graph, 2, owner=owner, max_imbalance={"nodes": 1.0})
    owner[:60] = 0
    with pytest.raises(
        InputError, match=r"the given owner exceeds the bounds: nodes 1.30? \(part 0; bound 1.2\); raise max_imbalance"
    ):
        make_edge_cut(graph, 2, owner=owner, max_imbalance={"nodes": 1.2})
    make_edge_cut(graph, 2, owner=owner)  # nobody asked
    make_edge_cut(graph, 1, max_imbalance=1.0)


def test_more_ways_are_tried_only_where_a_bound_is_broken(monkeypatch):
    asked, original = [], metis.k_way

    def k_way(*arguments, **options):
        asked.append(options["objective"])
        return original(*arguments, **options)

    monkeypatch.setattr(metis, "k_way", k_way)
    make_edge_cut(graph_of(0), 2, max_imbalance=2.0)
    assert len(asked) == 1
    asked.clear()
    star = from_edges(np.arange(1, 30), np.zeros(29, int), 30)  # all edges lie with the hub's part
    with pytest.raises(InputError, match=r"no cut of graph into 2 parts kept .* edges 2(.00)? \(part \d; bound 1.5\)"):
        make_edge_cut(star, 2, max_imbalance={"edges": 1.5})
    assert len(asked) == 6
