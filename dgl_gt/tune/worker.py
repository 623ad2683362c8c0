"""The side of a rank that tries settings: it loads the shards once, and trains what the search sends, one after the other.

Tasks come as lines of JSON through a file descriptor that rank 0 reads; what happens goes back through the launcher's pipe.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import IO

import msgspec

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.shards.counts import read_figures
from dgl_gt.partition.system.child_process import die_with_parent
from dgl_gt.partition.system.signals import enter
from dgl_gt.ranks.launcher_link import Launcher, find_launcher
from dgl_gt.train.config import SETTINGS, TrainConfig

from .jobs import FEWEST_EPOCHS, RUNGS, Hello, Job, Outcome, on_grid
from .recipes import in_epochs

_TIMED, _MOST_TIMED_S = 3, 10.0  # steps before a run, and the time for them


def main() -> int:
    launcher = find_launcher()
    assert launcher, "a search starts this module"
    die_with_parent(launcher.pid)
    sys.stderr = open(os.devnull, "w")  # notes of each run would spoil the table; what ends the rank goes by the pipe
    from dgl_gt.ranks import rank_process  # imports torch

    return rank_process.run(lambda: _serve(launcher, *sys.argv[1:]), launcher)


def _serve(launcher: Launcher, directory: str, orders: str, settings: str) -> int:
    """Try what comes, until nothing comes any more; ``settings`` are those that all runs have, as JSON."""
    from dgl_gt import load

    given = msgspec.json.decode(settings)  # a job has all; some of models fit some recipes alone
    base = TrainConfig().changed(**{name: value for name, value in given.items() if SETTINGS[name][0] != "model"})
    sg = load(directory, *base.exchange.choice)
    with sg.comm.together():
        hello = _hello(sg, base)
    source = os.fdopen(int(orders), encoding="utf-8") if sg.comm.rank == 0 else None
    report = _Reports(launcher, sg.comm.rank == 0)
    report.send(hello=msgspec.to_builtins(hello))
    while job := _next_job(sg.comm, source):
        report.send(ended=msgspec.to_builtins(_Run(sg, base, job, directory, report).outcome()))
    return 0


def _next_job(comm, source: IO[str] | None) -> Job | None:
    line = comm.broadcast_object(source.readline() if source else "")
    return msgspec.json.decode(line, type=Job) if line else None


class _Reports:
    """What rank 0 says of its run; the others say nothing."""

    def __init__(self, launcher: Launcher, speaks: bool):
        self._launcher, self._speaks, self._next_s = launcher, speaks, 0.0

    def send(self, **message) -> None:
        if self._speaks:
            self._launcher.report(progress=[message])

    def epoch(self, **message) -> None:
        """Send what is worth a look, at most twice a second."""
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + 0.5
            self.send(**message)


def _hello(sg, base: TrainConfig) -> Hello:
    from dgl_gt.train.run import completed
    from dgl_gt.train.task import read_task
    from dgl_gt.train.tasks.labels import LabelTask

    if sg.schema is None and not read_figures(sg.manifest).features and not base.task.inputs.node_embedding:
        base = base.changed(node_embedding=1)  # any width will do
    task, splits, rows = read_task(sg, completed(sg, base)), 1, 0
    if isinstance(task, LabelTask):
        masks = task.column(sg, "val_mask", base.task)
        splits, rows = (masks.shape[1] if masks.dim() == 2 else 1), task.counts["val"]
    return Hello(task.metric.name, task.metric.lower_is_better, splits, rows, sg.device.type)


class _Run:
    """A run of a job: how many epochs it has, whether it goes on after each, and what became of it."""

    def __init__(self, sg, base: TrainConfig, job: Job, directory: str, report: _Reports):
        self._sg, self._base, self._job, self._directory, self._report = sg, base, job, directory, report
        self._curve: list[tuple[int, float]] = []
        self._rungs: list[float] = []
        self._state, self._epochs, self._epoch_s = "complete", 0, 0.0
        self._is_lower_better = False

    def outcome(self) -> Outcome:
        """Train; every rank calls it."""
        from dgl_gt.train.run import train, train_and_save

        sg, job, started = self._sg, self._job, time.monotonic()
        try:
            with sg.comm.together():
                config = self._config()
                callbacks = {"on_start": self._start, "on_epoch": self._after_epoch}
                if job.out:
                    result, _ = train_and_save(sg, config, job.out, force=True, **callbacks)
                else:
                    result = train(sg, config, **callbacks)
        except InputError as error:
            return Outcome("failed", why=str(error), seconds=time.monotonic() - started, epoch_s=self._epoch_s)
        seconds = time.monotonic() - started
        found = self._epochs, seconds, self._epoch_s, result.validation, self._rungs, self._curve
        return Outcome(self._state, *found)

    def _config(self) -> TrainConfig:
        """The config, whose number of epochs follows from the time of its first steps; ``InputError`` if it cannot run."""
        from dgl_gt.plan.planned_step import check_memory
        from dgl_gt.train.run import completed

        job, sg = self._job, self._sg
        config = completed(sg, self._base.changed(**in_epochs(job.settings, job.epochs)))
        check_memory(self._directory, sg, config)
        self._epochs = job.epochs
        if job.longest_s:
            self._epoch_s = self._seconds_per_epoch(config)
            fewest = min(FEWEST_EPOCHS, int(job.longest_s / self._epoch_s))
            self._epochs = min(job.epochs, max(fewest, on_grid(job.usual_s / self._epoch_s)))
            if self._epochs < min(job.epochs, FEWEST_EPOCHS):
                raise InputError(
                    f"an epoch takes {self._epoch_s:.2g} s, so a run of {job.longest_s:.2g} s has {self._epochs}; it needs "
                    f"{FEWEST_EPOCHS}"
                )
        return completed(sg, self._base.changed(**in_epochs(job.settings, self._epochs)))

    def _seconds_per_epoch(self, config: TrainConfig) -> float:
        """Seconds of a step and of its share of the evaluations, measured on the slowest rank."""
        from dgl_gt.train.loop import take_step
        from dgl_gt.train.optimizer import make_optimizer
        from dgl_gt.train.run import prepare

        task, model = prepare(self._sg, config)
        step = partial(take_step, model, task, self._sg.comm, make_optimizer(model, config), seed=config.seed)
        first_s = self._slowest(partial(step, 0))  # which may load libraries, too
        step_s = self._fastest(partial(step, 1)) if first_s < _MOST_TIMED_S else first_s
        return step_s + self._fastest(partial(task.evaluate, model)) / config.evaluate_every

    def _fastest(self, work: Callable) -> float:
        """Seconds of work: the first may load libraries, and another process may have slowed others down."""
        seconds = [self._slowest(work)]
        while len(seconds) < _TIMED and sum(seconds) < _MOST_TIMED_S / 4:
            seconds.append(self._slowest(work))
        return min(seconds)

    def _slowest(self, work: Callable) -> float:
        """Seconds that work takes on the slowest rank."""
        import torch

        started = time.perf_counter()
        work()
        seconds = torch.tensor([time.perf_counter() - started], dtype=torch.float64)
        return float(self._sg.comm.all_reduce(seconds, "max")[0])

    def _start(self, history) -> None:
        self._is_lower_better = history.lower_is_better
        self._report.send(started=self._job.number, epochs=self._epochs)

    def _after_epoch(self, epoch: int, loss: float, validation: float, seconds: float) -> bool:
        """Note the epoch, counted from 0; whether the run ends."""
        if not math.isfinite(validation):  # there was no evaluation yet
            return False
        choose = min if self._is_lower_better else max
        best = choose([value for _, value in self._curve[-1:]] + [validation])
        if [value for _, value in self._curve[-2:]] == [best] * 2:  # a level stretch has two ends
            self._curve.pop()
        self._curve.append((epoch + 1, best))
        self._report.epoch(epoch=epoch + 1, value=best)
        for share, bar in list(zip(RUNGS, self._job.bars))[len(self._rungs) :]:
            if epoch + 1 >= share * self._epochs:
                self._rungs.append(best)
                if bar is not None and (best > bar if self._is_lower_better else best < bar):
                    self._state = "stopped"
        is_late = time.monotonic() >= self._job.deadline_s
        if self._state == "complete" and self._sg.comm.broadcast_object(is_late):
            self._state = "cut"
        return self._state != "complete"


if __name__ == "__main__":
    sys.exit(enter("dgl-gt", main))
