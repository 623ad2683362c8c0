"""Ranks that are late: who is awaited, how long, and what they are told when they come; and the device of a group."""

import io
import time
from contextlib import redirect_stderr, suppress

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks

import dgl_gt
from dgl_gt.comm.failure import FailureDetector, RankError
from dgl_gt.comm.group import Comm
from dgl_gt.comm.transport import device_type
from dgl_gt.partition import partition
from dgl_gt.partition.errors import InputError
from dgl_gt.train.module_places import named_places


def quickly():
    """Ten polls per second, a warning after a third of a second, and no wait for the others to have read why."""
    FailureDetector.poll_s, FailureDetector.warn_after_s, FailureDetector.linger_s = 0.1, 0.3, 0.0


def late(rank):
    """Rank 1 comes when ranks 0 and 2 have long said that they wait for it."""
    quickly()
    comm = Comm()
    if rank == 1:
        time.sleep(2.0)
    with redirect_stderr(io.StringIO()) as said:
        total = comm.all_reduce(torch.ones(1))
    return total.tolist(), said.getvalue().splitlines()


def test_ranks_that_wait_long_say_for_whom():
    results = run_ranks(3, late)
    assert [total for total, _ in results] == [[3.0]] * 3
    assert results[1][1] == []
    for rank in (0, 2):
        lines = results[rank][1]
        assert 1 <= len(lines) <= 3  # the time between two doubles
        for line in lines:
            assert line.startswith(f"dgl-gt: rank {rank} has waited ") and line.endswith(" s for rank 1")


def hung(rank):
    """Rank 1 never comes, as far as the others can tell."""
    quickly()
    comm = Comm(timeout_s=1.5)
    if rank == 1:
        time.sleep(4.0)
        return None
    with pytest.raises(RankError) as raised:
        comm.all_reduce(torch.ones(1))
    return str(raised.value)


def test_a_timeout_names_the_rank_that_is_awaited():
    first, _, last = run_ranks(3, hung)
    for rank, message in ((0, first), (2, last)):
        assert message.startswith(f"rank {rank} has waited ")
        assert (
            " s for rank 1. It waits in an all-reduce of 1 numbers; the timeout is 1.5 s: look at the output of the other ranks, or"
            in message
        )


def hung_in_a_layer(rank, shards, backward, checks):
    """Rank 1 leaves the others alone in the forward pass of the first layer or before it, or in the backward pass."""
    quickly()
    sg = dgl_gt.load(shards, timeout_s=1.5, check_parameters=checks)
    torch.manual_seed(0)
    feat, model = sg.ndata["feat"], dgl_gt.nn.GraphTransformer(5, 8, 3, layers=2, heads=2)
    with named_places(model, sg.comm), suppress(RankError):
        if rank == 1 and not backward:
            time.sleep(4.0)
            return None
        try:
            loss = model(sg, feat).sum()
            if rank == 1:
                time.sleep(4.0)
                return None
            loss.backward()
        except RankError as error:
            return str(error)


@pytest.mark.parametrize(
    ("backward", "checks", "place"),
    [(False, False, "layers.0"), (True, False, "layers.1, backward"), (False, True, "the check of parameters")],
    ids=["forward", "backward", "check"],
)
def test_a_timeout_names_the_layer(awkward_graph, tmp_path, backward, checks, place):
    partition(awkward_graph(0), 2, tmp_path / "shards")
    message, _ = run_ranks(2, hung_in_a_layer, tmp_path / "shards", backward, checks)
    assert " s for rank 1. It waits in an " in message and f" in {place}; the timeout is 1.5 s" in message


class Work:
    """A collective that ends with an error of the backend, or not at all within a poll."""

    def __init__(self, problem):
        self.problem = problem

    def is_completed(self):
        return "Operation timed out" not in self.problem

    def wait(self, _):
        raise RuntimeError(self.problem)


@pytest.fixture
def detector(monkeypatch):
    """The detector of a group of one rank, which has a store, and where every poll is the last."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield FailureDetector(None, timeout_s=1e-9)
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        ("[pair.cc:553] Connection closed by peer [127.0.0.1]:4321", "rank 0 lost its connection: another rank has"),
        ("[pair.cc:196] writev: Broken pipe", "rank 0 lost its connection: another rank has ended"),
        (
            "[enforce fail at pair.cc:446] op.preamble.length <= op.nbytes. 64 vs 32",
            r"an exchange failed on rank 0: \[enforce fail at .* 64 vs 32; make sure that all ranks do the same steps",
        ),
        (
            "Operation timed out!",
            r"rank 0 has waited \d+ s; all other ranks wait, too, so the network may be the cause",
        ),
    ],
)
def test_errors_of_the_backend_are_told_apart(detector, problem, message):
    with pytest.raises(RankError, match=f"^{message}"):
        detector.wait(Work(problem))


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan"), "2", [2], torch.zeros(2)])
def test_a_timeout_is_a_positive_number(timeout_s):
    with pytest.raises(InputError, match="timeout_s is .* above 0"):
        Comm(timeout_s=timeout_s)


def told_late(rank):
    """Rank 1 stops at once, rank 2 asks when rank 1 has given up waiting for it; then all go on in a new Comm."""
    quickly()
    comm = Comm()
    messages = []
    for number in range(2):
        try:
            with comm.together():
                if rank == 1:
                    raise ValueError(f"it broke {number}")
                time.sleep(1.0 if rank == 2 else 0.0)
                comm.all_reduce(torch.ones(1))
        except (ValueError, RankError) as error:
            messages.append(str(error))
        comm = Comm(dist.new_group(range(3)))
    return messages, comm.all_reduce(torch.ones(1)).tolist()


def test_a_note_stays_until_the_last_rank_has_read_it():
    told = [f"rank 1 stopped: ValueError: it broke {number}" for number in range(2)]
    broke = [f"it broke {number}" for number in range(2)]
    assert run_ranks(3, told_late) == [(told, [3.0]), (broke, [3.0]), (told, [3.0])]


@pytest.mark.parametrize(
    ("backends", "expected"),
    [
        ("cpu:gloo", "cpu"),
        ("cpu:gloo,cuda:gloo", "cpu"),
        ("cuda:nccl", "cuda"),
        ("nccl", "cuda"),
        ("cpu:gloo,cuda:nccl", "cuda"),
        ("cpu:gloo,cuda:nccl,xpu:xccl,mps:gloo", "cuda"),
        ("cpu:mpi,cuda:mpi", "cpu"),
        ("", "cpu"),
    ],
)
def test_collectives_run_where_the_backends_say(backends, expected):
    assert device_type(backends) == expected
