"""Runs work on ranks, which it starts on this machine, and ends when one fails. :mod:`.rank_process` is the other side.

Ranks meet in a file without a name, which they inherit, and exchange rows over the loopback interface. No other machine
or user can reach either, and nothing stays behind if a process is killed. Ranks report to the launcher through a pipe.
This module does not import torch, which would make the start slower.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable

from dgl_gt.partition.console import with_options_only
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.system import child_process
from dgl_gt.partition.system.allocator import check_running, environment_of_ranks
from dgl_gt.partition.system.signals import STOPPING, received_signals
from dgl_gt.partition.system.units import format_count

from .launcher_link import SETS_A_LIMIT, Failure, find_launcher, out_of_memory_message, warn_of_too_many_threads
from .started_ranks import first_failure, started_ranks, watch

_FROM_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def run_on_ranks(
    arguments: list[str],
    ranks: Callable[[], int],
    work: Callable,
    *,
    nproc: int | None = None,
    allocator: str = "auto",
    bounded: bool = False,
    timeout: float | None = None,
    memory_advice: Callable[[], str] | None = None,
    max_restarts: int = 0,
):
    """Run ``work()`` if this process is a rank; otherwise start ranks that run the same command, and wait for them.

    ``arguments`` are those of this ``dgl-gt`` command, ``ranks()`` gives the number of ranks to start, and ``nproc`` is
    what the user asked for. Ranks have an ``allocator``, which :mod:`dgl_gt.partition.system.allocator` describes, as it does
    memory that is ``bounded``. They wait for each other to join for ``timeout`` seconds, by default without a limit.
    ``memory_advice()`` says what was predicted and what to change where a rank runs out of memory. Ranks that fail for a
    reason that may pass start again, at most ``max_restarts`` times. Returns the result of ``work()`` on rank 0; elsewhere
    an exit code.
    """
    launcher = find_launcher()
    if launcher is None:
        if "RANK" not in os.environ:
            options = {"timeout": timeout, "memory_advice": memory_advice, "max_restarts": max_restarts}
            return launch_command(arguments, ranks(), environment_of_ranks(allocator, bounded), **options)
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


def launch_command(
    arguments: list[str],
    ranks: int,
    environment: dict[str, str],
    *,
    timeout: float | None = None,
    memory_advice: Callable[[], str] | None = None,
    max_restarts: int = 0,
) -> int:
    """Run ``dgl-gt ARGUMENTS`` in ``ranks`` processes; return the exit code. The options are those of :func:`run_on_ranks`.

    ``environment`` has the settings of the allocator; those in this process's own environment win. :class:`InputError` says
    what a rank found that the user can mend.
    """
    warn_of_too_many_threads(ranks)
    command, kills = child_process.command("dgl_gt", *arguments), child_process.memory_kills()
    with received_signals() as signals:
        for restarts in range(max_restarts + 1):
            text, code = "", 0
            with started_ranks(command, ranks, environment, restarts) as started:
                watch(started, signals, timeout, advice=SETS_A_LIMIT)
            found = None if signals else first_failure(started, kills)
            if found is None:
                break
            rank, failure = found
            text, code = explained(rank, failure, memory_advice), failure.exit_code
            if restarts == max_restarts or not _may_pass(failure):
                break
            print(f"dgl-gt: {text}; the ranks start again ({restarts + 1} of {max_restarts})", file=sys.stderr)
    if signal.SIGINT in signals:
        raise KeyboardInterrupt
    if signals:
        return 128 + signals[0]
    if text and code == 2:
        raise InputError(text)
    if text:
        print(f"dgl-gt: {text}", file=sys.stderr)
    return code


def _may_pass(failure: Failure) -> bool:
    """Whether a run may succeed if its ranks start again: nobody asked it to stop, and it met no limit."""
    if failure.kind == "signal":
        return int(failure.text) not in STOPPING
    return failure.kind in ("error", "relayed", "exit") and failure.exit_code != 2


def explained(rank: int, failure: Failure, memory_advice: Callable[[], str] | None) -> str:
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
