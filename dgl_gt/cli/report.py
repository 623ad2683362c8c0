"""``dgl-gt report``, which takes shards or the directory of a run."""

from __future__ import annotations

import os
from pathlib import Path

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.shards.manifest import is_shards


def add_command(commands) -> None:
    what = "a shard directory or a run directory of `dgl-gt train`"
    text = f"write an HTML report about {what}, with plots, and its numbers as JSON"
    command = commands.add_parser("report", help=text)
    command.add_argument("directory", metavar="DIR", help=what)
    command.add_argument("-o", "--out", required=True, metavar="FILE.html", help="page to write; it needs no network")
    command.add_argument("--force", action="store_true", help="replace existing files")
    command.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    command.set_defaults(command=_report)


def _report(args) -> tuple[dict, str]:
    from dgl_gt.partition.report.write import write_report
    from dgl_gt.report.run_report import is_run, write_run_report

    directory = Path(args.directory)
    if is_shards(directory):
        write = write_report
    elif is_run(directory):
        write = write_run_report
    else:
        problem = "holds neither shards nor a run of training" if os.path.isdir(directory) else "is not a directory"
        raise InputError(
            f"{directory} {problem}; name a directory that `dgl-gt partition --out` or `dgl-gt train --out` wrote"
        )
    numbers, out = write(args.directory, args.out, force=args.force), Path(args.out)
    return numbers, f"wrote {out} and {out.with_suffix('.json')}"
