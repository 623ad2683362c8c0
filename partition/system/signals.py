"""How a command starts, is stopped and ends: signals, and standard streams. This module imports nothing heavy."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SAME_STOP_S = 1.0  # signals within this time are one request: shells and `timeout` signal a process and its group
_RETRY_S, _LONGEST_IMPORT_S = 0.05, 10.0


def enter(program: str, run) -> int:
    """Run a command line and return its exit code; ``run`` imports it, runs it and returns that code."""
    may_be_interrupted = leave_when_interrupted("" if is_rank() else f"{program}: interrupted\n")
    open_streams()
    try:
        code = run()
    except SystemExit as stopped:
        code = stopped.code
    if may_be_interrupted:
        leave_when_interrupted("")  # the command has done its work
    unwritten = print_out(program)
    return code or unwritten


def is_rank() -> bool:
    """Return whether a launcher started this process as one of several ranks; the launcher reports interruptions."""
    return "RANK" in os.environ


def open_streams() -> None:
    """Open those of standard input, output and error that the caller has closed; ignore errors in writing messages.

    If standard output stayed closed, the next file that is opened would get its file number, and printed text would go
    into that file.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False))
    messages = io.BufferedWriter(_IgnoresWriteErrors(2, "w", closefd=False))
    sys.stderr = io.TextIOWrapper(messages, sys.stderr.encoding, "backslashreplace", line_buffering=True)


class _IgnoresWriteErrors(io.FileIO):
    """A file that drops what cannot be written, so that work goes on when nobody can read the messages."""

    def write(self, data) -> int:
        try:
            written = super().write(data)
        except OSError:
            return len(data)
        return len(data) if written is None else written  # None: writing would have blocked


def print_out(program: str, text: str = "") -> int:
    """Print and flush; return the exit code: 0, or 2 with a message if standard output cannot be written."""
    try:
        print(text, end="\n" if text else "", flush=True)
    except OSError as error:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())  # accepts the rest without an error
        os.close(null)
        if isinstance(error, BrokenPipeError):  # the reader of our output has stopped, as `head` does
            return 0
        reason = f"cannot write to standard output: {error.strerror or error}"
        reason += "; the files that the command wrote are complete" if text else ""
        print(f"{program}: error: {reason}", file=sys.stderr)
        return 2
    return 0


def after_imports(handler):
    """Wrap a signal handler so that it does not run during an import: the signal is sent again a little later.

    An exception in the middle of an import can be lost, or can end the process if it passes through C++ code.
    """
    since = None

    def handle(number, frame):
        nonlocal since
        outer = frame
        while outer is not None and not outer.f_code.co_filename.startswith("<frozen importlib"):
            outer = outer.f_back
        if outer is not None:
            since = since or time.monotonic()
            if time.monotonic() - since < _LONGEST_IMPORT_S:
                again = threading.Timer(_RETRY_S, os.kill, (os.getpid(), number))
                again.daemon = True
                again.start()
                return
        since = None  # the next import gets the full time again
        handler(number, frame)

    return handle


def leave_when_interrupted(message: str) -> bool:
    """Let SIGINT end this process at once with exit code 130; return False if SIGINT is ignored, as under nohup.

    An exception would show a traceback from the middle of an import, or be lost there.
    """

    def leave(*_):
        try:
            os.write(2, message.encode())
        finally:
            os._exit(128 + signal.SIGINT)

    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        return False
    signal.signal(signal.SIGINT, leave)
    return True


@contextmanager
def handling_stops(handler: Callable) -> Iterator[dict]:
    """Call ``handler(number, frame)`` for signals that ask to end; gives the handlers that it replaces.

    Signals that this process ignores stay ignored, as SIGHUP does under nohup. Outside of the main thread nothing
    changes, because signals interrupt no other thread.
    """
    previous = {}
    if threading.current_thread() is threading.main_thread():
        not_ignored = [each for each in STOPPING if signal.getsignal(each) is not signal.SIG_IGN]
        previous = {each: signal.signal(each, handler) for each in not_ignored}
    try:
        yield previous
    finally:
        for each, before in previous.items():
            signal.signal(each, before)


@contextmanager
def received_signals():
    """Give a list; inside the block, signals that would end this process are only added to it."""
    received = []
    with handling_stops(lambda number, _: received.append(number)):
        yield received


@contextmanager
def raising_when_stopped():
    """Make SIGINT, SIGTERM and SIGHUP raise, so that incomplete files are removed; a later second one ends the process."""
    first = None

    def stop(number, _):
        nonlocal first
        if first is None:
            first = time.monotonic()
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)
        if time.monotonic() - first > SAME_STOP_S:
            os._exit(128 + number)

    with handling_stops(after_imports(stop)):
        yield


_GRACE_S = 20.0  # schedulers kill what still runs half a minute after SIGTERM


class StopRequest:
    """Inside :meth:`noting`, a first signal is only noted, in ``number``. A second one has its usual effect, if it
    comes more than a second later: signals closer together are one request.

    After Ctrl-C, the run may take as long as its epoch needs. After any other signal it has 20 s. Then it is stopped
    wherever it is, so that the best model is written before a scheduler kills the process.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self._since = 0.0
        self._before: dict = {}
        self._timer: threading.Timer | None = None

    @contextmanager
    def noting(self) -> Iterator[None]:
        """The context in which signals are noted."""
        with handling_stops(self._note) as self._before:
            try:
                yield
            finally:
                self.epoch_ended()

    def note_that_of_another(self, number: int | None) -> None:
        """Note a signal that another rank was given."""
        if self.number is None and number is not None:
            self.number, self._since = number, time.monotonic()

    def epoch_ended(self) -> None:
        """Give what follows, a checkpoint, the time that it takes."""
        if self._timer:
            self._timer.cancel()

    def _note(self, number, frame) -> None:
        if self.number is None:
            self.number, self._since = number, time.monotonic()
            if number != signal.SIGINT:
                self._timer = threading.Timer(_GRACE_S, os.kill, (os.getpid(), number))
                self._timer.daemon = True
                self._timer.start()
        elif time.monotonic() - self._since > SAME_STOP_S:
            self.leave(number, frame)

    def leave(self, number: int, frame=None) -> None:
        """Do what the signal did before, or raise ``SystemExit`` where it would have ended the process."""
        handler = self._before.get(number)
        if callable(handler):
            handler(number, frame)
        raise SystemExit(128 + number)
