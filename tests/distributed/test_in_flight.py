"""Nothing of a collective is left to gloo's threads when a rank ends."""

import atexit
import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from ranks import run_ranks

from dgl_gt.comm.group import Comm
from dgl_gt.comm.in_flight import InFlight

HELD_S = 0.2


def hold(tensors: list) -> threading.Event:
    """Have a thread keep references for a while, as gloo's do; the event is set before it releases them."""
    released = threading.Event()

    def keep(held):
        time.sleep(HELD_S)
        released.set()

    threading.Thread(target=keep, args=(tensors,)).start()
    return released


def test_draining_waits_until_a_thread_has_let_go():
    in_flight, tensor = InFlight(), torch.ones(3)
    (alias,) = in_flight.aliases(tensor)
    assert alias.data_ptr() == tensor.data_ptr()
    released = hold([alias])
    del alias
    in_flight.drain()
    assert released.is_set()


def test_draining_ends_where_a_tensor_stays_in_use():
    in_flight = InFlight()
    aliases = in_flight.aliases(torch.ones(3))
    in_flight.drain(limit_s=0.01)
    in_flight.drain(limit_s=0.0)
    del aliases
    in_flight.drain()


def test_the_end_waits_for_what_is_given_after_a_drain_and_for_nothing_else(monkeypatch):
    waiting = []
    monkeypatch.setattr(atexit, "register", waiting.append)
    monkeypatch.setattr(atexit, "unregister", waiting.remove)
    in_flight, tensor = InFlight(), torch.ones(3)
    for _ in range(2):
        assert waiting == []
        in_flight.aliases(tensor)
        in_flight.aliases(tensor)
        assert waiting == [in_flight.drain]
        in_flight.drain()
    aliases = in_flight.aliases(tensor)
    in_flight.drain(limit_s=0.0)
    assert aliases and waiting == [in_flight.drain]


def late_release(rank):
    """Whether each thread that kept what a collective was given had let go when the Comm was closed."""
    released = []

    def watched(collective):
        return lambda *given, **options: released.append(hold([*given])) or collective(*given, **options)

    dist.all_to_all_single, dist.all_reduce = watched(dist.all_to_all_single), watched(dist.all_reduce)
    with Comm() as comm:
        comm.exchange(torch.zeros(4, 1), [2, 2], [2, 2])
        comm.gather_rows(torch.zeros(rank, 2))
        comm.sum_gradients([torch.nn.Parameter(torch.zeros(3))])
        comm.all_reduce(torch.zeros(4))
    return [each.is_set() for each in released]


def test_closing_waits_for_every_kind_of_collective():
    for released in run_ranks(2, late_release):
        assert len(released) >= 5 and all(released)


def test_ranks_that_have_finished_end_well():
    """In a process that lets gloo's threads fall behind, a tenth of all ranks aborted."""
    script = Path(__file__).with_name("ends.py")
    done = subprocess.run([sys.executable, script, "3"], capture_output=True, text=True, timeout=120)
    assert json.loads(done.stdout) == {"0": 6}, done.stderr
