"""Ranks that this process has started: what they say, what becomes of them, and which failed first."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from partition.console import STOPPING
from partition.errors import InputError

_POLL_S = 0.05
AWAITED_S = 60.0  # after which a rank that has not joined is named
_CAUSE_S = 3.0  # for the rank that has caused a failure to say so, after one that was only told of it
_LAST_S = 5.0  # for ranks to end, before they are killed


@dataclass(frozen=True)
class Failure:
    """Why a rank ended before its time.

    Attributes
    ----------
    kind : str
        ``input``: the user's mistake; ``memory``: it ran out; ``signal``: somebody sent one; ``error``: a bug;
        ``told``: another rank's failure, whatever it was; ``exit``: it has not said why.
    text : str
        The message, of a bug its traceback, of a signal its number, of ``exit`` the exit code.
    at_s : float
        When it failed, by ``time.monotonic``, which is the same in all processes of a machine (s).
    is_input : bool
        Of ``told``, whether the other's failure was the user's mistake.
    """

    kind: str
    text: str
    at_s: float
    is_input: bool = False

    @property
    def exit_code(self) -> int:
        """The exit code of a run that fails for this reason."""
        if self.kind == "signal":
            return 128 + int(self.text)
        if self.kind == "exit":
            return int(self.text)
        return 2 if self.kind in ("input", "memory") or self.is_input else 1


class StartedRank:
    """A rank's process, and what it has said.

    Parameters
    ----------
    number : int
    process : subprocess.Popen
    pipe : int
        Where it speaks: one JSON object a line, ``{"state": ...}`` or the fields of a :class:`Failure`.

    Attributes
    ----------
    state : str
        ``starting``, ``joining`` when it waits for the others, then ``joined``.
    failure : Failure or None
    """

    def __init__(self, number: int, process: subprocess.Popen, pipe: int):
        self.number, self.process = number, process
        self.state, self.failure = "starting", None
        self._pipe, self._heard = pipe, b""
        self._stopped_s = float("inf")
        os.set_blocking(pipe, False)

    @property
    def has_ended(self) -> bool:
        return self.process.returncode is not None

    def listen(self) -> None:
        """Take note of what it has said, and of its end."""
        code = self.process.poll()  # before reading, so that its last words are read
        while heard := self._read():
            self._heard += heard
        *lines, self._heard = self._heard.split(b"\n")
        for line in lines:
            said = json.loads(line)
            if "state" in said:
                self.state = said["state"]
            elif self.failure is None and said["at_s"] < self._stopped_s:  # what comes later is our doing
                self.failure = Failure(**said)
        if code and self.failure is None and self._stopped_s == float("inf"):
            if code - 128 in STOPPING:  # before it could say so
                code = 128 - code
            kind, text = ("signal", str(-code)) if code < 0 else ("exit", str(code))
            self.failure = Failure(kind, text, time.monotonic())

    def _read(self) -> bytes:
        try:
            return os.read(self._pipe, 1 << 16)
        except BlockingIOError:
            return b""

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Send it a signal; how it ends then is no failure."""
        self._stopped_s = min(self._stopped_s, time.monotonic())
        self.process.send_signal(number)


def watch(ranks: list[StartedRank], is_stopped: Callable[[], bool], timeout: float | None = None) -> None:
    """Return when all ranks have ended, one has failed, or this process shall stop.

    Raises
    ------
    InputError
        A rank has not joined after ``timeout`` seconds.
    """
    started, has_spoken = time.monotonic(), False
    while True:
        for each in ranks:
            each.listen()
        if is_stopped() or any(each.failure for each in ranks) or all(each.has_ended for each in ranks):
            return
        waited = time.monotonic() - started
        late = [each for each in ranks if each.state == "starting"]
        late = late or [each for each in ranks if each.state != "joined"]
        if late and timeout is not None and waited > timeout:
            raise InputError(
                f"{_named(late)} not joined after {timeout:g} s, which is what --timeout allows; allow more "
                "time, or find out what keeps the process busy"
            )
        if late and waited > AWAITED_S and not has_spoken:
            has_spoken = True
            print(
                f"dgl-gt: {_named(late)} not joined after {AWAITED_S:.0f} s; waiting goes on "
                "(--timeout SECONDS would end it)",
                file=sys.stderr,
            )
        time.sleep(_POLL_S)


def _named(ranks: list[StartedRank]) -> str:
    numbers = ", ".join(str(each.number) for each in ranks)
    return f"rank {numbers} (process {ranks[0].process.pid}) has" if len(ranks) == 1 else f"ranks {numbers} have"


def end(ranks: list[StartedRank]) -> None:
    """End all ranks that still run, and wait for them; a rank that has failed by itself may say so first."""
    _wait(ranks, _CAUSE_S, lambda: {each.failure.kind for each in ranks if each.failure} == {"told"})
    for each in ranks:
        if not each.has_ended and each.failure is None:
            each.stop()
    _wait(ranks, _LAST_S, lambda: True)
    for each in ranks:
        if not each.has_ended:
            each.stop(signal.SIGKILL)
            each.process.wait()


def _wait(ranks: list[StartedRank], seconds: float, goes_on: Callable[[], bool]) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and goes_on() and not all(each.has_ended for each in ranks):
        for each in ranks:
            each.listen()
        time.sleep(_POLL_S)


def first_failure(ranks: list[StartedRank]) -> tuple[int, Failure] | None:
    """The rank whose failure ended the run, and the failure; of mistakes that several ranks found, rank 0's first."""
    failed = [(each.number, each.failure) for each in ranks if each.failure]
    causes = [found for found in failed if found[1].kind != "told"] or failed
    if not causes:
        return None
    first = min(causes, key=lambda found: found[1].at_s)
    return next(found for found in causes if found[1].kind == "input") if first[1].kind == "input" else first
