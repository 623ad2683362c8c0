"""Files that hold rows of numbers without names of columns, as tools write arrays in pieces: text, numpy and Parquet."""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from dgl_gt.partition.errors import InputError, first_line, import_optional
from dgl_gt.partition.system.user_files import check_fits_memory, reading, regular_file

from .coo import as_float32_if_exact
from .numpy_file import read_array
from .text_table import FLOAT64_EXACT, SHOWN, first_bad_line, text_blocks

_SHAPE = re.compile(r"\(?(\d{1,18}(?:, ?\d{1,18})*),?\)?")  # that DGL notes in the metadata of a Parquet file


def read_text(path: Path, dtype: type, delimiter: str | None = ",") -> np.ndarray:
    """Read a text file of numbers, (rows, columns), plain or ``.gz``; without a delimiter, white space is between columns."""
    parse = partial(_parsed, dtype=dtype, delimiter=delimiter)
    pieces: list[np.ndarray] = []
    for line, text in text_blocks(path):
        try:
            pieces.append(parse(text))
        except ValueError:
            number, bad = first_bad_line(list(enumerate(text.removesuffix("\n").split("\n"), line)), parse)
            raise _not_numbers(path, number, bad, dtype) from None
        if pieces[-1].shape[1] != pieces[0].shape[1]:
            raise _not_numbers(path, line, text.partition("\n")[0], dtype, f", {pieces[0].shape[1]} as in other lines")
    return np.concatenate(pieces) if pieces else np.zeros((0, 0), dtype)


def _parsed(text: str, dtype: type, delimiter: str | None) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)  # numpy before 2.4 reads 1.5 as an integer with a warning
        warnings.filterwarnings("ignore", "loadtxt: input contained no data")
        try:
            options: dict = {"delimiter": delimiter, "comments": None, "ndmin": 2, "encoding": None}
            return np.loadtxt(io.StringIO(text), dtype, **options)
        except DeprecationWarning as warning:
            raise ValueError(str(warning)) from warning


def _not_numbers(path: Path, line: int, text: str, dtype: type, which: str = "") -> InputError:
    kind = "whole numbers" if np.dtype(dtype).kind == "i" else "numbers"
    return InputError(
        f"{path}, line {line}: {text.strip()[:SHOWN]!r} must hold {kind}{which}; correct it, or fetch the file again"
    )


def as_in_text(values: np.ndarray) -> np.ndarray:
    """Numbers in the type that columns of text have: whole ones int64, others float32 if exact, else float64.

    Float32, which is for features, stays.
    """
    is_whole = values.dtype == np.float64 and (np.abs(values) < FLOAT64_EXACT).all() and (values % 1 == 0).all()
    return values.astype(np.int64) if is_whole else as_float32_if_exact(values)


def read_parquet(path: Path) -> np.ndarray:
    """Read the numbers of a Parquet file: (rows,) of one column, (rows, columns) of several or of lists of one length."""
    parquet = import_optional("pyarrow.parquet", str(path), "pip install pyarrow")
    with reading(path):
        try:
            file = parquet.ParquetFile(path)
            check_fits_memory(f"{path}: its columns", 8 * file.metadata.num_rows * file.metadata.num_columns)
            table = file.read()
        except InputError:  # it is a ValueError, too
            raise
        except (ValueError, NotImplementedError) as error:  # what pyarrow's own errors are
            raise InputError(
                f"{path} is no Parquet file, or is damaged ({first_line(error)}); write it again"
            ) from error
    columns = [_column(path, *each) for each in zip(table.column_names, table.columns)]
    if not columns:
        raise InputError(f"{path} has no column; write it again")
    values = columns[0] if len(columns) == 1 else np.column_stack(columns)
    shape = _SHAPE.fullmatch((table.schema.metadata or {}).get(b"shape", b"").decode("ascii", "replace"))
    lengths = tuple(map(int, shape[1].split(","))) if shape else values.shape
    if math.prod(lengths) != values.size:
        raise InputError(f"{path} notes the shape {lengths}, but holds {values.size} numbers; write it again")
    return values.reshape(lengths)


def _column(path: Path, name: str, column) -> np.ndarray:
    """A column as an array, (rows,), or (rows, length) where it holds lists."""
    compute = import_optional("pyarrow.compute", str(path), "pip install pyarrow")
    values, rows, what = column.combine_chunks(), len(column), f"{path}: column {name!r}"
    if not rows:
        return np.zeros(0)
    is_list = hasattr(column.type, "value_type") and hasattr(values, "flatten")
    numbers = values.flatten() if is_list else values
    if missing := column.null_count + is_list * numbers.null_count:
        raise InputError(f"{what} lacks {missing} values; fill them in")
    array = numbers.to_numpy(zero_copy_only=False)
    if array.dtype.kind not in "biuf":
        raise InputError(f"{what} holds {column.type}; it must hold numbers: leave the column out, or encode it")
    if is_list and len(compute.unique(compute.list_value_length(values))) > 1:
        raise InputError(f"{what} holds lists of several lengths; make them alike")
    return array.reshape(rows, -1) if is_list else array


def read_pieces(
    paths: Sequence[Path], kind: str, dtype: type, delimiter: str | None, counts: Sequence[int] = ()
) -> np.ndarray:
    """Read an array that lies in several files of one kind, ``"csv"``, ``"numpy"`` or ``"parquet"``, one after the other.

    ``dtype`` is that of text. ``counts`` are the rows of each file, where they are known.
    """
    read: dict = {
        "csv": partial(read_text, dtype=dtype, delimiter=delimiter),
        "numpy": read_array,
        "parquet": read_parquet,
    }
    pieces: list[np.ndarray] = []
    for number, path in enumerate(paths):
        piece = read[kind](regular_file(path))
        if piece.ndim < 1 or piece.dtype.kind not in "biuf":
            raise InputError(f"{path} holds {piece.dtype} {piece.shape}; it must hold rows of numbers")
        if number < len(counts) and len(piece) != counts[number]:
            raise InputError(f"{path} has {len(piece)} rows, and should have {counts[number]}; write it again")
        if len(piece) and pieces and piece.shape[1:] != pieces[0].shape[1:]:
            shapes = f"{piece.shape[1:]}, and those before it {pieces[0].shape[1:]}"
            raise InputError(f"{path} has rows of shape {shapes}; write the files of this array again")
        pieces += [piece] if len(piece) else []
    if len(pieces) < 2:
        return pieces[0] if pieces else np.zeros(0, dtype)
    check_fits_memory(f"{paths[0].parent}: its arrays", sum(each.nbytes for each in pieces))
    return np.concatenate(pieces)
