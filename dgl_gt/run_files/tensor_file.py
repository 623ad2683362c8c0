"""Tensors and plain values in one safetensors file, with a checksum over both: checkpoints and models."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors import torch as safetensors
from torch import Tensor

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.system.user_files import reading, regular_file

_METADATA = "dgl_gt"


@dataclass(frozen=True)
class TensorFile:
    """A kind of such files: what it is called, and the version of its format."""

    name: str
    version: int

    def pack(self, values: dict, tensors: dict[str, Tensor]) -> bytes:
        """The content of a file. ``values`` are ones that JSON can hold."""
        text = json.dumps({"format": f"dgl-gt {self.name}", "version": self.version, **values}, allow_nan=False)
        tensors = _separate(tensors)
        return safetensors.save(tensors, {_METADATA: text, "sha256": _checksum(text, tensors)})

    def unpack(self, content: bytes) -> tuple[dict, dict[str, Tensor]]:
        """The values and the tensors of a file's content.

        ``InputError`` if it is of another kind or version, or damaged; the message is the end of a sentence.
        """
        try:
            tensors = safetensors.load(content)
            header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
            text, checksum = (header["__metadata__"][name] for name in (_METADATA, "sha256"))
            values = json.loads(text)
            form, version = values.pop("format"), values.pop("version")
        except (SafetensorError, AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise InputError(f"is truncated, damaged or not a {self.name} of dgl-gt") from error
        if form != f"dgl-gt {self.name}":
            raise InputError(f"is not a {self.name} of dgl-gt")
        if version != self.version:
            raise InputError(f"has format version {version!r}, and this dgl-gt reads version {self.version}")
        if checksum != _checksum(text, tensors):
            raise InputError("is damaged or was changed: its checksum does not match")
        return values, tensors


CHECKPOINT_FILE = TensorFile("checkpoint", 4)
MODEL_FILE = TensorFile("model", 2)


def read_bytes(path: Path) -> bytes:
    """The content of a file; ``InputError`` says that it cannot be read, or is not a regular file."""
    with reading(path):
        return regular_file(path).read_bytes()


def _checksum(text: str, tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        value = tensors[name]
        digest.update(json.dumps([name, str(value.dtype), *value.shape]).encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def _separate(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors on the CPU, none of which shares its memory with another, as tied weights do."""
    found, storages = {}, set()
    for key, value in tensors.items():
        value = value.detach().cpu().contiguous()
        storage = value.untyped_storage().data_ptr()
        found[key] = value.clone() if storage in storages else value
        storages.add(storage)
    return found
