"""The files that tasks exchange. Each is complete or absent, so that a task may run again at any time.

All access to the work directory goes through :class:`Folder`, and all access to the source through :class:`ArrayFile`.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.system.atomic_write import os_error, put_if_absent
from dgl_gt.partition.system.mapped_arrays import is_mapped, release_pages
from dgl_gt.partition.system.output_checks import cannot_write

_COPIED_BYTES = 1 << 24  # at a time


@dataclass(frozen=True)
class Folder:
    """A directory that the client and all workers see under the same path; names are ``stage/item``."""

    path: str

    def place(self, name: str) -> Path:
        """Return the path of a file."""
        return Path(self.path, name)

    def names(self, stage: str) -> set[str]:
        """The files of a stage, all complete.

        They are listed, and the stage's folder is made here: NFS remembers for a minute that a name which was asked for
        is not there, after another host has made it.
        """
        place = self.place(stage)
        place.mkdir(exist_ok=True)
        return {name for name in os.listdir(place) if not name.startswith(".")}

    def save(self, name: str, arrays: dict[str, np.ndarray]) -> int:
        """Write arrays to the disk and return the size of the file (bytes); the run's own folder must be there."""
        path = self.place(name)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            path.parent.mkdir(exist_ok=True)
            save_file({key: np.ascontiguousarray(value) for key, value in arrays.items()}, temporary)
            _put(temporary, path)
        except (OSError, SafetensorError) as error:
            raise cannot_write(path, error if isinstance(error, OSError) else os_error(error)) from error
        finally:
            with suppress(OSError):
                temporary.unlink()
        return path.stat().st_size

    def load(self, name: str, *keys: str) -> list[np.ndarray]:
        """Read arrays of a file."""
        with safe_open(self.place(name), framework="numpy") as file:
            return [file.get_tensor(key) for key in keys]

    def rows(self, name: str, key: str, begin: int, end: int) -> np.ndarray:
        """Read some rows, at least one, of an array of a file, and no more of it."""
        with safe_open(self.place(name), framework="numpy") as file:
            return file.get_slice(key)[begin:end]

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
    """Describe an array where it lies on disk; one that lies nowhere, or not row by row, is written to ``copy`` first.

    A copy that is there is that of the same array: its contents are in the plan that names its folder.
    """
    where = _file_of(array)
    if where is None:
        write_rows(copy, array.dtype, array.shape, _blocks(array))
        where = str(copy), np.load(copy, mmap_mode="r").offset
    found = os.stat(where[0])
    return ArrayFile(*where, array.dtype.newbyteorder("=").str, array.shape, found.st_size, found.st_mtime_ns)


def identity(array: np.ndarray) -> list:
    """What tells whether an array is still the same: the size and time of its file, or else a digest of its content."""
    said = [array.dtype.newbyteorder("=").str, [*array.shape]]
    where = _file_of(array)
    if where is not None:
        found = os.stat(where[0])
        return [*said, *where, found.st_size, found.st_mtime_ns]
    digest = hashlib.blake2b(digest_size=16)
    for rows in _blocks(array):
        digest.update(rows.tobytes())
    return [*said, digest.hexdigest()]


def write_rows(path: Path, dtype: np.dtype, shape: tuple[int, ...], blocks: Iterable[np.ndarray]) -> None:
    """Write an array as ``.npy``, in blocks of rows, unless it is there; the file appears when it is complete.

    A task that runs twice at a time leaves the first file, which others have mapped by its time.
    """
    if path.exists():
        return
    dtype = dtype.newbyteorder("=")
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    try:
        with temporary.open("wb") as file:
            np.lib.format.write_array_header_1_0(file, header)
            for rows in blocks:
                file.write(np.ascontiguousarray(rows, dtype).data)
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            put_if_absent(temporary, path)
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        temporary.unlink(missing_ok=True)


def _blocks(array: np.ndarray) -> Iterator[np.ndarray]:
    """Rows of an array, some MiB at a time; those of a mapped one do not stay in memory."""
    rows = max(1, _COPIED_BYTES // max(1, array.itemsize * int(np.prod(array.shape[1:]))))
    for start in range(0, len(array), rows):
        yield array[start : start + rows]
        release_pages(array)


def _put(temporary: Path, path: Path) -> None:
    """Give a file its name once it is on the disk, so that it is whole even after a power failure."""
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    temporary.replace(path)


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
