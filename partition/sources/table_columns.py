"""Columns of tables as arrays: fetched in ranges of rows, written to files that are mapped, missing cells filled."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.system.mapped_arrays import map_npy
from dgl_gt.partition.system.units import format_count

from .tables import PLACE, Tables, literal, quoted, run

MISSING_TEXT = "(missing)"  # the name of the category of missing texts, in notes


def fill_of(fill, column: str):
    """Return the rule of a column: a number, "mean", "zero", or None."""
    return fill.get(column) if isinstance(fill, Mapping) else fill


def expression(tables: Tables, column: str) -> str:
    """Return the SQL of a column of the rows ``t`` as a number; of a text, its place among the categories."""
    kind, cell = tables.kind(column), f"t.{quoted(column)}"
    if kind == "text":
        return f"enum_code(coalesce({cell}, '')::{_enum(column)})::INTEGER"
    if kind == "time":
        return f"epoch({cell})"
    return f"{cell}::BIGINT" if kind == "whole" else f"{cell}::DOUBLE"


def make_categories(tables: Tables, column: str) -> list[str]:
    """Make the type of a column of texts, and return its categories in order; a missing text is ''."""
    names = tables.categories(column)
    if tables.first(f"{quoted(column)} IS NULL", [column]) is not None:
        names = sorted({"", *names})
    run(tables.con, f"CREATE OR REPLACE TYPE {_enum(column)} AS ENUM ({', '.join(map(literal, names))})", tables.what)
    return names


def _enum(column: str) -> str:
    return quoted(f"categories of {column}")


def first_missing(tables: Tables, column: str) -> tuple:
    """Return the file and the number of the first row that lacks a number of a column, which some row does."""
    kind, cell = tables.kind(column), quoted(column)
    of_kind = {
        "number": f" OR isnan({cell}::DOUBLE)",
        "list": f" OR list_count({cell}) < len({cell}) OR isnan(list_sum({cell}::DOUBLE[]))",
    }
    return tables.first(f"{cell} IS NULL{of_kind.get(kind, '')}", [column]) or (tables.what, 1)


class Column:
    """A column that is written to a file piece by piece, and mapped when it is complete."""

    def __init__(self, folder: Path, name: str):
        self.name = name
        self.path = folder / f"column{len(list(folder.iterdir()))}.npy"
        self.pieces: list[tuple[np.dtype, int]] = []
        self.file = open(self.path, "wb")
        self.missing, self.sums, self.exact = 0, 0.0, True

    def append(self, values) -> None:
        """Add the next rows as DuckDB fetched them; a missing one becomes NaN."""
        if isinstance(values, np.ma.MaskedArray) and np.ma.getmaskarray(values).any():
            values = np.where(np.ma.getmaskarray(values), np.nan, values.data.astype(np.float64))
        values = np.asarray(values)
        gone = np.isnan(values) if values.dtype.kind == "f" else np.zeros(len(values), bool)
        self.missing += int(gone.sum())
        self.sums += float(values[~gone].sum(dtype=np.float64))
        with np.errstate(over="ignore"):
            self.exact &= bool((gone | (values.astype(np.float32) == values)).all())
        self.file.write(values.tobytes())  # numpy's tofile does not say that the disk is full
        self.pieces.append((values.dtype, len(values)))

    def finished(self, width: tuple[int, ...] = (), rule=None) -> np.ndarray:
        """Return all rows in the narrowest dtype that holds them, mapped where they are many, missing ones filled."""
        self.file.close()
        dtype = np.result_type(*(each for each, _ in self.pieces))
        if dtype.kind == "f" and self.exact and dtype == np.float64:
            dtype = np.dtype(np.float32)
        rows = sum(count for _, count in self.pieces)
        fill = np.nan
        if self.missing and rule is not None:
            fill = self.sums / max(1, rows - self.missing) if rule == "mean" else 0 if rule == "zero" else rule
        final = self.path.with_suffix(".final.npy")
        shape = (rows // math.prod(width), *width)
        header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
        with open(self.path, "rb") as old, open(final, "wb") as new:
            np.lib.format.write_array_header_1_0(new, header)
            for piece, count in self.pieces:
                values = np.fromfile(old, piece, count)
                if self.missing:
                    values = np.where(np.isnan(values), fill, values)
                new.write(values.astype(dtype, copy=False).tobytes())
        self.path.unlink()
        return map_npy(final)


def filled_notes(tables: Tables, columns: Sequence[Column], fill) -> list[str]:
    """Say how many missing cells of columns were filled, and by which rule."""
    return [
        f"{tables.what}: {format_count(each.missing, 'missing cell')} of {each.name} filled ({fill_of(fill, each.name)})"
        for each in columns
        if each.missing
    ]


def read_column(tables: Tables, folder: Path, name: str) -> Column:
    """Read one column in the order of the rows."""
    place = folder / "columns"
    place.mkdir(exist_ok=True)
    column = Column(place, name)
    for rows in tables.pieces([name]):
        if tables.kind(name) == "list":
            rows, cell = f"(SELECT {quoted(name)} FROM {rows} ORDER BY {PLACE})", f"unnest({quoted(name)})::DOUBLE"
            select = f"SELECT {cell} AS c FROM {rows}"
        else:
            select = f"SELECT {expression(tables, name)} AS c FROM {rows} ORDER BY {PLACE}"
        column.append(run(tables.con, select, tables.what, "fetchnumpy")["c"])
    return column


def list_width(tables: Tables, name: str) -> int:
    """Return the length of the lists of a column, which must be the same in all rows."""
    rows = f"{tables.union([name])} WHERE {quoted(name)} IS NOT NULL"
    least, most = run(
        tables.con, f"SELECT min(len({quoted(name)})), max(len({quoted(name)})) FROM {rows}", tables.what, "fetchone"
    )
    if least != most or not least or tables.first(f"{quoted(name)} IS NULL", [name]):
        raise InputError(
            f"{tables.what}: column {name!r} has lists of {least or 0} to {most or 0} numbers; all must be alike and none missing"
        )
    return least
