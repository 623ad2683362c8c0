"""The search of a policy's modes, beside all assignments on small problems."""

from itertools import product

import numpy as np
import pytest

from dgl_gt.exchange.policy.policy import Mode, Policy, Rule
from dgl_gt.plan.exchanges_of_policies import Exchange
from dgl_gt.plan.policy_search import MODES, Place, by_links, choose_modes, places, policy_of_modes

FULL = MODES[0]


def problem(seed, count):
    """Places, what each mode loses, and seconds that depend on how many bytes all places send."""
    rng = np.random.default_rng(seed)
    found = [Place(number // 2, ("rows", "gradients")[number % 2]) for number in range(count)]
    losses = {place: {mode: float(rng.exponential(0.2)) for mode in MODES[1:]} for place in found}
    weights = dict(zip(found, rng.uniform(0.1, 3, count)))

    def seconds(policy):
        sent = 0.0
        for place in found:
            mode = policy.mode(place.layer, place.direction, 0, 1)
            sent += weights[place] * mode.bits / 32 / mode.every
        return max(0.3, sent)

    return found, losses, seconds


@pytest.mark.parametrize("max_loss", [0.05, 0.3, 10.0])
@pytest.mark.parametrize("seed", range(8))
def test_no_other_assignment_is_much_quicker(seed, max_loss):
    found, losses, seconds = problem(seed, 3)
    modes = choose_modes(seconds, losses, max_loss)
    lost = sum(losses[place].get(mode, 0.0) for place, mode in modes.items())
    assert lost <= max_loss
    best = min(
        seconds(policy_of_modes(dict(zip(found, each))))
        for each in product(MODES, repeat=len(found))
        if sum(losses[place].get(mode, 0.0) for place, mode in zip(found, each)) <= max_loss
    )
    assert seconds(policy_of_modes(modes)) <= 1.02 * best


def test_where_seconds_do_not_change_nothing_is_lost():
    found, losses, _ = problem(0, 4)
    start = dict.fromkeys(found, MODES[3])
    assert choose_modes(lambda policy: 1.0, losses, 100.0, [start]) == dict.fromkeys(found, FULL)


def test_a_start_beyond_the_bound_is_left_out():
    found, losses, seconds = problem(1, 2)
    losses = {place: dict.fromkeys(each, 1.0) for place, each in losses.items()}
    assert choose_modes(seconds, losses, 0.5, [dict.fromkeys(found, MODES[2])]) == dict.fromkeys(found, FULL)


def exchange(layer, direction, columns=64):
    return Exchange(layer, direction, columns, 4, np.ones((3, 3), int) - np.eye(3, dtype=int))


def test_places_are_layers_directions_and_kinds_of_links():
    exchanges = [exchange(0, "rows"), exchange(0, "gradients"), exchange(1, "rows"), exchange(1, "rows", columns=8)]
    alike = np.full((3, 3), 1e8)
    assert places(exchanges, alike) == [Place(0, "gradients"), Place(0, "rows"), Place(1, "rows")]
    links = alike.copy()
    links[2, 0] = 1e7  # into rank 2 from rank 0
    found = places(exchanges, links)
    assert len(found) == 6 and found[1].peers == ((0, 2),) and (2, 0) in found[0].peers
    policy = policy_of_modes({found[1]: Mode(4), found[0]: FULL})
    assert policy.mode(0, "gradients", 0, 2) == Mode(4) and policy.mode(0, "gradients", 2, 0) == FULL


def test_links_are_grouped_by_their_speed():
    """Of the six links into ranks, four are 2, 3, 7 and 50 times as slow as the other two."""
    links = np.full((3, 3), 1e8)
    for (into, other), times in {(0, 1): 2, (1, 0): 3, (0, 2): 7, (2, 0): 50}.items():
        links[into, other] = 1e8 / times
    found = places([exchange(0, "rows")], links)
    assert [set(each.peers) for each in found] == [{(1, 0), (1, 2), (2, 1)}, {(0, 1)}, {(2, 0)}, {(0, 2)}]


def test_one_mode_for_all_is_one_rule():
    found, *_ = problem(0, 4)
    assert policy_of_modes(dict.fromkeys(found, Mode(8))) == Policy((Rule(Mode(8)),))


@pytest.mark.parametrize(
    ("ratio", "bits"), [(0.1, 32), (1.0, 32), (1.3, 32), (1.9, 16), (4.0, 8), (5.0, 8), (8.0, 4), (1e6, 4)]
)
def test_bits_by_links(ratio, bits):
    place = Place(0, "rows")
    assert by_links({place: 0.25 * ratio}, 0.25) == {place: Mode(bits)}
