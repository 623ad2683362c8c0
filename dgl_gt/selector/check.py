"""Compares what a run with ``--strategy auto`` was predicted to take with what it took."""

from __future__ import annotations

import json
import os
from pathlib import Path

from partition.console import table
from partition.errors import InputError
from partition.system.output_checks import LONGEST_RECORD_BYTES
from partition.system.units import size
from partition.system.yaml_file import read_text


def compare_with_prediction(run) -> dict:
    """Predicted and measured figures of a run.

    Parameters
    ----------
    run : path
        A directory that ``dgl-gt train --strategy auto --out RUN`` wrote, or a file with its ``--json`` output.

    Returns
    -------
    dict
        ``choice``; ``figures``, a list of dicts with ``name, predicted, measured, error``, where the error is a share
        of the measured figure; and ``trials``, as in the record.

    Raises
    ------
    InputError
        The run cannot be read, or its record holds no plan.
    """
    path = Path(run) / "record.json" if os.path.isdir(run) else Path(run)
    text = read_text(path, LONGEST_RECORD_BYTES)
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        raise InputError(
            f"{path} is not valid JSON; name a directory that `dgl-gt train --strategy auto --out RUN` wrote"
        ) from None
    plan = record.get("plan") if isinstance(record, dict) else None
    if not plan:
        raise InputError(f"{path} holds no plan; train with --strategy auto")
    if record.get("finished") is False:
        raise InputError(f"{path} is the record of a run that ended early, without measured figures; train again")
    try:
        return _compared_run(plan, record)
    except (KeyError, TypeError, ValueError, AttributeError, StopIteration):
        raise InputError(
            f"{path} holds a plan that cannot be read: it is damaged or from another version of dgl-gt; train again "
            "with --strategy auto"
        ) from None


def _compared_run(plan: dict, record: dict) -> dict:
    choice, trials = plan["choice"], plan["trials"]
    key = {"choice": plan["chosen"], "predicted_seconds": choice["seconds"]}  # two cuts may have the same title
    chosen_trial = next(each for each in trials if key.items() <= each.items())
    figures = [
        _compared("seconds per epoch", choice["seconds"], record["seconds_per_epoch"]),
        _compared("exchanged bytes per epoch", choice["sent_bytes"], record["exchanged_bytes_per_epoch"]),
        _compared("bytes of tensors, largest rank", choice["peak_bytes"], chosen_trial["measured_peak_bytes"]),
        _compared("bytes of the process, largest rank", choice["memory_bytes"], max(record["peak_memory_bytes"])),
    ]
    for each in trials:
        _compared_trial(each)  # raises if a figure is not a number
    return {"choice": plan["chosen"], "figures": figures, "trials": trials}


def _compared_trial(trial: dict) -> dict:
    return _compared(str(trial["choice"]), trial["predicted_seconds"], trial["measured_seconds"])


def _compared(name: str, predicted, measured) -> dict:
    predicted, measured = _number(predicted), _number(measured)
    error = 0.0 if predicted == measured else (predicted - measured) / measured if measured else None
    return {"name": name, "predicted": predicted, "measured": measured, "error": error}


def _number(value):
    if type(value) not in (int, float) or not 0 <= value < 1e18:
        raise ValueError
    return value


def check_table(comparison: dict) -> str:
    """The result of :func:`compare_with_prediction` as tables."""

    def row(figure: dict, is_bytes: bool) -> list[str]:
        shown = [size(figure[key]) if is_bytes else f"{figure[key]:.3f}" for key in ("predicted", "measured")]
        return [figure["name"], *shown, "" if figure["error"] is None else f"{figure['error']:+.1%}"]

    figures = [row(each, "bytes" in each["name"]) for each in comparison["figures"]]
    chosen = table([comparison["choice"], "predicted", "measured", "error"], figures)
    trials = [row(_compared_trial(each), is_bytes=False) for each in comparison["trials"]]
    return f"{chosen}\n\n{table(['trials, seconds per step', 'predicted', 'measured', 'error'], trials)}"
