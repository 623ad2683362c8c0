"""The directory of a run: its files, their names, and how they are written.

This module does not import torch: the launcher has no use for it.
"""

from __future__ import annotations

import errno
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.system.atomic_write import new_directory, new_file
from dgl_gt.partition.system.output_checks import FILE, Kind, check_target, leftovers
from dgl_gt.partition.system.storage import Url, located

from .run_record import RECORD, EpochNumbers

WEIGHTS, CONFIG = "model.safetensors", "config.yaml"
METRICS_FILE = "metrics.jsonl"  # a line for each epoch
STEP_TIMELINE = "timeline.json"  # one training step on all ranks
TRACE = re.compile(r"profile-rank\d+\.json\.gz")  # of the same step, for viewers of Chrome traces
CHECKPOINT = re.compile(r"checkpoint-(\d{1,12})\.safetensors")  # with the number of epochs before it
_PUT_PAUSE_S = 10.0  # between two uploads of metrics.jsonl
_KEPT = 2  # checkpoints: one more than is needed if no file is ever damaged

_NAMES = "|".join(
    [*map(re.escape, (WEIGHTS, CONFIG, RECORD, METRICS_FILE, STEP_TIMELINE)), TRACE.pattern, CHECKPOINT.pattern]
)
MODEL = Kind(
    "a model",
    RECORD,
    lambda record: {"strategy", "ranks", "losses", "metric"} <= record.keys(),
    # also a file that is being written, a damaged checkpoint, and a file of TensorBoard
    rf"{_NAMES}|\.(?:{_NAMES})\.[^/]*|{CHECKPOINT.pattern}\.damaged|events\.out\.tfevents\.[^/]+",
)


class RunDirectory:
    """The directory ``out``, a path or a URL, and whether what is in it is of this run; used by one rank.

    With ``force``, what another run left in it is replaced by the first write.
    """

    def __init__(self, out, *, force: bool = False, is_ours: bool = False):
        self.out, self.is_ours, self._force = located(out), is_ours, force

    def write(self, files: dict[str, bytes]) -> None:
        """Write files by name; ``InputError`` if ``out`` exists and is not of this run, or cannot be written.

        The first call makes the directory, which appears when it is complete. Later calls replace the given files, each
        in one step, and leave all others in the directory as they are.
        """
        if self.is_ours:
            for name, content in files.items():
                with new_file(self.out / name, force=True, keep=not CHECKPOINT.fullmatch(name)) as file:
                    file.write(content)
            return
        with new_directory(self.out, MODEL, force=self._force) as folder:
            for name, content in files.items():
                (folder / name).write_bytes(content)
        self.is_ours = True

    def forget_checkpoints(self) -> None:
        """Remove those of an earlier run, where this one may replace it: a new run could seem to have them."""
        for path in checkpoints_in(self.out) if self._force else ():
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise InputError(f"cannot remove {path}, a checkpoint of an earlier run: {error.strerror}") from error

    def record(self) -> dict:
        """The record on disk; empty if it cannot be read."""
        with suppress(OSError, ValueError):
            return dict(json.loads((self.out / RECORD).read_text()))
        return {}

    def write_checkpoint(self, epoch: int, content: bytes) -> Path | Url:
        """Write the checkpoint after ``epoch`` epochs, and then remove all but the last two."""
        if not isinstance(self.out, Url):
            for name in os.listdir(self.out):  # of a process that was killed while it wrote
                if found := re.match(rf"\.({CHECKPOINT.pattern})\.", name):
                    for old in leftovers(self.out, found[1], FILE):
                        old.unlink(missing_ok=True)
        path = self.out / f"checkpoint-{epoch:06d}.safetensors"
        self.write({path.name: content})
        for old in checkpoints_in(self.out)[_KEPT:]:
            with suppress(OSError, InputError):
                old.unlink()
        return path


class MetricsLog:
    """Writes the numbers of each epoch into the directory of a run; for one rank.

    If numbers cannot be written, a warning is printed, and they are written later. At a URL, to which nothing can be
    appended, the whole file is written now and then, and at the end.
    """

    def __init__(self, folder: Path | Url, for_tensorboard: bool = False):
        if for_tensorboard and isinstance(folder, Url):
            raise InputError(
                f"tensorboard is True, and its files cannot be written to {folder}; leave it out (--tensorboard)"
            )
        self._path, self._has_warned = folder / METRICS_FILE, False
        self._content, self._is_put, self._next_put_s = b"", True, 0.0  # of the file at a URL
        self._unwritten: list[dict] = []
        self._first_epoch: int | None = None
        self._tensorboard: Callable | None = _summary_writer() if for_tensorboard else None
        self._scalars: Any = None

    def resume(self, epoch: int) -> None:
        """Forget the lines of what came after ``epoch`` epochs, because these epochs are trained again."""
        kept, self._first_epoch = [], epoch + 1
        with suppress(OSError, ValueError, KeyError, TypeError):
            for line in self._path.read_text().splitlines():
                if json.loads(line)["epoch"] > epoch:
                    break
                kept.append(line + "\n")
        self._content = "".join(kept).encode()
        with suppress(InputError), new_file(self._path, force=True, keep=False) as file:
            file.write(self._content)

    def add(self, numbers: EpochNumbers, is_there: bool, is_due: bool = False) -> None:
        """Write the numbers of one epoch; ``is_there`` says whether the directory is this run's by now.

        At a URL, ``is_due`` says that they must not wait: a run that goes on from a checkpoint needs the lines before it.
        """
        self._unwritten.append(msgspec.to_builtins(numbers))
        if not is_there:
            return
        try:
            self._append(self._unwritten_lines(), is_due)
            written, self._unwritten = self._unwritten, []
            self._add_scalars(written)
        except (OSError, InputError) as error:
            if not self._has_warned:
                self._has_warned = True
                why = error if isinstance(error, InputError) else f"cannot write {self._path}: {error.strerror}"
                print(f"dgl-gt: warning: {why}", file=sys.stderr)

    def _unwritten_lines(self) -> str:
        return "".join(json.dumps(each, allow_nan=False) + "\n" for each in self._unwritten)

    def _append(self, lines: str, is_due: bool) -> None:
        """Append whole lines, or nothing."""
        if isinstance(self._path, Url):
            content, self._is_put = self._content + lines.encode(), False
            if is_due or time.monotonic() >= self._next_put_s:
                self._put(self._path, content)
            self._content = content
            return
        with self._path.open("ab", buffering=0) as file:
            end = file.seek(0, os.SEEK_END)
            try:
                if file.write(lines.encode()) < len(lines):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                file.truncate(end)
                raise

    def _add_scalars(self, lines: list[dict]) -> None:
        if self._tensorboard is None:
            return
        self._scalars = self._scalars or self._tensorboard(str(self._path.parent), purge_step=self._first_epoch)
        for numbers in lines:
            for name, value in _scalars_in(numbers):
                self._scalars.add_scalar(name, value, numbers["epoch"])

    def _put(self, url: Url, content: bytes) -> None:
        self._next_put_s = time.monotonic() + _PUT_PAUSE_S
        with new_file(url, force=True, keep=False) as file:  # it is written again
            file.write(content)
        self._is_put = True

    def close(self) -> None:
        """Write what a URL lacks, and what TensorBoard's writer still holds."""
        if isinstance(self._path, Url) and not self._is_put:
            with suppress(InputError):
                self._put(self._path, self._content + self._unwritten_lines().encode())
        if self._scalars:
            with suppress(OSError):
                self._scalars.close()


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


def checkpoints_in(folder: Path | Url) -> list:
    """The checkpoints in a directory, the latest first; none where there is no such directory."""
    if isinstance(folder, Path) and not folder.is_dir():
        return []
    found = [(int(match[1]), each) for each in folder.iterdir() if (match := CHECKPOINT.fullmatch(each.name))]
    return [path for _, path in sorted(found, reverse=True)]


def starter_of(out) -> str:
    """The ``started_by`` in the record of a run; empty where there is none.

    A directory that was moved aside when a rank was killed is put back first.
    """
    folder = check_target(out, MODEL, force=True, foreign=True)
    return str(RunDirectory(folder).record().get("started_by", ""))


def check_can_resume(out) -> None:
    """Raise :class:`InputError` unless a directory holds a run with checkpoints."""
    folder = check_target(out, MODEL, force=True, foreign=True)
    if not checkpoints_in(folder):
        raise no_checkpoint(out)


def no_checkpoint(out, what: str = "no checkpoint") -> InputError:
    """The error to raise where a directory holds nothing to resume from; its advice leads to a run that starts."""
    place = located(out)
    is_there = any(place.iterdir()) if isinstance(place, Url) else place.exists()
    where = ", in another directory or with force (--force)" if is_there else ""
    return InputError(
        f"{out} holds {what}, so there is nothing to go on from; start a run without resume (--resume){where}"
    )
