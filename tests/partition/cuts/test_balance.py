"""Bounds and shares of parts: bad ones are refused, good ones are kept, and counts by brute force agree."""

import json
import math
import os
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hand_made_costs import hand_made_costs

from partition import load_graph, partition
from partition.cli import main
from partition.cuts import metis
from partition.cuts.balance import Balance, make_balance, shares, with_default_bounds
from partition.cuts.edge_cut import make_edge_cut
from partition.errors import InputError
from partition.graph import from_edges
from partition.predict.costs import PerCount
from partition.shards.layout import Layout

SAMPLE = "sample:communities?nodes=400&seed=1"


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # the order of rows inside parts is not looked at here, and takes a child process each time
    monkeypatch.setattr(metis, "clusters", lambda adjacency, owner, *_, **__: np.zeros(len(owner), np.int64))


def graph_of(seed, nodes=200, edges=1500, splits=None):
    """Return a random graph with isolated nodes, self-loops, parallel edges and training masks, (N,) or (N, splits)."""
    rng = np.random.default_rng(seed)
    src, dst = rng.integers(0, nodes - 5, (2, edges))
    dst[:30] = src[:30]
    src[30:40], dst[30:40] = src[40:50], dst[40:50]
    mask = rng.random((nodes, splits) if splits else nodes) < 0.3
    return from_edges(src, dst, nodes, {"train_mask": mask}, name="random")


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


def allowed(weight, total_weight, total, bound):
    """Return the most that a part may take, in exact arithmetic: share times bound, or the share rounded up."""
    share = Fraction(weight, total_weight) * total
    return max(share * Fraction(str(bound)), math.ceil(share))


def assert_kept(graph, owner, weights, bounds):
    loads = brute_loads(graph, owner, len(weights))
    for kind, bound in bounds.items():
        for of_split in loads[kind]:
            for load, weight in zip(of_split, weights):
                assert load <= allowed(weight, sum(weights), sum(of_split), bound), (kind, of_split)


# ---- what is asked for -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("owned", "edges"), [(0.0, 2.0), (3.0, 0.0), (5.0, 0.25), (0.0, 0.0)])
def test_without_a_bound_a_cut_aims_at_even_steps(owned, edges):
    """A node weighs what its row and its in-edges cost, about a thousand on average."""
    graph = graph_of(0)
    costs = hand_made_costs(compute_s=PerCount(owned=owned, edges=edges, copies=9.0))
    balance = make_balance(graph, 4, costs=costs)
    assert balance.kinds == ("step",) and balance.bounds.tolist() == [1.03] and not balance.is_strict
    assert balance.shares.tolist() == [0.25] * 4
    expected = owned + edges * graph.in_degrees()
    expected = 1000 * expected / expected.mean() if expected.any() else np.ones(graph.num_nodes)
    np.testing.assert_allclose(balance.weights[:, 0], np.maximum(expected, 1), atol=0.5)  # METIS refuses 0


def test_steps_are_even_where_nodes_or_edges_alone_are_bounded():
    """Bounds of both bound the steps, too."""
    graph = graph_of(0)
    for bounds, added in (({"nodes": 1.2}, ["step"]), ({"edges": 1.2}, ["step", "nodes"]), (1.2, [])):
        balance = make_balance(graph, 3, bounds)
        found = with_default_bounds(balance, nodes=True)
        assert list(found.kinds) == [*balance.kinds, *added]
        assert found.bounds.tolist() == [*balance.bounds, *({"step": 1.03, "nodes": 1.1}[kind] for kind in added)]


@pytest.mark.parametrize("splits", [None, 1, 3])
def test_a_number_bounds_all_kinds_and_every_split(splits):
    graph = graph_of(0, splits=splits)
    balance = make_balance(graph, 3, 1.25)
    assert balance.kinds == ("nodes", "edges") + ("train",) * (splits or 1)
    assert balance.is_strict and balance.bounds.tolist() == [1.25] * len(balance.kinds)
    assert balance.weights.dtype == np.int64 and balance.weights.flags.c_contiguous
    assert (balance.weights[:, 2:] == graph.node_data["train_mask"].reshape(200, -1)).all()


def test_a_number_on_a_graph_without_masks_and_a_name_on_one():
    graph = from_edges([0, 1, 2], [1, 2, 0], 4)
    assert make_balance(graph, 2, 1.5).kinds == ("nodes", "edges")
    with pytest.raises(InputError, match="bounds 'train', but graph has no train_mask"):
        make_balance(graph, 2, {"train": 1.5})


def test_each_kind_has_its_bound():
    balance = make_balance(graph_of(0, splits=2), 2, {"train": 1.5, "nodes": 2})
    assert balance.kinds == ("train", "train", "nodes") and balance.bounds.tolist() == [1.5, 1.5, 2]


@pytest.mark.parametrize("bound", [np.float64(1.5), np.float32(1.5), np.int64(2), 2])
def test_numbers_of_numpy_are_numbers(bound):
    assert make_balance(graph_of(0), 2, bound).bounds.tolist() == [float(bound)] * 3


BAD_BOUNDS = [
    (0.99, "max_imbalance is 0.99 for nodes"),
    (0, "is 0 for nodes"),
    (-1.5, "is -1.5"),
    (float("nan"), "is nan"),
    (float("inf"), "is inf"),
    (True, "is True"),
    ("1.2", "is '1.2'"),
    ([1.1], r"is \[1.1\]"),
    ({}, "bounds nothing; allowed: nodes, edges, train"),
    ({"edge": 1.1}, "bounds 'edge'; allowed: nodes, edges, train"),
    ({"edges": 1.1, 7: 1.2}, "bounds 7"),
    ({"edges": 0.5}, "is 0.5 for edges"),
    ({"edges": None}, "is None for edges"),
]


@pytest.mark.parametrize("bounds, message", BAD_BOUNDS, ids=[str(bounds) for bounds, _ in BAD_BOUNDS])
def test_bad_bounds_are_refused(bounds, message):
    with pytest.raises(InputError, match=message):
        make_balance(graph_of(0), 2, bounds)


BAD_WEIGHTS = [
    ([1, 2], "are 2 numbers; they must be a list of 3 numbers"),
    ([1, 2, 3, 4], "are 4 numbers"),
    ([], "are 0 numbers"),
    (5, r"have the shape \(\)"),
    ([[1, 1, 1]], r"have the shape \(1, 3\); they must be a list of 3 numbers"),
    ([1, 0, 2], "hold 0;"),
    ([1, -1, 2], "hold -1;"),
    ([1, float("nan"), 2], "hold nan"),
    ([1, float("inf"), 2], "hold inf"),
    ([1, None, 2], "hold nan"),
    (["a", 1, 2], "must be 3 positive numbers"),
    ([1, [2, 3], 4], "must be 3 positive numbers"),
    ("1,2,3", "must be 3 positive numbers"),
    ([1j, 1, 1], "must be 3 positive numbers"),
]


@pytest.mark.parametrize("weights, message", BAD_WEIGHTS, ids=[str(weights) for weights, _ in BAD_WEIGHTS])
def test_bad_weights_are_refused(weights, message):
    with pytest.raises(InputError, match=message):
        shares(3, weights)
    with pytest.raises(InputError, match=message):
        partition(graph_of(0), 3, "out", target_weights=weights)
    assert os.listdir() == []


def test_shares_are_proportions():
    assert shares(4).tolist() == [0.25] * 4
    assert shares(3, (2, 4, 2)).tolist() == shares(3, np.array([1, 2, 1], np.int8)).tolist() == [0.25, 0.5, 0.25]
    assert shares(1, [0.3]).tolist() == [1.0]
    for scale in (1e-300, 1e300, 1e308):
        assert shares(2, [scale, scale]).tolist() == [0.5, 0.5]


def test_a_share_too_small_for_a_number_is_refused():
    with pytest.raises(InputError, match="target_weights"):
        shares(2, [1e-320, 1e300])


@pytest.mark.parametrize("bound", [1.0, 1.03, 1.1, 1.5, 3])
def test_capacities_are_shares_times_bounds(bound):
    """A rounding error of a share must not let a part take a whole unit more than exact arithmetic does."""
    for parts, total in ((1, 7), (2, 9), (3, 9), (4, 2), (7, 1000), (75, 525), (75, 1050), (6, 1411), (4, 2805)):
        weights = {6: [5, 1, 3, 3, 2, 3], 4: [5, 3, 5, 4]}.get(parts, [1] * parts)
        balance = Balance(
            ("nodes",),
            np.ones((total, 1), np.int64),
            shares(parts, weights),
            np.array([bound]),
            True,
            np.ones(total, np.int64),
        )
        for room, weight in zip(balance.capacities()[:, 0].tolist(), weights):
            most = math.floor(allowed(weight, sum(weights), total, bound))
            assert min(most - 1, total) <= room <= most
            assert room >= Fraction(weight * total, sum(weights))


@pytest.mark.parametrize("bound", [10, 1e6, 1e18, 1e300])
def test_a_bound_that_bounds_nothing_is_kept_by_any_cut(bound):
    balance = make_balance(graph_of(0), 2, bound)
    assert balance.largest_load(np.zeros(200, int)) <= 1
    assert make_edge_cut(graph_of(0), 2, max_imbalance=bound).parts == 2


def test_excess_and_its_words():
    graph = from_edges([0, 1, 2, 3], [1, 1, 1, 0], 8, {"train_mask": np.arange(8) < 2}, name="tiny")
    balance = make_balance(graph, 2, {"nodes": 1.5, "edges": 1.5, "train": 1.0})
    owner = np.array([0, 0, 0, 0, 0, 1, 1, 1])
    assert balance.loads(owner).tolist() == [[5, 4, 2], [3, 0, 0]]
    assert balance.capacities().tolist() == [[6, 3, 1], [6, 3, 1]]
    assert balance.largest_load(owner) == 2.0
    words = balance.exceeded_bounds(owner).replace("2.00", "2")
    assert words == "edges 2 (part 0; bound 1.5), train 2 (part 0; bound 1)"


# ---- what is kept ------------------------------------------------------------------------------------------------


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
    quality = layout.quality.as_dict()
    for key, kind in (("node_balance", "nodes"), ("edge_balance", "edges"), ("train_balance", "train")):
        expected = max(max(np.array(split) / (sum(split) * weights / 6)) for split in loads[kind])
        assert quality[key] == pytest.approx(expected)
    assert quality["edge_balance"] < 1.12
    assert (np.array(loads["edges"][0]) / graph.num_edges * 6 / weights).min() > 0.7


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
    assert Layout(bare, make_edge_cut(bare, 2)).quality.train_balance is None


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


# ---- on the command line -----------------------------------------------------------------------------------------


def run(*options, parts=4):
    return main(["partition", SAMPLE, "--parts", str(parts), "--out", "shards", "--json", *options])


def test_weights_in_a_list_and_in_files(capsys):
    Path("lines.txt").write_text("1\n1\n2\n2\n")
    Path("commas.csv").write_text("1, 1,2,2\n")
    found = []
    for given in (" 1, 1, 2 2", "0.5,0.5,1,1e0", "lines.txt", "commas.csv"):
        assert run("--force", "--target-weights", given) == 0
        manifest = json.loads(Path("shards/manifest.json").read_text())
        assert manifest["shares"] == pytest.approx([1 / 6, 1 / 6, 1 / 3, 1 / 3])
        found.append((manifest["ptr"], manifest["quality"]))
    assert all(each == found[0] for each in found)


def test_as_many_weights_as_there_may_be_parts(capsys):
    """A long list is not taken for a file name, although no file name may be so long."""
    assert run("--target-weights", ",".join(["1.0"] * 70), parts=70) == 0
    assert json.loads(capsys.readouterr().out)["parts"] == 70


@pytest.mark.parametrize("bounds", ["1.4", "edges=1.3,nodes=1.4,train=1.6", " nodes = 1.5 , edges = 1.3 "])
def test_bounds_on_the_command_line(capsys, bounds):
    assert run("--max-imbalance", bounds) == 0
    quality = json.loads(capsys.readouterr().out)["quality"]
    assert quality["edge_balance"] <= 1.4 and quality["node_balance"] <= 1.5


REFUSED = [
    (["--target-weights", "1,2,3"], "3 numbers; they must be a list of 4"),
    (["--target-weights", "1,0,1,1"], "hold 0"),
    (["--target-weights", "1,nan,1,1"], "hold nan"),
    (["--target-weights=-1,1,1,1"], "hold -1"),
    (["--target-weights", "a,1,1,1"], "--target-weights: 'a'"),
    (["--target-weights", "nowhere.txt"], "'nowhere.txt' is not a number, and 'nowhere.txt' is not a readable file"),
    (["--target-weights", ""], "0 numbers"),
    (["--max-imbalance", "0.9"], "is 0.9"),
    (["--max-imbalance", "nan"], "is nan"),
    (["--max-imbalance", "much"], "--max-imbalance: 'much'"),
    (["--max-imbalance", ""], "--max-imbalance"),
    (["--max-imbalance", "edge=1.1"], "'edge'; allowed: nodes, edges, train"),
    (["--max-imbalance", "edges=1.1,nodes"], "--max-imbalance"),
    (["--max-imbalance", "edges="], "--max-imbalance: ''"),
    (["--max-imbalance", "edges=1.1,edges=1.2"], "names a kind twice"),
    (["--max-imbalance", "edges=1.1, edges=1.2"], "names a kind twice"),
    (
        ["--max-imbalance", "1.1", "--cut", "vertex"],
        "--max-imbalance applies only to edge cuts; leave it out, or choose --cut edge",
    ),
    (
        ["--target-weights", "1,1,1,1", "--cut", "auto"],
        "--target-weights applies only to edge cuts; leave it out, or choose --cut edge",
    ),
    (["--attempts", "0"], "--attempts is 0; it must be a whole number from 1 to 10,000"),
]


@pytest.mark.parametrize("options, message", REFUSED, ids=[" ".join(options) for options, _ in REFUSED])
def test_refused_on_the_command_line(capsys, options, message):
    assert run(*options) == 2
    out, err = capsys.readouterr()
    assert out == "" and message in err and "Traceback" not in err
    assert os.listdir() == []


def test_a_wrong_bound_does_not_speak_of_files(capsys):
    """Bounds are never read from a file."""
    assert run("--max-imbalance", "much") == 2
    assert "file" not in capsys.readouterr().err


def test_a_bound_that_cannot_be_kept_leaves_nothing(capsys):
    Path("star.txt").write_text("".join(f"{i} 0\n" for i in range(1, 30)))
    arguments = ["partition", "star.txt", "--parts", "2", "--out", "shards", "--max-imbalance", "edges=1.5"]
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == "" and "the best has edges 2 (part" in err.replace("2.00", "2") and "bound 1.5" in err
    assert os.listdir() == ["star.txt"]
