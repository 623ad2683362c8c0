"""Starts ranks on this machine, and ends them all when one fails. :mod:`.rank_process` is the other side.

Ranks meet in a file without a name, which they inherit, and exchange rows over the loopback interface. No other machine
or user can reach either, and nothing stays behind if a process is killed. Ranks report to the launcher through a pipe.
This module does not import torch, which would make the start slower.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, contextmanager

from partition.errors import InputError
from partition.system import child_process

from .held_signals import received_signals
from .launcher_link import LAUNCHED, Failure
from .memory_advice import out_of_memory_message
from .started_ranks import StartedRank, end_all, first_failure, watch
from .threads import threads_per_rank, warn_of_too_many_threads

# Settings of glibc that keep freed memory for the next tensor. Without them it goes back to the system after every large
# tensor and returns in pages of 4 KiB, which took 40 % of a training step on a CPU.
KEEP_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}
# Settings that give freed memory back at once, so that a process takes little more than its tensors.
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
    """Run ``dgl-gt ARGUMENTS`` in ``ranks`` processes; return the exit code.

    :func:`.run_on_ranks.run_on_ranks` describes the parameters.
    """
    warn_of_too_many_threads(ranks)
    kills = child_process.memory_kills()
    with received_signals() as signals, _started_ranks(arguments, ranks, keep_memory) as started:
        try:
            watch(started, lambda: bool(signals), timeout)
        finally:
            end_all(started)
    if signal.SIGINT in signals:
        raise KeyboardInterrupt
    if signals:
        return 128 + signals[0]
    found = first_failure(started)
    return _report_failure(*found, kills, memory_advice) if found else 0


@contextmanager
def _started_ranks(arguments: list[str], ranks: int, keep_memory: bool):
    """Start the ranks; give them as a list of :class:`StartedRank`."""
    environment = {**(KEEP_MEMORY if keep_memory else GIVE_BACK_MEMORY), **child_process.environment(), **_LOOPBACK}
    environment.setdefault("OMP_NUM_THREADS", str(threads_per_rank(ranks)))
    started: list[StartedRank] = []
    with ExitStack() as stack:
        store = os.memfd_create("dgl-gt-store")
        stack.callback(os.close, store)
        stack.callback(end_all, started)  # also if a later one cannot be started
        for rank in range(ranks):
            read_end, write_end = os.pipe()
            stack.callback(os.close, read_end)
            try:
                process = subprocess.Popen(
                    [sys.executable, "-m", "dgl_gt", *arguments],
                    stdin=subprocess.DEVNULL,
                    pass_fds=(store, write_end),
                    env=environment
                    | {LAUNCHED: f"{os.getpid()} {store} {write_end}"}
                    | {name: str(rank) for name in ("RANK", "LOCAL_RANK")}
                    | {name: str(ranks) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE")},
                )
            except OSError as error:
                raise InputError(f"cannot start rank {rank}: {error.strerror or error}; start fewer ranks") from error
            finally:
                os.close(write_end)
            started.append(StartedRank(rank, process, read_end))
        yield started


def _report_failure(rank: int, failure: Failure, kills: int | None, memory_advice) -> int:
    """Print why the run failed; return the exit code."""
    if failure.kind == "signal" and child_process.killed_for_memory(-int(failure.text), kills):
        failure = Failure("memory", "the system killed it", failure.at_s)
    text, code = failure.text, failure.exit_code
    if failure.kind == "signal":
        text = f"rank {rank} was {child_process.signal_text(-int(text))}"
    elif failure.kind == "memory":
        text = out_of_memory_message(rank, text, memory_advice)
    elif failure.kind == "error":
        text = f"rank {rank} was stopped by an error in dgl-gt:\n{text}"
    elif failure.kind == "exit":
        text = (
            "" if code == 2 else f"rank {rank} ended with exit code {text}"
        )  # a rank that ends with 2 has printed why
    if text:
        print(f"dgl-gt: {'error: ' if code == 2 else ''}{text}", file=sys.stderr)
    return code
