"""Edge lists as text: an edge a line, in columns separated by commas, semicolons, tabs or spaces; plain or gzipped."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np

from partition.errors import InputError

from .coo import COOGraph, as_float32_if_exact
from .text_blocks import parse_rows, parses, text_blocks
from .text_table import COMMENTS, TextTable, line_cells, open_table, parsed_blocks

_SOURCE_NAMES = ("src", "source", "from", "u", "src_id", "source_id", "fromnodeid", "node1", "node_1", "id1", "id_1")
_DESTINATION_NAMES = ("dst", "destination", "target", "to", "v", "dst_id", "target_id", "tonodeid")
_DESTINATION_NAMES += ("node2", "node_2", "id2", "id_2")
_FLOAT64_EXACT = 2**53  # float64 holds every whole number below
_WHOLE = re.compile(r"[+-]?[0-9]+")
_FEWEST_COUNTED = 2  # edges that a line of counts must announce, to be told from an edge


def read_edge_list(path: Path, ids: str | None = None) -> COOGraph:
    """Read a file of one edge per line, source first.

    Lines that start with ``#`` or ``%`` are comments. Columns are separated by commas, semicolons, tabs or spaces, and
    every line has as many as the first. If the first line has no number, or if a comment right before names both ends,
    it is a header, which names the source (``src``, ``source``, ``from``, ``u``, ``src_id``, ...) and the destination
    (``dst``, ``destination``, ``target``, ``to``, ``v``, ``dst_id``, ...); with two columns, other names are allowed.
    Without a header, and where neither of two columns has such a name, the source comes first. Other columns of
    numbers become edge data: int64 if all are whole numbers, else float32 if it holds every number exactly, else
    float64. Columns of text and columns without a name are left out and listed in ``left_out``.

    Node ids are whole numbers. They are names, numbered as they appear, if ``ids`` is ``"names"``, or by default if
    the first row holds text. Then a first line without known names is a header only if its words are nowhere else in
    the file, unlike those of most lines.
    """
    table = _with_commented_header(open_table(path))
    if ids == "names" or (ids is None and _begins_with_text(table)):
        return _read_names(table)
    return _read(table)


def _with_commented_header(table: TextTable) -> TextTable:
    """Return the table with the comment before its first row as the header, if that names both ends of edges."""
    names = {name.lower() for name in table.commented or ()}
    if table.header is None and names & {*_SOURCE_NAMES} and names & {*_DESTINATION_NAMES}:
        return replace(table, header=table.commented, header_line=table.commented_line)
    return table


def _begins_with_text(table: TextTable) -> bool:
    ends = [0, 1] if _has_unknown_header(table) else _edge_columns(table)[0]
    return any(column < len(table.first_row) and not parses(float, table.first_row[column]) for column in ends)


def _has_unknown_header(table: TextTable) -> bool:
    known = {*_SOURCE_NAMES, *_DESTINATION_NAMES}
    return table.header is not None and not known.intersection(name.lower() for name in table.header)


def _read_names(table: TextTable) -> COOGraph:
    """Read an edge list whose ends are names."""
    _check_comments(table)
    if not _has_unknown_header(table):
        return _read(table, names={})
    # the first line may be an edge
    whole = replace(table, header=None, header_line=0, first_row=table.header, first_line=table.header_line)
    coo = _read(whole, names={})
    counts = np.bincount(np.concatenate([coo.src, coo.dst]))
    lonely = (counts[coo.src] == 1) & (counts[coo.dst] == 1)
    if len(lonely) < 2 or not lonely[0] or lonely[1:].mean() >= 0.5:
        return coo
    coo = _read(table, names={})
    coo.notes += (f"{table.path.name}: line {table.header_line} ({', '.join(table.header)}) is taken for a header",)
    return coo


def _check_comments(table: TextTable) -> None:
    """Raise :class:`InputError` if a line after the first row looks like a comment, but may be an edge."""
    for first_line, block in text_blocks(table.path):
        if not any(mark in block for mark in COMMENTS):
            continue
        for number, line in enumerate(block.split("\n"), first_line):
            line = line.strip("\r ")
            is_comment = number > table.first_line and line.startswith(COMMENTS)
            if is_comment and len(line_cells(table.path, number, line, table.delimiter)) == table.width:
                raise InputError(
                    f"{table.path}, line {number}: {line[:80]!r} begins like a comment, but has {table.width} columns, "
                    "as edges have; put a name that begins with # or % in quotes, or remove the line"
                )


def _read(table: TextTable, names: dict[str, int] | None = None) -> COOGraph:
    """Read the rows; ``names``, where given, gets the number of each name, in the order of appearance."""
    ends, extra, left_out = _edge_columns(table)
    columns = _Columns(table, ends, extra, names)
    numbers = f" and a number in each of: {', '.join(extra)}; whole numbers are below 2**63" if extra else ""
    what = "node ids (whole numbers from 0; other ids are taken with ids='names' (--ids names))"
    src, dst = [np.empty(0, np.int32)], [np.empty(0, np.int32)]
    pieces: dict[str, list[np.ndarray]] = {key: [] for key in extra}
    for rows in parsed_blocks(table, columns.parse, f"two {what if names is None else 'names'}{numbers}"):
        src.append(_as_int32_if_possible(rows["f0"]))
        dst.append(_as_int32_if_possible(rows["f1"]))
        for i, kept in enumerate(pieces.values(), 2):
            kept.append(rows[f"f{i}"].copy())
    edge_data = {
        key: as_float32_if_exact(_one_column(table.path, key, kept, columns)) for key, kept in pieces.items() if kept
    }
    coo = COOGraph(np.concatenate(src), np.concatenate(dst), None, {}, edge_data, table.path.name, left_out=left_out)
    if names is None:
        _check_first_line(table, coo)
    else:
        coo.node_names = np.array(list(names), dtype=np.str_)
    return coo


def _check_first_line(table: TextTable, coo: COOGraph) -> None:
    """Raise :class:`InputError` if the first line holds counts: the nodes and edges of the lines after it."""
    cells = table.first_row
    if table.header is not None or len(coo.src) <= _FEWEST_COUNTED or not all(map(_WHOLE.fullmatch, cells)):
        return
    *nodes, edges = map(int, cells)
    if edges == len(coo.src) - 1 and min(nodes) >= max(coo.src[1:].max(), coo.dst[1:].max()):
        raise InputError(
            f"{table.path}, line {table.first_line}: {' '.join(cells)!r} holds counts, as {edges} edges between nodes up "
            f"to {max(coo.src[1:].max(), coo.dst[1:].max())} follow; begin this line with # (or move it, if it is an edge)"
        )


class _Columns:
    """A parser of an edge list's columns: a column of whole numbers is int64 until its first other number."""

    def __init__(self, table: TextTable, ends: list[int], extra: dict[str, int], names: dict[str, int] | None):
        self.delimiter, self.usecols = table.delimiter, [*ends, *extra.values()]
        self.whole = {column for column in extra.values() if _WHOLE.fullmatch(table.first_row[column])} | {*ends}
        self.inexact: dict[str, str] = {}  # for columns of floats, a whole number that float64 does not hold
        self.keys = {column: key for key, column in extra.items()}
        self.converters = None if names is None else dict.fromkeys(ends, lambda cell: _number_of(cell, names))

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
            self.inexact[self.keys[column]] = word

    def _read(self, lines: str, columns: list[int], whole: set[int]) -> np.ndarray:
        dtype = np.dtype([(f"f{i}", np.int64 if each in whole else np.float64) for i, each in enumerate(columns)])
        converters = {column: convert for column, convert in (self.converters or {}).items() if column in columns}
        options = {"delimiter": self.delimiter, "usecols": columns, "converters": converters or None, "ndmin": 1}
        return parse_rows(lines, dtype=dtype, **options)


def _number_of(cell: str, names: dict[str, int]) -> int:
    """Return the number of a name, which is the next one for a new name."""
    if not (name := cell.strip()):
        raise ValueError("an end of an edge is empty")
    return names.setdefault(name, len(names))


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


def _edge_columns(table: TextTable) -> tuple[list[int], dict[str, int], tuple[str, ...]]:
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


def _as_int32_if_possible(ids: np.ndarray) -> np.ndarray:
    return ids.astype(np.int32 if not len(ids) or ids.max() < 2**31 else np.int64)
