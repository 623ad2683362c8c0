"""The command ``dgl-gt``: its parser, with one module for each verb. Heavy imports wait until a verb needs them."""

from __future__ import annotations

import argparse
import sys

from dgl_gt import __version__
from dgl_gt.partition import console
from dgl_gt.partition.cli import add_commands as add_offline_commands

from . import calibrate, plan, predict, report, train


def main(argv=None) -> int:
    """Run ``dgl-gt``; returns the exit code: 0, 2 if the user can fix the cause, 130 after Ctrl-C.

    Other signals raise ``SystemExit(128 + N)``, and a bug in dgl-gt raises its own exception. Commands that start
    ranks return 128 + N where a signal has ended a rank, and 1 for a bug in a rank.
    """
    argv = sys.argv[1:] if argv is None else list(argv)
    parser = argparse.ArgumentParser(
        prog="dgl-gt", description="Full-graph, distributed training of graph transformers on large graphs."
    )
    parser.add_argument("--version", action="version", version=f"dgl-gt {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    add_offline_commands(commands)
    for verb in (train, predict, report, calibrate, plan):
        verb.add_command(commands)
    parser.set_defaults(argv=argv)
    return console.run(parser, argv)
