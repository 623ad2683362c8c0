"""The numbers of a run's report, as values that JSON can hold."""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import fmean, median

import msgspec

from dgl_gt.run_files.prediction_check import compared
from dgl_gt.run_files.run_directory import RECORD
from dgl_gt.run_files.run_record import StepTimeline

from .run_files import RunFiles

MAX_POINTS = 1000  # of a curve
_CURVES = ("loss", "validation", "test", "lr", "nodes_per_s", "exchange_share")
_MAX_PARTS = 12  # of the step, in the table of where its time goes


def run_numbers(run: RunFiles) -> dict:
    """Return the numbers that the report shows; docs/cli.md describes the keys."""
    record, epochs = run.record, run.epochs
    finished = record is not None and record.finished
    done = epochs[-1].epoch if epochs else len(record.losses) if record else max(run.checkpoints, default=0)
    return {
        "run": run.directory.resolve().name,
        "finished": finished,
        "graph": msgspec.to_builtins(record.graph) if record else None,
        "ranks": record.ranks if record else len(epochs[-1].peak_memory_bytes) if epochs else None,
        "strategy": record.strategy if record else None,
        "depth": record.depth if record else None,
        "epochs": done,
        "planned_epochs": _whole(run.settings.get("epochs")),
        **_best(run),
        **_measured(run),
        "policy": msgspec.to_builtins(record.policy) if record and record.policy else None,
        "curves": _curves(run),
        "checkpoints": run.checkpoints,
        "prediction": compared(record, run.directory / RECORD) if finished and record.plan else None,
        "step": _step(run.step) if run.step else None,
        "settings": {str(name): _plain(value) for name, value in run.settings.items()},
    }


def _plain(value):
    """A setting as JSON can hold it: a number or a truth value, or else text."""
    is_number = isinstance(value, (int, float)) and math.isfinite(value)
    return value if value is None or is_number else str(value)


def _whole(value) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _curves(run: RunFiles) -> dict[str, list]:
    if run.epochs:
        return {name: thinned((each.epoch, getattr(each, name)) for each in run.epochs) for name in _CURVES}
    return {"loss": thinned(enumerate(run.record.losses, start=1))} if run.record else {}


def _best(run: RunFiles) -> dict:
    """The epoch that validated best, and its metrics: the record of an unfinished run may be older than its epochs."""
    record = run.record
    name = record.metric.name if record else None
    evaluated = [each for each in run.epochs if each.validation is not None]
    if evaluated and not (record and record.finished):
        best = max(evaluated, key=lambda each: each.validation)  # the first of equals, as the trainer keeps
        return {"best_epoch": best.epoch, "metric": {"name": name, "validation": best.validation, "test": best.test}}
    if record and record.best_epoch:
        return {"best_epoch": record.best_epoch, "metric": msgspec.to_builtins(record.metric)}
    return {"best_epoch": None, "metric": {"name": name, "validation": None, "test": None}}


def _measured(run: RunFiles) -> dict:
    """Medians over epochs, the share of all steps, and the largest memory; those of the record where it has them."""
    epochs = run.epochs
    seconds = sum(each.seconds for each in epochs)
    found = {
        "seconds_per_epoch": _median(each.seconds for each in epochs),
        "nodes_per_s": _median(each.nodes_per_s for each in epochs),
        "edges_per_s": _median(each.edges_per_s for each in epochs),
        "exchange_share": sum(each.exchange_share * each.seconds for each in epochs) / seconds if seconds else None,
        "exchanged_bytes_per_epoch": round(fmean(each.exchanged_bytes for each in epochs)) if epochs else None,
        "peak_memory_bytes": epochs[-1].peak_memory_bytes if epochs else [],
    }
    for name in found if run.record else ():
        if value := getattr(run.record, name, None):
            found[name] = value
    return found


def _median(values: Iterable[float]) -> float | None:
    values = list(values)
    return median(values) if values else None


def thinned(points: Iterable[tuple[int, float | None]]) -> list[list]:
    """At most :data:`MAX_POINTS` points of a curve, ``[epoch, value]``; peaks stay, and so do the first and the last.

    Epochs without a value are left out.
    """
    there = [[epoch, value] for epoch, value in points if value is not None]
    if len(there) <= MAX_POINTS:
        return there
    inner, kept = there[1:-1], [there[0]]
    length = math.ceil(len(inner) / ((MAX_POINTS - 2) // 2))
    for start in range(0, len(inner), length):
        piece = inner[start : start + length]
        ends = [min(piece, key=lambda each: each[1]), max(piece, key=lambda each: each[1])]
        kept += sorted(ends) if ends[0] != ends[1] else ends[:1]
    return [*kept, there[-1]]


def _step(step: StepTimeline) -> dict:
    """A profiled step without its spans: the seconds of each rank, and of the parts that take the most, mean over ranks."""
    sums: dict[tuple[str, str], float] = {}
    for rank in step.ranks:
        for span in rank.spans:
            key = span.name, span.kind
            sums[key] = sums.get(key, 0.0) + (span.end - span.start) / len(step.ranks)
    longest = sorted(sums.items(), key=lambda item: -item[1])[:_MAX_PARTS]
    names = ("seconds", "compute_s", "exchange_s", "wait_s")
    return {
        "epoch": step.epoch,
        "strategy": step.strategy,
        "ranks": [{name: getattr(rank, name) for name in names} for rank in step.ranks],
        "longest": [{"name": name, "kind": kind, "seconds": seconds} for (name, kind), seconds in longest],
    }
