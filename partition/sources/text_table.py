"""Text tables, of which edge lists and node tables are made: their format, their lines and their cells."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from partition.errors import InputError

from .text_blocks import first_bad_line, parses, text_blocks

COMMENTS = ("#", "%")
_SLICE_CHARACTERS = 1 << 19
_QUOTED = re.compile(r'"[^"\n]*"')
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

    @property
    def width(self) -> int:
        """Number of columns."""
        return len(self.first_row if self.header is None else self.header)

    def is_data(self, number: int, line: str) -> bool:
        """Return whether a line holds a row."""
        text = line.lstrip()
        return number > self.header_line and text != "" and not text.startswith(COMMENTS)


def open_table(path: Path) -> TextTable:
    """Find the format of a table. The first line is its header if it has no number and other lines follow it."""
    header, header_line, delimiter, comment, comment_line = None, 0, None, "", 0
    for first_line, text in text_blocks(path):
        for number, line in enumerate(text.split("\n"), first_line):
            line = line.strip("\r ")
            if line.lstrip().startswith(COMMENTS):
                comment, comment_line = line.lstrip().lstrip("".join(COMMENTS)).strip(), number
                continue
            if not line.strip():
                continue
            if header is None:
                delimiter = next((mark for mark in ",;\t" if mark in line), None)
            cells = line_cells(path, number, line, delimiter)
            if header is None and not any(parses(float, cell) for cell in cells):
                header, header_line = cells, number
                continue
            words = line_cells(path, comment_line, comment, delimiter) if comment and header is None else []
            is_header = len(words) == len(cells) and not any(parses(float, word) for word in words)
            return TextTable(
                path, delimiter, header, header_line, cells, number, words if is_header else None, comment_line
            )
    return TextTable(path, delimiter, header, header_line, [], 0, None, 0)


def line_cells(path: Path, number: int, line: str, delimiter: str | None) -> list[str]:
    """Split a line into its cells."""
    if delimiter is None:
        return [cell.strip('"') for cell in line.split()]
    try:
        return [cell.strip() for cell in next(csv.reader([line], delimiter=delimiter, skipinitialspace=True))]
    except csv.Error as error:
        raise InputError(
            f"{path}, line {number} cannot be split into columns ({error}); correct it, or give the file the ending of "
            "its format"
        ) from None


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
        yield [number for number, _ in numbered], [line_cells(table.path, *each, table.delimiter) for each in numbered]


def _row_blocks(table: TextTable) -> Iterator[tuple[Callable[[], list[tuple[int, str]]], str]]:
    """Yield blocks that have rows: a function that lists the lines of its rows by number, and the text of its rows."""
    for first_line, block in text_blocks(table.path):

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
