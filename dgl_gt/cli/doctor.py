"""The verb ``doctor``: all ranks of a run look for what would spoil it."""

from __future__ import annotations

import math

from dgl_gt import __version__
from dgl_gt.partition import console
from dgl_gt.partition.console import table
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.system.units import format_bytes, format_count

from .options import add_config, add_json, add_timeout, config_of, run_on_parts


def add_commands(commands) -> None:
    """Add ``doctor`` to an argparse subparsers object."""
    command = commands.add_parser(
        "doctor",
        help="look for what would spoil a long run, on all its ranks",
        description="Before a long run, compare versions, clocks, shards, free memory and disk, and the links of all its ranks, and "
        "say what is wrong; the exit code is then 2. Start it as the run will be started, such as under torchrun or srun.",
    )
    command.add_argument("directory", metavar="DIR", help="shards made by `dgl-gt partition`")
    text = "number of ranks to start on this machine, one per part (default: the number of parts)"
    command.add_argument("--nproc", type=int, metavar="P", help=text)
    text = "directory of the run, whose disk is looked at (default: here)"
    command.add_argument("--out", metavar="RUN", default=".", help=text)
    add_config(command)
    add_timeout(command)
    add_json(command)
    command.set_defaults(command=_doctor)


def _doctor(args):
    config = config_of(args, ())
    return run_on_parts(args.argv, args.directory, lambda: _on_rank(args, config), args.nproc, args.timeout)


def _on_rank(args, config):
    from dgl_gt.comm.group import Comm
    from dgl_gt.plan.doctor import examine

    comm = Comm(timeout_s=args.timeout)
    with comm.together(), console.Stages() as stages:
        progress = {"progress": stages} if comm.rank == 0 else {}
        found = examine(comm, args.directory, config, args.out, __version__, **progress)
    if found.problems:
        if comm.rank == 0 and not args.json:
            print(_table(found))
        raise InputError(f"{format_count(len(found.problems), 'problem')}: " + "; ".join(found.problems))
    return found._asdict(), f"{_table(found)}\n\nnothing is wrong"


def _table(found) -> str:
    heads = ["rank", "host", "dgl-gt", "torch", "python", "clock", "memory free", "disk free", "slowest link to it"]
    rows = []
    for number, each in enumerate(found.ranks):
        into = found.link_bytes_per_s[number] if found.link_bytes_per_s else []
        to_it = [speed for other, speed in enumerate(into) if other != number]
        free = each["disk_bytes"]
        disk = "not writable" if free is None else "a URL" if free == math.inf else format_bytes(free)
        speed = f"{format_bytes(min(to_it))}/s" if to_it else "none"
        versions = each["dgl_gt"], each["torch"], each["python"]
        clock, memory = f"{each['clock_s']:+.3f} s", format_bytes(each["memory_bytes"])
        rows.append((number, each["host"], *versions, clock, memory, disk, speed))
    return table(heads, rows)
