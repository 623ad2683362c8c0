"""``dgl-gt report``, which takes shards or the directory of a run."""

from __future__ import annotations

import os
from pathlib import Path

from partition.cli import ReportOn, report_written
from partition.errors import InputError
from partition.shards.manifest import is_shards


def _report(args) -> tuple[dict, str]:
    from dgl_gt.report.run_files import is_run
    from dgl_gt.report.write import write_run_report
    from partition.report.write import write_report

    directory = Path(args.directory)
    if is_shards(directory):
        return report_written(args, write_report)
    if is_run(directory):
        return report_written(args, write_run_report)
    problem = "holds neither shards nor a run of training" if os.path.isdir(directory) else "is not a directory"
    raise InputError(
        f"{directory} {problem}; name a directory that `dgl-gt partition --out` or `dgl-gt train --out` wrote"
    )


ON_SHARDS_OR_RUNS = ReportOn("a shard directory or a run directory of `dgl-gt train`", _report)
