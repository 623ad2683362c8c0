"""Edge lists as text: an edge a line, in columns separated by commas, semicolons, tabs or spaces; plain or gzipped."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.system.user_files import text_array

from .coo import COOGraph, as_float32_if_exact
from .text_blocks import parse_rows, parses
from .text_table import TextTable, is_named, open_table, parsed_blocks

_SOURCE_NAMES = ("src", "source", "from", "src_id", "source_id", "fromnodeid", "node1", "node_1", "id1", "id_1")
_DESTINATION_NAMES = ("dst", "destination", "target", "to", "dst_id", "target_id", "tonodeid")
_DESTINATION_NAMES += ("node2", "node_2", "id2", "id_2")
_PAIR = ("u", "v")  # names that are known only together
_FLOAT64_EXACT = 2**53  # float64 holds every whole number below
_WHOLE = re.compile(r"[+-]?[0-9]+")
_FEWEST_COUNTED = 2  # edges that a line of counts must announce, to be told from an edge


def read_edge_list(path: Path, ids: str | None = None) -> COOGraph:
    """Read a file of one edge per line, source first.

    Lines that start with ``#`` or ``%`` are comments. Columns are separated by commas, semicolons, tabs or spaces, and
    every line has as many as the first. If the first line has no number, or if a comment right before names both ends,
    it is a header, which names the source (``src``, ``source``, ``from``, ``src_id``, ...) and the destination
    (``dst``, ``destination``, ``target``, ``to``, ``dst_id``, ...); with two columns, other names are allowed.
    Without a header, and where neither of two columns has such a name, the source comes first. Other columns of
    numbers become edge data: int64 if all are whole numbers, else float32 if it holds every number exactly, else
    float64. Columns of text and columns without a name are left out and listed in ``left_out``.

    Node ids are whole numbers. They are names, numbered as they appear, if ``ids`` is ``"names"``, or by default if
    the first row holds text. Then a first line without known names is a header only if its words are nowhere else in
    the file, unlike those of most lines.
    """
    table = _with_commented_header(open_table(path, _fit))
    if table.first_row and table.width < 2:
        raise InputError(
            f"{path}, line {table.first_line}: {table.first_row[0][:80]!r} is one column; put a comma, a semicolon, a tab or a "
            "space between source and destination"
        )
    if ids == "names" or (ids is None and _begins_with_text(table)):
        coo = _read_names(table, is_assumed=ids is None)
    else:
        coo = _read(replace(table, has_names=False))
        if table.header is not None and any(parses(float, cell) for cell in table.header):
            coo.notes += (table.header_note,)
    return _with_hints(coo, table)


def _with_hints(coo: COOGraph, table: TextTable) -> COOGraph:
    """Note what the file says of its edges, and is not followed."""
    columns = dict(zip((name.lower() for name in table.header or ()), table.first_row))
    name, words = table.path.name, [word.strip(":,.") for word in table.preamble.lower().split()]
    if words[:1] == ["bip"]:
        coo.notes += (f"{name}: it says bipartite; if both sides count from the same id, their nodes are one here",)
    if {"undirected", "sym"} & {*words} or columns.get("type", "").lower() == "undirected":
        coo.notes += (
            f"{name}: it says undirected, and a line is one direction here; for both, choose undirected (--undirected)",
        )
    return coo


def _fit(rows: list[list[str]]) -> int:
    """Return how well rows look like edges: by the header's names, by numbers at the ends, or by having two columns."""
    if _ends_of(rows[0]) is not None:
        return 3
    if all(len(row) > 1 and _WHOLE.fullmatch(row[0]) and _WHOLE.fullmatch(row[1]) for row in rows[1:] or rows):
        return 2
    return int(len(rows[0]) > 1)


def _ends_of(header: list[str]) -> tuple[int, int] | None:
    """Return the columns of source and destination where a header names each of them once."""
    names = [name.lower() for name in header]
    if all(names.count(name) == 1 for name in _PAIR):
        return names.index(_PAIR[0]), names.index(_PAIR[1])
    src, dst = ([i for i, name in enumerate(names) if name in known] for known in (_SOURCE_NAMES, _DESTINATION_NAMES))
    return (src[0], dst[0]) if len(src) == len(dst) == 1 else None


def _with_commented_header(table: TextTable) -> TextTable:
    """Return the table with the comment before its first row as the header, if that names both ends of edges."""
    if table.header is None and table.commented is not None and _ends_of(table.commented) is not None:
        return replace(table, header=table.commented, header_line=table.commented_line)
    return table


def _begins_with_text(table: TextTable) -> bool:
    ends = [0, 1] if _has_unknown_header(table) else _edge_columns(table)[0]
    return any(column < len(table.first_row) and not parses(float, table.first_row[column]) for column in ends)


def _has_unknown_header(table: TextTable) -> bool:
    if table.header is None or _ends_of(table.header) is not None:
        return False
    return not {*_SOURCE_NAMES, *_DESTINATION_NAMES}.intersection(name.lower() for name in table.header)


def _read_names(table: TextTable, *, is_assumed: bool) -> COOGraph:
    """Read an edge list whose ends are names."""
    coo = _with_header_or_without(table)
    if is_assumed:
        mark = {",": "commas", ";": "semicolons", "\t": "tabs"}.get(table.delimiter, "spaces")
        some = ", ".join(repr(name) for name in coo.node_names[:3].tolist())
        coo.notes += (
            f"{table.path.name}: ids are text between {mark}, such as {some}; the {len(coo.node_names)} names are kept",
        )
    return coo


def _with_header_or_without(table: TextTable) -> COOGraph:
    if not _has_unknown_header(table):
        return _read(table, names={})
    if not _begins_with_text(table):  # the first line alone is text
        coo = _read(table, names={})
        coo.notes += (table.header_note,)
        return coo
    # the first line may be an edge
    whole = replace(table, header=None, header_line=0, first_row=table.header, first_line=table.header_line)
    coo = _read(whole, names={})
    counts = np.bincount(np.concatenate([coo.src, coo.dst]))
    lonely = (counts[coo.src] == 1) & (counts[coo.dst] == 1)
    if len(lonely) < 2 or not lonely[0] or lonely[1:].mean() >= 0.5:
        return coo
    coo = _read(table, names={})
    coo.notes += (table.header_note,)
    return coo


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
        coo.node_names = text_array(list(names), f"{table.path}: names")
    return coo


def _check_first_line(table: TextTable, coo: COOGraph) -> None:
    """Raise :class:`InputError` if the first line holds counts: the nodes and edges of the lines after it."""
    cells = table.first_row
    if table.header is not None or len(coo.src) <= _FEWEST_COUNTED or not all(map(_WHOLE.fullmatch, cells)):
        return
    *nodes, edges = map(int, cells)
    if len(coo.src) - 1 in (edges, 2 * edges) and min(nodes) >= max(coo.src[1:].max(), coo.dst[1:].max()):
        raise InputError(
            f"{table.path}, line {table.first_line}: {' '.join(cells)!r} holds counts, as {len(coo.src) - 1} edges between nodes "
            f"up to {max(coo.src[1:].max(), coo.dst[1:].max())} follow; begin this line with # (or move it, if it is an edge)"
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
    name = cell.strip()
    if not name:
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
    src, dst = _ends_of(names) or (src, dst)
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
        if not is_named(name):
            left_out.append(f"column {column + 1} of {table.path.name} (no name)")
        elif not parses(float, cell):
            left_out.append(f"edge data {name} ({'text' if cell else 'its first value is missing'})")
        elif name in extra:
            raise InputError(
                f"{table.path}, line {table.header_line}: several columns are called {name!r}; give each its own name"
            )
        else:
            extra[name] = column
    return [src, dst], extra, tuple(left_out)


def _as_int32_if_possible(ids: np.ndarray) -> np.ndarray:
    return ids.astype(np.int32 if not len(ids) or ids.max() < 2**31 else np.int64)
