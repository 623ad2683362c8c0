"""The directory of a search: what it was asked, a line for each trial, and its result; see docs/cli.md.

It is the directory of a run, too, whose model is the best that was found. This module does not import torch.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.system.atomic_write import new_file
from dgl_gt.partition.system.output_checks import Kind
from dgl_gt.partition.system.storage import Url
from dgl_gt.partition.system.user_files import reading, regular_file
from dgl_gt.partition.system.yaml_file import read_text

from .run_directory import CONFIG, METRICS_FILE, RECORD, WEIGHTS

SEARCH, TRIALS, STUDY, SEEDS, PAGE = "search.json", "trials.jsonl", "study.log", "seeds", "report.html"
_NAMES = (SEARCH, TRIALS, STUDY, PAGE, "report.json", CONFIG, METRICS_FILE, RECORD, WEIGHTS)
FOUND = Kind(
    "a search",
    SEARCH,
    lambda record: {"models", "budget_s", "dgl_gt"} <= record.keys(),
    "|".join(each.replace(".", r"\.") for each in _NAMES) + rf"|{SEEDS}/.*|\.[^/]*",
)


class TrialLine(msgspec.Struct, kw_only=True):
    """A trial that has ended: a line of ``trials.jsonl``.

    Attributes
    ----------
    settings : dict
        What the search chose, by the names of settings; ``local_share`` is that of ``local_epochs``.
    state : str
        ``complete``; ``stopped`` where it was hopeless; ``cut`` where the time was over; ``failed``, with the reason in ``why``.
    value : float or None
        Best validation metric.
    rungs : list of float
        The same after a ninth and a third of the epochs.
    curve : list of (int, float)
        The same by epoch.
    seconds, epoch_s, at_s : float
        Time of the trial, of an epoch as measured before it, and since the search began.
    """

    number: int
    model: str
    settings: dict[str, Any]
    state: str
    epochs: int = 0
    seconds: float = 0.0
    epoch_s: float = 0.0
    at_s: float = 0.0
    value: float | None = None
    rungs: list[float] = []
    curve: list[tuple[int, float]] = []
    why: str = ""


class Finalist(msgspec.Struct):
    """A trial that was run again with other seeds: its validation metrics there, on the first split."""

    number: int
    model: str
    validations: list[float]


class LastRun(msgspec.Struct):
    """A run of the settings that were chosen."""

    split: int
    seed: int
    validation: float
    test: float


class SearchRecord(msgspec.Struct, kw_only=True):
    """What was searched for, ``search.json``, and once it has ended what was found."""

    dgl_gt: str
    graph: dict[str, Any]
    given: dict[str, Any]
    models: list[str]
    seed: int
    ranks: int
    jobs: int
    budget_s: float
    most_trials: int
    metric: str
    lower_is_better: bool
    splits: int
    rows: int
    finished: bool = False
    used_s: float = 0.0
    trials: int = 0
    best: int | None = None
    finalists: list[Finalist] = []
    runs: list[LastRun] = []
    importances: dict[str, float] = {}


def write_record(folder: Path, record: SearchRecord) -> None:
    """Write ``search.json`` in one step."""
    with new_file(folder / SEARCH, force=True) as file:
        file.write(msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")


def read_record(folder: Path) -> SearchRecord:
    """Read ``search.json``; ``InputError`` if it is missing or damaged."""
    return _decoded(read_text(folder / SEARCH).encode(), SearchRecord, folder / SEARCH)


def add_trial(folder: Path, trial: TrialLine) -> None:
    """Add a line to ``trials.jsonl``, on the disk when this returns."""
    with (folder / TRIALS).open("ab") as file:
        file.write(msgspec.json.encode(trial) + b"\n")
        file.flush()
        os.fsync(file.fileno())


def read_trials(folder: Path) -> list[TrialLine]:
    """The lines of ``trials.jsonl``; one without its end is left out: the search was killed while it wrote that."""
    path = folder / TRIALS
    if not path.exists():
        return []
    with reading(path), regular_file(path).open("rb") as file:
        lines = file.read().split(b"\n")[:-1]
    return [_decoded(line, TrialLine, f"{path}, line {number}") for number, line in enumerate(lines, start=1)]


def drop_torn_end(path: Path) -> None:
    """Remove what follows the last whole line of a file, so that lines can be added."""
    if path.exists():
        content = path.read_bytes()
        os.truncate(path, content.rfind(b"\n") + 1)


def is_search(folder: Path | Url) -> bool:
    """Whether a directory holds a search, which is on this machine."""
    return isinstance(folder, Path) and os.path.isdir(folder) and (folder / SEARCH).is_file()


def ranked(trials: Iterable[TrialLine], lower_is_better: bool) -> list[TrialLine]:
    """The trials that have a value, those that were not stopped first, and the best first among these."""
    there = [each for each in trials if each.value is not None]
    sign = 1 if lower_is_better else -1
    return sorted(there, key=lambda each: (each.state == "stopped", sign * (each.value or 0.0), each.number))


def in_words(settings: dict) -> str:
    """Settings as one line."""
    return ", ".join(f"{name} {value}" for name, value in settings.items())


def _decoded(content: bytes, kind: type, where) -> Any:
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise InputError(f"{where}: {error}; begin the search anew (--force)") from None
