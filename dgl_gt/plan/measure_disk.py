"""Measures how fast a rank copies rows from files and to them, as a step part by part does: all ranks at the same time."""

from __future__ import annotations

from collections.abc import Callable

import torch

from dgl_gt.comm.group import Comm
from dgl_gt.exchange.streamed import SpilledRows
from dgl_gt.partition.figures.profile import Disk

from .watch import elapsed

_WIDTH, _PIECES = 256, 8
_ROWS, _ROWS_OF_QUICK = 2**18, 2**15  # 256 and 32 MiB
_RUNS, _DIGITS = 3, 4


def measure_disk(comm: Comm, directory: str, *, quick: bool = False) -> Disk:
    """Speed of files in a directory, that of the slowest rank; every rank calls it, and it takes a few seconds.

    First with rows that the system keeps in memory, as it does where there is enough. Then written through to the disk, and
    read after the system was told to forget them; what a host below keeps of them is not seen. ``InputError`` says that the
    directory cannot be written or has no room.
    """
    with comm.raising_together():
        rows = _ROWS_OF_QUICK if quick else _ROWS
        space = SpilledRows(directory, (rows, _WIDTH), torch.float32)
        chunk = torch.ones(rows // _PIECES, _WIDTH)

    def write() -> None:
        for piece in space.rows.split(len(chunk)):
            piece.copy_(chunk)
            space.release()

    def read() -> None:
        for piece in space.rows.split(len(chunk)):
            chunk.copy_(piece)
            space.release()

    def write_through() -> None:
        write()
        space.forget()

    write()  # the first pass also finds place on the disk
    works: dict[str, Callable[[], None]] = {"cached_write": write, "cached_read": read}
    works |= {"write": write_through, "read": read}
    seconds = [[elapsed(comm, torch.device("cpu"), work) for work in works.values()] for _ in range(_RUNS)]
    slowest = comm.all_reduce(torch.tensor(seconds, dtype=torch.float64).median(0).values, "max").tolist()
    return Disk(**{name: float(f"{space.rows.nbytes / spent:.{_DIGITS}g}") for name, spent in zip(works, slowest)})
