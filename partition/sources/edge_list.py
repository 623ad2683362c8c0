"""Edge lists and node tables as text: columns separated by commas, tabs or spaces; plain or gzipped."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from partition.errors import InputError
from partition.graph import SPLIT_MASKS

from .coo import COOGraph, as_float32_if_exact
from .text_blocks import first_bad_line, parse_rows, parses, text_blocks

_COMMENTS = ("#", "%")
_SOURCE_NAMES = ("src", "source", "from", "u", "src_id")
_DESTINATION_NAMES = ("dst", "destination", "target", "to", "v", "dst_id")
_NODE_NAMES = ("node", "id", "node_id")
_LABEL_NAMES = ("label", "y")
_SLICE_CHARACTERS = 1 << 19
_BOOLEANS = {"true": 1.0, "false": 0.0}
_QUOTED = re.compile(r'"[^"\n]*"')
_FLOAT64_EXACT = 2**53  # float64 holds every whole number below
_WHOLE = re.compile(r"[+-]?[0-9]+")


@dataclass(frozen=True)
class _TableFormat:
    """The format of a table, found from its first rows."""

    path: Path
    delimiter: str | None  # None: any white space
    header: list[str] | None
    header_line: int  # 0 without a header
    first_row: list[str]  # empty without rows

    def is_data(self, number: int, line: str) -> bool:
        text = line.lstrip()
        return number > self.header_line and text != "" and not text.startswith(_COMMENTS)


def read_edge_list(path: Path) -> COOGraph:
    """Read a file of one edge per line, source first.

    Lines that start with ``#`` or ``%`` are comments. Columns are separated by commas, semicolons, tabs or spaces, and
    every line has as many as the first. If the first line has no number, it is a header, which names the source
    (``src``, ``source``, ``from``, ``u``, ``src_id``) and the destination (``dst``, ``destination``, ``target``,
    ``to``, ``v``, ``dst_id``); with two columns, other names are allowed. Without a header, and where neither of two
    columns has such a name, the source comes first. Other columns of numbers become edge data: int64 if all are whole
    numbers, else float32 if it holds every number exactly, else float64. Columns of text and columns without a name
    are left out and listed in ``left_out``.
    """
    table = _table_format(path)
    ends, extra, left_out = _edge_columns(table)
    columns = _Columns(table, ends, extra)
    numbers = f" and a number in each of: {', '.join(extra)}; whole numbers are below 2**63" if extra else ""
    src, dst = [np.empty(0, np.int32)], [np.empty(0, np.int32)]
    pieces: dict[str, list[np.ndarray]] = {key: [] for key in extra}
    for rows in _rows(table, columns.parse, f"two node ids (whole numbers from 0){numbers}"):
        src.append(_as_int32_if_possible(rows["f0"]))
        dst.append(_as_int32_if_possible(rows["f1"]))
        for i, kept in enumerate(pieces.values(), 2):
            kept.append(rows[f"f{i}"].copy())
    edge_data = {
        key: as_float32_if_exact(_one_column(path, key, kept, columns)) for key, kept in pieces.items() if kept
    }
    return COOGraph(np.concatenate(src), np.concatenate(dst), None, {}, edge_data, path.name, left_out=left_out)


class _Columns:
    """A parser of an edge list's columns: a column of whole numbers is int64 until its first other number."""

    def __init__(self, table: _TableFormat, ends: list[int], extra: dict[str, int]):
        self.delimiter, self.usecols = table.delimiter, [*ends, *extra.values()]
        self.whole = {column for column in extra.values() if _WHOLE.fullmatch(table.first_row[column])} | {*ends}
        self.inexact: dict[str, str] = {}  # for columns of floats, a whole number that float64 does not hold
        self.names = {column: key for key, column in extra.items()}

    def parse(self, lines: str) -> np.ndarray:
        """Return rows with fields ``f0``, ``f1``, ..., one per column; raise ValueError if a line does not fit."""
        try:
            rows = self._read(lines, self.usecols, self.whole)
        except ValueError:
            extra = self.whole.intersection(self.usecols[2:])
            decimal = {column for column in extra if not parses(self._read, lines, [column], self.whole)}
            if not decimal:
                raise
            rows = self._read(lines, self.usecols, self.whole - decimal)
            if any((np.abs(rows[f"f{self.usecols.index(column)}"]) >= 2**63).any() for column in decimal):
                raise
            self.whole -= decimal
        if len(rows) and min(rows["f0"].min(), rows["f1"].min()) < 0:
            raise ValueError("negative node id")
        for i, column in enumerate(self.usecols[2:], 2):
            if column not in self.whole and (np.abs(rows[f"f{i}"]) >= _FLOAT64_EXACT).any():
                self._note_inexact(lines, column)
        return rows

    def _note_inexact(self, lines: str, column: int) -> None:
        words = parse_rows(lines, dtype=str, delimiter=self.delimiter, usecols=[column], ndmin=1)
        inexact = (word for word in words.tolist() if _WHOLE.fullmatch(word) and not _is_exact(word))
        if (word := next(inexact, None)) is not None:
            self.inexact[self.names[column]] = word

    def _read(self, lines: str, columns: list[int], whole: set[int]) -> np.ndarray:
        dtype = np.dtype([(f"f{i}", np.int64 if each in whole else np.float64) for i, each in enumerate(columns)])
        return parse_rows(lines, dtype=dtype, delimiter=self.delimiter, usecols=columns, ndmin=1)


def _is_exact(word: str) -> bool:
    """Return whether float64 holds this whole number exactly."""
    number = float(word)
    return np.isfinite(number) and int(number) == int(word)


def _one_column(path: Path, key: str, pieces: list[np.ndarray], columns: _Columns) -> np.ndarray:
    """Join the blocks of a column; raise :class:`InputError` if a whole number would lose digits as a float."""
    if pieces[-1].dtype.kind == "f":
        large = (piece[np.abs(piece) >= _FLOAT64_EXACT].tolist() for piece in pieces if piece.dtype.kind == "i")
        inexact = (each for some in large for each in some if not _is_exact(str(each)))
        word = next(inexact, columns.inexact.get(key))
        if word is not None:
            raise InputError(
                f"{path}: edge data {key!r}: the whole number {word} would lose digits in a column of floats; write "
                "only whole numbers or only floats in this column"
            )
    return np.concatenate(pieces)


def read_node_table(path: Path) -> dict[str, np.ndarray]:
    """Read a file of one node per line below a header that names the columns.

    ``label`` or ``y`` is empty for an unlabelled node. ``train_mask``, ``val_mask`` and ``test_mask`` are 0 and 1, or
    true and false. ``node``, ``id`` or ``node_id`` is the node of each row; without it rows are in node order. All
    other columns must be numbers and become the columns of ``feat``, float32 (N, F), in the same order. Labels and
    masks are float64 (N,), with NaN for unlabelled nodes.
    """
    table = _table_format(path)
    if table.header is None or not table.first_row:
        raise InputError(f"{path}: a node table needs a header that names its columns, then a line for each node")
    order, label, masks, feat = _node_columns(table)
    converters = dict.fromkeys(label, _label_cell) | dict.fromkeys(masks.values(), _mask_cell)

    def parse(lines: str) -> np.ndarray:
        options = {"usecols": range(len(table.header)), "converters": converters, "ndmin": 2}
        return parse_rows(lines, dtype=np.float64, delimiter=table.delimiter, **options)

    wanted = f"a number in each of the {len(table.header)} columns"
    pieces: dict[str, list[np.ndarray]] = {"feat": [], "label": [], "order": [], **{key: [] for key in masks}}
    for rows in _rows(table, parse, wanted):
        pieces["feat"].append(rows[:, feat].astype(np.float32))
        for key, columns in (("label", label), ("order", order), *((key, [column]) for key, column in masks.items())):
            pieces[key].extend(rows[:, column].copy() for column in columns)
    data = {key: np.concatenate(kept) for key, kept in pieces.items() if kept}
    if not feat:
        del data["feat"]
    return _in_node_order(path, data)


def _table_format(path: Path) -> _TableFormat:
    header, header_line, delimiter = None, 0, None
    for first_line, text in text_blocks(path):
        for number, line in enumerate(text.split("\n"), first_line):
            line = line.strip("\r ")
            if not line.strip() or line.lstrip().startswith(_COMMENTS):
                continue
            if header is None:
                delimiter = next((mark for mark in ",;\t" if mark in line), None)
            try:
                cells = _cells(line, delimiter)
            except csv.Error as error:
                raise InputError(
                    f"{path}, line {number} cannot be split into columns ({error}); correct it, or give the file the "
                    "ending of its format"
                ) from None
            if header is None and not any(parses(float, cell) for cell in cells):
                header, header_line = cells, number
                continue
            return _TableFormat(path, delimiter, header, header_line, cells)
    return _TableFormat(path, delimiter, header, header_line, [])


def _cells(line: str, delimiter: str | None) -> list[str]:
    if delimiter is None:
        return [cell.strip('"') for cell in line.split()]
    return [cell.strip() for cell in next(csv.reader([line], delimiter=delimiter, skipinitialspace=True))]


def _edge_columns(table: _TableFormat) -> tuple[list[int], dict[str, int], tuple[str, ...]]:
    """Return the columns of source and destination, the columns of edge data by name, and what is left out."""
    if table.header is None:
        others = range(3, len(table.first_row) + 1)
        return [0, 1], {}, tuple(f"column {number} (no header names it)" for number in others)
    names = [name.lower() for name in table.header]
    known = (_SOURCE_NAMES, _DESTINATION_NAMES)
    src, dst = (next((i for i, name in enumerate(names) if name in those), None) for those in known)
    if len(names) <= 2:  # the column without a known name is the other end
        src = src if src is not None else 1 - (1 if dst is None else dst)
        dst = dst if dst is not None else 1 - src
    elif src is None or dst is None:
        missing = "the source" if src is None else "the destination"
        raise InputError(
            f"{table.path}, line {table.header_line}: the header names {', '.join(table.header)}, and none of them is "
            f"known as {missing} of edges; call the source one of {', '.join(_SOURCE_NAMES)} and the destination one of "
            f"{', '.join(_DESTINATION_NAMES)}"
        )
    extra, left_out = {}, []
    for column, (name, cell) in enumerate(zip(table.header, table.first_row)):
        if column in (src, dst):
            continue
        if not name:
            left_out.append(f"column {column + 1} (no name)")
        elif not parses(float, cell):
            left_out.append(f"edge data {name} (text)")
        elif name in extra:
            raise InputError(
                f"{table.path}, line {table.header_line}: several columns are called {name!r}; give each its own name"
            )
        else:
            extra[name] = column
    return [src, dst], extra, tuple(left_out)


def _node_columns(table: _TableFormat) -> tuple[list[int], list[int], dict[str, int], list[int]]:
    """Return the columns of node id, label, masks and features."""
    names = [name.lower() for name in table.header]
    where = f"{table.path}, line {table.header_line}"
    repeated = sorted(name for name in names if names.count(name) > 1)
    if repeated:
        raise InputError(f"{where}: several columns are called {repeated[0]!r}; give each its own name")
    order = [i for i, name in enumerate(names) if name in _NODE_NAMES]
    label = [i for i, name in enumerate(names) if name in _LABEL_NAMES]
    if len(order) > 1 or len(label) > 1:
        raise InputError(
            f"{where}: more than one column of node ids ({', '.join(_NODE_NAMES)}) or of labels "
            f"({', '.join(_LABEL_NAMES)}); keep one of each"
        )
    masks = {name: i for i, name in enumerate(names) if name in SPLIT_MASKS}
    feat = [i for i in range(len(names)) if i not in {*order, *label, *masks.values()}]
    for column in feat:
        if column < len(table.first_row) and not parses(float, table.first_row[column]):
            raise InputError(
                f"{table.path}: column {table.header[column]!r} holds {table.first_row[column]!r}; features must be "
                "numbers: encode the column as numbers, or remove it"
            )
    return order, label, masks, feat


def _rows(table: _TableFormat, parse, wanted: str) -> Iterator[np.ndarray]:
    """Parse the data lines block by block; an error names the first line that does not parse or has other columns."""
    width = len(table.first_row if table.header is None else table.header)

    def checked(lines: str) -> np.ndarray:
        if not _all_have(width, lines, table.delimiter):
            raise ValueError("ragged")
        return parse(lines)

    for first_line, block in text_blocks(table.path):
        text = block
        if first_line <= table.header_line or any(mark in block for mark in _COMMENTS):
            lines = enumerate(block.split("\n"), first_line)
            text = "\n".join(line for number, line in lines if table.is_data(number, line))
        if not text or text.isspace():
            continue
        try:
            rows = checked(text)
        except ValueError:
            numbered = [(i, line) for i, line in enumerate(block.split("\n"), first_line) if table.is_data(i, line)]
            try:
                rows = checked("\n".join(line for _, line in numbered))  # now without blank lines
            except ValueError:
                number, line = first_bad_line(numbered, lambda some: parses(checked, some))
                if not _all_have(width, line, table.delimiter):
                    which = "the first line" if table.header is None else "the header"
                    wanted = f"as many columns as {which}, {width}"
                raise InputError(f"{table.path}, line {number}: {line.strip()[:80]!r} must hold {wanted}") from None
        yield rows


def _all_have(width: int, lines: str, delimiter: str | None) -> bool:
    """Return whether every line that is not empty has ``width`` columns; checked in slices to save memory."""
    begin = 0
    while begin < len(lines):
        end = lines.find("\n", begin + _SLICE_CHARACTERS) + 1 or len(lines)
        if not _slice_has(width, lines[begin:end], delimiter):
            return False
        begin = end
    return True


def _slice_has(width: int, lines: str, delimiter: str | None) -> bool:
    if '"' in lines:
        lines = _QUOTED.sub("q", lines)
    data = np.frombuffer(lines.encode(), np.uint8)
    ends = np.append(np.flatnonzero(data == ord("\n")), len(data))
    starts = np.concatenate([[0], ends[:-1] + 1])
    starts, ends = starts[ends > starts], ends[ends > starts]
    if delimiter is None:
        begins = data > ord(" ")
        begins[1:] &= data[:-1] <= ord(" ")
        marks, count = np.flatnonzero(begins), width
    else:
        marks, count = np.flatnonzero(data == ord(delimiter)), width - 1
    if len(marks) != count * len(ends):
        return False
    return count == 0 or bool((marks[::count] >= starts).all() and (marks[count - 1 :: count] < ends).all())


def _as_int32_if_possible(ids: np.ndarray) -> np.ndarray:
    return ids.astype(np.int32 if not len(ids) or ids.max() < 2**31 else np.int64)


def _label_cell(cell: str) -> float:
    return float(cell) if cell.strip() else np.nan


def _mask_cell(cell: str) -> float:
    word = cell.strip().lower()
    return _BOOLEANS[word] if word in _BOOLEANS else float(cell)


def _in_node_order(path: Path, data: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    order = data.pop("order", None)
    if order is None:
        return data
    found, position, counts = np.unique(order, return_index=True, return_counts=True)
    if not np.array_equal(found, np.arange(len(order))):
        repeated = found[counts > 1]
        if len(repeated):
            raise InputError(f"{path}: node {repeated[0]:g} has several lines; list each node once")
        missing = np.setdiff1d(np.arange(len(order)), found)[0]
        raise InputError(f"{path}: node {missing} has no line; list each node from 0 to {len(order) - 1} once")
    return {key: value[position] for key, value in data.items()}
