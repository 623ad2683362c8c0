"""Runs work on ranks, whether this process is one of them or has to start them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.system.units import format_count

from .launch import launch
from .launcher_link import find_launcher

_FROM_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def run_on_ranks(
    arguments: list[str],
    ranks: Callable[[], int],
    work: Callable,
    *,
    nproc: int | None = None,
    keep_memory: bool = True,
    timeout: float | None = None,
    memory_advice: Callable[[], str] | None = None,
    max_restarts: int = 0,
):
    """Run ``work()`` if this process is a rank; otherwise start ranks that run the same command, and wait for them.

    ``arguments`` are those of this ``dgl-gt`` command, ``ranks()`` gives the number of ranks to start, and ``nproc`` is
    what the user asked for. Ranks keep freed memory for the next tensor, or give it back to the system. They wait for
    each other to join for ``timeout`` seconds, by default without a limit. ``memory_advice()`` says what was predicted
    and what to change where a rank runs out of memory. Ranks that fail for a reason that may pass start again, at most
    ``max_restarts`` times. Returns the result of ``work()`` on rank 0; elsewhere an exit
    code.
    """
    launcher = find_launcher()
    if launcher is None:
        if "RANK" not in os.environ:
            return launch(
                arguments,
                ranks(),
                keep_memory=keep_memory,
                timeout=timeout,
                memory_advice=memory_advice,
                max_restarts=max_restarts,
            )
        _check_environment()
        if max_restarts:
            raise InputError(
                f"max_restarts is {max_restarts}, but torchrun starts and restarts these ranks; use torchrun --max-restarts instead"
            )
    from . import rank_process  # imports torch

    def checked_work():
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
    ranks = _whole_number("WORLD_SIZE", 1, 2**31 - 1)
    _whole_number("RANK", 0, ranks - 1)
    _whole_number("MASTER_PORT", 0, 2**16 - 1)


def _whole_number(name: str, least: int, largest: int) -> int:
    text = os.environ[name]
    if not re.fullmatch("[0-9]{1,10}", text) or not least <= int(text) <= largest:
        raise InputError(f"{name} is {text!r} in the environment; it must be a whole number from {least} to {largest}")
    return int(text)
