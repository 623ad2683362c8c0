"""Ranks on this machine: start them, and end them all when one fails. :mod:`.rank_process` is the other side.

Ranks meet in a file without a name, which they inherit, and exchange rows over the loopback interface: no other machine
or user can reach either, and nothing stays behind, whoever is killed. What a rank has to say comes through a pipe.
This module does not import torch, which would only make the start slower.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, contextmanager

from partition.console import STOPPING
from partition.errors import InputError
from partition.system import child_process

from .launcher import LAUNCHED, out_of_memory, threads_per_rank, warn_of_threads
from .started_ranks import Failure, StartedRank, end, first_failure, watch

# For glibc: keep freed memory for the next tensor. It would go back to the system after every large tensor and come
# back in pages of 4 KiB, which took 40 % of a training step on a CPU.
KEEP_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}
# Or give it back at once, so that a process takes little more than its tensors.
GIVE_BACK_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**17)}

_LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}


def launch(
    arguments: list[str],
    ranks: int,
    *,
    keep_memory: bool = True,
    timeout: float | None = None,
    memory_advice: Callable[[], str] | None = None,
) -> int:
    """Run ``dgl-gt ARGUMENTS`` as ``ranks`` processes; return the exit code. Parameters as of :func:`.run_on_ranks.run_on_ranks`."""
    warn_of_threads(ranks)
    kills = child_process.memory_kills()
    with _stops() as stops, _start(arguments, ranks, keep_memory) as started:
        try:
            watch(started, lambda: bool(stops), timeout)
        finally:
            end(started)
    if signal.SIGINT in stops:
        raise KeyboardInterrupt
    if stops:
        return 128 + stops[0]
    found = first_failure(started)
    return _explain(*found, kills, memory_advice) if found else 0


@contextmanager
def _stops():
    """Inside, signals that end this process are only noted in the list that is given."""
    stops = []
    wanted = [each for each in STOPPING if signal.getsignal(each) is not signal.SIG_IGN]
    previous = {each: signal.signal(each, lambda number, _: stops.append(number)) for each in wanted}
    try:
        yield stops
    finally:
        for each, handler in previous.items():
            signal.signal(each, handler)


@contextmanager
def _start(arguments: list[str], ranks: int, keep_memory: bool):
    """Start the ranks; give them as :class:`StartedRank`."""
    environment = {**(KEEP_MEMORY if keep_memory else GIVE_BACK_MEMORY), **child_process.environment(), **_LOOPBACK}
    environment.setdefault("OMP_NUM_THREADS", str(threads_per_rank(ranks)))
    started: list[StartedRank] = []
    with ExitStack() as stack:
        store = os.memfd_create("dgl-gt-store")
        stack.callback(os.close, store)
        stack.callback(end, started)  # those before one that cannot be started
        for rank in range(ranks):
            ours, pipe = os.pipe()
            stack.callback(os.close, ours)
            try:
                process = subprocess.Popen(
                    [sys.executable, "-m", "dgl_gt", *arguments],
                    stdin=subprocess.DEVNULL,
                    pass_fds=(store, pipe),
                    env=environment
                    | {LAUNCHED: f"{os.getpid()} {store} {pipe}"}
                    | {name: str(rank) for name in ("RANK", "LOCAL_RANK")}
                    | {name: str(ranks) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE")},
                )
            except OSError as error:
                raise InputError(f"cannot start rank {rank}: {error.strerror or error}; start fewer ranks") from error
            finally:
                os.close(pipe)
            started.append(StartedRank(rank, process, ours))
        yield started


def _explain(rank: int, failure: Failure, kills: int | None, memory_advice) -> int:
    """Say why the run failed; return the exit code."""
    if failure.kind == "signal" and child_process.killed_for_memory(-int(failure.text), kills):
        failure = Failure("memory", "the system killed it", failure.at_s)
    text, code = failure.text, failure.exit_code
    if failure.kind == "signal":
        text = f"rank {rank} was {child_process.signal_text(-int(text))}"
    elif failure.kind == "memory":
        text = out_of_memory(rank, text, memory_advice)
    elif failure.kind == "error":
        text = f"rank {rank} was stopped by an error in dgl-gt:\n{text}"
    elif failure.kind == "exit":
        text = "" if code == 2 else f"rank {rank} ended with exit code {text}"  # with 2 it has said why
    if text:
        print(f"dgl-gt: {'error: ' if code == 2 else ''}{text}", file=sys.stderr)
    return code
