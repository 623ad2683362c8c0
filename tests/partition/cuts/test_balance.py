"""Bounds and shares of parts as they are asked for: bad ones are refused, good ones are in the capacities."""

import math
import os
import re
from fractions import Fraction

import numpy as np
import pytest
from balance_cases import allowed, graph_of
from hand_made_costs import hand_made_costs

from dgl_gt.partition import partition
from dgl_gt.partition.cuts.balance import Balance, make_balance, shares, with_default_bounds
from dgl_gt.partition.cuts.edge_cut import make_edge_cut
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.figures.costs import PerCount
from dgl_gt.partition.graph import from_edges

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")


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


def test_default_bounds_are_added_where_the_user_gives_none():
    """Bounds of nodes and edges bound the steps, too."""
    graph = graph_of(0)
    for bounds, added in (({"nodes": 1.2}, ["step"]), ({"edges": 1.2}, ["step", "nodes"]), (1.2, [])):
        balance = make_balance(graph, 3, bounds)
        found = with_default_bounds(balance, "step", "nodes")
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
    ({}, "bounds nothing; name one or more of nodes, edges, train"),
    ({"edge": 1.1}, "bounds 'edge'; name one or more of nodes, edges, train"),
    ({"edges": 1.1, 7: 1.2}, "bounds 7"),
    ({"edges": 0.5}, "is 0.5 for edges"),
    ({"edges": None}, "is None for edges"),
]


@pytest.mark.parametrize("bounds, message", BAD_BOUNDS, ids=[str(bounds) for bounds, _ in BAD_BOUNDS])
def test_bad_bounds_are_refused(bounds, message):
    with pytest.raises(InputError, match=message):
        make_balance(graph_of(0), 2, bounds)


BAD_WEIGHTS = [[1, 2], [1, 2, 3, 4], [], 5, [[1, 1, 1]], [1, 0, 2], [1, -1, 2], [1, float("nan"), 2]]
BAD_WEIGHTS += [[1, float("inf"), 2], [1, None, 2], ["a", 1, 2], [1, [2, 3], 4], "1,2,3", [1j, 1, 1]]


@pytest.mark.parametrize("weights", BAD_WEIGHTS, ids=map(str, BAD_WEIGHTS))
def test_bad_weights_are_refused(weights):
    message = re.escape(f"target_weights are {weights!r}; they must be 3 positive numbers")
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
