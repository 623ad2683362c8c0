"""What is measured in each epoch, as lines of ``metrics.jsonl``, and for TensorBoard where that is asked for."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.system.atomic_write import new_file

from .run_directory import METRICS_FILE
from .run_record import EpochNumbers


class MetricsLog:
    """Writes the numbers of each epoch into the directory of a run; for one rank.

    Until the directory is there, lines are kept in memory. If numbers cannot be
    written, a warning is printed, and the run continues.
    """

    def __init__(self, folder: Path, for_tensorboard: bool = False):
        self._folder, self._unwritten, self._has_warned = folder, [], False
        self._tensorboard = _summary_writer() if for_tensorboard else None
        self._scalars, self._trained_again_from = None, None

    def resume(self, epoch: int) -> None:
        """Forget the lines of what came after ``epoch`` epochs, because these epochs are trained again."""
        path, kept, self._trained_again_from = self._folder / METRICS_FILE, [], epoch + 1
        with suppress(OSError, ValueError, KeyError, TypeError):
            for line in path.read_text().splitlines():
                if json.loads(line)["epoch"] > epoch:
                    break
                kept.append(line + "\n")
        with suppress(InputError), new_file(path, force=True) as file:
            file.write("".join(kept).encode())

    def add(self, numbers: EpochNumbers, is_there: bool) -> None:
        """Write the numbers of one epoch; ``is_there`` says whether the directory is this run's by now."""
        self._unwritten.append(msgspec.to_builtins(numbers))
        if not is_there:
            return
        try:
            self._append("".join(json.dumps(each, allow_nan=False) + "\n" for each in self._unwritten))
            written, self._unwritten = self._unwritten, []
            self._add_scalars(written)
        except OSError as error:
            if not self._has_warned:
                self._has_warned = True
                print(f"dgl-gt: warning: cannot write {self._folder / METRICS_FILE}: {error.strerror}", file=sys.stderr)

    def _append(self, lines: str) -> None:
        """Append whole lines, or nothing."""
        with (self._folder / METRICS_FILE).open("ab", buffering=0) as file:
            end = file.seek(0, os.SEEK_END)
            try:
                if file.write(lines.encode()) < len(lines):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                file.truncate(end)
                raise

    def close(self) -> None:
        """Write what TensorBoard's writer still holds."""
        if self._scalars:
            with suppress(OSError):
                self._scalars.close()

    def _add_scalars(self, lines: list[dict]) -> None:
        if self._tensorboard is None:
            return
        if self._scalars is None:
            self._scalars = self._tensorboard(str(self._folder), purge_step=self._trained_again_from)
        for numbers in lines:
            for name, value in _scalars_in(numbers):
                self._scalars.add_scalar(name, value, numbers["epoch"])


def _scalars_in(numbers: dict) -> Iterator[tuple[str, float]]:
    """The numbers of an epoch by name; those of each rank as ``peak_memory_bytes/rank0`` and so on."""
    for name, value in numbers.items():
        if isinstance(value, list):
            yield from ((f"{name}/rank{rank}", each) for rank, each in enumerate(value))
        elif isinstance(value, (int, float)) and name != "epoch":
            yield name, value


def _summary_writer():
    """TensorBoard's writer; ``InputError`` says that it is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise InputError(
            f"--tensorboard needs the package tensorboard ({error}); install it with pip install 'tensorboard>=2.14'"
        ) from error
    return SummaryWriter
