"""The side of one rank: it joins the others, works, reports what went wrong, and leaves."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import asdict

import torch
import torch.distributed as dist
from torch.distributed import destroy_process_group as leave_group

from dgl_gt.comm.group import RankError
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.system.signals import STOPPING, after_imports
from dgl_gt.partition.system.units import format_bytes

from .join import REPORT_WAIT_S, JoinError, is_first_here, join_group
from .launcher_link import Failure, Launcher
from .limits import out_of_memory_message, warn_of_too_many_threads

_MAX_TRACEBACK = 20_000  # characters


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
    """Join the ranks that torchrun started, and work. The first rank of each machine says what ends them all."""
    if is_first_here():
        warn_of_too_many_threads(int(os.environ.get("LOCAL_WORLD_SIZE", 1)))
    try:
        rank = join_group(timeout)
        outcome = work()
    except InputError as error:
        if is_first_here() or isinstance(error, JoinError):
            raise
        time.sleep(REPORT_WAIT_S)  # torchrun ends all ranks as soon as one has ended
        return 2
    except RankError as stopped:  # the rank that failed has printed its own error
        if is_first_here():
            print(f"dgl-gt: {stopped}", file=sys.stderr)
        else:
            time.sleep(REPORT_WAIT_S)
        return 1
    except (MemoryError, RuntimeError) as error:
        problem = _allocation_problem(error)
        if problem is None:
            raise
        raise InputError(out_of_memory_message(int(os.environ["RANK"]), problem, memory_advice)) from error
    leave_group()
    return outcome if rank == 0 else 0


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
