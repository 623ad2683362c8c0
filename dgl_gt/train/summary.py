"""What is told of a run: its progress on stderr, its record, and the table at its end."""

from __future__ import annotations

import math
import operator
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import UNSET
from tqdm import tqdm

from dgl_gt.exchange.sharded_graph import ShardedGraph
from dgl_gt.partition.console import table
from dgl_gt.partition.system.allocator import running_allocator
from dgl_gt.partition.system.units import format_bytes
from dgl_gt.ranks.launcher_link import notebook_bar
from dgl_gt.run_files.run_record import GraphOfRun, Metric, PlanOfRun, PolicyOfRun, RunRecord

from .metric_kinds import shown_metric
from .run_state import TrainHistory, TrainResult

_PLAIN_LINES = 10
_UNEVEN, _LEAST_UNEVEN_S = 1.1, 0.1  # times the mean of the ranks; shorter steps vary by themselves
_SCREEN = {"ncols": 100, "nrows": 20}  # of a terminal that does not know its size


class Progress:
    """The progress of a run: the ``bar`` of a notebook; without one, on stderr, a bar on a terminal and ten lines elsewhere.

    Use it as a context. :meth:`start` and :meth:`after_epoch` are callbacks of a run, see
    :func:`dgl_gt.train.train_and_save`.
    """

    def __init__(self, epochs: int, bar: Callable | None = None):
        self._in_notebook = bar
        self._epochs, self._first, self._best = epochs, 0, ""
        self._best_validation, self._is_better, self._started_s = math.nan, operator.gt, time.monotonic()
        self._on_terminal = bar is None and sys.stderr.isatty()

    def __enter__(self) -> Progress:
        has_width = self._on_terminal and os.get_terminal_size(sys.stderr.fileno()).columns > 0
        self._bar = tqdm(
            total=self._epochs,
            disable=not self._on_terminal,
            dynamic_ncols=has_width,
            **({} if has_width else _SCREEN),
            bar_format="epoch {n_fmt}/{total_fmt} |{bar:8}| {desc}",
        )
        return self

    def __exit__(self, *_) -> None:
        self._bar.close()

    def start(self, history: TrainHistory) -> None:
        """Begin where a run goes on: its earlier epochs say nothing about the time left."""
        self._first, self._started_s = len(history.losses), time.monotonic()
        self._is_better = operator.lt if history.lower_is_better else operator.gt
        if history.best_epoch >= 0:
            self._note(history.best_epoch, history.validation)

    def after_epoch(self, epoch: int, loss: float, validation: float, seconds: float) -> None:
        """Show an epoch, counted from 0; the validation metric is NaN before the first evaluation."""
        is_first = not self._best and math.isfinite(validation)
        if is_first or self._is_better(validation, self._best_validation):
            self._note(epoch, validation)
        done = epoch + 1
        metrics = f"loss {loss:.4f}"
        if math.isfinite(validation):
            metrics += f"  validation {validation:.4f}{self._best}"
        if self._in_notebook:
            self._in_notebook(metrics, done, self._epochs)
            return
        left_s = (time.monotonic() - self._started_s) / (done - self._first) * (self._epochs - done)
        left = f"{tqdm.format_interval(left_s)} left"
        text = f"{metrics}  {seconds:.2f} s per epoch"
        self._bar.set_description_str(f"{left}  {text}", refresh=False)  # a narrow terminal shows the beginning
        self._bar.update(done - self._bar.n)
        if not self._on_terminal and done % max(1, self._epochs // _PLAIN_LINES) == 0:
            print(f"epoch {done}/{self._epochs}  {text}  {left}", file=sys.stderr, flush=True)

    def _note(self, epoch: int, validation: float) -> None:
        self._best_validation, self._best = validation, f"  best {validation:.4f} (epoch {epoch + 1})"


def show_progress(epochs: int, is_shown: bool) -> AbstractContextManager[Progress | None]:
    """The :class:`Progress` of a run as a context, which gives None where another rank shows it."""
    return Progress(epochs) if is_shown else nullcontext()


@contextmanager
def progress_in_notebook(epochs: int, is_shown: bool) -> Iterator[Progress | None]:
    """The :class:`Progress` of a run in the notebook that runs it or has launched its ranks; None elsewhere."""
    with notebook_bar() as bar:
        yield Progress(epochs, bar) if bar and is_shown else None


def unfinished_record(
    history: TrainHistory, graphs: Sequence[ShardedGraph], plan: PlanOfRun | None = None
) -> RunRecord:
    """The record of a run that goes on, without what is measured over the whole run."""
    sg, *others = graphs
    return RunRecord(
        finished=False,
        strategy=sg.strategy.name,
        depth=sg.depth,
        ranks=sg.comm.world_size,
        graph=described_graph(sg),
        also=[described_graph(each) for each in others] or UNSET,
        epochs=len(history.losses),
        best_epoch=history.best_epoch + 1,
        losses=history.losses,
        validations=history.validations,
        metric=Metric(history.metric_name, history.validation, history.test, history.lower_is_better),
        plan=plan or UNSET,
        spill_dtype="bf16" if sg.stream is not None and sg.stream.spill_dtype else UNSET,
    )


def described_graph(sg: ShardedGraph) -> GraphOfRun:
    """The graph and its cut, as records name them."""
    return GraphOfRun(*(sg.manifest[key] for key in GraphOfRun.__struct_fields__))


def finished_record(result: TrainResult, graphs: Sequence[ShardedGraph], plan: PlanOfRun | None = None) -> RunRecord:
    """The record of a finished run: the documented keys of ``dgl-gt train --json``."""
    return msgspec.structs.replace(
        unfinished_record(result, graphs, plan),
        finished=True,
        seconds_per_epoch=result.seconds_per_epoch,
        exchange_share=result.exchange_share,
        compute_seconds=result.compute_seconds,
        exchanged_bytes_per_epoch=result.exchanged_bytes_per_epoch,
        policy=result.policy,
        peak_memory_bytes=result.peak_memory_bytes,
        allocator=running_allocator(),
    )


@dataclass(frozen=True)
class OneOfSeveral:
    """One of several runs, which differ in the split or the seed."""

    split: int
    seed: int
    record: RunRecord


def values_of_runs(runs: list[OneOfSeveral]) -> dict:
    """The records of several runs as plain values, and the mean and standard deviation of their metrics."""
    metrics: dict[str, Any] = {"name": runs[0].record.metric.name}
    for name in ("validation", "test"):
        mean, deviation = _mean_and_deviation(runs, name)
        metrics[name] = {"mean": mean, "deviation": deviation}
    values = [{"split": run.split, "seed": run.seed} | msgspec.to_builtins(run.record) for run in runs]
    return {"runs": values, "metric": metrics}


def _mean_and_deviation(runs: list[OneOfSeveral], metric: str) -> tuple[float, float]:
    values = [getattr(run.record.metric, metric) for run in runs]
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def table_of_runs(runs: list[OneOfSeveral]) -> str:
    """Several runs as a table, with a line for the mean and the deviation."""
    first = runs[0].record
    kind = shown_metric(first.metric.name)
    rows = [
        (run.split, run.seed, kind.text(metric.validation), kind.text(metric.test), run.record.best_epoch)
        for run in runs
        for metric in [run.record.metric]
    ]
    both = [" ± ".join(map(kind.text, _mean_and_deviation(runs, name))) for name in ("validation", "test")]
    heads = [f"{split} {kind.title}" for split in ("validation", "test")]
    text = table(["split", "seed", *heads, "best epoch"], [*rows, ("mean", "", *both, "")])
    return f"{text}\n\nexchanges were approximate, by the policy {_rules(first.policy)}" if first.policy else text


def _rules(policy: PolicyOfRun) -> str:
    return "; ".join(f"{rule['mode']}{' (in part)' if len(rule) > 1 else ''}" for rule in policy.rules)


def _exchanged(run: RunRecord) -> str:
    sent: Any = run.exchanged_bytes_per_epoch  # a number, because the run has ended
    if not run.policy:
        return format_bytes(sent)
    exact = run.policy.exact_bytes_per_epoch
    if not exact:
        return f"{format_bytes(sent)}, as in exact steps"
    return f"{format_bytes(sent)}, {1 - sent / exact:.1%} less than the {format_bytes(exact)} of exact steps"


def final_table(run: RunRecord) -> str:
    """A finished run as a table."""
    kind = shown_metric(run.metric.name)
    rows = [
        (f"test {kind.title}", kind.text(run.metric.test)),
        (f"validation {kind.title}", kind.text(run.metric.validation)),
        ("best epoch", f"{run.best_epoch} of {run.epochs}"),
        ("ranks", run.ranks),
        ("strategy", run.strategy + (f", depth {run.depth}" if run.depth > 1 else "")),
        ("seconds per epoch", f"{run.seconds_per_epoch:.3f}"),
        ("share spent exchanging", f"{run.exchange_share:.1%}"),
        ("exchanged per epoch", _exchanged(run)),
        ("peak memory per rank", f"{', '.join(map(format_bytes, run.peak_memory_bytes))} ({run.allocator})"),
    ]
    if run.ranks > 1 and run.compute_seconds:
        rows.insert(6, ("seconds computing, by rank", ", ".join(f"{each:.3f}" for each in run.compute_seconds)))
    if run.policy:
        rows.append(("policy, approximate", _rules(run.policy)))
    if run.plan:
        choice = run.plan.choice
        rows.append(("predicted seconds per epoch", f"{choice.seconds:.3f}"))
        rows.append(("predicted memory per rank", format_bytes(choice.memory_bytes)))
        rows += [(f"trial of {each.choice}", f"{each.measured_seconds:.3f} s per step") for each in run.plan.trials]
    return table(["result", ""], rows) + _advice_for_uneven_ranks(run.compute_seconds or [1.0])


def _advice_for_uneven_ranks(compute_seconds: list[float]) -> str:
    slowest, mean = max(compute_seconds), statistics.fmean(compute_seconds)
    if slowest < max(_UNEVEN * mean, _LEAST_UNEVEN_S):
        return ""
    return (
        f"\n\nrank {compute_seconds.index(slowest)} computes {slowest / mean - 1:.0%} longer than the mean; parts are even on a "
        f"machine that `dgl-gt calibrate --nproc {len(compute_seconds)}` has measured: run it, and partition again"
    )
