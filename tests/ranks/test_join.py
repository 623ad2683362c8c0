"""How ranks that torchrun started join, and what is said where one of them cannot. Each is a process of its own."""

import multiprocessing
import os
import re
import sys

import pytest
import torch.distributed as dist
from free_port import free_port

from dgl_gt.comm.failure import RankError
from dgl_gt.partition import InputError
from dgl_gt.ranks import rank_process

LIMIT_S = 120


def become_rank(sender, stderr, environment, timeout, breaks):
    """Join and send what came of it: the result, or the error's names and text."""
    os.environ |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "MASTER_ADDR": "127.0.0.1"} | environment
    rank_process.REPORT_WAIT_S = 1.0
    sys.stderr = open(stderr, "w", buffering=1)
    if breaks:
        dist.init_process_group = fail
    try:
        sender.send(rank_process.run(lambda: "worked", None, timeout))
    except InputError as error:
        sender.send((isinstance(error, rank_process.JoinError), isinstance(error, RankError), str(error)))


def fail(*_, **__):
    raise RuntimeError(
        "NCCL error in NCCLUtils.cpp:93, system error\nncclSystemError: A call failed. \nLast error:\nno route to host.\n"
    )


@pytest.fixture
def joined(tmp_path):
    """A function: the environment of each rank that comes -> what came of it, its exit code and its stderr."""

    def run(*environments, ranks=None, timeout=None, breaks=()):
        context, port, started = multiprocessing.get_context("forkserver"), free_port(), []
        context.set_forkserver_preload(["dgl_gt.ranks.rank_process", "pytest"])
        for rank, environment in enumerate(environments):
            receiver, sender = context.Pipe(duplex=False)
            common = {"RANK": str(rank), "WORLD_SIZE": str(ranks or len(environments)), "MASTER_PORT": str(port)}
            words = sender, tmp_path / str(rank), common | environment, timeout, rank in breaks
            process = context.Process(target=become_rank, args=words)
            process.start()
            sender.close()
            started.append((process, receiver))
        outcomes = []
        try:
            for rank, (process, receiver) in enumerate(started):
                process.join(LIMIT_S)
                try:
                    value = receiver.recv() if receiver.poll(0) else None
                except EOFError:
                    value = None
                outcomes.append((value, process.exitcode, (tmp_path / str(rank)).read_text()))
        finally:
            for process, _ in started:
                process.kill()
        return outcomes

    return run


def test_ranks_join(joined):
    assert [value for value, *_ in joined({}, {}, {})] == ["worked", 0, 0]


def test_a_rank_alone_needs_no_place_to_meet(joined):
    ((value, code, _),) = joined({"MASTER_PORT": "0"})
    assert (value, code) == ("worked", 0)


@pytest.mark.parametrize("wrong", [0, 1])  # rank 0 holds the place where they meet
def test_a_rank_with_a_wrong_interface_says_so_and_the_others_name_it(joined, wrong):
    environments = [{}, {}, {}]
    environments[wrong] = {"GLOO_SOCKET_IFNAME": "eth9"}
    for rank, (value, *_) in enumerate(joined(*environments)):
        is_own, is_relayed, text = value
        assert (is_own, is_relayed) == (rank == wrong, rank != wrong)
        assert "GLOO_SOCKET_IFNAME is 'eth9'" in text and f"rank {wrong}" in text


def test_ranks_that_do_not_come_are_named(joined):
    for value, *_ in joined({}, {}, ranks=4, timeout=1):
        assert value[2].startswith("ranks 2, 3 did not join within 1 s")


def test_a_rank_that_cannot_connect_ends_the_others_too(joined):
    (value, code, stderr), (own, *_) = joined({}, {}, breaks=[1])
    assert own[:2] == (True, False) and own[2].startswith(
        "rank 1 could not join the others (no route to host); on each"
    )
    assert (value, code, stderr) == (None, 2, f"dgl-gt: error: {own[2]}\n")


def test_the_first_rank_of_each_machine_speaks(joined):
    """The others, which torchrun ends with it, are silent; one that cannot join speaks for itself."""
    second = {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    outcomes = joined({}, second, {}, second | {"GLOO_SOCKET_IFNAME": "eth9"})
    assert [value if value == 2 else value[:2] for value, *_ in outcomes] == [
        (False, True),
        2,
        (False, True),
        (True, False),
    ]


def test_a_place_that_nobody_serves(monkeypatch, capsys):
    port = free_port()
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.setattr(rank_process, "LATE_AFTER_S", 0.1)
    with pytest.raises(rank_process.JoinError, match=f"rank 1 could not reach 127.0.0.1:{port}"):
        rank_process.run(lambda: pytest.fail("there is no other rank"), None, timeout=1.0)
    assert capsys.readouterr().err == (
        f"dgl-gt: rank 1 has waited 0 s for rank 0 at 127.0.0.1:{port}; still waiting (--timeout SECONDS sets a limit)\n"
    )


@pytest.mark.parametrize(
    ("variable", "value", "is_allowed"),
    [
        ("GLOO_SOCKET_IFNAME", "", True),
        ("GLOO_SOCKET_IFNAME", "lo", True),
        ("GLOO_SOCKET_IFNAME", "l", False),
        ("GLOO_SOCKET_IFNAME", "lo,eth9", False),
        ("NCCL_SOCKET_IFNAME", "", True),
        ("NCCL_SOCKET_IFNAME", "l", True),  # a beginning of a name
        ("NCCL_SOCKET_IFNAME", "eth,lo", True),
        ("NCCL_SOCKET_IFNAME", "=lo", True),
        ("NCCL_SOCKET_IFNAME", "^docker", True),
        ("NCCL_SOCKET_IFNAME", "=l", False),
        ("NCCL_SOCKET_IFNAME", "eth", False),
    ],
)
def test_interfaces_are_named_as_the_backends_name_them(monkeypatch, variable, value, is_allowed):
    monkeypatch.setattr(rank_process.socket, "if_nameindex", lambda: [(1, "lo"), (2, "ens5")])
    monkeypatch.setenv(variable, value)
    if is_allowed:
        rank_process._check_interface(3, variable)
    else:
        with pytest.raises(rank_process.JoinError, match=rf"{variable} is '{re.escape(value)}' in .* of rank 3"):
            rank_process._check_interface(3, variable)
