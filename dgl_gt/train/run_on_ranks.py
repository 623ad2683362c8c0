"""Runs work on ranks, whether this process is one of them or has to start them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from partition.errors import InputError

from .launch import launch
from .launcher_link import find_launcher

_FROM_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def run_on_ranks(
    arguments: list[str],
    ranks: Callable[[], int],
    work: Callable,
    *,
    keep_memory: bool = True,
    timeout: float | None = None,
    memory_advice: Callable[[], str] | None = None,
):
    """Run ``work()`` if this process is a rank; otherwise start ranks that run the same command, and wait for them.

    Parameters
    ----------
    arguments : list of str
        Arguments of this ``dgl-gt`` command; ranks are started with the same.
    ranks : callable
        Returns the number of ranks to start.
    work : callable
        The work of a rank.
    keep_memory : bool
        Whether ranks keep freed memory for the next tensor; otherwise they give it back to the system.
    timeout : float, optional
        Longest time that ranks wait for each other to join (s); by default there is no limit.
    memory_advice : callable, optional
        Returns, for the message of a rank that runs out of memory, what was predicted and what to change.

    Returns
    -------
    object
        On rank 0 the result of ``work()``; elsewhere an exit code.

    Raises
    ------
    InputError
        The environment has only some of the variables that make this process a rank, or ranks do not join in time.
    """
    launcher = find_launcher()
    if launcher is None:
        if "RANK" not in os.environ:
            return launch(arguments, ranks(), keep_memory=keep_memory, timeout=timeout, memory_advice=memory_advice)
        _check_environment()
    from . import rank_process  # imports torch

    return rank_process.run(work, launcher, timeout, memory_advice)


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
