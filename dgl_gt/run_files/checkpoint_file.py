"""Writes the file of a checkpoint.

Every rank holds all parameters, so one rank writes one file, and any number of ranks reads it again. The checkpoints of
``torch.distributed.checkpoint`` are made for parameters that are split over ranks, and describe them in a pickle.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from torch import Tensor

from dgl_gt.partition.system.atomic_write import new_file
from dgl_gt.partition.system.temporary_names import FILE, leftovers

from .run_directory import CHECKPOINT, checkpoints_in
from .tensor_file import TensorFile

CHECKPOINT_FILE = TensorFile("checkpoint", 3)
_UNFINISHED = re.compile(rf"\.({CHECKPOINT.pattern})\.file-.*")


def write_checkpoint(folder: Path, epoch: int, values: dict, tensors: dict[str, Tensor], keep: int) -> Path:
    """Write a checkpoint after ``epoch`` epochs; it appears when it is complete. Then remove all but the last ``keep``.

    Raises
    ------
    InputError
        It cannot be written. Earlier checkpoints stay.
    """
    for hidden in folder.iterdir():  # of a process that was killed while it wrote
        if found := _UNFINISHED.fullmatch(hidden.name):
            for old in leftovers(folder, found[1], FILE):
                old.unlink(missing_ok=True)
    path = folder / f"checkpoint-{epoch:06d}.safetensors"
    with new_file(path, force=True) as file:
        file.write(CHECKPOINT_FILE.pack(values, tensors))
    for old in checkpoints_in(folder)[keep:]:
        with suppress(OSError):
            old.unlink()
    return path
