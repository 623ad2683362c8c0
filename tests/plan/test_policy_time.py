"""Seconds and bytes of a step under a policy, beside sums by hand."""

import msgspec
import numpy as np
import pytest

from dgl_gt.exchange.policy.policy import Mode, Policy, Rule
from dgl_gt.plan import read_profile
from dgl_gt.plan.exchanges_of_policies import Exchange
from dgl_gt.plan.policy_costs import PolicyCosts

LINKS = [[1e9, 2e6, 1e6], [1e6, 1e9, 1e6], [4e6, 1e6, 1e9]]  # into rank i from rank j
ROWS = np.array([[0, 10, 20], [30, 0, 40], [50, 60, 0]])  # from rank i to rank j
LATENCY_S = 1e-3


def costs(columns=64, seen=1.0, compute_s=0.5):
    profile = msgspec.structs.replace(
        read_profile(), ranks=3, link_bytes_per_s=LINKS, latency_s=LATENCY_S, stream_bytes_per_s=1e30
    )
    exchanges = [Exchange(0, "rows", columns, 4, ROWS), Exchange(0, "gradients", columns, 4, ROWS.T)]
    return PolicyCosts(exchanges, compute_s, seen, 1000, profile)


def policy(mode, **rest):
    return Policy((Rule(mode, **rest),))


def exchange_s(rows, row_bytes):
    """Of the rank whose rows take longest to arrive."""
    return max(sum(rows[j, i] * row_bytes / LINKS[i][j] for j in range(3) if j != i) for i in range(3))


@pytest.mark.parametrize(("bits", "row_bytes"), [(32, 256), (16, 128), (8, 72), (4, 40)])
@pytest.mark.parametrize("seen", [1.0, 0.3])
def test_seconds_and_bytes_of_rows_in_some_bits(bits, row_bytes, seen):
    found = costs(seen=seen)
    expected = 0.5 + seen * (exchange_s(ROWS, row_bytes) + exchange_s(ROWS.T, row_bytes) + 2 * LATENCY_S)
    assert found.seconds(policy(Mode(bits))) == pytest.approx(expected)
    assert found.sent_bytes(policy(Mode(bits))) == 2 * ROWS.sum() * row_bytes + 1000


def test_stale_rows_delay_a_step_by_what_they_take_beyond_it():
    found, stale = costs(compute_s=1.0), policy(Mode(32, 4))
    assert found.seconds(stale) == pytest.approx(1.0)
    assert found.sent_bytes(stale) == 2 * ROWS.sum() * 64 + 1000
    longer = exchange_s(ROWS, 64) + exchange_s(ROWS.T, 64)
    assert costs(compute_s=longer / 2).seconds(stale) == pytest.approx(longer)


def test_a_rule_for_one_pair_and_direction_changes_no_other():
    one = policy(Mode(4), direction="rows", peers=((2, 1),))
    assert costs().sent_bytes(one) == 2 * ROWS.sum() * 256 + 1000 - ROWS[2, 1] * (256 - 40)
    slowest = costs().seconds(one)
    assert slowest < costs().seconds(Policy())


def test_narrow_rows_travel_as_they_are():
    found = costs(columns=16)
    assert found.sent_bytes(policy(Mode(8))) == found.sent_bytes(Policy()) == 2 * ROWS.sum() * 64 + 1000
    assert found.seconds(policy(Mode(8, 4))) == found.seconds(Policy())


def test_packing_takes_time_on_fast_links():
    found = costs()
    fast = PolicyCosts(
        found.exchanges,
        0.5,
        1.0,
        0,
        msgspec.structs.replace(found.profile, stream_bytes_per_s=1e6, link_bytes_per_s=[[1e15] * 3] * 3),
    )
    assert fast.seconds(policy(Mode(8))) > fast.seconds(Policy())
