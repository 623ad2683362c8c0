"""Reads what a run left in its directory. Any file may be missing: the run may have just begun, or been interrupted."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from dgl_gt.train.run_directory import CONFIG, METRICS_FILE, RECORD, TIME_LINE, checkpoints_in
from partition.errors import InputError
from partition.system.output_checks import LONGEST_RECORD_BYTES
from partition.system.user_files import reading, regular_file
from partition.system.yaml_file import read_text, read_yaml

_LONGEST_LINE = 1 << 20  # one number for each of ten thousand ranks takes a quarter of it

_Number = Annotated[float, Meta(ge=-1e39, le=1e39)]  # float32 holds no larger one
_Count = Annotated[int, Meta(ge=0, le=2**62)]
_Time = Annotated[float, Meta(ge=0, le=1e12)]


class Epoch(msgspec.Struct):
    """A line of ``metrics.jsonl``; docs/cli.md describes the keys."""

    epoch: Annotated[int, Meta(ge=1, le=2**53)]
    seconds: _Time
    nodes_per_s: _Number
    edges_per_s: _Number
    exchange_share: _Number
    exchanged_bytes: _Count
    peak_memory_bytes: list[_Count]
    loss: _Number | None = None
    validation: _Number | None = None
    test: _Number | None = None
    lr: _Number | None = None


class Metric(msgspec.Struct):
    """The metrics at the best epoch."""

    name: str
    validation: _Number
    test: _Number


class GraphOfRun(msgspec.Struct):
    """The graph that a run trained on, and its cut."""

    source: str
    cut: str
    nodes: _Count
    edges: _Count
    checksum: str


class PolicyOfRun(msgspec.Struct):
    """The transmission policy that a run followed, and what exact steps would have sent."""

    rules: list[dict]
    exact_bytes_per_epoch: _Count


class Record(msgspec.Struct):
    """The part of ``record.json`` that the report shows; docs/cli.md describes the keys."""

    strategy: str
    ranks: _Count
    losses: list[_Number | None]
    metric: Metric
    best_epoch: _Count = 0
    depth: _Count = 1
    finished: bool = True
    graph: GraphOfRun | None = None
    seconds_per_epoch: _Time | None = None
    exchange_share: _Number | None = None
    exchanged_bytes_per_epoch: _Count | None = None
    policy: PolicyOfRun | None = None
    peak_memory_bytes: list[_Count] = []
    plan: dict | None = None


class Span(msgspec.Struct):
    """A piece of the step of a rank."""

    kind: Literal["compute", "exchange", "wait"]
    name: str
    start: _Time
    end: _Time


class RankStep(msgspec.Struct):
    """The step of a rank, see :func:`dgl_gt.train.time_line.time_line`."""

    seconds: _Time
    compute_s: _Time
    exchange_s: _Time
    wait_s: _Time
    spans: list[Span]


class Step(msgspec.Struct):
    """``timeline.json``: one step of all ranks."""

    epoch: _Count
    strategy: str
    ranks: Annotated[list[RankStep], Meta(min_length=1)]


class RunFiles(msgspec.Struct):
    """What a run left in its directory; None or empty where a file is missing."""

    directory: Path
    record: Record | None
    epochs: list[Epoch]
    settings: dict
    step: Step | None
    checkpoints: list[int]  # epochs before each of them, in ascending order


def is_run(directory) -> bool:
    """Whether a directory holds a run of ``dgl-gt train --out``, or what an interrupted one left."""
    folder = Path(directory)
    if not os.path.isdir(folder):
        return False
    with reading(folder):
        return any(os.path.isfile(folder / name) for name in (RECORD, METRICS_FILE)) or bool(checkpoints_in(folder))


def read_run(directory) -> RunFiles:
    """Read the directory of a run.

    Raises
    ------
    InputError
        A file is damaged or cannot be read; the message names it, and for ``metrics.jsonl`` the line.
    """
    folder = Path(directory)
    settings = read_yaml(folder / CONFIG) if os.path.exists(folder / CONFIG) else {}
    return RunFiles(
        folder,
        _decoded(folder / RECORD, Record),
        list(_read_epochs(folder / METRICS_FILE)) if os.path.exists(folder / METRICS_FILE) else [],
        settings,
        _decoded(folder / TIME_LINE, Step),
        sorted(int(re.sub(r"\D", "", each.name)) for each in checkpoints_in(folder)),
    )


def _decoded(path: Path, kind):
    if not os.path.exists(path):
        return None
    text = read_text(path, LONGEST_RECORD_BYTES)
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InputError(
            f"{path} is damaged or from another version of dgl-gt: {error}; move it away to see the report without it"
        ) from None


def _read_epochs(path: Path) -> Iterator[Epoch]:
    """Yield the epochs. The last line may lack its end: the run may be writing it."""
    decoder, last = msgspec.json.Decoder(Epoch), 0
    with reading(path), regular_file(path).open("rb") as file:
        number = 0
        while line := file.readline(_LONGEST_LINE):
            number += 1
            if not line.endswith(b"\n") and len(line) < _LONGEST_LINE:
                return
            try:
                epoch = decoder.decode(line)
            except (msgspec.MsgspecError, RecursionError) as error:
                raise _damaged(path, number, str(error)) from None
            if epoch.epoch <= last:
                raise _damaged(path, number, f"epoch {epoch.epoch} comes after epoch {last}")
            last = epoch.epoch
            yield epoch


def _damaged(path: Path, line: int, problem: str) -> InputError:
    return InputError(
        f"{path}, line {line}: {problem}; each line must be a JSON object as dgl-gt train writes it: remove this line, or "
        "move the file away to see the report without curves"
    )
