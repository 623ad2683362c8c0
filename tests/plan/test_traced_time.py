"""How long a trace takes on given ranks, for traces of one event each."""

from dataclasses import replace

import numpy as np
import pytest
from hand_made_figures import edge_figures
from selector_cases import half_speed, profile_values, write_profile

from dgl_gt.partition.figures.figures import HostCounts
from dgl_gt.partition.figures.strategies import ONE, Count
from dgl_gt.plan import read_profile
from dgl_gt.plan.trace import Event, Trace, traced_time

FIGURES = edge_figures(owned=[10, 30], edges=[[100], [200]], halo=[[4], [2]], sent=[[2], [4]])
FIGURES = replace(FIGURES, received_rows=np.array([[0, 4], [2, 0]]))


@pytest.fixture
def seconds(tmp_path):
    """A function: events with their sizes per owned row, and a profile -> the time of the trace."""

    def call(*events, values=None, given_back=np.inf, **changes):
        profile = read_profile(write_profile(tmp_path / "p.yaml", values or profile_values(operation_s=0.0, **changes)))
        sizes = np.array([size for _, of_event in events for size in of_event], float)
        sizes = np.stack([0 * sizes, sizes])
        event_of = np.repeat(np.arange(len(events)), [len(of_event) for _, of_event in events])
        trace = Trace((ONE, Count("owned")), tuple(event for event, _ in events), event_of, sizes, np.zeros(2))
        return traced_time(trace, FIGURES, profile, given_back=given_back)

    return call


def test_each_kind_has_its_rate(seconds):
    """30 rows of the slowest rank: bytes of two kinds, and operations."""
    assert seconds((Event("rows", ("aten::gelu",)), [100])).rows_s == pytest.approx(30 * 100 / 1e10)
    for name in ("aten::add_.Tensor", "aten::index_select", "aten::sum.dim_IntList"):
        assert seconds((Event("rows", (name,)), [100])).rows_s == pytest.approx(30 * 100 / 2e10)
    constant = (Event("product", ("aten::mm", 4)), [1000, 1, 1, 1])
    assert seconds(constant).products_s == pytest.approx(30 * 1000 / 1e11)  # no dimension is the same on all parts
    passes = (Event("edges", (4, 8, 4, 3)), [5, 1, 1])
    per_edge = 1e-9 + 4 * 1e-10 + 32 * 2e-10
    assert seconds(passes).attention_s == pytest.approx(30 * (5 * per_edge + 32 * 1e-11))
    assert seconds((Event("product", ("aten::mm", 2)), [1000, 1, 1, 1])).products_s == pytest.approx(30 * 1000 / 2e11)
    in_bf16 = seconds((Event("edges", (4, 8, 2, 3)), [5, 1, 1]))
    assert in_bf16.attention_s == pytest.approx(30 * (5 * per_edge / 2 + 32 * 1e-11))
    assert seconds((Event("sum"), [8])).gradients_s == pytest.approx(240 / 1e9 + 1e-5)


def test_large_blocks_that_are_given_back_are_taken_again(seconds):
    """10 rows on rank 0, and 30 on rank 1; what is freed takes no time, and small blocks stay."""
    events = (Event("memory"), [8]), (Event("memory"), [-8]), (Event("memory"), [4])
    for given_back, taken in ((np.inf, 0), (1, 360), (240, 240), (241, 0)):
        assert seconds(*events, given_back=given_back, page_byte_s=1e-9).total_s == pytest.approx(taken * 1e-9)


def test_small_blocks_of_a_piece_leave_a_hole_for_a_large_one(seconds):
    """On rank 1 a block of 240 bytes, and blocks of 120; those of another piece do not count."""
    large, small, piece = (Event("memory"), [8]), (Event("memory"), [4]), (Event("piece"), [])
    for events, taken in (
        ((large, small), 240),
        ((large, small, small, small), 0),
        ((large, piece, small, small, small), 240),
    ):
        assert seconds(*events, given_back=200, page_byte_s=1e-9).total_s == pytest.approx(taken * 1e-9)


def test_near_edges_have_their_own_rate(tmp_path):
    """Half of rank 0's edges are near, and a quarter of rank 1's; edges that are not counted are not guessed."""
    profile = read_profile(write_profile(tmp_path / "p.yaml", profile_values(operation_s=0.0)))
    trace = Trace(
        (Count("edges"),), (Event("edges", (4, 8, 4, 3)),), np.zeros(3, int), np.array([[1.0, 0, 1]]), np.zeros(1)
    )
    near = replace(FIGURES, near_edges=np.array([50, 50]))
    fixed = 1e-9 + 4 * 1e-10
    assert traced_time(trace, near, profile).total_s == pytest.approx(200 * (fixed + 32 * (0.25e-10 + 0.75 * 2e-10)))
    with pytest.raises(ValueError, match="near edges are not counted in these figures"):
        traced_time(trace, replace(FIGURES, near_edges=None), profile)


def test_unequal_links(seconds):
    """Rank 0 receives at 4 bytes a second, and rank 1 at 8; each sends and receives as much."""
    exchange = (Event("begin"), [1, 1]), (Event("wait"), [])
    links = [[1e9, 4.0], [8.0, 1e9]]
    found = seconds(*exchange, link_bytes_per_s=links, latency_s=0.0, overlap=0.0)
    assert found.exchange_s == pytest.approx(max(10 / 4, 30 / 8))
    assert seconds(*exchange, link_bytes_per_s=[[1e9, 2.0], [8.0, 1e9]], latency_s=0.0).exchange_s == pytest.approx(5)


def test_an_exchange_with_the_next_rank_takes_its_link(tmp_path):
    """Of three ranks; rows come from the rank before, whatever other links do."""
    figures = edge_figures([10] * 3, [[9]] * 3, [[4]] * 3, [[4]] * 3)
    figures = replace(figures, received_rows=np.full((3, 3), 2))
    for from_before, other in ((5.0, 1e-3), (1e-3, 5.0)):
        links = [[1e9 if i == j else from_before if j == (i - 1) % 3 else other for j in range(3)] for i in range(3)]
        values = profile_values(3, link_bytes_per_s=links, latency_s=0.0, overlap=0.0)
        profile = read_profile(write_profile(tmp_path / "p.yaml", values))
        events = Event("begin", (1,)), Event("wait")
        trace = Trace((ONE,), events, np.zeros(2, int), np.array([[20.0, 20.0]]), np.zeros(1))
        assert traced_time(trace, figures, profile).exchange_s == pytest.approx(20 / from_before)


def test_exchanges_within_and_between_hosts_take_their_links(tmp_path):
    """Of two hosts of two ranks: rank 3 receives from rank 2 within its host, and from rank 1 of the other one."""
    figures = edge_figures([10] * 4, [[9]] * 4, [[4]] * 4, [[4]] * 4)
    host = HostCounts(np.array([[0, 3], [3, 0]]), np.array([5, 5]))
    figures = replace(figures, received_rows=np.full((4, 4), 2), hosts={2: host})
    links = np.full((4, 4), 1e9)
    links[3, 2], links[3, 1], links[3, 0] = 5.0, 8.0, 1e-3
    values = profile_values(4, link_bytes_per_s=links.tolist(), latency_s=0.0, overlap=0.0)
    profile = read_profile(write_profile(tmp_path / "p.yaml", values))
    for where, speed in (("within", 5.0), ("between", 8.0)):
        events = Event("begin", (where, 2)), Event("wait")
        trace = Trace((ONE,), events, np.zeros(2, int), np.array([[20.0, 20.0]]), np.zeros(1))
        assert traced_time(trace, figures, profile).exchange_s == pytest.approx(20 / speed)


def test_every_operation_has_a_fixed_time(seconds):
    events = [(Event("rows", ("aten::gelu",)), [0]), (Event("product", ("aten::mm", 4)), [0, 0, 0, 0])]
    assert seconds(*events, values=profile_values(operation_s=0.25)).total_s == pytest.approx(0.5)


def test_the_slowest_rank_counts_until_the_next_exchange(seconds):
    """Rank 1 has three times the rows; at a third of its speed rank 0 is as slow."""
    event = (Event("rows", ("aten::gelu",)), [100])
    both = seconds(event, values=half_speed(2, slow=0) | {"operation_s": 0.0})
    assert both.rows_s == pytest.approx(30 * 100 / 1e10)
    slower = seconds(event, values=half_speed(2, slow=1) | {"operation_s": 0.0})
    assert slower.rows_s == pytest.approx(30 * 100 / 0.5e10)


@pytest.mark.parametrize(("overlap", "hidden"), [(0.0, 0.0), (0.5, 0.5), (1.0, 1.0)])
def test_what_computation_hides(seconds, overlap, hidden):
    """An exchange of 3 s beside 1 s of computation, on links of 1 GB/s."""
    exchange = (Event("begin"), [1e8, 1e8]), (Event("rows", ("aten::gelu",)), [1e10 / 30]), (Event("wait"), [])
    found = seconds(*exchange, overlap=overlap)
    assert found.exchange_s == pytest.approx(3 + 1e-5) and found.rows_s == pytest.approx(1)
    assert found.hidden_s == pytest.approx(hidden) and found.total_s == pytest.approx(4 - hidden, abs=1e-4)


@pytest.mark.parametrize(("computed_s", "seen_s"), [(1, 4), (4, 1), (9, 0)])
def test_sums_that_run_beside_all_else_share_the_link_with_exchanges(seconds, computed_s, seen_s):
    """Sums of 1 s and 2 s with an exchange of 2 s between them, of which 5 s the link does nothing else."""
    computing = Event("rows", ("aten::gelu",)), [1e10 * computed_s / 30]
    first, last = (Event("begin_sum"), [1e9 / 30]), (Event("begin_sum"), [2e9 / 30])
    exchange, waits = ((Event("begin"), [2e9 / 30] * 2), (Event("wait"), [])), [(Event("wait_sum"), [])] * 2
    found = seconds(first, exchange[0], last, computing, exchange[1], *waits, overlap=1.0, latency_s=0.0)
    assert found.total_s == pytest.approx(max(5, computed_s))
    assert found.gradients_s + found.exchange_s - found.hidden_s == pytest.approx(seen_s)
    alone = seconds(first, last, computing, *waits, overlap=0.0, latency_s=0.0)
    assert alone.gradients_s == pytest.approx(3) and alone.total_s == pytest.approx(3 + computed_s)
