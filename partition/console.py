"""Shared by both command lines: exit codes, JSON output, progress and tables."""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
import time

from dgl_gt.partition.system.signals import is_rank, print_out, raising_when_stopped

from .errors import InputError, printable

_MAX_NAMES = 10  # in a line


def run(parser: argparse.ArgumentParser, argv=None) -> int:
    """Parse the arguments, run the chosen command and return the exit code (2 if the user can fix the cause,
    lack of memory included).

    A command returns an exit code, or a pair of its result as a JSON value and as text; one of the two is printed.
    """
    args = parser.parse_args(argv)
    with raising_when_stopped():
        try:
            outcome = args.command(args)
            if isinstance(outcome, int):
                return outcome
            result, text = outcome
            lines = [json.dumps(result, allow_nan=False)] if args.json else map(printable, text.split("\n"))
            encoding = sys.stdout.encoding or "utf-8"  # \\xe9 stands for a letter that it lacks, as under LC_ALL=C
            return print_out(parser.prog, "\n".join(lines).encode(encoding, "backslashreplace").decode(encoding))
        except InputError as error:
            print(f"{parser.prog}: error: {_with_option_names(str(error), args)}", file=sys.stderr)
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


def _with_option_names(message: str, args: argparse.Namespace) -> str:
    """Replace the names of Python arguments in a message by the options of the command line.

    A Python function that recommends an argument writes ``num_nodes (--num-nodes)`` or ``cut='edge' (--cut edge)``;
    only the option remains here. Names of arguments that the user gave become options, too; others stay, because
    they may come from a file. Names without an underscore are common words, so they are replaced only in "NAME is ..."
    at the start.
    """
    message = with_options_only(message)
    for name, value in vars(args).items():
        if value is not None and value is not False:
            pattern = rf"(?<![\w/.-]){name}(?![\w/.-])" if "_" in name else rf"^{name}(?= is )"
            message = re.sub(pattern, _option(name), message)
    return message


def with_options_only(message: str) -> str:
    """Leave the option where a message recommends an argument and its option, as in ``num_nodes (--num-nodes)``."""

    def only_option(found: re.Match) -> str:
        name, value, option = found.groups()
        return option if option == _option(name) + (f" {value}" if value else "") else found[0]

    return re.sub(r"(?<![\w/.-])(\w+)(?:='([\w-]+)')? \((--[a-z-]+(?: [\w-]+)?)\)", only_option, message)


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


class Stages:
    """Stages of work, one line each on stderr with the seconds that it took.

    On a terminal the seconds of the running stage count up; elsewhere a line is printed when its stage ends. Call the
    object with the name of the current stage, again and again while it lasts.
    """

    def __init__(self):
        self._stage, self._since = None, 0.0

    def __enter__(self) -> Stages:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def __call__(self, stage: str) -> None:
        if stage != self._stage:
            self.close()
            self._stage, self._since = stage, time.monotonic()
        if sys.stderr.isatty():
            self._print(end="")

    def close(self) -> None:
        """End the running stage."""
        if self._stage:
            self._print(end="\n")
        self._stage = None

    def _print(self, end: str) -> None:
        begin = "\r" if sys.stderr.isatty() else ""
        line = f"{begin}{self._stage:<58} {time.monotonic() - self._since:8.1f} s"
        print(line, end=end, file=sys.stderr, flush=True)


def print_source_notes(notes, left_out) -> None:
    """Print on stderr what was assumed of the source, a line each, and a line that names what was left out."""
    for note in notes:
        print(f"note: {printable(with_options_only(note))}", file=sys.stderr)
    if left_out:
        more = f" and {len(left_out) - _MAX_NAMES} more (--json lists all)" if len(left_out) > _MAX_NAMES else ""
        print(printable(f"left out: {', '.join(left_out[:_MAX_NAMES])}{more}"), file=sys.stderr)


def table(header, rows, left: tuple[int, ...] = (0,)) -> str:
    """Format rows of cells as columns: the first, or those in ``left``, are aligned left, the others right."""
    cells = [[str(cell) for cell in row] for row in [header, *rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = [
        "  ".join(
            cell.ljust(width) if i in left else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths))
        )
        for row in cells
    ]
    return "\n".join([lines[0].rstrip(), "-" * len(lines[0]), *(line.rstrip() for line in lines[1:])])
