"""Edge lists as text: an edge a line, in columns separated by commas, semicolons, tabs or spaces; plain or gzipped."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np

from dgl_gt.partition.errors import InputError, SourceWarning, printable
from dgl_gt.partition.system.user_files import text_array

from .coo import COOGraph, as_float32_if_exact
from .text_blocks import parse_rows, parses, text_blocks
from .text_table import (
    FLOAT64_EXACT,
    MISSING,
    TextTable,
    are_whole,
    is_named,
    listed,
    may_be_padded,
    open_table,
    parsed_blocks,
)

_ENDS = (  # names of source and destination, without marks and words such as id; the later ones are known together alone
    ("src source from orig origin node1 id1 nodeid1", "dst dest destination tgt target to node2 id2 nodeid2"),
    ("start", "end"),
    ("u", "v"),
)
_FILLER = re.compile(r"(node|vertex|id|name)+$")
_COUNTER = re.compile(r"([\W_]|[12]|[ab](?![a-z])|id|node)+$")  # ends the names of two columns of one kind: id_1, userB
_DIMACS = re.compile(r"^[#%]?[ \t]*p[ \t]+(edges?|col|sp|max)[ \t]+\d+[ \t]+\d+[ \t]*$", re.MULTILINE)
_WHOLE = re.compile(r"[+-]?[0-9]+")
_PADDED = re.compile(r"0[0-9]+")
_IDENTIFIER = re.compile(r"[_\d]|[a-z][A-Z]")  # in a word that is no prose
_FEWEST_COUNTED = 2  # edges that a line of counts must announce, to be told from an edge


def read_edge_list(path: Path, ids: str | None = None) -> COOGraph:
    """Read a file of one edge per line, source first.

    Lines that start with ``#`` or ``%`` are comments. Columns are separated by commas, semicolons, tabs or spaces, and
    every line has as many as the first. If the first line has no number, or if a comment before it names both ends, it
    is a header, which names the source (``src``, ``source``, ``from``, ``src_id``, ...) and the destination (``dst``,
    ``destination``, ``target``, ``to``, ``to_node``, ...) once each; with two columns, other names are allowed.
    Without a header, and where neither of two columns has such a name, the source comes first. Other columns of
    numbers become edge data: int64 if all are whole numbers, else float32 if it holds every number exactly, else
    float64. Columns of text and columns without a name are left out and listed in ``left_out``.

    Node ids are whole numbers, also 1.0 and 1e+05. They are names, numbered as they appear, if ``ids`` is ``"names"``,
    or by default if the first row holds text or a number such as 007. Then a first line without known names is a header
    only if its words are nowhere else in the file, unlike those of most lines.
    """
    table = open_table(path, _fit)
    commented = _has_commented_header(table)
    if commented:
        table = replace(table, header=table.commented, header_line=table.commented_line)
    _check_format(table)
    if ids == "names" or (ids is None and _begins_with_text(table)):
        coo = _read_names(table, is_assumed=ids is None)
    else:  # where no line is a row, the lines may have been taken for comments
        coo = _read(replace(table, has_names=not table.first_row), are_padded=ids is not None)
        if table.header is not None and any(parses(float, cell) for cell in table.header):
            coo.notes += (table.header_note,)
    if table.commented is not None and table.width > 2 and not commented:
        words = f"line {table.commented_line} ({' '.join(table.commented)[:80]})"
        coo.notes += (f"{path.name}: {words} names no ends, so it is no header; edges go from column 1 to column 2",)
    return _with_hints(coo, table)


def _check_format(table: TextTable) -> None:
    """Raise :class:`InputError` for a file that is no list of edges."""
    first, line = table.header or table.first_row, table.header_line or table.first_line
    head = next(text_blocks(table.path), (1, ""))[1][:10_000]
    if _DIMACS.search(head):
        raise InputError(
            f"{table.path} has the line of counts of DIMACS, 'p NAME NODES EDGES'; keep the lines of edges alone, without "
            "their first letter: grep '^[ea] ' FILE | cut -d' ' -f2- > NEW.txt"
        )
    if first and table.width < 2:
        raise InputError(
            f"{table.path}, line {line}: {first[0][:80]!r} is one column; put a comma, a semicolon, a tab or a space between "
            "source and destination, and begin a line of counts or a title with #"
        )


def _with_hints(coo: COOGraph, table: TextTable) -> COOGraph:
    """Note what the file says of its edges, and is not followed; warn where its first line may be an edge."""
    if table.header is not None and table.header_note in coo.notes:
        warnings.warn(printable(table.header_note), SourceWarning, stacklevel=5)
    columns = dict(zip((name.lower() for name in table.header or ()), table.first_row))
    kinds = {_COUNTER.sub("", each.lower()) for each in table.header or ()}
    if table.width == len(kinds) == 2 and coo.node_names is None and _has_unknown_header(table):
        both = " and ".join(table.header)
        coo.notes += (f"{table.path.name}: {both} may be of two kinds; a number that is in both columns is one node",)
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
    if all(len(each) == 1 for each in _known_ends(rows[0])):
        return 3
    if all(len(row) > 1 and _WHOLE.fullmatch(row[0]) and _WHOLE.fullmatch(row[1]) for row in rows[1:] or rows):
        return 2
    return int(len(rows[0]) > 1)


def _known_ends(header: list[str]) -> tuple[list[int], list[int]]:
    """Return the columns that a header calls a source, and those that it calls a destination."""
    names = [re.sub(r"[\W_]", "", name.lower().partition("(")[0]) for name in header]
    short = [_FILLER.sub("", name) for name in names]
    pairs = [(some, ends) for ends in _ENDS for some in (names, short)]
    found = [[[i for i, name in enumerate(some) if name in known.split()] for known in ends] for some, ends in pairs]
    strong = [each for each in found[:2] if all(each)]
    weak = [each for each in found[2:] if {*each[0], *each[1]} == {0, 1}]  # elsewhere, start and end may be dates
    return (strong + weak + [found[1]])[0]


def _has_commented_header(table: TextTable) -> bool:
    """Return whether a comment is the header: it names both ends, or stands in the columns of several, as no text does."""
    if table.header is not None or table.commented is None:
        return False
    src, dst = _known_ends(table.commented)
    is_header = table.is_sure or any(_IDENTIFIER.search(word) for word in table.commented)
    return bool(src and dst) or (is_header and (table.width > 2 or bool(src or dst)))


def _begins_with_text(table: TextTable) -> bool:
    ends = [0, 1] if _has_unknown_header(table) else _edge_columns(table)[0]
    cells = [table.first_row[column] for column in ends if column < len(table.first_row)]
    return any(_PADDED.fullmatch(cell) or not (cell.strip() in MISSING or parses(float, cell)) for cell in cells)


def _has_unknown_header(table: TextTable) -> bool:
    return table.header is not None and not any(_known_ends(table.header))


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
        coo = _read(table, names={})
        coo.notes += (table.header_note,) if table.header is not None and not all(_known_ends(table.header)) else ()
        return coo
    if table.is_sure or not _begins_with_text(table):  # the first line alone is text
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


def _read(table: TextTable, names: dict[str, int] | None = None, *, are_padded: bool = True) -> COOGraph:
    """Read the rows; ``names``, where given, gets the number of each name, in the order of appearance.

    Unless ids ``are_padded``, one such as 007 is refused: as a number it would be that of 7.
    """
    ends, extra, left_out = _edge_columns(table)
    columns = _Columns(table, ends, extra, names, are_padded)
    numbers = f" and a number in each of: {listed([*extra])}; whole numbers are below 2**63" if extra else ""
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
    _check_first_line(table, coo, names is not None)
    if names is not None:
        coo.node_names = text_array(list(names), f"{table.path}: names")
        if (twin := next((name for name in names if name.endswith(".0") and name[:-2] in names), None)) is not None:
            coo.notes += (
                f"{table.path.name}: {twin} and {twin[:-2]} are names of two nodes; write one number in one way",
            )
    return coo


def _check_first_line(table: TextTable, coo: COOGraph, are_names: bool) -> None:
    """Raise :class:`InputError` if the first line holds counts: the nodes and edges of the lines after it."""
    cells = table.first_row
    if table.header is not None or len(coo.src) <= _FEWEST_COUNTED or not all(map(_WHOLE.fullmatch, cells)):
        return
    *nodes, edges = map(int, cells)
    if len(coo.src) - 1 not in (edges, 2 * edges):
        return
    used = np.concatenate([coo.src[1:], coo.dst[1:]])
    if min(nodes) >= (len(np.unique(used)) if are_names else used.max()):
        raise InputError(
            f"{table.path}, line {table.first_line}: {' '.join(cells)!r} holds counts, as {len(coo.src) - 1} edges between nodes "
            f"{'' if are_names else f'up to {used.max()} '}follow; begin this line with # (or move it, if it is an edge)"
        )


class _Columns:
    """A parser of an edge list's columns: a column of whole numbers is int64 until its first other number."""

    def __init__(
        self, table: TextTable, ends: list[int], extra: dict[str, int], names: dict[str, int] | None, are_padded: bool
    ):
        self.delimiter, self.usecols, self.are_padded = table.delimiter, [*ends, *extra.values()], are_padded
        self.whole = {column for column in extra.values() if _WHOLE.fullmatch(table.first_row[column])} | {*ends}
        self.inexact: dict[str, str] = {}  # for columns of floats, a whole number that float64 does not hold
        self.keys = {column: key for key, column in extra.items()}
        self.converters = None if names is None else dict.fromkeys(ends, lambda cell: _number_of(cell, names))

    def parse(self, lines: str) -> np.ndarray:
        """Return rows with fields ``f0``, ``f1``, ..., one per column; raise ValueError if a line does not fit."""
        try:
            rows = self._read(lines, self.usecols, self.whole)
        except ValueError:
            ends = {*self.usecols[:2]}
            numbers = self.whole if self.converters is None else self.whole - ends
            decimal = {column for column in numbers if not parses(self._read, lines, [column], self.whole)}
            if not decimal:
                raise
            rows = self._read(lines, self.usecols, self.whole - decimal)
            if any((np.abs(rows[f"f{self.usecols.index(column)}"]) >= 2**63).any() for column in decimal):
                raise
            if not all(are_whole(self._words(lines, column)) for column in decimal & ends):
                raise
            self.whole -= decimal - ends
            rows = rows.astype([(key, "i8" if key in ("f0", "f1") else rows.dtype[key]) for key in rows.dtype.names])
        if len(rows) and min(rows["f0"].min(), rows["f1"].min()) < 0:
            raise ValueError("negative node id")
        checked = () if self.are_padded or not may_be_padded(lines) else self.usecols[:2]
        if any(_PADDED.fullmatch(word) for column in checked for word in self._words(lines, column)):
            raise ValueError("a number would lose its leading zeros")
        for i, column in enumerate(self.usecols[2:], 2):
            if column not in self.whole and (np.abs(rows[f"f{i}"]) >= FLOAT64_EXACT).any():
                self._note_inexact(lines, column)
        return rows

    def _words(self, lines: str, column: int) -> list[str]:
        words = parse_rows(lines, dtype=str, delimiter=self.delimiter, usecols=[column], ndmin=1)
        return [word.strip() for word in words.tolist()]

    def _note_inexact(self, lines: str, column: int) -> None:
        inexact = (word for word in self._words(lines, column) if _WHOLE.fullmatch(word) and not _is_exact(word))
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
        large = (piece[np.abs(piece) >= FLOAT64_EXACT].tolist() for piece in pieces if piece.dtype.kind == "i")
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
    src, dst = _known_ends(table.header)
    where = f"{table.path}, line {table.header_line}: the header names {listed(table.header)}"
    allowed = "call the source src_id, source or from, and the destination dst_id, target or to"
    if len(src) > 1 or len(dst) > 1:
        several = " and ".join(table.header[i] for i in (src if len(src) > 1 else dst))
        raise InputError(f"{where}, of which {several} may each be one end; {allowed}, and no other column so")
    src, dst = next(iter(src), None), next(iter(dst), None)
    if len(table.header) <= 2:  # the column without a known name is the other end
        src = src if src is not None else 1 - (1 if dst is None else dst)
        dst = dst if dst is not None else 1 - src
    elif src is None or dst is None:
        missing = "the source" if src is None else "the destination"
        no_header = ", or remove this line if it is no header" if table.header is table.commented else ""
        raise InputError(f"{where}, and none of them is known as {missing} of edges; {allowed}{no_header}")
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
