"""Reads what a run left in its directory. Any file may be missing: the run may have just begun, or been interrupted."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.system.user_files import reading, regular_file
from dgl_gt.partition.system.yaml_file import read_yaml
from dgl_gt.run_files.run_directory import CONFIG, METRICS_FILE, RECORD, STEP_TIMELINE, checkpoints_in
from dgl_gt.run_files.run_record import EpochNumbers, RunRecord, StepTimeline, read_json
from dgl_gt.train.config import by_path

_LONGEST_LINE = 1 << 20  # one number for each of ten thousand ranks takes a quarter of it
_ADVICE = "move it away to see the report without it"


class RunFiles(msgspec.Struct):
    """What a run left in its directory; None or empty where a file is missing."""

    directory: Path
    record: RunRecord | None
    epochs: list[EpochNumbers]
    settings: dict
    step: StepTimeline | None
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
    settings = by_path(read_yaml(folder / CONFIG)) if os.path.exists(folder / CONFIG) else {}
    return RunFiles(
        folder,
        _read_if_there(folder / RECORD, RunRecord),
        list(_read_epochs(folder / METRICS_FILE)) if os.path.exists(folder / METRICS_FILE) else [],
        settings,
        _read_if_there(folder / STEP_TIMELINE, StepTimeline),
        sorted(int(re.sub(r"\D", "", each.name)) for each in checkpoints_in(folder)),
    )


def _read_if_there(path: Path, kind):
    return read_json(path, kind, _ADVICE) if os.path.exists(path) else None


def _read_epochs(path: Path) -> Iterator[EpochNumbers]:
    """Yield the epochs. The last line may lack its end: the run may be writing it."""
    decoder, last = msgspec.json.Decoder(EpochNumbers), 0
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
