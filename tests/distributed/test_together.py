"""Ranks that fail or die, together or alone: what the others are told, and that they do not wait for good."""

import multiprocessing
import os
import pickle
import time
from functools import partial

import pytest
import ranks
import torch
import torch.distributed as dist
from failing_ranks import BOUND_S, LIMIT_S, PARTS, outcome, prepare, swap
from ranks import run_ranks

from dgl_gt.comm.failure import FailureDetector
from dgl_gt.comm.group import Comm
from dgl_gt.partition.errors import InputError


class Fault(torch.autograd.Function):
    """Fails in backward."""

    @staticmethod
    def forward(ctx, x, error):
        ctx.error = error
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        raise ctx.error


def before_an_exchange(comm, error):
    swap(comm)
    if error:
        raise error
    swap(comm)


def between_begin_and_finish(comm, error):
    counts = [1] * comm.world_size
    begun = comm.begin(torch.zeros(comm.world_size, 2), counts, counts)
    if error:
        raise error
    comm.finish(begun)
    swap(comm)


def during_backward(comm, error):
    rows = torch.ones(comm.world_size, 2, requires_grad=True)
    first, _ = swap(comm, rows)
    if error:
        first = Fault.apply(first, error)
    swap(comm, first * 2)[0].sum().backward()  # the second exchange's backward is done by all


def before_a_sum_of_gradients(comm, error):
    if error:
        raise error
    comm.sum_gradients([torch.nn.Parameter(torch.zeros(3))])


def before_a_gathering_of_rows(comm, error):
    if error:
        raise error
    comm.gather_rows(torch.zeros(comm.rank, 2))


def work_together(comm, place, error):
    with comm.together():
        place(comm, error)


PLACES = (
    before_an_exchange,
    between_begin_and_finish,
    during_backward,
    before_a_sum_of_gradients,
    before_a_gathering_of_rows,
)
ONE_FAILS = [
    *((place, 1, ValueError("it broke")) for place in PLACES),
    (before_an_exchange, 1, InputError("a bad number")),
    (during_backward, 0, InputError("a bad number")),
    (before_an_exchange, 0, ValueError("it broke")),
    (between_begin_and_finish, 2, KeyError("absent")),
]


def one_fails(rank):
    """Each in a group of its own, which it leaves unusable; all share the ranks' one store."""
    prepare()
    results = []
    for place, culprit, error in ONE_FAILS:
        comm = Comm(dist.new_group(range(PARTS)))

        results.append(outcome(partial(work_together, comm, place, error if rank == culprit else None)))
    comm = Comm(dist.new_group(range(PARTS)))
    # rank 0 is late, so that the others look for one that has stopped
    return results, outcome(lambda: swap(comm, pause_s=0.5 if rank == 0 else 0)[1])


@pytest.fixture(scope="module")
def results_of_one_failing():
    return run_ranks(PARTS, one_fails)


@pytest.mark.parametrize("number", range(len(ONE_FAILS)), ids=[f"{p.__name__}-{c}-{e!r}" for p, c, e in ONE_FAILS])
def test_where_one_rank_fails_the_others_say_why(results_of_one_failing, number):
    _, culprit, error = ONE_FAILS[number]
    is_input = isinstance(error, InputError)
    for rank, (results, _) in enumerate(results_of_one_failing):
        kind, message, seconds = results[number]
        assert seconds < BOUND_S
        if rank == culprit:
            assert (kind, message) == (type(error).__name__, str(error))
        elif is_input:
            assert (kind, message) == ("RankInputError", f"rank {culprit}: {error}")
        else:
            assert (kind, message) == ("RankError", f"rank {culprit} stopped: {type(error).__name__}: {error}")


def test_nothing_is_left_behind_of_ranks_that_failed(results_of_one_failing):
    """In the same processes, a new group exchanges."""
    assert [after[:2] for _, after in results_of_one_failing] == [("returned", True)] * PARTS


def several_fail(rank):
    """Ranks 0 and 1 fail while 2 waits; then all fail, of which the same group recovers."""
    prepare()
    comm = Comm(dist.new_group(range(PARTS)))

    def two_fail():
        with comm.together():
            if rank < 2:
                raise ValueError(f"rank {rank} broke")
            swap(comm)

    two = outcome(two_fail)
    comm = Comm(dist.new_group(range(PARTS)))

    def all_fail():
        with comm.together():
            swap(comm)
            raise InputError("a bad number") if rank == 1 else ValueError(f"rank {rank} broke")

    def all_refuse():
        with comm.together():
            with comm.raising_together():
                if rank == 1:
                    raise InputError("a bad number")

    every = [outcome(all_fail), outcome(all_refuse)]
    return two, every, outcome(lambda: swap(comm, pause_s=0.5 if rank == 0 else 0)[1])


def test_several_ranks_that_fail_at_once():
    """Each has its own error, and a rank that waits the error of one; a group that all left in one place goes on."""
    for rank, (two, (failed, refused), after) in enumerate(run_ranks(PARTS, several_fail)):
        assert two[2] < BOUND_S and failed[2] < BOUND_S and after[2] < BOUND_S
        if rank < 2:
            assert two[:2] == ("ValueError", f"rank {rank} broke")
        else:
            assert two[0] == "RankError"
            assert two[1] in [f"rank {other} stopped: ValueError: rank {other} broke" for other in (0, 1)]
        assert failed[:2] == (("InputError", "a bad number") if rank == 1 else ("ValueError", f"rank {rank} broke"))
        assert refused[:2] == ("InputError", "a bad number" if rank == 1 else "rank 1: a bad number")
        assert after[:2] == ("returned", True)


def one_is_late(rank, error):
    """Rank 0 waits for the others at once, rank 2 comes when rank 0 has long read why rank 1 stopped."""
    prepare()
    comm = Comm()

    def work():
        with comm.together():
            if rank == 1:
                raise error
            swap(comm, pause_s=1.0 if rank == 2 else 0.0)

    return outcome(work)


@pytest.mark.parametrize("error", [ValueError("it broke"), InputError("a bad number")], ids=repr)
def test_a_rank_that_comes_late_is_told_too(error):
    results = run_ranks(PARTS, one_is_late, error)
    prefix = "rank 1: " if isinstance(error, InputError) else "rank 1 stopped: ValueError: "
    assert [message for _, message, _ in results] == [prefix + str(error), str(error), prefix + str(error)]
    assert max(seconds for *_, seconds in results) < BOUND_S


def test_a_rank_that_stops_after_its_group_has_ended_says_so_all_the_same():
    """And raises its own error."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        detector = FailureDetector(None)
    finally:
        dist.destroy_process_group()
    detector.report(ValueError("it broke"))


def fails_inside_two_contexts(rank):
    """Rank 1 fails; then both exchange in the same group, rank 1 a little later."""
    prepare()
    FailureDetector.linger_s = 0.5
    comm = Comm(dist.new_group(range(2)))

    def work():
        with comm.together(), comm.together():
            if rank == 1:
                raise ValueError("it broke")
            swap(comm)

    first = outcome(work)[:2]
    comm = Comm(dist.new_group(range(2)))
    return first, outcome(lambda: swap(comm, pause_s=1.0 * rank)[1])[:2]


def test_an_error_inside_two_contexts_is_reported_once():
    told, failed = run_ranks(2, fails_inside_two_contexts)
    assert told == (("RankError", "rank 1 stopped: ValueError: it broke"), ("returned", True))
    assert failed == (("ValueError", "it broke"), ("returned", True))


class ToFile:
    """What a rank sends, kept in a file: a rank that dies must not end the others, as it does in ``run_ranks``."""

    def __init__(self, path):
        self.path = path

    def send(self, value):
        self.path.write_bytes(pickle.dumps(value))


def one_dies(rank, waits_in):
    comm = Comm()

    def work():
        with comm.together():
            swap(comm)
            if rank == 1:
                os._exit(3)
            return swap(comm) if waits_in == "exchange" else comm.all_reduce(torch.ones(2))

    return outcome(work)


@pytest.mark.parametrize("waits_in", ["exchange", "all_reduce"])
def test_where_a_rank_dies_the_others_lose_their_connection(tmp_path, waits_in):
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch.distributed", "ranks", "dgl_gt.nn", "dgl_gt.train.run"])
    processes = []
    for rank in range(PARTS):
        arguments = (rank, PARTS, str(tmp_path), ToFile(tmp_path / f"result{rank}"), one_dies, (waits_in,))
        processes.append(context.Process(target=ranks._rank, args=arguments))
        processes[-1].start()
    try:
        deadline = time.monotonic() + LIMIT_S
        for process in processes:
            process.join(max(0.0, deadline - time.monotonic()))
        assert [process.exitcode for process in processes] == [0, 3, 0]
        for rank in (0, 2):
            ok, (kind, message, seconds) = pickle.loads((tmp_path / f"result{rank}").read_bytes())
            assert ok and kind == "RankError" and seconds < BOUND_S
            assert message.startswith(f"rank {rank} lost its connection: another rank has ended")
    finally:
        for process in processes:
            process.kill()
            process.join()
