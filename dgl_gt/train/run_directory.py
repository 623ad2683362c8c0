"""The directory of a run: the best model, which is replaced as a whole, and checkpoints, which stay.

This module does not import torch: the launcher has no use for it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from partition.errors import InputError
from partition.system.atomic_write import new_directory
from partition.system.output_checks import Kind, check_target

WEIGHTS, CONFIG, RECORD = OF_WHOLE_MODEL = ("model.safetensors", "config.yaml", "record.json")  # replaced together
METRICS = "metrics.jsonl"  # a line for each epoch
SCALARS = re.compile(r"events\.out\.tfevents\.[^/]+")  # of TensorBoard
CHECKPOINT = re.compile(r"checkpoint-(\d{1,12})\.safetensors")  # with the number of epochs before it
TRACE = re.compile(r"profile-rank\d+\.json\.gz")  # of one training step, for viewers of Chrome traces
TIME_LINE = "timeline.json"  # of the same step, on all ranks
_OTHERS = (
    *(re.escape(name) for name in (WEIGHTS, CONFIG, METRICS)),
    rf"\.{re.escape(METRICS)}\.[^/]*",  # while it is written anew
    SCALARS.pattern,
    # damaged ones and ones that are being written, too
    *(rf"\.?{name}[^/]*" for name in (CHECKPOINT.pattern, TRACE.pattern, re.escape(TIME_LINE))),
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

    @contextmanager
    def replaced(self) -> Iterator[Path]:
        """Give a temporary directory for the files of the model. It takes the place of ``out`` in one step.

        All other files stay: they get a second name in the new directory. So writers that append to them may go on.

        Raises
        ------
        InputError
            ``out`` exists and is not of this run, or cannot be written.
        """
        force = self._force or self.is_ours
        with new_directory(self.out, MODEL, force=force, keep=_keep_changes if self.is_ours else None) as folder:
            yield folder
            if self.is_ours:
                for each in _others_in(self.out):
                    _keep(each, folder / each.name)
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
        raise InputError(
            f"{out} holds no checkpoint, so --resume has nothing to go on from; leave --resume out to start a run"
        )


def _others_in(folder: Path) -> list[Path]:
    """What is in the directory of a run beside its model, and is not being written by the run."""
    return [
        each
        for each in sorted(folder.iterdir())
        if each.name not in OF_WHOLE_MODEL and not (each.name.startswith(".") and re.fullmatch(MODEL.files, each.name))
    ]


def _keep_changes(old: Path, new: Path) -> None:
    """Move what was added to the old directory, or saved anew there, while the new one was written."""
    try:
        for each in _others_in(old):
            _move_change(each, new / each.name)
    except OSError as error:
        rescued = new.with_name(f"{new.name}.not-moved-{old.name.rpartition('-')[2]}")
        old.rename(rescued)
        print(
            f"dgl-gt: warning: files that changed in {new} while the model was written could not be moved ({error}); they "
            f"are in {rescued}",
            file=sys.stderr,
        )


def _move_change(old: Path, new: Path) -> None:
    """Move a file, a link or a directory, unless it is in its new place already; of a directory, what is new in it."""
    if _is_folder(old) and _is_folder(new):
        for each in old.iterdir():
            _move_change(each, new / each.name)
    elif not os.path.lexists(new):
        old.rename(new)
    elif not os.path.samestat(old.lstat(), new.lstat()):
        if _is_folder(new):
            shutil.rmtree(new)
        elif _is_folder(old):
            new.unlink()
        old.replace(new)


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _keep(old: Path, new: Path) -> None:
    """Give a file, or the files of a directory of the user's, a second name."""
    if _is_folder(old):
        shutil.copytree(old, new, symlinks=True, copy_function=_link)
    else:
        _link(old, new)


def _link(old, new) -> None:
    try:
        os.link(old, new, follow_symlinks=False)
    except OSError:  # a file system without hard links
        shutil.copy2(old, new, follow_symlinks=False)
