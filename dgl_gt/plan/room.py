"""Whether the files of a step part by part fit on the disk, before a run; and the figures of parts that ranks share."""

from __future__ import annotations

import os
import shutil
import socket
from dataclasses import replace

from dgl_gt.exchange.sharded_graph import ShardedGraph
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.figures.figures import Figures
from dgl_gt.partition.shards.counts import read_figures
from dgl_gt.partition.system.units import format_bytes

from .streamed_trace import StreamedTrace


def figures_with_pieces(manifest: dict) -> Figures:
    """The figures of a manifest, which may join parts of the shards for fewer ranks; those parts are their ``pieces``."""
    figures = read_figures(manifest)
    if "pieces" not in manifest:
        return figures
    return replace(figures, pieces=read_figures(manifest["pieces"]), bounds=manifest["bounds"])


def check_room(trace: StreamedTrace, figures: Figures, sg: ShardedGraph) -> None:
    """Raise :class:`InputError` on all ranks where the files of a step do not fit on a disk; every rank calls it.

    Disks that ranks of one host share hold the files of all of them.
    """
    directory = sg.stream.directory if sg.stream else None
    assert directory is not None
    with sg.comm.raising_together():
        disk = socket.gethostname(), os.stat(directory).st_dev
        mine = [*disk, int(trace.file_bytes(figures)[sg.comm.rank])]
    of_ranks = sg.comm.gather_objects(mine)
    with sg.comm.raising_together():
        needed = sum(each[2] for each in of_ranks if tuple(each[:2]) == disk)
        free = shutil.disk_usage(directory).free
        if needed > free:
            raise InputError(
                f"spill is {directory}, where a training step is predicted to need {format_bytes(needed)} for rows between layers, and "
                f"{format_bytes(free)} are free; name a directory on a disk with more room, or choose a smaller --hidden or fewer --layers"
            )
