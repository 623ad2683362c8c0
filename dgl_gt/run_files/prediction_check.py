"""Compares what a run with ``--strategy auto`` was predicted to take with what it took."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from dgl_gt.partition.console import table
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.system.units import format_bytes

from .run_directory import RECORD
from .run_record import MAX_COUNT, RunRecord, read_json

_ADVICE = "name a directory that `dgl-gt train --strategy auto --out RUN` wrote"


def compare_with_prediction(run) -> dict:
    """Predicted and measured figures of a run, a directory or a file with the ``--json`` output of ``dgl-gt train``.

    Returns ``choice``; ``figures``, a list of dicts with ``name, predicted, measured, error``, where the error is a
    share of the measured figure; and ``trials``, as in the record. ``InputError`` if the record holds no plan.
    """
    path = Path(run) / RECORD if os.path.isdir(run) else Path(run)
    return compared(read_json(path, RunRecord, _ADVICE), path)


def compared(record: RunRecord, path: Path) -> dict:
    """Do as :func:`compare_with_prediction` does for a record that was read from ``path``."""
    plan = record.plan
    if not plan:
        raise InputError(f"{path} holds no plan; train with --strategy auto")
    if not record.finished:
        raise InputError(
            f"{path} is the record of a run that ended early, without measured figures; train again with --strategy auto"
        )
    choice = plan.choice
    of_choice = (each for each in plan.trials if (each.choice, each.predicted_seconds) == (plan.chosen, choice.seconds))
    trial = next(of_choice, None)  # two cuts may have the same title, and seconds tell them apart
    of_run = record.seconds_per_epoch, record.exchanged_bytes_per_epoch
    is_measured = all(isinstance(each, (int, float)) for each in of_run) and record.peak_memory_bytes
    if trial is None or not is_measured or not 0 < (choice.memory_bytes or 0) <= MAX_COUNT:
        raise InputError(
            f"{path} lacks figures of the candidate that was chosen, {plan.chosen}; train again with --strategy auto"
        )
    figures = [
        _compared("seconds per epoch", choice.seconds, record.seconds_per_epoch),
        _compared("exchanged bytes per epoch", trial.predicted_sent_bytes, record.exchanged_bytes_per_epoch),
        _compared("bytes of tensors, largest rank", trial.predicted_peak_bytes, trial.measured_peak_bytes),
        _compared("bytes of the process, largest rank", choice.memory_bytes, max(record.peak_memory_bytes)),
    ]
    return {"choice": plan.chosen, "figures": figures, "trials": [msgspec.to_builtins(each) for each in plan.trials]}


def _compared(name: str, predicted: float, measured: float) -> dict:
    error = 0.0 if predicted == measured else (predicted - measured) / measured if measured else None
    return {"name": name, "predicted": predicted, "measured": measured, "error": error}


def check_table(comparison: dict) -> str:
    """The result of :func:`compare_with_prediction` as tables."""

    def row(figure: dict, is_bytes: bool) -> list[str]:
        shown = [format_bytes(figure[key]) if is_bytes else f"{figure[key]:.3f}" for key in ("predicted", "measured")]
        return [figure["name"], *shown, "" if figure["error"] is None else f"{figure['error']:+.1%}"]

    figures = [row(each, "bytes" in each["name"]) for each in comparison["figures"]]
    chosen = table([comparison["choice"], "predicted", "measured", "error"], figures)
    steps = [
        _compared(each["choice"], each["predicted_seconds"], each["measured_seconds"]) for each in comparison["trials"]
    ]
    trials = [row(each, is_bytes=False) for each in steps]
    return f"{chosen}\n\n{table(['trials, seconds per step', 'predicted', 'measured', 'error'], trials)}"
