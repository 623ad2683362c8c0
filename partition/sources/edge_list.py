"""Edge lists as text: an edge a line, in columns separated by commas, semicolons, tabs or spaces; plain or gzipped."""

from __future__ import annotations

import io
import re
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np

from dgl_gt.partition.errors import InputError, SourceWarning, printable
from dgl_gt.partition.system.user_files import text_array

from .coo import COOGraph, as_float32_if_exact
from .text_table import (
    FLOAT64_EXACT,
    MISSING,
    SHOWN,
    TextTable,
    are_whole,
    is_named,
    listed,
    open_table,
    parsed_blocks,
    parses,
    text_blocks,
)

_ENDS = (  # names of source and destination, without marks and words such as id; the later ones are known together alone
    ("src source from orig origin node1 id1 nodeid1", "dst dest destination tgt target to node2 id2 nodeid2"),
    ("start", "end"),
    ("u", "v"),
)
_COUNTER = re.compile(r"([\W_]|[12]|[ab](?![a-z])|id|node)+$")  # ends the names of two columns of one kind: id_1, userB
_FILLER = re.compile(r"(node|vertex|id|name)+$")
_DIMACS = re.compile(r"^[#%]?[ \t]*p[ \t]+(edges?|col|sp|max)[ \t]+\d+[ \t]+\d+[ \t]*$", re.MULTILINE)
_IDENTIFIER = re.compile(r"[_\d]|[a-z][A-Z]")  # in a word that is no prose
_WHOLE = re.compile(r"[+-]?[0-9]+")
_PADDED = re.compile(r"0[0-9]+")
_MAYBE_PADDED = re.compile(r"0(?<![\w.+-]0)[0-9]")
_LATE_QUOTE = r'(?m)(^|%s) *("(?:[^"\n]*(?:""[^"\n]*)*")?)'  # behind blanks, where loadtxt does not know it
_LONGEST_NAME = 100  # of a column, as far as its kind is concerned
_FEWEST_COUNTED = 2  # edges that a line of counts must announce, to be told from an edge


def read_edge_list(path: Path, ids: str | None = None) -> COOGraph:
    """Read a file of one edge per line, source first, as docs/cli.md describes it.

    Where ids are names, they are numbered as they appear, and a first line without known names is a header only if its
    words are nowhere else in the file, unlike those of most lines.
    """
    table = open_table(path, _fit, _has_header)
    if _DIMACS.search(next(text_blocks(path), (1, ""))[1][:10_000]):
        raise InputError(
            f"{path} has the line of counts of DIMACS, 'p NAME NODES EDGES'; keep the lines of edges alone, without "
            "their first letter: grep '^[ea] ' FILE | cut -d' ' -f2- > NEW.txt"
        )
    first, line = table.header or table.first_row, table.header_line or table.first_line
    if first and table.width < 2:
        raise InputError(
            f"{path}, line {line}: {first[0][:SHOWN]!r} is one column; put a tab between ends, or # before it"
        )
    if ids == "names" or (ids is None and _begins_with_text(table)):
        coo = _read_names(table)
        if ids is None and (names := coo.node_names) is not None:
            some = ", ".join(map(repr, names[:3].tolist()))
            mark = {",": "commas", ";": "semicolons", "\t": "tabs"}.get(table.delimiter or "", "spaces")
            coo.notes += (f"{path.name}: ids are text between {mark}, such as {some}; the {len(names)} names are kept",)
    else:
        coo = _read(replace(table, has_names=not table.first_row), are_padded=ids is not None)
        if table.header is not None and any(parses(float, cell) for cell in table.header):
            coo.notes += (table.header_note,)
    if table.header_note in coo.notes:
        warnings.warn(printable(table.header_note), SourceWarning, stacklevel=4)
    kinds = {name.lower(): cell.lower() for name, cell in zip(table.header or (), table.first_row)}
    stems = {_COUNTER.sub("", each.lower()[:_LONGEST_NAME]) for each in table.header or ()}
    if table.width == len(stems) == 2 and coo.node_names is None and not any(known_ends(table.header or [])):
        both = " and ".join(table.header or ())
        coo.notes += (f"{path.name}: {both} may be of two kinds; a number that is in both columns is one node",)
    if table.preamble.lower().startswith("bip"):
        coo.notes += (
            f"{path.name}: it says bipartite; if both sides count from the same id, their nodes are one here",
        )
    said = {word.strip(":,.") for word in table.preamble.lower().split()} | {kinds.get("type", "")}
    if said & {"undirected", "sym"}:
        coo.notes += (
            f"{path.name}: it says undirected, and a line is one direction here; for both, choose undirected (--undirected)",
        )
    return coo


# ---- which columns are the ends


def _fit(rows: list[list[str]]) -> int:
    """Return how well rows look like edges: by the header's names, by numbers at the ends, or by having two columns."""
    if all(len(each) == 1 for each in known_ends(rows[0])):
        return 3
    if all(len(row) > 1 and _WHOLE.fullmatch(row[0]) and _WHOLE.fullmatch(row[1]) for row in rows[1:] or rows):
        return 2
    return int(len(rows[0]) > 1)


def known_ends(header: list[str]) -> list[list[int]]:
    """Return the columns that a header calls a source, and those that it calls a destination."""
    names = [re.sub(r"[\W_]", "", name.lower().partition("(")[0]) for name in header]
    short = [_FILLER.sub("", name) for name in names]
    pairs = [(some, ends) for ends in _ENDS for some in (names, short)]
    found = [[[i for i, name in enumerate(some) if name in known.split()] for known in ends] for some, ends in pairs]
    strong = [each for each in found[:2] if all(each)]
    weak = [each for each in found[2:] if {*each[0], *each[1]} == {0, 1}]  # elsewhere, start and end may be dates
    return (strong + weak + [found[1]])[0]


def _has_header(table: TextTable) -> bool:
    """Return whether a comment is the header: it names both ends, or stands in the columns of several, as no text does."""
    header = table.header or []
    src, dst = known_ends(header)
    is_header = table.is_sure or any(_IDENTIFIER.search(word) for word in header)
    return bool(src and dst) or (is_header and (table.width > 2 or bool(src or dst)))


def _begins_with_text(table: TextTable) -> bool:
    ends = [0, 1] if _has_unknown_header(table) else _edge_columns(table)[0]
    cells = [table.first_row[column] for column in ends if column < len(table.first_row)]
    return any(_PADDED.fullmatch(cell) or not (cell.strip() in MISSING or parses(float, cell)) for cell in cells)


def _has_unknown_header(table: TextTable) -> bool:
    return table.header is not None and not any(known_ends(table.header))


def _edge_columns(table: TextTable) -> tuple[list[int], dict[str, int], tuple[str, ...]]:
    """Return the columns of source and destination, the columns of edge data by name, and what is left out."""
    if table.header is None:
        others = range(3, len(table.first_row) + 1)
        return [0, 1], {}, tuple(f"column {number} (no header names it)" for number in others)
    src, dst = known_ends(table.header)
    where = f"{table.path}, line {table.header_line}: the header names {listed(table.header)}"
    allowed = "call the source src_id, source or from, and the destination dst_id, target or to"
    if len(src) > 1 or len(dst) > 1:
        several = " and ".join(table.header[i] for i in (src if len(src) > 1 else dst))
        raise InputError(f"{where}, of which {several} may each be one end; {allowed}, and no other column so")
    if table.width <= 2:  # the column without a known name is the other end
        src = src or [1 - (dst or [1])[0]]
        dst = dst or [1 - src[0]]
    elif not (src and dst):
        missing = "the destination" if src else "the source"
        raise InputError(
            f"{where}, and none of them is known as {missing} of edges; {allowed}, or remove a line that is no header"
        )
    extra: dict[str, int] = {}
    left_out = []
    for column, (name, cell) in enumerate(zip(table.header, table.first_row)):
        if column in (*src, *dst):
            continue
        if not is_named(name):
            left_out.append(f"column {column + 1} of {table.path.name} (no name)")
        elif not parses(float, cell):
            left_out.append(f"edge data {name} ({'text' if cell else 'its first value is missing'})")
        elif name in extra:
            raise InputError(f"{table.path}, line {table.header_line}: two columns are called {name!r}; rename one")
        else:
            extra[name] = column
    return [*src, *dst], extra, tuple(left_out)


# ---- rows


def _read_names(table: TextTable) -> COOGraph:
    """Read an edge list whose ends are names, and whose first line may be a header or an edge."""
    is_unknown = _has_unknown_header(table)
    if is_unknown and not table.is_sure and _begins_with_text(table):
        whole = replace(table, header=None, header_line=0, first_row=table.header, first_line=table.header_line)
        coo = _read(whole, names={})
        counts = np.bincount(np.concatenate([coo.src, coo.dst]))
        lonely = (counts[coo.src] == 1) & (counts[coo.dst] == 1)
        if len(lonely) < 2 or not lonely[0] or lonely[1:].mean() >= 0.5:
            return coo
    coo = _read(table, names={})
    if is_unknown or (table.header is not None and not all(known_ends(table.header))):
        coo.notes += (table.header_note,)
    return coo


def _read(table: TextTable, names: dict[str, int] | None = None, *, are_padded: bool = True) -> COOGraph:
    """Read the rows; ``names``, where given, gets the number of each name, in the order of appearance.

    Unless ids ``are_padded``, one such as 007 is refused: as a number it would be that of 7.
    """
    ends, extra, left_out = _edge_columns(table)
    what = (
        "two names"
        if names is not None
        else "two node ids (whole numbers from 0, not padded; others: ids='names' (--ids names))"
    )
    wanted = f"{what} and a number in each of: {listed([*extra])}" if extra else what
    parser = _Parser(table, ends, extra, names, are_padded)
    src, dst = [np.empty(0, np.int32)], [np.empty(0, np.int32)]
    pieces: dict[str, list[np.ndarray]] = {key: [] for key in extra}
    for _, rows in parsed_blocks(table, parser, wanted):
        for pieces_of_end, column in zip((src, dst), ends):
            numbers = rows[f"f{column}"]
            pieces_of_end.append(numbers.astype(np.int32 if numbers.max() < 2**31 else np.int64))
        for key, column in extra.items():
            pieces[key].append(rows[f"f{column}"].copy())
    for key, some in pieces.items():
        _check_exact(table, key, some, parser.inexact.get(extra[key]))
    edge_data = {key: as_float32_if_exact(np.concatenate(some)) for key, some in pieces.items() if some}
    coo = COOGraph(np.concatenate(src), np.concatenate(dst), None, {}, edge_data, table.path.name, left_out=left_out)
    _check_first_line(table, coo, names is not None)
    if names is not None:
        coo.node_names = text_array(list(names), f"{table.path}: names")
    return coo


def _check_exact(table: TextTable, key: str, pieces: list[np.ndarray], inexact: str | None) -> None:
    """Raise :class:`InputError` where a whole number of a column of floats would lose digits."""
    if pieces and pieces[-1].dtype.kind == "f":
        large = (piece[np.abs(piece) >= FLOAT64_EXACT].tolist() for piece in pieces if piece.dtype.kind == "i")
        inexact = next((str(each) for some in large for each in some if not _is_exact(str(each))), inexact)
    if inexact is not None:
        raise InputError(
            f"{table.path}: edge data {key!r}: the whole number {inexact} would lose digits in a column of floats; write "
            "only whole numbers below 2**63 or only floats in this column"
        )


def _check_first_line(table: TextTable, coo: COOGraph, are_names: bool) -> None:
    """Raise :class:`InputError` if the first line holds counts: the nodes and edges of the lines after it."""
    cells, count = table.first_row, len(coo.src) - 1
    if table.header is not None or count < _FEWEST_COUNTED or not all(map(_WHOLE.fullmatch, cells)):
        return
    *nodes, edges = map(int, cells)
    used = np.concatenate([coo.src[1:], coo.dst[1:]])
    if count in (edges, 2 * edges) and min(nodes) >= (len(np.unique(used)) if are_names else used.max()):
        raise InputError(
            f"{table.path}, line {table.first_line}: {' '.join(cells)!r} holds counts, as {count} edges follow; begin this "
            "line with # (or move it, if it is an edge)"
        )


class _Parser:
    """Makes rows with a field ``f0``, ``f1``, ... for each column of a block of lines; ValueError if a line does not fit.

    A column of whole numbers is int64 until its first other number. Columns that are left out are counted alone.
    """

    def __init__(
        self, table: TextTable, ends: list[int], extra: dict[str, int], names: dict[str, int] | None, are_padded: bool
    ):
        self.table, self.ends, self.are_padded = table, ends, are_padded
        self.inexact: dict[int, str] = {}  # for columns of floats, a whole number that would lose digits
        whole = [column for column in extra.values() if _WHOLE.fullmatch(table.first_row[column])]
        kinds = dict.fromkeys(extra.values(), "f8") | dict.fromkeys([*whole, *ends], "i8")
        self.kinds = [kinds.get(column, "U1") for column in range(table.width)]
        self.converters = None if names is None else dict.fromkeys(ends, lambda cell: _number_of(cell, names))

    def __call__(self, lines: str) -> np.ndarray:
        if self.table.delimiter is not None and ' "' in lines:
            lines = re.sub(_LATE_QUOTE % self.table.delimiter, r"\1\2", lines)
        try:
            rows = self._rows(lines, self.kinds)
        except ValueError:
            rows = self._with_decimals(lines)
        if '"' in lines:
            if len(rows) <= lines.count("\n"):
                raise ValueError("a quote goes on in the next line")
            self.table.cells(lines[lines.rfind("\n") + 1 :])  # raises where the last quote is open
        src, dst = (rows[f"f{column}"] for column in self.ends)
        if min(src.min(), dst.min()) < 0:
            raise ValueError("negative node id")
        for column in (column for column, kind in enumerate(self.kinds) if kind == "f8"):
            if (np.abs(rows[f"f{column}"]) >= FLOAT64_EXACT).any():
                words = [word for word in self._words(lines, column) if _WHOLE.fullmatch(word) and not _is_exact(word)]
                self.inexact |= {column: words[0]} if words else {}
        checked = self.ends if not self.are_padded and _MAYBE_PADDED.search(lines) else []
        if any(_PADDED.fullmatch(word) for column in checked for word in self._words(lines, column)):
            raise ValueError("a number would lose its leading zeros")
        return rows

    def _with_decimals(self, lines: str) -> np.ndarray:
        """Rows of a block where columns hold the first number that is not written as a whole one."""
        kinds = list(self.kinds)
        for column, kind in enumerate(kinds):
            is_name = self.converters is not None and column in self.ends
            if (
                kind == "i8"
                and not is_name
                and not parses(self._parsed, lines, {"usecols": [column], "dtype": np.int64})
            ):
                kinds[column] = "f8"
        rows = self._rows(lines, kinds)  # raises where no other number was the reason
        if not all(are_whole(self._words(lines, column)) for column in self.ends if kinds[column] == "f8"):
            raise ValueError("an end is no whole number")
        self.kinds = ["i8" if column in self.ends else kind for column, kind in enumerate(kinds)]
        return rows.astype(
            [
                (name, "i8" if name in {f"f{end}" for end in self.ends} else rows.dtype[name])
                for name in rows.dtype.names
            ]
        )

    def _words(self, lines: str, column: int) -> list[str]:
        return [word.strip() for word in self._parsed(lines, {"usecols": [column], "dtype": str}).tolist()]

    def _rows(self, lines: str, kinds: list[str]) -> np.ndarray:
        dtype = np.dtype([(f"f{column}", kind) for column, kind in enumerate(kinds)])
        return self._parsed(lines, {"dtype": dtype, "converters": self.converters})

    def _parsed(self, lines: str, options: dict) -> np.ndarray:
        form: dict = {
            "delimiter": self.table.delimiter,
            "comments": None,
            "quotechar": '"',
            "encoding": None,
            "ndmin": 1,
        }
        with warnings.catch_warnings():
            # numpy before 2.4 only warns when it reads an integer such as "1.5" as a float first
            warnings.simplefilter("error", DeprecationWarning)
            warnings.filterwarnings("ignore", "loadtxt: input contained no data")  # the graph is refused by its counts
            try:
                return np.loadtxt(io.StringIO(lines), **form, **options)
            except DeprecationWarning as warning:
                raise ValueError(str(warning)) from warning


def _number_of(cell: str, names: dict[str, int]) -> int:
    """Return the number of a name, which is the next one for a new name."""
    name = cell.strip()
    if not name:
        raise ValueError("an end of an edge is empty")
    return names.setdefault(name, len(names))


def _is_exact(word: str) -> bool:
    """Return whether int64 and float64 both hold this whole number exactly."""
    number = int(word)
    return abs(number) < 2**63 and int(float(number)) == number
