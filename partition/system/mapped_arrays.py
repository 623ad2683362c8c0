"""Memory-mapped arrays, read in slices so that little of them is in memory at any time."""

from __future__ import annotations

import math
import mmap
import os
import tokenize
import zipfile
import zlib
from pathlib import Path

import numpy as np

SMALLEST_BYTES = 1 << 20  # smaller arrays are read into memory
_SLICE_BYTES = 1 << 24
_BLOCK_BYTES = 1 << 20
_READ_BYTES = 1 << 16  # that Linux maps around an address that is read
_LOCAL_HEADER_BYTES = 30


def map_npy(path: Path, offset: int = 0, end: int | None = None) -> np.ndarray:
    """Map the array of a ``.npy`` file, or of one embedded in another file from ``offset`` to ``end``.

    Arrays under ``SMALLEST_BYTES`` are read into memory instead. ValueError: there is no array, it holds Python
    objects, or the file is too short for it.
    """
    with open(path, "rb") as file:
        file.seek(offset)
        end = os.fstat(file.fileno()).st_size if end is None else end
        shape, fortran, dtype = read_header(file, end)
        size_bytes = dtype.itemsize * math.prod(shape)
        if size_bytes < SMALLEST_BYTES:
            file.seek(offset)
            return np.lib.format.read_array(file, allow_pickle=False)
        return np.memmap(path, dtype, mode="r", offset=file.tell(), shape=shape, order="F" if fortran else "C")


def read_header(file, end: int) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Return shape, Fortran order and dtype of the ``.npy`` array at the current position of ``file``.

    ValueError: there is no array, it holds Python objects, or it would end after the position ``end``.
    """
    version = np.lib.format.read_magic(file)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}.get(version)
    if read is None:
        raise ValueError(f"npy format version {version} is not supported")
    try:
        shape, fortran, dtype = read(file)
    # numpy does not catch these errors of Python's parser
    except (SyntaxError, TypeError, RecursionError, MemoryError, tokenize.TokenError) as error:
        raise ValueError(f"its header is damaged ({error})") from error
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    if any(type(length) is not int or length < 0 for length in shape):
        raise ValueError(f"its shape is {shape}")
    if file.tell() + dtype.itemsize * math.prod(shape) > end:
        raise ValueError("it is cut short")
    return shape, fortran, dtype


def map_npz_member(path: Path, member: zipfile.ZipInfo) -> np.ndarray:
    """Map an uncompressed array of an ``.npz`` archive after verifying its checksum; raise ValueError as `map_npy`."""
    with open(path, "rb") as file:
        file.seek(member.header_offset)
        header = file.read(_LOCAL_HEADER_BYTES)
        skipped = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
        offset = member.header_offset + _LOCAL_HEADER_BYTES + skipped
        file.seek(offset)
        checksum, left = 0, member.file_size
        while left and (block := file.read(min(_BLOCK_BYTES, left))):
            checksum, left = zlib.crc32(block, checksum), left - len(block)
    if left or checksum != member.CRC:
        raise ValueError(f"bad checksum of {member.filename}")
    return map_npy(path, offset, offset + member.file_size)


def take_rows(array: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return ``array[rows]``; a mapped array is read in the order of the file, one slice at a time."""
    if not is_mapped(array):
        return array[rows]
    result = np.empty((len(rows), *array.shape[1:]), array.dtype)
    order = np.argsort(rows)
    # rows may lie so far apart that each brings pages of its own into memory
    step = max(1, _SLICE_BYTES // max(array.dtype.itemsize * int(np.prod(array.shape[1:])), _READ_BYTES))
    for start in range(0, len(rows), step):
        some = order[start : start + step]
        result[some] = array[rows[some]]
        release_pages(array)
    return result


def is_mapped(array: np.ndarray) -> bool:
    """Return whether an array is a view of a read-only memory-mapped file."""
    return _mapping(array) is not None


def release_pages(array: np.ndarray) -> None:
    """Remove a read-only mapped array's pages from memory; the system reads them again when they are needed."""
    mapping = _mapping(array)
    if mapping is not None and hasattr(mapping, "madvise"):
        mapping.madvise(mmap.MADV_DONTNEED)


def _mapping(array) -> mmap.mmap | None:
    while isinstance(array, np.ndarray):
        if array.flags.writeable:  # releasing pages would lose what was written to them
            return None
        array = array.base
    return array if isinstance(array, mmap.mmap) else None
