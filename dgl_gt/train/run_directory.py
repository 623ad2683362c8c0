"""The directory of a run: the best model, which is replaced as a whole, and checkpoints, which stay.

This module does not import torch: the launcher has no use for it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from partition.errors import InputError
from partition.system.atomic_write import new_directory
from partition.system.output_checks import check_target

from .config import MODEL, OF_WHOLE_MODEL

CHECKPOINT = re.compile(r"checkpoint-(\d{1,12})\.safetensors")  # with the number of epochs before it


class RunDirectory:
    """The directory ``out``, and whether what is in it is of this run; used by one rank.

    With ``force``, what another run left in it is replaced by the first write.
    """

    def __init__(self, out, *, force: bool = False, is_ours: bool = False):
        self.out, self.is_ours, self._force = Path(out), is_ours, force

    @contextmanager
    def replaced(self) -> Iterator[Path]:
        """Give a temporary directory for the files of the model. It takes the place of ``out`` in one step.

        Other files of this run stay: they get a second name in the new directory. So writers that append to them may go on.

        Raises
        ------
        InputError
            ``out`` exists and is not of this run, or cannot be written.
        """
        with new_directory(self.out, MODEL, force=self._force or self.is_ours) as folder:
            yield folder
            if self.is_ours:
                for each in sorted(self.out.iterdir()):
                    if each.name not in OF_WHOLE_MODEL and not each.name.startswith("."):
                        _link(each, folder / each.name)
        self.is_ours = True


def checkpoints_in(folder: Path) -> list[Path]:
    """The checkpoints in a directory, the latest first; none where there is no such directory."""
    if not folder.is_dir():
        return []
    found = [(int(match[1]), each) for each in folder.iterdir() if (match := CHECKPOINT.fullmatch(each.name))]
    return [path for _, path in sorted(found, reverse=True)]


def is_finished(out) -> bool:
    """Whether a directory holds the record of a run that has had all its epochs."""
    try:
        return json.loads((Path(out) / "record.json").read_text())["finished"] is True
    except (OSError, ValueError, KeyError, TypeError):
        return False


def forget_checkpoints(out) -> None:
    """Remove the checkpoints of an earlier run from a directory that a new run may replace.

    Otherwise, a new run that is killed before its first write would seem to have checkpoints.
    """
    for path in checkpoints_in(Path(out)):
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise InputError(f"cannot remove {path}, a checkpoint of an earlier run: {error.strerror}") from error


def check_can_resume(out) -> None:
    """Raise :class:`InputError` unless a directory holds checkpoints of a run, and nothing that is not of a run."""
    folder = check_target(out, MODEL, force=True)
    if not checkpoints_in(folder):
        raise InputError(
            f"{out} holds no checkpoint, so --resume has nothing to go on from; leave --resume out to start a run"
        )


def _link(old: Path, new: Path) -> None:
    try:
        os.link(old, new)
    except OSError:  # a file system without hard links
        shutil.copy2(old, new)
