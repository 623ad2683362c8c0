"""Runs work on ranks, which it starts on this machine, and ends when one fails. :mod:`.rank_process` is the other side.

Ranks meet in a file without a name, which they inherit, and exchange rows over the loopback interface. No other machine
or user can reach either, and nothing stays behind if a process is killed. Ranks report to the launcher through a pipe.
This module does not import torch, which would make the start slower.
"""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, contextmanager

from dgl_gt.partition.console import with_options_only
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.system import child_process
from dgl_gt.partition.system.allocator import check_running, environment_of_ranks
from dgl_gt.partition.system.signals import SAME_STOP_S, STOPPING, received_signals
from dgl_gt.partition.system.units import format_count

from .launcher_link import (
    LATE_AFTER_S,
    LAUNCHED,
    STILL_WAITING,
    Failure,
    find_launcher,
    out_of_memory_message,
    threads_per_rank,
    warn_of_too_many_threads,
)

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
    default without a limit. ``memory_advice()`` says what was predicted and what to change where a rank runs out of
    memory. Ranks that fail for a reason that may pass start again, at most ``max_restarts`` times. Returns the result of
    ``work()`` on rank 0; elsewhere an exit code.
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
    preloaded = environment.get("LD_PRELOAD")  # with the user's own
    environment = {**environment, **child_process.environment(), **_LOOPBACK}
    if preloaded:
        environment["LD_PRELOAD"] = preloaded
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


# ---- ranks that this process started: their reports, their end, and which failed first ----


_POLL_S = 0.05
_CAUSE_WAIT_S = 3.0  # time for the rank that caused a failure to report it, after another one relayed it
_END_WAIT_S = 5.0  # time for ranks to end before they are killed
_STOP_WAIT_S = 30.0  # time for ranks to finish an epoch and write a checkpoint, before schedulers kill them
_WRITE_WAIT_S = 60.0  # more time for a rank that writes the model


class StartedRank:
    """The process of a rank, and what it has reported.

    ``pipe`` is the file descriptor from which its reports are read: one JSON object per line, ``{"state": ...}`` or the
    fields of a :class:`Failure`. The state is ``starting``, then ``joining`` while the rank waits for the others, then
    ``joined``, and ``writing`` while it writes the model.
    """

    def __init__(self, number: int, process: subprocess.Popen, pipe: int):
        self.number, self.process = number, process
        self.state = "starting"
        self.failure: Failure | None = None
        self._pipe, self._unread = pipe, b""
        self._stopped_s = float("inf")
        os.set_blocking(pipe, False)

    @property
    def has_ended(self) -> bool:
        return self.process.returncode is not None

    def update(self) -> None:
        """Read what the rank has reported, and whether it has ended."""
        code = self.process.poll()  # before reading, so that its last report is read
        while received := self._read():
            self._unread += received
        *lines, self._unread = self._unread.split(b"\n")
        for line in lines:
            report = json.loads(line)
            if "state" in report:
                self.state = report["state"]
            elif self.failure is None and report["at_s"] < self._stopped_s:  # a later failure is our doing
                self.failure = Failure(**report)
        if code and self.failure is None and self._stopped_s == float("inf"):
            if code - 128 in STOPPING:  # it ended on a signal before it could report that
                code = 128 - code
            kind, text = ("signal", str(-code)) if code < 0 else ("exit", str(code))
            self.failure = Failure(kind, text, time.monotonic())

    def _read(self) -> bytes:
        try:
            return os.read(self._pipe, 1 << 16)
        except BlockingIOError:
            return b""

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Send the rank a signal; the way in which it then ends does not count as a failure."""
        self._stopped_s = min(self._stopped_s, time.monotonic())
        self.process.send_signal(number)


def watch(ranks: list[StartedRank], is_stopped: Callable[[], bool], timeout: float | None = None) -> None:
    """Return when all ranks have ended, one has failed, or ``is_stopped()``; ``InputError`` if one does not join in time."""
    started, has_warned = time.monotonic(), False
    while True:
        for each in ranks:
            each.update()
        if is_stopped() or any(each.failure for each in ranks) or all(each.has_ended for each in ranks):
            return
        waited = time.monotonic() - started
        late = [each for each in ranks if each.state == "starting"]
        late = late or [each for each in ranks if each.state == "joining"]
        if late and timeout is not None and waited > timeout:
            raise InputError(
                f"{_subject(late)} not joined after {timeout:g} s, the limit that --timeout sets; raise the limit, or "
                "find out what keeps the process busy"
            )
        if late and waited > LATE_AFTER_S and not has_warned:
            has_warned = True
            print(f"dgl-gt: {_subject(late)} not joined after {LATE_AFTER_S:.0f} s; {STILL_WAITING}", file=sys.stderr)
        time.sleep(_POLL_S)


def _subject(ranks: list[StartedRank]) -> str:
    numbers = ", ".join(str(each.number) for each in ranks)
    return f"rank {numbers} (process {ranks[0].process.pid}) has" if len(ranks) == 1 else f"ranks {numbers} have"


def ask_to_stop(ranks: list[StartedRank], signals: list[int]) -> None:
    """Pass the first signal on to all ranks, which may finish an epoch first; return when one of them has ended.

    Return also on another signal, except for those of the same stop, and if the ranks take too long for any signal but
    Ctrl-C.
    """
    first, begun = signals[0], time.monotonic()
    for each in ranks:
        if not each.has_ended:
            each.stop(first)
    limit_s = math.inf if first == signal.SIGINT else _STOP_WAIT_S
    of_same_stop, has_told = 1, False
    while not any(each.has_ended for each in ranks) and (time.monotonic() - begun < limit_s or _any_writes(ranks)):
        for each in ranks:
            each.update()
        if time.monotonic() - begun < SAME_STOP_S:
            of_same_stop = len(signals)
        elif len(signals) > of_same_stop:
            return
        elif not has_told:
            has_told = True
            print("dgl-gt: waiting for the ranks to stop; a second signal ends them at once", file=sys.stderr)
        time.sleep(_POLL_S)


def end_all(ranks: list[StartedRank]) -> None:
    """End all ranks that still run, and wait for them; a rank that failed on its own may report that first.

    A rank that writes may finish that, unless it takes too long, as one that is frozen does. A rank that trains takes
    the first signal as a request, and stops at once on the second.
    """
    _wait(ranks, _CAUSE_WAIT_S, lambda: {each.failure.kind for each in ranks if each.failure} == {"relayed"})
    _wait(ranks, _WRITE_WAIT_S, lambda: _any_writes(ranks))
    frozen = [each for each in ranks if each.state == "writing" and not each.has_ended]
    for _ in range(2):
        for each in ranks:
            if not each.has_ended and each.failure is None and each.state != "writing":
                each.stop()
        _wait(ranks, _END_WAIT_S, lambda: True)
    _wait(ranks, _WRITE_WAIT_S, lambda: _any_writes([each for each in ranks if each not in frozen]))
    for each in ranks:
        if not each.has_ended:
            each.stop(signal.SIGKILL)
            each.process.wait()


def _any_writes(ranks: list[StartedRank]) -> bool:
    return any(each.state == "writing" and not each.has_ended for each in ranks)


def _wait(ranks: list[StartedRank], seconds: float, is_needed: Callable[[], bool]) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and is_needed() and not all(each.has_ended for each in ranks):
        for each in ranks:
            each.update()
        time.sleep(_POLL_S)


def first_failure(ranks: list[StartedRank]) -> tuple[int, Failure] | None:
    """The number of the rank whose failure ended the run, and the failure.

    If several ranks found a mistake of the user, the one with the lowest number counts.
    """
    failed = [(each.number, each.failure) for each in ranks if each.failure]
    causes = [found for found in failed if found[1].kind != "relayed"] or failed
    if not causes:
        return None
    first = min(causes, key=lambda found: found[1].at_s)
    return next(found for found in causes if found[1].kind == "input") if first[1].kind == "input" else first
