"""Runs work on ranks, which it starts on this machine, and ends when one fails. :mod:`.rank_process` is the other side.

Ranks meet in a file without a name, which they inherit, and exchange rows over the loopback interface. No other machine
or user can reach either, and nothing stays behind if a process is killed. Ranks report to the launcher through a pipe.
This module does not import torch, which would make the start slower.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, contextmanager

from dgl_gt.partition.console import with_options_only
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.system import child_process
from dgl_gt.partition.system.allocator import check_running, environment_of_ranks
from dgl_gt.partition.system.signals import STOPPING, received_signals
from dgl_gt.partition.system.units import format_count

from .launcher_link import (
    LAUNCHED,
    Failure,
    find_launcher,
    out_of_memory_message,
    threads_per_rank,
    warn_of_too_many_threads,
)
from .started_ranks import StartedRank, ask_to_stop, end_all, first_failure, watch

_FROM_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}


def run_on_ranks(
    arguments: list[str],
    ranks: Callable[[], int],
    work: Callable,
    *,
    nproc: int | None = None,
    allocator: str = "auto",
    keep_memory: bool = True,
    timeout: float | None = None,
    memory_advice: Callable[[], str] | None = None,
    max_restarts: int = 0,
):
    """Run ``work()`` if this process is a rank; otherwise start ranks that run the same command, and wait for them.

    ``arguments`` are those of this ``dgl-gt`` command, ``ranks()`` gives the number of ranks to start, and ``nproc`` is
    what the user asked for. Ranks have an ``allocator``, see :mod:`dgl_gt.partition.system.allocator`; glibc's keeps freed
    memory for the next tensor, or gives it back to the system. Ranks wait for each other to join for ``timeout`` seconds, by
    default without a limit. ``memory_advice()`` says what was predicted and what to change where a rank runs out of memory. Ranks that fail for a reason that may pass start again, at most
    ``max_restarts`` times. Returns the result of ``work()`` on rank 0; elsewhere an exit code.
    """
    launcher = find_launcher()
    if launcher is None:
        if "RANK" not in os.environ:
            options = {"timeout": timeout, "memory_advice": memory_advice, "max_restarts": max_restarts}
            return launch(arguments, ranks(), environment_of_ranks(allocator, keep_memory), **options)
        _check_environment()
        if max_restarts:
            raise InputError(
                f"max_restarts is {max_restarts}, but torchrun starts and restarts these ranks; use torchrun --max-restarts instead"
            )
    from . import rank_process  # imports torch

    def checked_work():
        check_running(allocator)
        started = int(os.environ["WORLD_SIZE"])
        if nproc not in (None, started):
            raise InputError(
                f"nproc is {nproc}, but torchrun has started {format_count(started, 'rank')}; leave --nproc out"
            )
        return work()

    return rank_process.run(checked_work, launcher, timeout, memory_advice)


def _check_environment() -> None:
    """Refuse an environment that lacks a variable of torchrun, or has a wrong value for one."""
    missing = [name for name in _FROM_TORCHRUN if name not in os.environ]
    if missing:
        raise InputError(
            f"RANK is set in the environment, which makes this process one of several ranks, but {missing[0]} is not set; "
            "start ranks with torchrun, or unset RANK so that dgl-gt starts them"
        )
    rank, ranks, _, port = (os.environ[name] for name in _FROM_TORCHRUN)
    are_numbers = all(re.fullmatch("[0-9]{1,9}", text) for text in (rank, ranks, port))
    if not are_numbers or int(rank) >= int(ranks) or int(port) >= 2**16:
        raise InputError(
            f"RANK is {rank!r}, WORLD_SIZE {ranks!r} and MASTER_PORT {port!r} in the environment; they must be whole numbers, "
            "RANK below WORLD_SIZE, and MASTER_PORT below 65536"
        )


def launch(
    arguments: list[str],
    ranks: int,
    environment: dict[str, str],
    *,
    timeout: float | None = None,
    memory_advice: Callable[[], str] | None = None,
    max_restarts: int = 0,
) -> int:
    """Run ``dgl-gt ARGUMENTS`` in ``ranks`` processes; return the exit code. The options are those of :func:`run_on_ranks`.

    ``environment`` has the settings of the allocator; those in this process's own environment win.
    """
    warn_of_too_many_threads(ranks)
    kills = child_process.memory_kills()
    with received_signals() as signals:
        for restarts in range(max_restarts + 1):
            text, code = "", 0
            with _started_ranks(arguments, ranks, environment, restarts) as started:
                try:
                    watch(started, lambda: bool(signals), timeout)
                    if signals:
                        ask_to_stop(started, signals)
                finally:
                    end_all(started)
            found = None if signals else first_failure(started)
            if found is None:
                break
            rank, failure = found[0], _or_for_memory(found[1], kills)
            text, code = _explained(rank, failure, memory_advice), failure.exit_code
            if restarts == max_restarts or not _may_pass(failure):
                break
            print(f"dgl-gt: {text}; the ranks start again ({restarts + 1} of {max_restarts})", file=sys.stderr)
    if signal.SIGINT in signals:
        raise KeyboardInterrupt
    if signals:
        return 128 + signals[0]
    if text:
        print(f"dgl-gt: {'error: ' if code == 2 else ''}{text}", file=sys.stderr)
    return code


def _or_for_memory(failure: Failure, kills: int | None) -> Failure:
    """The failure, or one of memory where the system has killed a rank for it since ``kills`` were counted."""
    if failure.kind == "signal" and child_process.killed_for_memory(-int(failure.text), kills):
        return Failure("memory", "the system killed it", failure.at_s)
    return failure


def _may_pass(failure: Failure) -> bool:
    """Whether a run may succeed if its ranks start again: nobody asked it to stop, and it met no limit."""
    if failure.kind == "signal":
        return int(failure.text) not in STOPPING
    return failure.kind in ("error", "relayed", "exit") and failure.exit_code != 2


@contextmanager
def _started_ranks(arguments: list[str], ranks: int, environment: dict[str, str], restarts: int):
    """Start the ranks; give them as a list of :class:`StartedRank`."""
    preloaded = {name: environment[name] for name in ("LD_PRELOAD",) if name in environment}  # with the user's own
    environment = {**environment, **child_process.environment(), **preloaded, **_LOOPBACK}
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
                    child_process.command("dgl_gt", *arguments),
                    stdin=subprocess.DEVNULL,
                    pass_fds=(store, write_end),
                    env=environment
                    | {LAUNCHED: f"{os.getpid()} {store} {write_end} {restarts}"}
                    | {name: str(rank) for name in ("RANK", "LOCAL_RANK")}
                    | {name: str(ranks) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE")},
                )
            except OSError as error:
                raise InputError(f"cannot start rank {rank}: {error.strerror or error}; start fewer ranks") from error
            finally:
                os.close(write_end)
            started.append(StartedRank(rank, process, read_end))
        yield started


def _explained(rank: int, failure: Failure, memory_advice: Callable[[], str] | None) -> str:
    """Why the run failed; nothing where the rank has printed that itself."""
    text = failure.text
    match failure.kind:
        case "signal":
            return f"rank {rank} was {child_process.signal_text(-int(text))}"
        case "memory":
            return out_of_memory_message(rank, text, memory_advice)
        case "error":
            return f"rank {rank} was stopped by an error in dgl-gt:\n{text}"
        case "exit":
            return "" if failure.exit_code == 2 else f"rank {rank} ended with exit code {text}"
    return with_options_only(text)
