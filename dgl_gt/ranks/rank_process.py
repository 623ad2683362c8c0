"""The side of one rank: it joins the others, works, reports what went wrong, and leaves."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
import traceback
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import destroy_process_group as leave_group

from dgl_gt.comm.group import RankError
from partition.errors import InputError
from partition.system.command_entry import after_imports
from partition.system.signals import STOPPING
from partition.system.units import format_bytes

from .launcher_link import LATE_AFTER_S, STILL_WAITING, Failure, Launcher
from .out_of_memory import out_of_memory_message
from .threads import warn_of_too_many_threads

_REPORT_WAIT_S = 3.0  # time for rank 0 to say what went wrong: torchrun ends all ranks as soon as one has ended
_MAX_TRACEBACK = 20_000  # characters
_NO_LIMIT = timedelta(days=365)


def run(work, launcher: Launcher | None, timeout: float | None = None, memory_advice=None):
    """Join the other ranks, run ``work()``, and leave; returns its result on rank 0, and an exit code elsewhere."""
    if launcher is None:
        return _run_under_torchrun(work, timeout, memory_advice)
    for number in STOPPING:  # an exception cannot interrupt joining, and there is nothing to clean up
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    try:
        launcher.report(state="joining")
        rank = join_group(timeout, dist.FileStore(f"/proc/self/fd/{launcher.store}", int(os.environ["WORLD_SIZE"])))
        launcher.report(state="joined")
        _report_first_signal(launcher)
        outcome = work()
    except SystemExit as stopped:  # by a signal, which the launcher knows of
        _exit_at_once(stopped.code)
    except Exception as error:
        failure = _failure_of(error)
        launcher.report(**asdict(failure))
        _exit_at_once(failure.exit_code)
    else:
        leave_group()
    return outcome if rank == 0 else 0


def _exit_at_once(code: int | str | None) -> None:
    """End this rank, with a code that ``SystemExit`` takes, without waiting for anything.

    The interpreter would wait for an exchange that other ranks never finish. Half-written files are removed by now.
    """
    if isinstance(code, str):
        print(code, file=sys.stderr)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # nobody reads the stream any more, or it is closed
            stream.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def _run_under_torchrun(work, timeout: float | None, memory_advice):
    if os.environ.get("LOCAL_RANK", "0") == "0":
        warn_of_too_many_threads(int(os.environ.get("LOCAL_WORLD_SIZE", 1)))
    rank = int(os.environ["RANK"])
    try:
        with _warning_when_late(rank):
            join_group(timeout)
        outcome = work()
    except InputError:
        if rank == 0:
            raise
        time.sleep(_REPORT_WAIT_S)
        return 2  # rank 0 raises the same error and prints it
    except RankError as stopped:  # the rank that failed has printed its own error
        if rank == 0:
            print(f"dgl-gt: {stopped}", file=sys.stderr)
        else:
            time.sleep(_REPORT_WAIT_S)
        return 1
    except (MemoryError, RuntimeError) as error:
        problem = _allocation_problem(error)
        if problem is None:
            raise
        raise InputError(out_of_memory_message(rank, problem, memory_advice)) from error
    leave_group()
    return outcome if rank == 0 else 0


@contextmanager
def _warning_when_late(rank: int):
    """Inside the block, print a message once this rank has waited long for the others to join."""
    address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    text = f"dgl-gt: rank {rank} has waited {LATE_AFTER_S:.0f} s at {address} for the others to join; {STILL_WAITING}"
    timer = threading.Timer(LATE_AFTER_S, print, [text], {"file": sys.stderr})
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def join_group(timeout: float | None = None, store=None) -> int:
    """Join the process group, nccl if each local rank has a GPU, otherwise gloo; returns the rank.

    Ranks meet in ``store``, by default the place that the environment names, as torchrun sets it. ``RankError`` says
    that another rank has ended, or has not joined within ``timeout`` seconds; by default there is no limit.
    """
    local_rank, local_ranks = int(os.environ.get("LOCAL_RANK", 0)), int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    options = {} if store is None else {"store": store}
    options |= {name: int(os.environ[key]) for name, key in (("rank", "RANK"), ("world_size", "WORLD_SIZE"))}
    options["timeout"] = _NO_LIMIT if timeout is None else timedelta(seconds=timeout)
    try:
        if torch.cuda.is_available() and torch.cuda.device_count() >= local_ranks:
            torch.cuda.set_device(local_rank)
            dist.init_process_group("nccl", device_id=torch.device("cuda", local_rank), **options)
        else:
            dist.init_process_group("gloo", **options)
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise RankError(f"rank {options['rank']} could not join the others ({reason})") from error
    return dist.get_rank()


def _report_first_signal(launcher: Launcher) -> None:
    """Make the first signal report to the launcher and raise, so that half-written files are removed; ignore later ones."""

    def stop(number, _):
        for each in STOPPING:
            signal.signal(each, lambda *_: None)  # with SIG_IGN, Python complains about a signal on its way
        launcher.report(**asdict(Failure("signal", str(int(number)), time.monotonic())))
        raise SystemExit(128 + number)

    for number in STOPPING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, after_imports(stop))


def _failure_of(error: Exception) -> Failure:
    text, problem, now = str(error), _allocation_problem(error), time.monotonic()
    if isinstance(error, RankError):
        return Failure("relayed", text, now, is_input=isinstance(error, InputError))
    if isinstance(error, InputError):
        return Failure("input", text, now)
    if problem is not None:
        return Failure("memory", problem, now)
    return Failure("error", "".join(traceback.format_exception(error)).rstrip()[-_MAX_TRACEBACK:], now)


def _allocation_problem(error: BaseException) -> str | None:
    """What could not be allocated when memory ran out; None for any other error."""
    text = str(error)
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return text.split(". ")[1] if ". " in text else text
    found = re.search(r"(?:can't allocate memory|not enough memory): you tried to allocate (\d+) bytes", text)
    if found:
        return f"it asked for {format_bytes(int(found[1]))} at once"
    return (text or "an allocation failed") if isinstance(error, MemoryError) else None
