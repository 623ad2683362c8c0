"""The files that tasks exchange. Each is complete or absent, so that a task may run again at any time.

All access to the work directory goes through :class:`Folder`, and all access to the source through :class:`ArrayFile`.
"""

from __future__ import annotations

import os
import secrets
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.system.mapped_arrays import is_mapped, release_pages

_COPIED_BYTES = 1 << 24  # at a time


@dataclass(frozen=True)
class Folder:
    """A directory that the client and all workers see under the same path; names are ``stage/item``."""

    path: str

    def place(self, name: str) -> Path:
        """Return the path of a file."""
        return Path(self.path, name)

    def has(self, name: str) -> bool:
        """Whether a file is there, and then it is complete."""
        return self.place(name).is_file()

    def save(self, name: str, arrays: dict[str, np.ndarray]) -> int:
        """Write arrays and return the size of the file (bytes)."""
        path = self.place(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            save_file({key: np.ascontiguousarray(value) for key, value in arrays.items()}, temporary)
            temporary.replace(path)
        finally:
            with suppress(FileNotFoundError):
                temporary.unlink()
        return path.stat().st_size

    def load(self, name: str, *keys: str) -> list[np.ndarray]:
        """Read arrays of a file."""
        with safe_open(self.place(name), framework="numpy") as file:
            return [file.get_tensor(key) for key in keys]

    def slices(self, name: str, ptr: str, item: int, *keys: str) -> list[np.ndarray]:
        """Read ``array[ptr[item]:ptr[item + 1]]`` of arrays of a file, and no more of them."""
        with safe_open(self.place(name), framework="numpy") as file:
            begin, end = file.get_slice(ptr)[item : item + 2].tolist()
            if begin == end:  # safetensors has no slices without rows
                return [np.zeros(0, _DTYPES[file.get_slice(key).get_dtype()]) for key in keys]
            return [file.get_slice(key)[begin:end] for key in keys]

    def drop(self, stage: str) -> None:
        """Remove the files of a stage."""
        shutil.rmtree(self.place(stage), ignore_errors=True)


_DTYPES = {"I32": np.int32, "I64": np.int64, "U8": np.uint8, "BOOL": np.bool_}


@dataclass(frozen=True)
class ArrayFile:
    """An array in a file of the source, or in a copy of it, that every worker maps into memory."""

    path: str
    offset: int
    dtype: str
    shape: tuple[int, ...]
    bytes: int  # size of the file
    modified_ns: int

    def open(self) -> np.ndarray:
        """Map the array; :class:`InputError` if the file is gone or has changed."""
        try:
            now = os.stat(self.path)
        except OSError as error:
            raise InputError(
                f"{self.path} cannot be read by a worker ({error.strerror}); all need the same files"
            ) from error
        if (now.st_size, now.st_mtime_ns) != (self.bytes, self.modified_ns):
            raise InputError(f"{self.path} has changed since this run began; start again without resume (--resume)")
        if 0 in self.shape:
            return np.zeros(self.shape, self.dtype)
        return np.memmap(self.path, self.dtype, "r", self.offset, self.shape)


def array_file(array: np.ndarray, copy: Path) -> ArrayFile:
    """Describe an array where it lies on disk; one that lies nowhere, or not row by row, is written to ``copy`` first."""
    where = _file_of(array)
    if where is None:
        copy.parent.mkdir(parents=True, exist_ok=True)
        target = np.lib.format.open_memmap(copy, "w+", array.dtype.newbyteorder("="), array.shape)
        rows = max(1, _COPIED_BYTES // max(1, array.itemsize * int(np.prod(array.shape[1:]))))
        for start in range(0, len(array), rows):
            target[start : start + rows] = array[start : start + rows]
            release_pages(array)
        target.flush()
        where = str(copy), target.offset
    found = os.stat(where[0])
    return ArrayFile(*where, array.dtype.newbyteorder("=").str, array.shape, found.st_size, found.st_mtime_ns)


def _file_of(array: np.ndarray) -> tuple[str, int] | None:
    """The file of a mapped array that others can map, too, and its place there."""
    root: np.ndarray = array
    while isinstance(root.base, np.ndarray):
        root = root.base
    if not (isinstance(root, np.memmap) and is_mapped(array) and array.flags.c_contiguous and array.dtype.isnative):
        return None
    if not array.size or root.filename is None or not os.path.isfile(root.filename):
        return None
    begin = array.__array_interface__["data"][0] - root.__array_interface__["data"][0]
    return os.path.abspath(root.filename), root.offset + begin
