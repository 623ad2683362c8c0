"""What comes before and after a command line: its streams, and Ctrl-C while it imports. Nothing heavy is imported."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
import time

_AGAIN_S, _LONGEST_IMPORT_S = 0.05, 10.0


def enter(program: str, run) -> int:
    """Run a command line; ``run()`` imports it and returns its exit code.

    Parameters
    ----------
    program : str
        Name in messages.
    run : callable
    """
    may_be_interrupted = leave_when_interrupted("" if is_rank() else f"{program}: interrupted\n")
    open_streams()
    try:
        code = run()
    except SystemExit as stopped:
        code = stopped.code
    if may_be_interrupted:
        leave_when_interrupted("")  # what was asked for is done
    unwritten = print_out(program)
    return code or unwritten


def is_rank() -> bool:
    """Whether a launcher started this process as one of several ranks; it tells of interruptions for all of them."""
    return "RANK" in os.environ


def open_streams() -> None:
    """Open what the caller has closed of standard input, output and error, and let messages never stop the work.

    Else the next file that is opened takes the place of standard output, and what is printed goes into it.
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
    messages = io.BufferedWriter(_Heedless(2, "w", closefd=False))
    sys.stderr = io.TextIOWrapper(messages, sys.stderr.encoding, "backslashreplace", line_buffering=True)


class _Heedless(io.FileIO):
    """A file that takes what it is given though it cannot be written: work goes on when nobody can read messages."""

    def write(self, data) -> int:
        try:
            written = super().write(data)
        except OSError:
            return len(data)
        return len(data) if written is None else written  # None: it would have had to wait


def print_out(program: str, text: str = "") -> int:
    """Print and flush; the exit code: 0, or 2 where standard output cannot be written, which is said."""
    try:
        print(text, end="\n" if text else "", flush=True)
    except OSError as error:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())  # which takes the rest without an error
        os.close(null)
        if isinstance(error, BrokenPipeError):  # whoever read our output has stopped, as `head` does
            return 0
        reason = f"cannot write to standard output: {error.strerror or error}"
        reason += "; files that the command writes are complete" if text else ""
        print(f"{program}: error: {reason}", file=sys.stderr)
        return 2
    return 0


def after_imports(handler):
    """A handler of signals that raises nothing while a module is imported: the signal comes again a little later.

    An exception that comes in the middle of an import can be lost, and ends the process where C++ code meets it.
    """
    since = None

    def handle(number, frame):
        nonlocal since
        if _imports(frame):
            since = since or time.monotonic()
            if time.monotonic() - since < _LONGEST_IMPORT_S:
                again = threading.Timer(_AGAIN_S, os.kill, (os.getpid(), number))
                again.daemon = True
                again.start()
                return
        since = None  # another import has its own time
        handler(number, frame)

    return handle


def _imports(frame) -> bool:
    while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
        frame = frame.f_back
    return frame is not None


def leave_when_interrupted(message: str) -> bool:
    """Let SIGINT end this process at once with exit code 130; False where the caller has it ignored, as nohup does.

    An exception would show a traceback from wherever an import has come to, or be lost there.
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
