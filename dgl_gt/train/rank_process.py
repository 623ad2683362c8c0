"""One rank's side of a run: join the others, work, say what went wrong, leave."""

from __future__ import annotations

import json
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

from dgl_gt.comm.group import RankError
from partition.console import STOPPING
from partition.errors import InputError
from partition.system.command_entry import after_imports
from partition.system.units import size

from .launcher import Launcher, out_of_memory, warn_of_threads
from .started_ranks import AWAITED_S, Failure

_LAST_WORD_S = 3.0  # for rank 0 to say what went wrong: torchrun ends all ranks as soon as one has ended
_LONGEST_TEXT = 20_000
_WITHOUT_END = timedelta(days=365)


def run(work, launcher: Launcher | None, timeout: float | None = None, memory_advice=None):
    """Join, run ``work()``, and leave; returns its result on rank 0, else an exit code."""
    if launcher is None:
        return _run_under_torchrun(work, timeout, memory_advice)
    for number in STOPPING:  # joining cannot be interrupted by an exception, and has nothing to clean up
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    try:
        _tell(launcher, state="joining")
        rank = join(timeout, dist.FileStore(f"/proc/self/fd/{launcher.store}", int(os.environ["WORLD_SIZE"])))
        _tell(launcher, state="joined")
        _stop_once(launcher)
        outcome = work()
    except SystemExit as stopped:  # by a signal, which the launcher knows of
        _end(stopped.code)
    except Exception as error:
        failure = _failure(error)
        _tell(launcher, **asdict(failure))
        _end(failure.exit_code)
    else:
        leave()
    return outcome if rank == 0 else 0


def _end(code: int | str | None) -> None:
    """End a rank that fails, with what ``SystemExit`` takes, without waiting for anything.

    An exchange may have begun that others never finish, and the interpreter would wait for it. What is half-written
    has been removed on the way here.
    """
    if isinstance(code, str):
        print(code, file=sys.stderr)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # nobody reads it any more, or it is closed
            stream.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def _run_under_torchrun(work, timeout: float | None, memory_advice):
    if os.environ.get("LOCAL_RANK", "0") == "0":
        warn_of_threads(int(os.environ.get("LOCAL_WORLD_SIZE", 1)))
    rank = int(os.environ["RANK"])
    try:
        with _notice(rank):
            join(timeout)
        outcome = work()
    except InputError:
        if rank == 0:
            raise
        time.sleep(_LAST_WORD_S)
        return 2  # rank 0 raises the same and says it
    except RankError as stopped:  # the one that failed has shown its own error
        if rank == 0:
            print(f"dgl-gt: {stopped}", file=sys.stderr)
        else:
            time.sleep(_LAST_WORD_S)
        return 1
    except (MemoryError, RuntimeError) as error:
        asked = _asked_for(error)
        if asked is None:
            raise
        raise InputError(out_of_memory(rank, asked, memory_advice)) from error
    leave()
    return outcome if rank == 0 else 0


@contextmanager
def _notice(rank: int):
    """Inside, say so when this rank has waited long for the others to join."""
    text = (
        f"dgl-gt: rank {rank} has waited {AWAITED_S:.0f} s at {os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']} "
        "for the others to join; waiting goes on (--timeout SECONDS would end it)"
    )
    timer = threading.Timer(AWAITED_S, print, [text], {"file": sys.stderr})
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def join(timeout: float | None = None, store=None) -> int:
    """Join the group, nccl with a GPU for each local rank, else gloo; return the rank.

    Parameters
    ----------
    timeout : float, optional
        Seconds to wait for the others; by default without end.
    store : torch.distributed.Store, optional
        Where ranks meet; by default where the environment says, as torchrun sets it.

    Raises
    ------
    RankError
        Another rank has gone, or has not come in time.
    """
    local, here = int(os.environ.get("LOCAL_RANK", 0)), int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    options = {} if store is None else {"store": store}
    options |= {name: int(os.environ[key]) for name, key in (("rank", "RANK"), ("world_size", "WORLD_SIZE"))}
    options["timeout"] = _WITHOUT_END if timeout is None else timedelta(seconds=timeout)
    try:
        if torch.cuda.is_available() and torch.cuda.device_count() >= here:
            torch.cuda.set_device(local)
            dist.init_process_group("nccl", device_id=torch.device("cuda", local), **options)
        else:
            dist.init_process_group("gloo", **options)
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise RankError(f"rank {options['rank']} could not join the others ({reason})") from error
    return dist.get_rank()


def leave() -> None:
    """Leave the group."""
    dist.destroy_process_group()


def _stop_once(launcher: Launcher) -> None:
    """Let the first signal tell the launcher and raise, so that what is half-written is removed; ignore later ones."""

    def stop(number, _):
        for each in STOPPING:
            signal.signal(each, lambda *_: None)  # with SIG_IGN, Python complains of one that is on its way already
        _tell(launcher, **asdict(Failure("signal", str(int(number)), time.monotonic())))
        raise SystemExit(128 + number)

    for number in STOPPING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, after_imports(stop))


def _tell(launcher: Launcher, **message) -> None:
    with suppress(OSError):  # the launcher has gone, and this rank goes with it
        os.write(launcher.pipe, json.dumps(message).encode() + b"\n")


def _failure(error: Exception) -> Failure:
    text, asked, now = str(error), _asked_for(error), time.monotonic()
    if isinstance(error, RankError):
        return Failure("told", text, now, is_input=isinstance(error, InputError))
    if isinstance(error, InputError):
        return Failure("input", text, now)
    if asked is not None:
        return Failure("memory", asked, now)
    return Failure("error", "".join(traceback.format_exception(error)).rstrip()[-_LONGEST_TEXT:], now)


def _asked_for(error: BaseException) -> str | None:
    """What an allocator was asked for when memory ran out; None for any other error."""
    text = str(error)
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return text.split(". ")[1] if ". " in text else text
    found = re.search(r"(?:can't allocate memory|not enough memory): you tried to allocate (\d+) bytes", text)
    if found:
        return f"it asked for {size(int(found[1]))} at once"
    return (text or "an allocation failed") if isinstance(error, MemoryError) else None
