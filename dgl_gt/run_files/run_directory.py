"""The directory of a run: its files, their names, and how they are written.

This module does not import torch: the launcher has no use for it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.system.atomic_write import new_directory, new_file
from dgl_gt.partition.system.output_checks import Kind, check_target

WEIGHTS, CONFIG, RECORD = "model.safetensors", "config.yaml", "record.json"
METRICS_FILE = "metrics.jsonl"  # a line for each epoch
SCALARS = re.compile(r"events\.out\.tfevents\.[^/]+")  # of TensorBoard
CHECKPOINT = re.compile(r"checkpoint-(\d{1,12})\.safetensors")  # with the number of epochs before it
TRACE = re.compile(r"profile-rank\d+\.json\.gz")  # of one training step, for viewers of Chrome traces
STEP_TIMELINE = "timeline.json"  # of the same step, on all ranks
_OTHERS = (
    *(re.escape(name) for name in (WEIGHTS, CONFIG, METRICS_FILE)),
    *(rf"\.{re.escape(name)}\.[^/]*" for name in (WEIGHTS, CONFIG, RECORD, METRICS_FILE)),  # while one is written anew
    SCALARS.pattern,
    # damaged ones and ones that are being written, too
    *(rf"\.?{name}[^/]*" for name in (CHECKPOINT.pattern, TRACE.pattern, re.escape(STEP_TIMELINE))),
)
MODEL = Kind(
    "a model",
    RECORD,
    lambda record: {"strategy", "ranks", "losses", "metric"} <= record.keys(),
    "|".join(_OTHERS),
)


class RunDirectory:
    """The directory ``out``, and whether what is in it is of this run; used by one rank.

    With ``force``, what another run left in it is replaced by the first write.
    """

    def __init__(self, out, *, force: bool = False, is_ours: bool = False):
        self.out, self.is_ours, self._force = Path(out), is_ours, force

    def write(self, files: dict[str, bytes]) -> None:
        """Write files by name.

        The first call makes the directory, which appears when it is complete. Later calls replace the given files, each
        in one step, and leave all others in the directory as they are.

        Raises
        ------
        InputError
            ``out`` exists and is not of this run, or cannot be written.
        """
        if self.is_ours:
            for name, content in files.items():
                with new_file(self.out / name, force=True) as file:
                    file.write(content)
            return
        with new_directory(self.out, MODEL, force=self._force) as folder:
            for name, content in files.items():
                (folder / name).write_bytes(content)
        self.is_ours = True

    def forget_earlier_run(self) -> None:
        """Remove the checkpoints of an earlier run, where this one may replace it.

        Otherwise, a new run that is killed before its first write would seem to have checkpoints.
        """
        for path in checkpoints_in(self.out) if self._force else ():
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise InputError(f"cannot remove {path}, a checkpoint of an earlier run: {error.strerror}") from error


def checkpoints_in(folder: Path) -> list[Path]:
    """The checkpoints in a directory, the latest first; none where there is no such directory."""
    if not folder.is_dir():
        return []
    found = [(int(match[1]), each) for each in folder.iterdir() if (match := CHECKPOINT.fullmatch(each.name))]
    return [path for _, path in sorted(found, reverse=True)]


def trace_name(rank: int) -> str:
    """The name of the file with a rank's trace."""
    return f"profile-rank{rank}.json.gz"


def is_left_by(out, starter: str) -> bool:
    """Whether a directory holds a run whose ranks a process started, by its :func:`.starter_name`.

    A directory that was moved aside when a rank was killed is put back first.
    """
    folder = check_target(out, MODEL, force=True, foreign=True)
    try:
        return json.loads((folder / RECORD).read_text())["started_by"] == starter
    except (OSError, ValueError, KeyError, TypeError):
        return False


def check_can_resume(out) -> None:
    """Raise :class:`InputError` unless a directory holds a run with checkpoints."""
    folder = check_target(out, MODEL, force=True, foreign=True)
    if not checkpoints_in(folder):
        raise no_checkpoint(out)


def no_checkpoint(out, what: str = "no checkpoint") -> InputError:
    """The error to raise where a directory holds nothing to resume from; its advice leads to a run that starts."""
    where = ", in another directory or with force (--force)" if Path(out).exists() else ""
    return InputError(
        f"{out} holds {what}, so there is nothing to go on from; start a run without resume (--resume){where}"
    )
