"""What a run with ``--strategy auto`` was predicted to take, against what it took."""

from __future__ import annotations

import json
import os
from pathlib import Path

from dgl_gt.yaml_file import read_text
from partition.console import table
from partition.errors import InputError
from partition.system.units import size

_MOST_BYTES = 1 << 30  # a run of a million epochs has two million figures


def errors(run) -> dict:
    """Predicted and measured figures of a run.

    Parameters
    ----------
    run : path
        What ``dgl-gt train --strategy auto --out RUN`` wrote, or a file with its ``--json``.

    Returns
    -------
    dict
        ``choice``; ``figures``: of each a dict with ``name, predicted, measured, error``, the error as a share of what
        was measured; ``trials``: as in the record.

    Raises
    ------
    InputError
        No such run, or one without a plan.
    """
    path = Path(run) / "record.json" if os.path.isdir(run) else Path(run)
    text = read_text(path, _MOST_BYTES)
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        raise InputError(
            f"{path} is not valid JSON; name what `dgl-gt train --strategy auto --out RUN` wrote"
        ) from None
    plan = record.get("plan") if isinstance(record, dict) else None
    if not plan:
        raise InputError(f"{path} holds no plan; train with --strategy auto")
    if record.get("finished") is False:
        raise InputError(f"{path} is of a run that was ended early, and holds no measured figures; train again")
    try:
        return _errors(plan, record)
    except (KeyError, TypeError, ValueError, AttributeError, StopIteration):
        raise InputError(
            f"{path} is damaged or from another version of dgl-gt: its plan cannot be read; train again with "
            "--strategy auto"
        ) from None


def _errors(plan: dict, record: dict) -> dict:
    choice, trials = plan["choice"], plan["trials"]
    names = {"choice": plan["chosen"], "predicted_seconds": choice["seconds"]}  # two cuts may share the first
    tried = next(each for each in trials if names.items() <= each.items())
    figures = [
        _compared("seconds per epoch", choice["seconds"], record["seconds_per_epoch"]),
        _compared("exchanged bytes per epoch", choice["sent_bytes"], record["exchanged_bytes_per_epoch"]),
        _compared("bytes of tensors, largest rank", choice["peak_bytes"], tried["measured_peak_bytes"]),
        _compared("bytes of the process, largest rank", choice["memory_bytes"], max(record["peak_memory_bytes"])),
    ]
    for each in trials:
        _of_trial(each)  # raises where a figure is no number
    return {"choice": plan["chosen"], "figures": figures, "trials": trials}


def _of_trial(trial: dict) -> dict:
    return _compared(str(trial["choice"]), trial["predicted_seconds"], trial["measured_seconds"])


def _compared(name: str, predicted, measured) -> dict:
    predicted, measured = _number(predicted), _number(measured)
    error = 0.0 if predicted == measured else (predicted - measured) / measured if measured else None
    return {"name": name, "predicted": predicted, "measured": measured, "error": error}


def _number(value):
    if type(value) not in (int, float) or not 0 <= value < 1e18:
        raise ValueError
    return value


def check_table(found: dict) -> str:
    """:func:`errors` as tables."""

    def shown(name: str, value) -> str:
        return size(value) if "bytes" in name else f"{value:.3f}"

    def share(value) -> str:
        return "" if value is None else f"{value:+.1%}"

    rows = [
        [each["name"], *(shown(each["name"], each[key]) for key in ("predicted", "measured")), share(each["error"])]
        for each in found["figures"]
    ]
    trials = []
    for each in found["trials"]:
        of_trial = _of_trial(each)
        seconds = [f"{of_trial[key]:.3f}" for key in ("predicted", "measured")]
        trials.append([of_trial["name"], *seconds, share(of_trial["error"])])
    first = table([found["choice"], "predicted", "measured", "error"], rows)
    return f"{first}\n\n{table(['tried, seconds a step', 'predicted', 'measured', 'error'], trials)}"
