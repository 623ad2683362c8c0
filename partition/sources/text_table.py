"""Text tables, of which edge lists and node tables are made: their format, their lines and their cells."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dgl_gt.partition.errors import InputError

from .text_blocks import first_bad_line, parses, text_blocks

COMMENTS = ("#", "%")
_MARKS = {".tsv": "\t,;", ".txt": "\t,;"}  # between columns, the likeliest first; by default as in .csv
_SAMPLE_LINES = 50
_SLICE_CHARACTERS = 1 << 19
_QUOTED = re.compile(r'"[^"\n]*"')
_WORD = re.compile(r'"([^"]*)"|(\S+)')
_SHOWN = 80  # characters of a line in a message


@dataclass(frozen=True)
class TextTable:
    """The format of a table, found from its first rows. Lines that start with ``#`` or ``%`` are comments."""

    path: Path
    delimiter: str | None  # None: any white space
    header: list[str] | None
    header_line: int  # 0 without a header
    first_row: list[str]  # empty without rows
    first_line: int  # line of the first row
    commented: list[str] | None  # words of the last comment before, if they could be a header: one a column, no number
    commented_line: int
    preamble: str  # the comments before the first row
    has_names: bool = True  # so that a row may look like a comment

    @property
    def width(self) -> int:
        """Number of columns."""
        return len(self.first_row if self.header is None else self.header)

    @property
    def header_note(self) -> str:
        """Say that the first line is taken for a header."""
        return f"{self.path.name}: line {self.header_line} ({', '.join(self.header)}) is taken for a header"

    def is_data(self, number: int, line: str) -> bool:
        """Return whether a line holds a row."""
        text = line.lstrip()
        return number > self.header_line and text != "" and not text.startswith(COMMENTS)


def open_table(path: Path, known: Callable[[list[list[str]]], int]) -> TextTable:
    """Find the format of a table.

    The mark between columns is one that splits all of the first lines in the same way; of several, the one for which
    ``known`` of the rows is largest, and then the likeliest. The first line is a header if it has no number, or has
    text where all other of the first lines have numbers.
    """
    comments, lines = _first_lines(path)
    if not lines:
        return TextTable(path, None, None, 0, [], 0, None, 0, "")
    delimiter = _delimiter(path, [line for _, line in lines], known)
    rows = [line_cells(path, number, line, delimiter) for number, line in lines]
    header, header_line = None, 0
    if _is_header(rows):
        header, header_line = rows.pop(0), lines.pop(0)[0]
    before = [each for each in comments if not lines or each[0] < lines[0][0]]
    preamble = "\n".join(comment for _, comment in before)
    if not rows:
        return TextTable(path, delimiter, header, header_line, [], 0, None, 0, preamble)
    commented, commented_line = None, 0
    if before and header is None:
        commented_line, comment = before[-1]
        words = line_cells(path, commented_line, comment, delimiter)
        if len(words) == len(rows[0]) and not any(parses(float, word) for word in words):
            commented = words
    return TextTable(path, delimiter, header, header_line, rows[0], lines[0][0], commented, commented_line, preamble)


def _first_lines(path: Path) -> tuple[list[tuple[int, str]], list[tuple[int, str]]]:
    """Return comments without their marks, and other lines, both by number."""
    comments, lines = [], []
    for first_line, text in text_blocks(path):
        for number, line in enumerate(text.split("\n"), first_line):
            line = line.strip("\r ")
            if line.lstrip().startswith(COMMENTS):
                comments.append((number, line.lstrip().lstrip("".join(COMMENTS)).strip()))
            elif line.strip():
                lines.append((number, line))
            if len(lines) == _SAMPLE_LINES:
                return comments, lines
    return comments, lines


def _delimiter(path: Path, lines: list[str], known) -> str | None:
    """Return the mark that splits all lines into the same number of columns, or else one of the first line."""
    name = path.name.lower().removesuffix(".gz")
    marks = next((marks for suffix, marks in _MARKS.items() if name.endswith(suffix)), ",;\t")
    splits = {}
    for mark in (*marks, None):
        rows = [line.split(mark) if mark and '"' not in line else line_cells(path, 0, line, mark) for line in lines]
        widths = {len(row) for row in rows}
        if len(widths) == 1 and widths != {1}:
            splits[mark] = known([[cell.strip() for cell in row] for row in rows])
    if splits:
        return max(splits, key=splits.get)  # of equals the first
    return next((mark for mark in marks if mark in lines[0]), None)


def _is_header(rows: list[list[str]]) -> bool:
    first, *others = rows
    if not any(parses(float, cell) for cell in first):
        return True
    columns = [[row[i] for row in others if i < len(row)] for i in range(len(first))]
    return any(
        column and not parses(float, cell) and all(parses(float, other) for other in column)
        for cell, column in zip(first, columns)
    )


def line_cells(path: Path, number: int, line: str, delimiter: str | None) -> list[str]:
    """Split a line into its cells."""
    if delimiter is None:
        return [quoted or word for quoted, word in _WORD.findall(line)]
    try:
        return [cell.strip() for cell in next(csv.reader([line], delimiter=delimiter, skipinitialspace=True), [])]
    except csv.Error as error:
        raise InputError(
            f"{path}, line {number} cannot be split into columns ({error}); correct it, or give the file the ending of "
            "its format"
        ) from None


def is_named(column: str) -> bool:
    """Return whether a header names a column; pandas calls one without a name ``Unnamed: 0``."""
    return column != "" and not column.startswith("Unnamed: ")


def _check_comments(table: TextTable, first_line: int, block: str) -> None:
    """Raise :class:`InputError` if a line looks like a comment, but may be a row whose first name begins with # or %."""
    if not any(mark in block for mark in COMMENTS):
        return
    for number, line in enumerate(block.split("\n"), first_line):
        line = line.strip("\r ")
        is_row = line.startswith(COMMENTS) and line[1:2].isalnum() and number != table.header_line
        if is_row and len(line_cells(table.path, number, line, table.delimiter)) == table.width:
            raise InputError(
                f"{table.path}, line {number}: {line[:_SHOWN]!r} begins like a comment, but has {table.width} columns, as "
                "rows have; put a name that begins with # or % in quotes, or remove the line"
            )


def _all_cells(table: TextTable, numbered: list[tuple[int, str]]) -> list[list[str]]:
    """Return the cells of each line."""
    if table.delimiter is not None:
        reader = csv.reader((line for _, line in numbered), delimiter=table.delimiter, skipinitialspace=True)
        try:
            rows = [[cell.strip() for cell in row] for row in reader]
        except csv.Error:
            rows = []
        if len(rows) == len(numbered):  # no quote runs on into the next line
            return rows
    return [line_cells(table.path, *each, table.delimiter) for each in numbered]


def parsed_blocks(table: TextTable, parse: Callable[[str], np.ndarray], wanted: str) -> Iterator[np.ndarray]:
    """Parse the rows block by block; an error names the first line that does not parse or has other columns."""

    def checked(lines: str) -> np.ndarray:
        if not _all_have(table.width, lines, table.delimiter):
            raise ValueError("ragged")
        return parse(lines)

    for numbered, block in _row_blocks(table):
        try:
            rows = checked(block)
        except ValueError:
            numbered = numbered()
            try:
                rows = checked("\n".join(line for _, line in numbered))  # now without blank lines
            except ValueError:
                number, line = first_bad_line(numbered, lambda some: parses(checked, some))
                _check_width(table, number, line, numbered)
                raise InputError(f"{table.path}, line {number}: {line.strip()[:_SHOWN]!r} must hold {wanted}") from None
        yield rows


def cell_blocks(table: TextTable) -> Iterator[tuple[list[int], list[list[str]]]]:
    """Yield, block by block, the line number of each row and the cells of each row, as text."""
    for numbered, _ in _row_blocks(table):
        numbered = numbered()
        text = "\n".join(line for _, line in numbered)
        if not _all_have(table.width, text, table.delimiter):
            _check_width(
                table,
                *first_bad_line(numbered, lambda some: _all_have(table.width, some, table.delimiter)),
                numbered,
            )
        rows = _all_cells(table, numbered)
        for (number, line), row in zip(numbered, rows):
            if len(row) != table.width:
                raise InputError(
                    f"{table.path}, line {number}: {line.strip()[:_SHOWN]!r} has a quote without an end; close it, or remove it"
                )
        yield [number for number, _ in numbered], rows


def _row_blocks(table: TextTable) -> Iterator[tuple[Callable[[], list[tuple[int, str]]], str]]:
    """Yield blocks that have rows: a function that lists the lines of its rows by number, and the text of its rows."""
    spaced = None if table.delimiter is None else re.compile(rf'(^|{table.delimiter}) +"', re.MULTILINE)
    for first_line, block in text_blocks(table.path):
        if table.has_names:
            _check_comments(table, first_line, block)
        if spaced is not None and '"' in block:
            block = spaced.sub(r'\1"', block)  # loadtxt knows a quote at the very start of a cell alone

        def numbered(first_line=first_line, block=block):
            lines = enumerate(block.split("\n"), first_line)
            return [(number, line) for number, line in lines if table.is_data(number, line)]

        text = block
        if first_line <= table.header_line or any(mark in block for mark in COMMENTS):
            text = "\n".join(line for _, line in numbered())
        if text and not text.isspace():
            yield numbered, text


def _check_width(table: TextTable, number: int, line: str, numbered: list[tuple[int, str]]) -> None:
    """Raise :class:`InputError` if a line has another number of columns than the table."""
    if _all_have(table.width, line, table.delimiter):
        return
    where, shown = f"{table.path}, line {number}", line.strip()[:_SHOWN]
    if table.header is not None:
        raise InputError(f"{where}: {shown!r} must hold as many columns as the header, {table.width}")
    if [each for each, _ in numbered[:2]] == [table.first_line, number]:
        raise InputError(
            f"{table.path}, line {table.first_line}: {numbered[0][1].strip()[:_SHOWN]!r} has {table.width} columns, and "
            f"line {number}, {shown!r}, has another number; give each line the same columns, and begin a line of counts "
            "or a title with #"
        )
    raise InputError(f"{where}: {shown!r} must hold as many columns as the first line, {table.width}")


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
