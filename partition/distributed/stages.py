"""The three verbs of a run: map over items, exchange by key, reduce. All else is the tasks of other files."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np

from dgl_gt.partition.system.units import format_bytes

from .files import Folder

Arrays = dict[str, np.ndarray]
_DONE = "done"
_SAYS_EVERY_S = 10


@runtime_checkable
class Engine(Protocol):
    """What runs tasks: here, or on many machines."""

    def check(self, folder: str, memory_bytes: int) -> None:
        """Raise :class:`InputError` where tasks of this much memory cannot run, or do not see a folder."""
        ...

    def run(self, stage: str, task: Callable[[int], int], items: list[int]) -> Iterator[int]:
        """Call ``task`` with each item, in any order, perhaps more than once; yield what it returns as it ends."""
        ...


class InProcess:
    """Runs tasks one after the other in this process."""

    def check(self, folder: str, memory_bytes: int) -> None:
        """Raise nothing."""

    def run(self, stage: str, task: Callable[[int], int], items: list[int]) -> Iterator[int]:
        """Call ``task`` with each item."""
        return map(task, items)


@dataclass
class Stages:
    """Runs stages of tasks, which write one file each; those whose files are there already do not run again."""

    engine: Engine
    folder: Folder
    progress: Callable[[str], Any]

    def map(self, stage: str, task: Callable[[int], Arrays], count: int) -> None:
        """Run ``task(item)`` for ``count`` items, and keep the arrays that each returns in the file ``stage/item``."""
        if stage in self.folder.names(_DONE):
            return
        there = self.folder.names(stage)
        items = [item for item in range(count) if str(item) not in there]
        self.progress(stage)
        started = said = time.monotonic()
        written = 0
        results = self.engine.run(stage, partial(_run_task, self.folder, stage, task), items)
        for number, size in enumerate(results, start=1):
            written += size
            now = time.monotonic()
            if now - said > _SAYS_EVERY_S:
                left, said = (now - started) / number * (len(items) - number), now
                self.progress(f"{stage}: {number} of {len(items)}, {format_bytes(written)} written, {left:.0f} s left")
        self.folder.save(f"{_DONE}/{stage}", {})

    def reduce(self, stage: str, task: Callable[[int], Arrays], *keys: str) -> list[np.ndarray]:
        """Run one task, and return arrays of its file."""
        self.map(stage, task, 1)
        return self.folder.load(f"{stage}/0", *keys)

    def drop(self, *stages: str) -> None:
        """Remove the files of stages that are done and that no later one reads."""
        for stage in stages:
            self.folder.drop(stage)


def _run_task(folder: Folder, stage: str, task: Callable[[int], Arrays], item: int) -> int:
    if str(item) in folder.names(stage):  # a worker that died had ended it, and nobody was told
        return folder.place(f"{stage}/{item}").stat().st_size
    return folder.save(f"{stage}/{item}", task(item))


# ---- exchange by key: a task writes its rows sorted by key, and a task of the next stage gathers those of one key


def by_key(name: str, key: np.ndarray, keys: int, **arrays: np.ndarray) -> Arrays:
    """Sort rows by their key, 0 to ``keys`` - 1, keeping their order otherwise; ``{name}.ptr`` says where each begins."""
    ptr = np.concatenate([[0], np.cumsum(np.bincount(key, minlength=keys))]).astype(np.int64)
    if (key[1:] < key[:-1]).any():
        order = np.argsort(key.astype(np.uint16 if keys <= 1 << 16 else np.int32), kind="stable")
        arrays = {each: array[order] for each, array in arrays.items()}
    return {f"{name}.ptr": ptr, **{f"{name}.{each}": array for each, array in arrays.items()}}


def gather(folder: Folder, stage: str, items: range, name: str, key: int, *arrays: str) -> list[np.ndarray]:
    """Read the rows of one key from the files of a stage, one file after the other."""
    keys = [f"{name}.{each}" for each in arrays]
    pieces = [folder.slices(f"{stage}/{item}", f"{name}.ptr", key, *keys) for item in items]
    return [np.concatenate(each) for each in zip(*pieces)]
