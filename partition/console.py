"""What both command lines share: exit codes, JSON, progress and tables."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import time
from contextlib import contextmanager

from partition.system.command_entry import after_imports, is_rank, print_out

from .errors import InputError, printable

_SHOWN = 10  # names in a line

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_ONE_STOP_S = 1.0  # signals within it are one: shells and `timeout` send theirs to a process and to its group


def run(parser: argparse.ArgumentParser, argv=None) -> int:
    """Parse and run the chosen command; return the exit code (2 for the user's mistake).

    A command returns an exit code, or its result as (JSON value, text for people), which is printed here.
    """
    args = parser.parse_args(argv)
    with _cleanups_when_stopped():
        try:
            outcome = args.command(args)
            if isinstance(outcome, int):
                return outcome
            result, text = outcome
            lines = [json.dumps(result)] if args.json else map(printable, text.split("\n"))
            return print_out(parser.prog, _encodable("\n".join(lines)))
        except InputError as error:
            print(f"{parser.prog}: error: {_with_options(str(error), args)}", file=sys.stderr)
            return 2
        except MemoryError as error:
            detail = f" ({error})" if str(error) else ""
            advice = "use a smaller input, or a machine with more memory"
            print(f"{parser.prog}: error: out of memory{detail}; {advice}", file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            if not is_rank():
                print(f"{parser.prog}: interrupted", file=sys.stderr)
            return 128 + signal.SIGINT


@contextmanager
def _cleanups_when_stopped():
    """Inside, SIGINT, SIGTERM and SIGHUP raise, so that what is half-written is removed; a later one ends at once."""
    first = None

    def stop(number, _):
        nonlocal first
        if first is None:
            first = time.monotonic()
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)
        if time.monotonic() - first > _ONE_STOP_S:
            os._exit(128 + number)

    wanted = [each for each in STOPPING if signal.getsignal(each) is not signal.SIG_IGN]  # which nohup sets
    stop = after_imports(stop)
    previous = {each: signal.signal(each, stop) for each in wanted}
    try:
        yield
    finally:
        for each, handler in previous.items():
            signal.signal(each, handler)


def _encodable(text: str) -> str:
    """Text for stdout; what its encoding does not have, as a name under LC_ALL=C, is written as ``\\xe9``."""
    encoding = sys.stdout.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _with_options(message: str, args: argparse.Namespace) -> str:
    """A message of the Python functions, which name their arguments, as the command line names those that were given.

    Others may come from a file, where they have the name of the message.
    """
    for name, value in vars(args).items():
        if "_" in name and value is not None and value is not False:
            message = re.sub(rf"(?<![\w/.-]){name}(?![\w/.-])", "--" + name.replace("_", "-"), message)
    return message


class Progress:
    """One line on stderr a stage: counting up on a terminal, printed when the stage ends elsewhere.

    Attributes
    ----------
    children_bytes : int
        Peak resident memory of child processes that ran at the same time, as the stages reported it.
    """

    def __init__(self):
        self.children_bytes = 0
        self._stage, self._since = None, 0.0

    def __call__(self, stage: str, children_bytes: int = 0) -> None:
        self.children_bytes = max(self.children_bytes, children_bytes)
        if stage != self._stage:
            self.close()
            self._stage, self._since = stage, time.monotonic()
        if sys.stderr.isatty():
            print(f"\r{self._line()}", end="", file=sys.stderr, flush=True)

    def _line(self) -> str:
        return f"{self._stage:<58} {time.monotonic() - self._since:8.1f} s"

    def close(self) -> None:
        if self._stage:
            print(("\r" if sys.stderr.isatty() else "") + self._line(), file=sys.stderr)
        self._stage = None


def say_left_out(notes) -> None:
    """One line on stderr that names what of a source was not taken."""
    if notes:
        more = f" and {len(notes) - _SHOWN} more (all of them: --json)" if len(notes) > _SHOWN else ""
        print(printable(f"left out: {', '.join(notes[:_SHOWN])}{more}"), file=sys.stderr)


def table(header, rows) -> str:
    """Right-aligned columns, the first left-aligned."""
    cells = [[str(cell) for cell in row] for row in [header, *rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = ["  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:]))]) for row in cells]
    return "\n".join([lines[0].rstrip(), "-" * len(lines[0]), *lines[1:]])
