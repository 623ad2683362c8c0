"""What a run leaves for people and reports: ``record.json``, ``metrics.jsonl`` and ``timeline.json``; see docs/cli.md.

A run with ``--strategy auto`` is compared with its prediction. This module does not import torch.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from dgl_gt.partition.console import table
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.system.output_checks import LONGEST_RECORD_BYTES
from dgl_gt.partition.system.storage import Url, is_file, located
from dgl_gt.partition.system.units import format_bytes
from dgl_gt.partition.system.yaml_file import read_text
from dgl_gt.plan.candidates import Candidate

RECORD = "record.json"
MAX_COUNT = 2**62  # bytes, and whatever else is counted
Number = Annotated[float, Meta(ge=-1e39, le=1e39)]  # float32 holds no larger one
Count = Annotated[int, Meta(ge=0, le=MAX_COUNT)]
Seconds = Annotated[float, Meta(ge=0, le=1e12)]


class EpochNumbers(msgspec.Struct, kw_only=True):
    """What was measured in an epoch: a line of ``metrics.jsonl``."""

    epoch: Annotated[int, Meta(ge=1, le=2**53)]
    loss: Number | None = None
    validation: Number | None = None
    test: Number | None = None
    lr: Number | None = None
    seconds: Seconds
    nodes_per_s: Number
    edges_per_s: Number
    exchange_share: Number
    exchanged_bytes: Count
    peak_memory_bytes: list[Count]


class Metric(msgspec.Struct):
    """The metrics at the best epoch."""

    name: str
    validation: Number
    test: Number
    lower_is_better: bool = False


class GraphOfRun(msgspec.Struct):
    """The graph that a run trains on, and its cut."""

    source: str
    cut: str
    nodes: Count
    edges: Count
    checksum: str


class PolicyOfRun(msgspec.Struct):
    """The transmission policy that a run followed, and what exact steps would have sent, all ranks together."""

    rules: list[dict]
    exact_bytes_per_epoch: Count


class Trial(msgspec.Struct):
    """Predictions and measurements of a few training steps of one candidate.

    Seconds are the median of a step on the slowest rank. Bytes sent are those of all ranks in a step. The peak is that
    of live tensors, structure and features on the rank that has most; on a GPU, that of the allocator.
    """

    choice: str
    predicted_seconds: Seconds
    measured_seconds: Seconds
    predicted_sent_bytes: Count
    measured_sent_bytes: Count
    predicted_peak_bytes: Count
    measured_peak_bytes: Count


class PlanOfRun(msgspec.Struct):
    """What ``--strategy auto`` chose, after trials of the best candidates."""

    predicted_choice: dict
    chosen: str  # in words
    choice: Candidate
    profile: dict
    model: dict
    trials: list[Trial]


class Span(msgspec.Struct):
    """A piece of the step of a rank; ``start`` and ``end`` are seconds from the beginning of the step."""

    kind: Literal["compute", "exchange", "wait", "file"]
    name: str
    start: Seconds
    end: Seconds


class RankStep(msgspec.Struct):
    """The step of a rank: ``seconds``, what they were spent on, and the spans in their order."""

    seconds: Seconds
    compute_s: Seconds
    exchange_s: Seconds
    wait_s: Seconds
    spans: list[Span]
    file_s: Seconds = 0.0  # copying rows from files and to them


class StepTimeline(msgspec.Struct):
    """``timeline.json``: one step of all ranks."""

    epoch: Count
    strategy: str
    ranks: Annotated[list[RankStep], Meta(min_length=1)]


class RunRecord(msgspec.Struct, kw_only=True):
    """A run as plain values; what is measured over the whole run is unset until it has ended.

    The fields with defaults may be missing, and values that are unset be null, in a record that a user gave to
    :func:`dgl_gt.train.save_model`.

    Attributes
    ----------
    finished : bool
        False where the run was ended early.
    strategy, depth : str and int
        As run.
    also : list of GraphOfRun
        More graphs that the model was trained on.
    losses, validations : list of float or None, one per epoch
        Training loss, None where the step was skipped; validation metric, None where it was not evaluated.
    best_epoch : int
        The epoch that validated best, counted from 1; ``metric`` is that of this epoch.
    seconds_per_epoch : float
        Median training step of the slowest rank (s).
    exchange_share : float
        Share of that time spent in exchanges, 0 to 1.
    compute_seconds : list of float, (P,)
        Median time that each rank computes in a step (s).
    exchanged_bytes_per_epoch : int
        What all ranks together send in the exchanges of a step (bytes).
    peak_memory_bytes : list of int, (P,)
        Peak memory of each rank (bytes).
    allocator : str
        The memory allocator of rank 0: "jemalloc", "tcmalloc" or "glibc".
    spill_dtype : str
        "bf16" where layers read rounded rows from files.
    policy, plan : struct or None
        The transmission policy, and the plan of ``--strategy auto``; docs/cli.md lists their keys.
    """

    finished: bool = True
    strategy: str
    depth: Count = 1
    ranks: Count
    graph: GraphOfRun | None = None
    also: list[GraphOfRun] | None | UnsetType = UNSET
    epochs: Count = 0
    best_epoch: Count = 0  # counted from 1
    losses: list[Number | None]
    validations: list[Number | None] = []
    metric: Metric
    seconds_per_epoch: Seconds | None | UnsetType = UNSET
    exchange_share: Number | None | UnsetType = UNSET
    compute_seconds: list[Seconds] | None | UnsetType = UNSET
    exchanged_bytes_per_epoch: Count | None | UnsetType = UNSET
    policy: PolicyOfRun | None | UnsetType = UNSET
    peak_memory_bytes: list[Count] | None | UnsetType = UNSET
    allocator: str | None | UnsetType = UNSET
    spill_dtype: str | None | UnsetType = UNSET
    plan: PlanOfRun | None | UnsetType = UNSET


def values_of(record: RunRecord) -> dict:
    """The record as JSON holds it, without what is unset; numbers may be those of numpy."""
    return msgspec.to_builtins(record, enc_hook=lambda number: number.item())


def read_json(path: Path | Url, kind, advice: str):
    """Read a JSON file of a run as a struct of this kind; where that fails, the message ends with the advice."""
    text = read_text(path, LONGEST_RECORD_BYTES)
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InputError(f"{path} is damaged or from another version of dgl-gt: {error}; {advice}") from None


# ---- a run with ``--strategy auto``, and what it was predicted to take ----

_ADVICE = "name a directory that `dgl-gt train --strategy auto --out RUN` wrote"


def compare_with_prediction(run) -> dict:
    """Predicted and measured figures of a run, a directory or a file with the ``--json`` output of ``dgl-gt train``.

    Returns ``choice``; ``figures``, a list of dicts with ``name, predicted, measured, error``, where the error is a
    share of the measured figure; and ``trials``, as in the record. ``InputError`` if the record holds no plan.
    """
    place = located(run)
    is_directory = not is_file(place) if isinstance(place, Url) else os.path.isdir(place)
    path = place / RECORD if is_directory else place
    return compared(read_json(path, RunRecord, _ADVICE), path)


def compared(record: RunRecord, path: Path | Url) -> dict:
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
