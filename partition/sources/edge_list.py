"""Edge lists and node tables as text: csv, tsv or spaces, plain or gzipped."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from partition.errors import InputError
from partition.graph import SPLIT_MASKS
from partition.system.user_files import first_bad_line, parse_rows, text_blocks

from .coo import COOGraph, narrowed

_COMMENTS = ("#", "%")
_SOURCE_NAMES = ("src", "source", "from", "u", "src_id")
_DESTINATION_NAMES = ("dst", "destination", "target", "to", "v", "dst_id")
_NODE_NAMES = ("node", "id", "node_id")
_LABEL_NAMES = ("label", "y")
_SLICE = 1 << 19  # characters
_TRUTH = {"true": 1.0, "false": 0.0}
_QUOTED = re.compile(r'"[^"\n]*"')
_EXACT = 2**53  # float64 holds each whole number below
_WHOLE = re.compile(r"[+-]?[0-9]+")


@dataclass(frozen=True)
class _Layout:
    """How a table is written, by its first rows."""

    path: Path
    delimiter: str | None  # None: any white space
    header: list[str] | None
    header_line: int  # 0 where there is no header
    first_row: list[str]  # empty where there are no rows

    def is_data(self, number: int, line: str) -> bool:
        text = line.lstrip()
        return number > self.header_line and text != "" and not text.startswith(_COMMENTS)


def read_edge_list(path: Path) -> COOGraph:
    """Read one edge a line, source first.

    Lines that start with ``#`` or ``%`` are comments. Columns are parted by commas, semicolons, tabs or spaces, and
    every line has as many as the first. A first line of words is a header: it may name the two ends (``src``,
    ``source``, ``from``, ``u``; ``dst``, ``destination``, ``target``, ``to``, ``v``), which otherwise are the first two
    columns, and its other columns become edge data where their first row is a number: int64 where all are whole
    numbers; else float32 where that holds each number exactly, and float64 where it does not. Columns of text and
    columns without a name are left out, and named in ``left_out``.

    Returns
    -------
    COOGraph
        ``src`` and ``dst`` int32 while ids fit, else int64, (E,); ``num_nodes`` None.

    Raises
    ------
    InputError
        A line that is not an edge, naming it; a file that is no text or cannot be read.
    """
    layout = _layout(path)
    ends, extra, left_out = _edge_columns(layout)
    columns = _Columns(layout, ends, extra)
    numbers = f" and a number in each of: {', '.join(extra)}; whole numbers are below 2**63" if extra else ""
    src, dst = [np.empty(0, np.int32)], [np.empty(0, np.int32)]
    pieces: dict[str, list[np.ndarray]] = {key: [] for key in extra}
    for rows in _rows(layout, columns.parse, f"two node ids (whole numbers from 0){numbers}"):
        src.append(_narrow(rows["f0"]))
        dst.append(_narrow(rows["f1"]))
        for i, kept in enumerate(pieces.values(), 2):
            kept.append(rows[f"f{i}"].copy())
    edge_data = {key: narrowed(_one_column(path, key, kept, columns)) for key, kept in pieces.items() if kept}
    return COOGraph(np.concatenate(src), np.concatenate(dst), None, {}, edge_data, path.name, left_out=left_out)


class _Columns:
    """Parses the columns of an edge list; those of whole numbers as int64 until the first other number."""

    def __init__(self, layout: _Layout, ends: list[int], extra: dict[str, int]):
        self.delimiter, self.usecols = layout.delimiter, [*ends, *extra.values()]
        self.whole = {column for column in extra.values() if _WHOLE.fullmatch(layout.first_row[column])} | {*ends}
        self.inexact: dict[str, str] = {}  # of columns of fractions, a whole number that float64 does not hold
        self.names = {column: key for key, column in extra.items()}

    def parse(self, lines: str) -> np.ndarray:
        """Rows with the fields ``f0``, ``f1`` and so on, a column each; ValueError where a line does not fit."""
        try:
            rows = self._read(lines, self.usecols, self.whole)
        except ValueError:
            extra = self.whole.intersection(self.usecols[2:])
            decimal = {column for column in extra if not self._are_whole(lines, column)}
            if not decimal:
                raise
            rows = self._read(lines, self.usecols, self.whole - decimal)
            if any((np.abs(rows[f"f{self.usecols.index(column)}"]) >= 2**63).any() for column in decimal):
                raise
            self.whole -= decimal
        if len(rows) and min(rows["f0"].min(), rows["f1"].min()) < 0:
            raise ValueError("negative node id")
        for i, column in enumerate(self.usecols[2:], 2):
            if column not in self.whole and (np.abs(rows[f"f{i}"]) >= _EXACT).any():
                self._note_inexact(lines, column)
        return rows

    def _note_inexact(self, lines: str, column: int) -> None:
        words = parse_rows(lines, dtype=str, delimiter=self.delimiter, usecols=[column], ndmin=1)
        inexact = (word for word in words.tolist() if _WHOLE.fullmatch(word) and not _is_exact(word))
        if (word := next(inexact, None)) is not None:
            self.inexact[self.names[column]] = word

    def _are_whole(self, lines: str, column: int) -> bool:
        try:
            self._read(lines, [column], self.whole)
        except ValueError:
            return False
        return True

    def _read(self, lines: str, columns: list[int], whole: set[int]) -> np.ndarray:
        dtype = np.dtype([(f"f{i}", np.int64 if each in whole else np.float64) for i, each in enumerate(columns)])
        return parse_rows(lines, dtype=dtype, delimiter=self.delimiter, usecols=columns, ndmin=1)


def _is_exact(word: str) -> bool:
    """Whether float64 holds a whole number."""
    number = float(word)
    return np.isfinite(number) and int(number) == int(word)


def _one_column(path: Path, key: str, pieces: list[np.ndarray], columns: _Columns) -> np.ndarray:
    """A column of its pieces; :class:`InputError` where whole numbers become floats that do not hold them."""
    if pieces[-1].dtype.kind == "f":
        large = (piece[np.abs(piece) >= _EXACT].tolist() for piece in pieces if piece.dtype.kind == "i")
        inexact = (each for some in large for each in some if not _is_exact(str(each)))
        word = next(inexact, columns.inexact.get(key))
        if word is not None:
            raise InputError(
                f"{path}: edge data {key!r}: {word} beside floats would lose digits; make all of them whole numbers or "
                "all floats"
            )
    return np.concatenate(pieces)


def read_node_table(path: Path) -> dict[str, np.ndarray]:
    """Read one node a line below a header that names the columns.

    ``label`` or ``y``: empty where unlabelled. ``train_mask``, ``val_mask``, ``test_mask``: 0 and 1, or true and false.
    ``node``, ``id`` or ``node_id``: the node of each row, in any order; without it rows are in node order. All other
    columns must be numbers and become ``feat`` in the order they stand in.

    Returns
    -------
    dict of str to ndarray
        ``feat`` float32 (N, F), ``label`` float64 (N,) with NaN where empty, masks float64 (N,).

    Raises
    ------
    InputError
        No header, a line that does not fit, ids that are not each of 0..N-1 once, an unreadable file.
    """
    layout = _layout(path)
    if layout.header is None or not layout.first_row:
        raise InputError(f"{path}: a node table needs a header line that names its columns, and a line for each node")
    order, label, masks, feat = _node_columns(layout)
    converters = {column: _label_cell for column in label} | {column: _mask_cell for column in masks.values()}

    def parse(lines: str) -> np.ndarray:
        options = {"usecols": range(len(layout.header)), "converters": converters, "ndmin": 2}
        return parse_rows(lines, dtype=np.float64, delimiter=layout.delimiter, **options)

    wanted = f"a number in each of the {len(layout.header)} columns"
    pieces: dict[str, list[np.ndarray]] = {"feat": [], "label": [], "order": [], **{key: [] for key in masks}}
    for rows in _rows(layout, parse, wanted):
        pieces["feat"].append(rows[:, feat].astype(np.float32))
        for key, columns in (("label", label), ("order", order), *((key, [column]) for key, column in masks.items())):
            pieces[key].extend(rows[:, column].copy() for column in columns)
    data = {key: np.concatenate(kept) for key, kept in pieces.items() if kept}
    if not feat:
        del data["feat"]
    return _in_node_order(path, data)


def _layout(path: Path) -> _Layout:
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
                raise InputError(f"{path}, line {number} is no line of a table ({error}); is it a text file?") from None
            if header is None and not any(_is_number(cell) for cell in cells):
                header, header_line = cells, number
                continue
            return _Layout(path, delimiter, header, header_line, cells)
    return _Layout(path, delimiter, header, header_line, [])


def _cells(line: str, delimiter: str | None) -> list[str]:
    if delimiter is None:
        return [cell.strip('"') for cell in line.split()]
    return [cell.strip() for cell in next(csv.reader([line], delimiter=delimiter, skipinitialspace=True))]


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _edge_columns(layout: _Layout) -> tuple[list[int], dict[str, int], tuple[str, ...]]:
    """The columns of source and destination, those of each named number besides, and what is left out."""
    if layout.header is None:
        others = range(3, len(layout.first_row) + 1)
        return [0, 1], {}, tuple(f"column {number} (no header names it)" for number in others)
    names = [name.lower() for name in layout.header]
    ends = [[i for i, name in enumerate(names) if name in known] for known in (_SOURCE_NAMES, _DESTINATION_NAMES)]
    src, dst = (ends[0][0], ends[1][0]) if ends[0] and ends[1] else (0, 1)
    extra, left_out = {}, []
    for column, (name, cell) in enumerate(zip(layout.header, layout.first_row)):
        if column in (src, dst):
            continue
        if not name:
            left_out.append(f"column {column + 1} (no name)")
        elif not _is_number(cell):
            left_out.append(f"edge data {name} (text)")
        elif name in extra:
            raise InputError(
                f"{layout.path}, line {layout.header_line}: several columns are called {name!r}; give each its own name"
            )
        else:
            extra[name] = column
    return [src, dst], extra, tuple(left_out)


def _node_columns(layout: _Layout) -> tuple[list[int], list[int], dict[str, int], list[int]]:
    """The columns of node id, label, masks and features."""
    names = [name.lower() for name in layout.header]
    where = f"{layout.path}, line {layout.header_line}"
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
        if column < len(layout.first_row) and not _is_number(layout.first_row[column]):
            raise InputError(
                f"{layout.path}: column {layout.header[column]!r} holds {layout.first_row[column]!r}; features are "
                "numbers: encode it as numbers or take it out"
            )
    return order, label, masks, feat


def _rows(layout: _Layout, parse, wanted: str) -> Iterator[np.ndarray]:
    """Parse the data lines block by block; the first line that does not parse, or has other columns, is named."""
    width = len(layout.first_row if layout.header is None else layout.header)

    def checked(lines: str) -> np.ndarray:
        if not _all_have(width, lines, layout.delimiter):
            raise ValueError("ragged")
        return parse(lines)

    for first_line, block in text_blocks(layout.path):
        text = block
        if first_line <= layout.header_line or any(mark in block for mark in _COMMENTS):
            lines = enumerate(block.split("\n"), first_line)
            text = "\n".join(line for number, line in lines if layout.is_data(number, line))
        if not text or text.isspace():
            continue
        try:
            rows = checked(text)
        except ValueError:
            numbered = [(i, line) for i, line in enumerate(block.split("\n"), first_line) if layout.is_data(i, line)]
            try:
                rows = checked("\n".join(line for _, line in numbered))  # now without lines of spaces
            except ValueError:
                number, line = first_bad_line(numbered, lambda lines: _fits(checked, lines))
                if not _all_have(width, line, layout.delimiter):
                    which = "the first line" if layout.header is None else "the header"
                    wanted = f"as many columns as {which}, {width}"
                raise InputError(f"{layout.path}, line {number}: {line.strip()[:80]!r} must hold {wanted}") from None
        yield rows


def _all_have(width: int, lines: str, delimiter: str | None) -> bool:
    """Whether every line that is not empty has so many columns; counted in slices, as the counting takes memory."""
    begin = 0
    while begin < len(lines):
        end = lines.find("\n", begin + _SLICE) + 1 or len(lines)
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


def _fits(parse, lines: str) -> bool:
    try:
        parse(lines)
    except ValueError:
        return False
    return True


def _narrow(ids: np.ndarray) -> np.ndarray:
    return ids.astype(np.int32 if not len(ids) or ids.max() < 2**31 else np.int64)


def _label_cell(cell: str) -> float:
    return float(cell) if cell.strip() else np.nan


def _mask_cell(cell: str) -> float:
    return _TRUTH[cell.strip().lower()] if cell.strip().lower() in _TRUTH else float(cell)


def _in_node_order(path: Path, data: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    order = data.pop("order", None)
    if order is None:
        return data
    found, position = np.unique(order, return_index=True)
    if not np.array_equal(found, np.arange(len(order))):
        raise InputError(f"{path}: the node ids must be each of 0..{len(order) - 1} once; some are missing or repeated")
    return {key: value[position] for key, value in data.items()}
