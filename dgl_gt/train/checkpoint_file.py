"""The file of a checkpoint: tensors and plain values with a checksum over both, in one safetensors file.

Every rank holds all parameters, so one rank writes one file, and any number of ranks reads it again. The checkpoints of
``torch.distributed.checkpoint`` are made for parameters that are split over ranks, and describe them in a pickle.
"""

from __future__ import annotations

import hashlib
import json
import re
from contextlib import suppress
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors import torch as safetensors
from torch import Tensor

from partition.errors import InputError
from partition.system.atomic_write import new_file
from partition.system.temporary_names import FILE, leftovers
from partition.system.user_files import reading, regular_file

from .run_directory import CHECKPOINT, checkpoints_in

_FORMAT, _VERSION = "dgl-gt checkpoint", 2
_UNFINISHED = re.compile(rf"\.({CHECKPOINT.pattern})\.file-.*")
_METADATA = "dgl_gt"


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
        file.write(packed(values, tensors))
    for old in checkpoints_in(folder)[keep:]:
        with suppress(OSError):
            old.unlink()
    return path


def packed(values: dict, tensors: dict[str, Tensor]) -> bytes:
    """The bytes of a checkpoint. ``values`` are ones that JSON can hold."""
    text = json.dumps({"format": _FORMAT, "version": _VERSION, **values}, allow_nan=False)
    tensors = separate(tensors)
    return safetensors.save(tensors, {_METADATA: text, "sha256": _checksum(text, tensors)})


def unpacked(content: bytes) -> tuple[dict, dict[str, Tensor]]:
    """The values and the tensors of a checkpoint's bytes.

    Raises
    ------
    InputError
        They are no checkpoint, one of another version, or damaged; the message is the end of a sentence.
    """
    try:
        tensors = safetensors.load(content)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        text, checksum = (header["__metadata__"][name] for name in (_METADATA, "sha256"))
        values = json.loads(text)
        version = values["version"] if values["format"] == _FORMAT else None
    except (SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise InputError("is truncated, damaged or no checkpoint of dgl-gt") from error
    if version != _VERSION:
        raise InputError(f"has format version {version!r}, and this dgl-gt reads version {_VERSION}")
    if checksum != _checksum(text, tensors):
        raise InputError("is damaged or was changed: its checksum does not match")
    return values, tensors


def read_bytes(path: Path) -> bytes:
    """The content of a file; ``InputError`` says that it cannot be read, or is no regular file."""
    with reading(path):
        return regular_file(path).read_bytes()


def _checksum(text: str, tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        value = tensors[name]
        digest.update(json.dumps([name, str(value.dtype), *value.shape]).encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def separate(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors on the CPU, none of which shares its memory with another, as tied weights do."""
    found, storages = {}, set()
    for key, value in tensors.items():
        value = value.detach().cpu().contiguous()
        storage = value.untyped_storage().data_ptr()
        found[key] = value.clone() if storage in storages else value
        storages.add(storage)
    return found
