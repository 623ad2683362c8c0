"""Parts on ranks: the predicted step by hand, every order as an oracle, and the search by swaps."""

import itertools

import numpy as np
import pytest
from hand_made_costs import hand_made_costs
from hand_made_figures import edge_figures, vertex_figures
from msgspec.structs import replace
from unequal_ranks import profile_of, slow_pair, two_hosts

from dgl_gt.partition.figures import mapping
from dgl_gt.partition.figures.costs import PerCount
from dgl_gt.partition.figures.mapping import best_mapping


def random_figures(seed, parts, cut="edge"):
    """Figures of random counts, in which rows, copies and rows sent agree."""
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, 5000, (parts, parts)) * rng.integers(0, 2, (parts, parts))
    np.fill_diagonal(rows, 0)
    owned, edges = rng.integers(100, 9000, (2, parts))
    copies, sent = rows.sum(axis=1), rows.sum(axis=0)
    if cut == "edge":
        columns = (each[:, None] for each in (edges, copies, sent))
        return edge_figures(owned, *columns, received_rows=rows)
    returned = np.minimum(rng.integers(0, 5000, parts), copies)
    return vertex_figures(owned, edges, copies, sent, returned, sent // 2, received_rows=rows)


def random_profile(seed, ranks):
    rng = np.random.default_rng(seed)
    return profile_of(rng.choice([1.0, 2.0, 5.0], ranks), rng.choice([1e7, 1e8, 1e9], (ranks, ranks)))


def renumbered(figures, ranks):
    """The figures of the same cut with part p called ``ranks[p]``."""
    parts = np.argsort(ranks)
    names = ("owned", "edges_by_hop", "copies_by_hop", "sent_by_hop", "returned", "returns", "cut_edges", "shares")
    changed = {name: getattr(figures, name)[parts] for name in names}
    return type(figures)(**vars(figures) | changed | {"received_rows": figures.received_rows[np.ix_(parts, parts)]})


def test_seconds_on_ranks_and_links_by_hand():
    """Part 0 receives 3 rows forward and the gradients of 2 backward, all of 16 bytes."""
    figures = edge_figures([4, 8], [[10], [14]], [[3], [2]], [[2], [3]], received_rows=[[0, 3], [2, 0]])
    profile = profile_of((1.0, 0.5), [[1, 4.0], [2.0, 1]])
    costs = hand_made_costs(compute_s=PerCount(owned=1.0), calls=0.0)
    slowness = profile.row_seconds(2) / costs.row_s
    assert slowness[1] == pytest.approx(2 * slowness[0])
    exchange = max((3 + 2) * 16 / 4.0, (2 + 3) * 16 / 2.0)
    assert costs.step_seconds(figures, profile) == pytest.approx(max(4 * slowness[0], 8 * slowness[1]) + exchange)
    called = replace(costs, edge=replace(costs.edge, calls=6.0, sum_s=0.5))
    more = costs.step_seconds(figures, profile) + 6 * profile.latency_s + 0.5
    assert called.step_seconds(figures, profile) == pytest.approx(more)


@pytest.mark.parametrize("cut", ["edge", "vertex"])
@pytest.mark.parametrize("seed", range(3))
def test_received_bytes_are_those_that_are_sent(seed, cut):
    figures, costs = random_figures(seed, 5, cut), hand_made_costs()
    received = costs.received_bytes(figures)
    assert not received.diagonal().any()
    results = 24 * (2 * figures.returned.sum() - figures.returned.sum() - figures.returns.sum())
    assert received.sum() == pytest.approx(costs.sent_bytes(figures) + results), "results travel once each way"


@pytest.mark.parametrize("cut", ["edge", "vertex"])
@pytest.mark.parametrize("parts", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("seed", range(4))
def test_the_best_of_all_orders(seed, parts, cut):
    figures, profile = random_figures(seed, parts, cut), random_profile(seed, parts)
    costs = hand_made_costs()
    orders = [np.array(order) for order in itertools.permutations(range(parts))]
    seconds = [costs.step_seconds(renumbered(figures, order), profile) for order in orders]
    found = best_mapping(figures, costs, profile)
    assert found.search == "all orders" and sorted(found.rank_of_part) == list(range(parts))
    assert found.unmapped_s == pytest.approx(seconds[0])
    assert found.predicted_s == found.mapped_s == pytest.approx(min(seconds))
    assert costs.step_seconds(renumbered(figures, found.rank_of_part), profile) == pytest.approx(min(seconds))


@pytest.mark.parametrize("parts", [1, 4, 6])
def test_equal_ranks_and_links_leave_parts_where_they_are(parts):
    found = best_mapping(random_figures(0, parts), hand_made_costs(), profile_of([1.0] * parts))
    assert found.rank_of_part == list(range(parts)) and found.mapped_s == found.unmapped_s
    assert found.shares == "equal" and found.profile == "by hand"


@pytest.mark.parametrize("seed", range(6))
def test_swaps_come_near_the_best_order(seed, monkeypatch):
    figures, profile, costs = random_figures(seed, 6), random_profile(seed, 6), hand_made_costs()
    best = best_mapping(figures, costs, profile)
    monkeypatch.setattr(mapping, "MAX_EXACT", 1)
    found = best_mapping(figures, costs, profile)
    assert found.search == "swaps" and sorted(found.rank_of_part) == list(range(6))
    assert best.predicted_s <= found.predicted_s * (1 + 1e-9) and found.predicted_s <= 1.05 * best.predicted_s
    assert costs.step_seconds(renumbered(figures, found.rank_of_part), profile) == pytest.approx(found.predicted_s)


@pytest.mark.parametrize("seed", range(3))
def test_terms_after_swaps_are_those_of_swapped_ranks(seed):
    figures, profile = random_figures(seed, 6), random_profile(seed, 6)
    problem = mapping._Problem.of(figures, hand_made_costs(), profile)
    ranks = np.random.default_rng(seed).permutation(6)
    for part, other in itertools.product(range(6), repeat=2):
        swapped = ranks.copy()
        swapped[[part, other]] = swapped[[other, part]]
        found = [term[other] for term in mapping._after_swaps(problem, ranks, part)]
        np.testing.assert_allclose(found, problem.terms(swapped))


@pytest.mark.parametrize("parts", [8, 16])
def test_parts_with_heavy_traffic_share_a_host(parts):
    """The first half of the parts exchange rows, and so does the second; ranks alternate between two hosts."""
    half = np.arange(parts) < parts // 2
    rows = np.where(half[:, None] == half[None], 1000, 1) * (1 - np.eye(parts, dtype=int))
    column = np.full((parts, 1), rows.sum(axis=1)[0])
    figures = edge_figures([100] * parts, column, column, column, received_rows=rows)
    found = best_mapping(figures, hand_made_costs(), profile_of([1.0] * parts, two_hosts(parts)))
    hosts = np.array(found.rank_of_part) % 2
    assert len(set(hosts[half])) == 1 and len(set(hosts[~half])) == 1
    assert found.predicted_s < found.unmapped_s


def test_the_lightest_pair_gets_the_slow_link_and_the_large_part_the_fast_rank():
    rows = np.array([[0, 9, 9, 9], [9, 0, 9, 9], [9, 9, 0, 0], [9, 9, 0, 0]]) * 1000
    column = rows.sum(axis=1)[:, None]
    figures = edge_figures([10] * 4, column, column, column, received_rows=rows)
    found = best_mapping(figures, hand_made_costs(), profile_of([1.0] * 4, slow_pair(4, 0, 1)))
    assert {found.rank_of_part[2], found.rank_of_part[3]} == {0, 1}
    large = edge_figures([9000, 10, 10, 10], column, column, column, received_rows=0 * rows)
    assert best_mapping(large, hand_made_costs(), profile_of([1, 1, 4.0, 1])).rank_of_part[0] == 2


def test_a_part_goes_where_it_fits():
    figures = edge_figures([1000, 10], [[0], [0]], [[0], [0]], [[0], [0]])
    costs, process = hand_made_costs(), profile_of().process_bytes
    memory = [process + 20_000.0, process + 2e9]
    assert best_mapping(figures, costs, profile_of((4.0, 1.0), memory_bytes=memory)).rank_of_part == [1, 0]
    assert best_mapping(figures, costs, profile_of((4.0, 1.0))).rank_of_part == [0, 1]
