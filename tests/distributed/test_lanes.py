"""One direction of an exchange under a policy, step by step, beside what each rank should have."""

import pytest
import torch
from ranks import run_ranks

from dgl_gt.comm.group import Comm
from dgl_gt.exchange.policy.policy import Mode
from dgl_gt.exchange.policy.transmission import Clock, Lane
from dgl_gt.ops.quantise import packed_bytes
from dgl_gt.partition import InputError

STEPS, COLUMNS = 9, 50  # so that packed rows end between numbers of four bytes


def rows_of(rank, step, counts):
    """The rows that a rank sends in a step, and their keys; rows change a little from step to step."""
    generator = torch.Generator().manual_seed(rank)
    base, drift = torch.randn(2, sum(counts), COLUMNS, generator=generator)
    return base + 0.1 * step * drift, torch.arange(sum(counts)) + 100 * rank


def counts_between(ranks):
    """How many rows each rank sends to each other; the last rank none."""
    return [[0 if i in (j, ranks - 1) else 1 + (i + j) % 3 for j in range(ranks)] for i in range(ranks)]


def modes_between(ranks, modes):
    """A mode for each pair, by turns."""
    return [[modes[(i + 2 * j) % len(modes)] for j in range(ranks)] for i in range(ranks)]


def send_step_by_step(rank, modes, has_feedback):
    comm = Comm()
    between = counts_between(comm.world_size)
    counts = between[rank], [row[rank] for row in between]
    lane = Lane(comm, modes_between(comm.world_size, modes), *counts, Clock(), has_feedback=has_feedback)
    found, sent = [], []
    for step in range(STEPS):
        before = comm.sent_bytes
        received = torch.empty(sum(counts[1]), COLUMNS // 2, 2)
        rows, keys = rows_of(rank, step, counts[0])
        lane.start(rows.view(-1, COLUMNS // 2, 2), keys, step, received)
        lane.wait()
        found.append(received.view(-1, COLUMNS).numpy())
        sent.append(comm.sent_bytes - before)
    lane.drain()
    return found, sent


def arrivals(ranks, modes, step):
    """What each rank has in a step, from each sender: the rows of the step in which they were sent, and the mode."""
    between, modes = counts_between(ranks), modes_between(ranks, modes)
    for receiver in range(ranks):
        pieces = []
        for sender in range(ranks):
            mode = modes[sender][receiver]
            last = step - step % mode.every
            if mode.every > 1 and last == step and step:  # it was sent now, and is awaited in the next step
                last -= mode.every
            at = sum(between[sender][:receiver])
            rows = rows_of(sender, last, between[sender])[0][at : at + between[sender][receiver]]
            pieces.append((rows, mode))
        yield pieces


MODES = {
    "exact": [Mode()],
    "stale=1": [Mode(32, 1)],
    "stale=2": [Mode(32, 2)],
    "stale=4": [Mode(32, 4)],
    "bf16": [Mode(16)],
    "int8": [Mode(8)],
    "int4": [Mode(4)],
    "stale=3,int8": [Mode(8, 3)],
    "bytes between numbers": [Mode(4), Mode()],
    "bytes between rows": [Mode(8), Mode(16)],
    "mixed": [Mode(), Mode(8), Mode(32, 2), Mode(4, 3), Mode(16)],
}


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("name", MODES)
def test_rows_arrive_when_and_as_exactly_as_the_mode_says(name, ranks):
    modes = MODES[name]
    results = run_ranks(ranks, send_step_by_step, modes, False)
    for step in range(STEPS):
        for (found, _), pieces in zip(results, arrivals(ranks, modes, step)):
            begin = 0
            for rows, mode in pieces:
                arrived = torch.from_numpy(found[step][begin : begin + len(rows)])
                begin += len(rows)
                if mode.bits == 32:
                    assert torch.equal(arrived, rows)
                elif len(rows):
                    width = (rows.amax(1, keepdim=True) - rows.amin(1, keepdim=True)).abs()
                    step_size = rows.abs() * 2**-8 if mode.bits == 16 else width / (2**mode.bits - 1)
                    assert ((arrived - rows).abs() <= 1.01 * step_size + 1e-5).all()
            assert begin == len(found[step])


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("name", MODES)
def test_bytes_are_those_of_the_rows_that_are_sent(name, ranks):
    between, modes = counts_between(ranks), modes_between(ranks, MODES[name])
    for rank, (_, sent) in enumerate(run_ranks(ranks, send_step_by_step, MODES[name], False)):
        for step in range(STEPS):
            expected = 0
            for other, mode in enumerate(modes[rank]):
                if other != rank and step % mode.every == 0:
                    expected += between[rank][other] * (
                        4 * COLUMNS if mode.bits == 32 else packed_bytes(COLUMNS, mode.bits)
                    )
            assert sent[step] == expected


@pytest.mark.parametrize("mode", [Mode(4), Mode(16), Mode(8, 2)])
def test_few_bits_of_float64_are_refused(mode):
    lane = Lane(Comm(), [[mode]], [0], [0], Clock())
    with pytest.raises(InputError, match="in 16 bits or less, but the model computes in float64"):
        lane.start(torch.zeros(0, COLUMNS, dtype=torch.float64), torch.zeros(0, dtype=torch.int64), 0, torch.zeros(0))


def same_rows_again(rank, has_feedback):
    """Send rows that do not change, in 4 bits, and add up what arrives."""
    comm = Comm()
    counts = ([0, 5], [0, 0]) if rank == 0 else ([0, 0], [5, 0])
    lane = Lane(comm, [[Mode(4)] * 2] * 2, *counts, Clock(), has_feedback=has_feedback)
    rows, keys = rows_of(0, 0, [5])
    rows, total = (rows if rank == 0 else rows[:0]), torch.zeros(5 if rank else 0, COLUMNS)
    for step in range(50):
        received = torch.empty_like(total)
        lane.start(rows, keys[: len(rows)], step, received)
        lane.wait()
        total += received
    return (total / 50).numpy()


def test_feedback_keeps_the_error_of_a_sum_as_small_as_that_of_one_step():
    rows = rows_of(0, 0, [5])[0]
    width = (rows.amax(1, keepdim=True) - rows.amin(1, keepdim=True)) / 15
    without, with_feedback = (
        (torch.from_numpy(run_ranks(2, same_rows_again, has_feedback)[1]) - rows).abs().div(width).max()
        for has_feedback in (False, True)
    )
    assert with_feedback < 3 / 50 and without > with_feedback
