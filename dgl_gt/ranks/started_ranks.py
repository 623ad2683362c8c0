"""Ranks that this process has started: their reports and what they print, their end, and which failed first."""

from __future__ import annotations

import codecs
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.system import child_process
from dgl_gt.partition.system.signals import SAME_STOP_S, STOPPING

from .launcher_link import LATE_AFTER_S, LAUNCHED, Failure, threads_per_rank

_LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}

_POLL_S = 0.05
_CAUSE_WAIT_S = 3.0  # time for the rank that caused a failure to report it, after another one relayed it
_END_WAIT_S = 5.0  # time for ranks to end before they are killed
_STOP_WAIT_S = 30.0  # time for ranks to finish an epoch and write a checkpoint, before schedulers kill them
_WRITE_WAIT_S = 60.0  # more time for a rank that writes the model


@contextmanager
def started_ranks(
    command: list[str],
    ranks: int,
    environment: dict[str, str],
    restarts: int = 0,
    *,
    inherited: Sequence[int] = (),
    show: Callable | None = None,
) -> Iterator[list[StartedRank]]:
    """Start ranks that run a command; give them as a list, and end those that still run.

    ``environment`` has the settings of the allocator; those in this process's own environment win. Ranks inherit these
    file descriptors, and the streams of this process; or with ``show``, what they print is passed on to ``sys.stdout``
    and ``sys.stderr``, and ``show`` is called with the progress that they report.
    """
    preloaded = environment.get("LD_PRELOAD")  # with the user's own
    environment = {**environment, **child_process.environment(), **_LOOPBACK}
    if preloaded:
        environment["LD_PRELOAD"] = preloaded
    environment.setdefault("OMP_NUM_THREADS", str(threads_per_rank(ranks)))
    stream = None if show is None else subprocess.PIPE
    started: list[StartedRank] = []
    with ExitStack() as stack:
        store = os.memfd_create("dgl-gt-store")
        stack.callback(os.close, store)
        try:
            for rank in range(ranks):
                read_end, write_end = os.pipe()
                stack.callback(os.close, read_end)
                try:
                    process = subprocess.Popen(
                        command,
                        stdin=subprocess.DEVNULL,
                        pass_fds=(store, write_end, *inherited),
                        env=environment
                        | {LAUNCHED: f"{os.getpid()} {store} {write_end} {restarts}"}
                        | {name: str(rank) for name in ("RANK", "LOCAL_RANK")}
                        | {name: str(ranks) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE")},
                        stdout=stream,
                        stderr=stream,
                    )
                except OSError as error:
                    raise InputError(
                        f"cannot start rank {rank}: {error.strerror or error}; start fewer ranks"
                    ) from error
                finally:
                    os.close(write_end)
                for each in filter(None, (process.stdout, process.stderr)):
                    stack.enter_context(each)
                started.append(StartedRank(rank, process, read_end, show))
            yield started
        finally:
            end_all(started)


class StartedRank:
    """The process of a rank, and what it has reported.

    ``pipe`` is the file descriptor from which its reports are read: one JSON object per line, ``{"state": ...}``, the
    fields of a :class:`Failure`, or ``{"progress": [...]}``, the arguments of ``show``. The state is ``starting``, then
    ``joining`` while the rank waits for the others, then ``joined``, and ``writing`` while it writes the model.
    """

    def __init__(self, number: int, process: subprocess.Popen, pipe: int, show: Callable | None = None):
        self.number, self.process = number, process
        self.state = "starting"
        self.failure: Failure | None = None
        self._pipe, self._unread, self._show = pipe, b"", show
        self._printed = [_Printed(name, getattr(process, name)) for name in ("stdout", "stderr")] if show else []
        self._stopped_s = float("inf")
        os.set_blocking(pipe, False)

    @property
    def has_ended(self) -> bool:
        return self.process.returncode is not None

    def update(self) -> None:
        """Read what the rank has reported and printed, and whether it has ended."""
        code = self.process.poll()  # before reading, so that its last report is read
        for each in self._printed:
            each.pass_on(is_last=code is not None)
        while received := _read_now(self._pipe):
            self._unread += received
        *lines, self._unread = self._unread.split(b"\n")
        for line in lines:
            report = json.loads(line)
            if "state" in report:
                self.state = report["state"]
            elif "progress" in report:
                if self._show:
                    self._show(*report["progress"])
            elif self.failure is None and report["at_s"] < self._stopped_s:  # a later failure is our doing
                self.failure = Failure(**report)
        if code and self.failure is None and self._stopped_s == float("inf"):
            if code - 128 in STOPPING:  # it ended on a signal before it could report that
                code = 128 - code
            kind, text = ("signal", str(-code)) if code < 0 else ("exit", str(code))
            self.failure = Failure(kind, text, time.monotonic())

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Send the rank a signal; the way in which it then ends does not count as a failure."""
        self._stopped_s = min(self._stopped_s, time.monotonic())
        self.process.send_signal(number)


class _Printed:
    """What a rank prints on one of its streams: passed on to that of this process, a notebook's too, in whole lines."""

    def __init__(self, name: str, pipe):
        self._name, self._pipe, self._text = name, pipe.fileno(), ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        os.set_blocking(self._pipe, False)

    def pass_on(self, is_last: bool) -> None:
        while received := _read_now(self._pipe):
            self._text += self._decoder.decode(received)
        whole = len(self._text) if is_last else max(map(self._text.rfind, "\n\r")) + 1
        if whole:
            text, self._text = self._text[:whole], self._text[whole:]
            stream = getattr(sys, self._name)
            stream.write(text)
            stream.flush()


def _read_now(pipe: int) -> bytes:
    try:
        return os.read(pipe, 1 << 16)
    except BlockingIOError:
        return b""


def watch(ranks: list[StartedRank], signals: list[int], timeout: float | None = None, *, advice: str = "") -> None:
    """Return when all ranks have ended, one has failed, or one has ended after it was asked to by the first of the signals.

    ``signals`` are those that this process receives meanwhile. ``InputError`` says that a rank does not join in time;
    ``advice`` ends the earlier warning that one is late.
    """
    started, has_warned = time.monotonic(), False
    while True:
        for each in ranks:
            each.update()
        if signals:
            return _ask_to_stop(ranks, signals)
        if any(each.failure for each in ranks) or all(each.has_ended for each in ranks):
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
            late_s = f"{LATE_AFTER_S:.0f} s"
            print(f"dgl-gt: {_subject(late)} not joined after {late_s}; still waiting{advice}", file=sys.stderr)
        time.sleep(_POLL_S)


def _subject(ranks: list[StartedRank]) -> str:
    numbers = ", ".join(str(each.number) for each in ranks)
    return f"rank {numbers} (process {ranks[0].process.pid}) has" if len(ranks) == 1 else f"ranks {numbers} have"


def _ask_to_stop(ranks: list[StartedRank], signals: list[int]) -> None:
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
            each.update()


def _any_writes(ranks: list[StartedRank]) -> bool:
    return any(each.state == "writing" and not each.has_ended for each in ranks)


def _wait(ranks: list[StartedRank], seconds: float, is_needed: Callable[[], bool]) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and is_needed() and not all(each.has_ended for each in ranks):
        for each in ranks:
            each.update()
        time.sleep(_POLL_S)


def first_failure(ranks: list[StartedRank], kills: int | None) -> tuple[int, Failure] | None:
    """The number of the rank whose failure ended the run, and the failure.

    If several ranks found a mistake of the user, the one with the lowest number counts. Where the system has killed a rank
    for want of memory since ``kills`` were counted, the failure is one of memory.
    """
    failed = [(each.number, each.failure) for each in ranks if each.failure]
    causes = [found for found in failed if found[1].kind != "relayed"] or failed
    if not causes:
        return None
    first = min(causes, key=lambda found: found[1].at_s)
    number, failure = next(found for found in causes if found[1].kind == "input") if first[1].kind == "input" else first
    if failure.kind == "signal" and child_process.killed_for_memory(-int(failure.text), kills):
        failure = Failure("memory", "the system killed it", failure.at_s)
    return number, failure
