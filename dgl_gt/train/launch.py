"""Ranks on this machine: start them, and end them all when one fails. :mod:`.rank` is the other side.

Ranks meet in a file without a name, which they inherit, and exchange rows over the loopback interface: no other machine
or user can reach either, and nothing stays behind, whoever is killed. What a rank has to say comes through a pipe.
This module does not import torch, which would only make the start slower.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from partition import child
from partition.console import STOPPING
from partition.errors import InputError
from partition.memory import available_cpus

from .watch import Failure, StartedRank, end, first_failure, watch

_LAUNCHED = "DGL_GT_LAUNCHED"
_FROM_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

# For glibc: keep freed memory for the next tensor. It would go back to the system after every large tensor and come
# back in pages of 4 KiB, which took 40 % of a training step on a CPU.
KEEP_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}
# Or give it back at once, so that a process takes little more than its tensors.
GIVE_BACK_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**17)}

_LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}


class Launcher(NamedTuple):
    """What a rank that was started here knows of its launcher.

    Attributes
    ----------
    pid : int
    store, pipe : int
        File descriptors: of the file in which ranks meet, and of the pipe to the launcher.
    """

    pid: int
    store: int
    pipe: int


def launcher() -> Launcher | None:
    """The launcher that started this process as a rank, if one did."""
    words = os.environ.get(_LAUNCHED)
    return Launcher(*map(int, words.split())) if words else None


def on_ranks(
    arguments: list[str],
    ranks: Callable[[], int],
    work: Callable,
    *,
    keep_memory: bool = True,
    timeout: float | None = None,
    memory_advice: Callable[[], str] | None = None,
):
    """Run ``work()`` where this process is a rank; else start ranks, which run the same command, and wait for them.

    Parameters
    ----------
    arguments : list of str
        What ranks are started with: the arguments of this ``dgl-gt`` command.
    ranks : callable
        Gives the number of ranks to start.
    work : callable
        Its result is rank 0's.
    keep_memory : bool
        Whether ranks keep freed memory for the next tensor, or give it back to the system.
    timeout : float, optional
        Seconds that ranks wait for each other to join; by default without end.
    memory_advice : callable, optional
        Says, for the message of a rank that runs out of memory, what was predicted and what to change.

    Raises
    ------
    InputError
        The environment makes this process a rank only in part, or ranks do not join in time.
    """
    started_by = launcher()
    if started_by is None:
        if "RANK" not in os.environ:
            return launch(arguments, ranks(), keep_memory=keep_memory, timeout=timeout, memory_advice=memory_advice)
        _check_environment()
    from . import rank  # imports torch

    return rank.run(work, started_by, timeout, memory_advice)


def _check_environment() -> None:
    """Raise :class:`InputError` unless the environment says all that torchrun says."""
    missing = [name for name in _FROM_TORCHRUN if name not in os.environ]
    if missing:
        raise InputError(
            f"RANK is set in the environment, which makes this process one of several ranks, but {missing[0]} is not; "
            "start ranks with torchrun, or unset RANK to let dgl-gt start them"
        )
    ranks = _whole_number("WORLD_SIZE", 1, 2**31 - 1)
    _whole_number("RANK", 0, ranks - 1)
    _whole_number("MASTER_PORT", 0, 2**16 - 1)


def _whole_number(name: str, least: int, largest: int) -> int:
    text = os.environ[name]
    if not re.fullmatch("[0-9]{1,10}", text) or not least <= int(text) <= largest:
        raise InputError(f"{name} is {text!r} in the environment; it must be a whole number from {least} to {largest}")
    return int(text)


def launch(
    arguments: list[str],
    ranks: int,
    *,
    keep_memory: bool = True,
    timeout: float | None = None,
    memory_advice: Callable[[], str] | None = None,
) -> int:
    """Run ``dgl-gt ARGUMENTS`` as ``ranks`` processes; return the exit code. Parameters as of :func:`on_ranks`."""
    warn_of_threads(ranks)
    kills = child.memory_kills()
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
    environment = {**(KEEP_MEMORY if keep_memory else GIVE_BACK_MEMORY), **child.environment(), **_LOOPBACK}
    environment.setdefault("OMP_NUM_THREADS", str(_threads(ranks)))
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
                    | {_LAUNCHED: f"{os.getpid()} {store} {pipe}"}
                    | {name: str(rank) for name in ("RANK", "LOCAL_RANK")}
                    | {name: str(ranks) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE")},
                )
            except OSError as error:
                raise InputError(f"cannot start rank {rank}: {error.strerror or error}; start fewer ranks") from error
            finally:
                os.close(pipe)
            started.append(StartedRank(rank, process, ours))
        yield started


def _threads(ranks: int) -> int:
    """Threads for each of so many ranks on this machine."""
    return max(1, available_cpus() // ranks)


def warn_of_threads(ranks: int) -> None:
    """Say on standard error where ``OMP_NUM_THREADS`` asks for more threads than this machine has processors."""
    wanted, cpus = os.environ.get("OMP_NUM_THREADS", ""), available_cpus()
    if wanted.isdecimal() and int(wanted) * ranks > max(cpus, ranks):
        who = "1 rank has" if ranks == 1 else f"{ranks} ranks share"
        print(
            f"dgl-gt: warning: OMP_NUM_THREADS is {wanted}, but {who} {cpus} processor{'s' * (cpus != 1)}, so that "
            f"threads wait for each other; set it to {_threads(ranks)}, or unset it",
            file=sys.stderr,
        )


def _explain(rank: int, failure: Failure, kills: int | None, memory_advice) -> int:
    """Say why the run failed; return the exit code."""
    if failure.kind == "signal" and child.was_for_memory(-int(failure.text), kills):
        failure = Failure("memory", "the system killed it", failure.at_s)
    text, code = failure.text, failure.exit_code
    if failure.kind == "signal":
        text = f"rank {rank} was {child.signal_text(-int(text))}"
    elif failure.kind == "memory":
        text = out_of_memory(rank, text, memory_advice)
    elif failure.kind == "error":
        text = f"rank {rank} was stopped by an error in dgl-gt:\n{text}"
    elif failure.kind == "exit":
        text = "" if code == 2 else f"rank {rank} ended with exit code {text}"  # with 2 it has said why
    if text:
        print(f"dgl-gt: {'error: ' if code == 2 else ''}{text}", file=sys.stderr)
    return code


def out_of_memory(rank: int, text: str, memory_advice) -> str:
    """The message of a rank that ran out of memory."""
    advice = memory_advice() if memory_advice else "free memory, or partition into more parts on more machines"
    return f"rank {rank} ran out of memory: {text}; {advice}"
