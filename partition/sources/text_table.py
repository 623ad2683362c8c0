"""Text tables, of which edge lists and node tables are made: their format, their lines and their cells."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dgl_gt.partition.errors import InputError

from .text_blocks import first_bad_line, parses, text_blocks

COMMENTS = ("#", "%")
MISSING = ("", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "<NA>", "#N/A")  # in place of a value
_MARKS = "\t;,"  # between columns; of two that split all lines, the later one is in names, or in numbers such as 0,5
_NO_WORDS = {*MISSING, "?", "-"}
_WHITE, _TO_QUOTE = " \t", r'[^"\n]*(?:""[^"\n]*)*"'  # the latter up to the quote that ends a cell
_WHOLE_FLOAT = re.compile(r"[0-9]+(\.0*)?|[0-9](\.[0-9]+)?e\+[0-9]+", re.IGNORECASE)  # as pandas and R write it
FLOAT64_EXACT = 2**53  # float64 holds every whole number below
_SAMPLE_LINES = 50
_SLICE_CHARACTERS = 1 << 19
_WORD = re.compile(r'"([^"]*)"|(\S+)')
_SHOWN = 80  # characters of a line in a message
_MOST_LISTED = 10


@dataclass(frozen=True)
class TextTable:
    """The format of a table, found from its first rows. Lines that start with ``#`` or ``%`` are comments."""

    path: Path
    delimiter: str | None  # None: any white space
    header: list[str] | None
    header_line: int  # 0 without a header
    first_row: list[str]  # empty without rows
    first_line: int  # line of the first row
    commented: list[str] | None  # words of a comment before it that could be a header: one a column, no number
    commented_line: int
    preamble: str  # the comments before the first row
    is_sure: bool = False  # that the header, or else the comment, is one
    has_names: bool = True  # so that a row may look like a comment

    @property
    def width(self) -> int:
        """Number of columns."""
        return len(self.first_row if self.header is None else self.header)

    @property
    def header_note(self) -> str:
        """Say that the first line is taken for a header."""
        return f"{self.path.name}: line {self.header_line} ({listed(self.header)}) is taken for a header"

    def is_data(self, number: int, line: str) -> bool:
        """Return whether a line holds a row."""
        text = line.lstrip()
        return number > self.header_line and text != "" and not text.startswith(COMMENTS)

    def without_quotes(self, lines: str) -> str | None:
        """Return lines with a letter in place of what is quoted; None where a quote does not end in its line."""
        opened = rf'"(?<![^{self.delimiter or _WHITE}\n]")'  # a quote at the beginning of a cell
        lines = re.sub(opened + _TO_QUOTE, "q", lines)
        return None if re.search(opened, lines) else lines


def open_table(path: Path, known: Callable[[list[list[str]]], int]) -> TextTable:
    """Find the format of a table.

    The mark between columns is one that splits all of the first lines in the same way; of several, the one for which
    ``known`` of the rows is largest, and then the likeliest. The first line is a header if it has no number, or has
    text where all other of the first lines have numbers. Of comments that could be a header, the same ``known`` chooses.
    """
    comments, lines = _first_lines(path)
    if not lines:
        return TextTable(path, None, None, 0, [], 0, None, 0, "")
    delimiter = _delimiter(path, [line for _, line in lines], known)
    rows = [line_cells(path, number, line, delimiter) for number, line in lines]
    header, header_line, numbers_below = None, 0, _have_words_above_numbers(rows)
    is_sure = any(numbers_below[2:]) or all(numbers_below)  # where the first two are ends, one may have a first name
    if any(numbers_below) or not any(parses(float, cell) for cell in rows[0]):
        header, header_line = rows.pop(0), lines.pop(0)[0]
    before = [each for each in comments if not lines or each[0] < lines[0][0]]
    preamble = "\n".join(comment for _, comment in before)
    if not rows:
        return TextTable(path, delimiter, header, header_line, [], 0, None, 0, preamble)
    commented, commented_line, likeliest = None, 0, (0, False)
    for number, comment in before[-1000:] if header is None else ():
        words = line_cells(path, number, comment, delimiter)
        in_columns = delimiter is not None and len(words) == len(rows[0])
        words = words if in_columns else line_cells(path, number, comment, None)
        likely = (known([words]), in_columns)
        if len(words) == len(rows[0]) and likely >= likeliest and not any(parses(float, word) for word in words):
            commented, commented_line, likeliest, is_sure = words, number, likely, in_columns
    return TextTable(
        path, delimiter, header, header_line, rows[0], lines[0][0], commented, commented_line, preamble, is_sure
    )


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
    splits = {}
    for mark in (*_MARKS, None):
        rows = [line.split(mark) if mark and '"' not in line else line_cells(path, 0, line, mark) for line in lines]
        widths = {len(row) for row in rows}
        if len(widths) == 1 and widths != {1}:
            splits[mark] = known([[cell.strip() for cell in row] for row in rows])
    if splits:
        return max(splits, key=splits.get)  # of equals the first
    return next((mark for mark in _MARKS if mark in lines[0]), None)


def _have_words_above_numbers(rows: list[list[str]]) -> list[bool]:
    """Return for each column whether it has a word in the first row, and numbers in all others."""
    first, *others = rows
    if others and first == ["", *map(str, range(len(first) - 1))]:
        return [True]  # as pandas writes columns without names beside its index
    columns = [[row[i] for row in others if i < len(row)] for i in range(len(first))]
    words = [cell not in _NO_WORDS and not parses(float, cell) for cell in first]
    return [word and bool(each) and all(parses(float, cell) for cell in each) for word, each in zip(words, columns)]


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


def listed(names: Sequence[str]) -> str:
    """Name the first few of columns, of classes and their like."""
    return ", ".join([name[:_SHOWN] for name in names[:_MOST_LISTED]] + ["..."] * (len(names) > _MOST_LISTED))


def are_whole(words: list[str]) -> bool:
    """Return whether all words are whole numbers from 0, also as floats: 1.0, 1e+05; but 1e5 may be a part of a hash."""
    return all(_WHOLE_FLOAT.fullmatch(word) and float(word) % 1 == 0 and float(word) < FLOAT64_EXACT for word in words)


def is_named(column: str) -> bool:
    """Return whether a header names a column; pandas calls one without a name ``Unnamed: 0``."""
    return column != "" and not column.startswith("Unnamed: ")


def _check_comments(table: TextTable, first_line: int, block: str) -> None:
    """Raise :class:`InputError` if a line looks like a comment, but may be a row whose first name begins with # or %."""
    if not any(mark in block for mark in COMMENTS):
        return
    for number, line in enumerate(block.split("\n"), first_line):
        line = line.strip("\r ")
        name = line.lstrip("".join(COMMENTS))[:1] if line.startswith(COMMENTS) and number != table.header_line else ""
        is_row = name.isalnum() or (
            name.strip() and number > table.first_line
        )  # before rows, lines of dashes are usual
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
            return [[cell.strip() for cell in row] for row in reader]
        except csv.Error:
            pass
    return [line_cells(table.path, *each, table.delimiter) for each in numbered]


def parsed_blocks(table: TextTable, parse: Callable[[str], np.ndarray], wanted: str) -> Iterator[np.ndarray]:
    """Parse the rows block by block; an error names the first line that does not parse or has other columns."""

    def checked(lines: str) -> np.ndarray:
        if not _all_have(table, lines):
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
        if not _all_have(table, "\n".join(line for _, line in numbered)):
            _check_width(table, *first_bad_line(numbered, lambda some: _all_have(table, some)), numbered)
        yield [number for number, _ in numbered], _all_cells(table, numbered)


def _row_blocks(table: TextTable) -> Iterator[tuple[Callable[[], list[tuple[int, str]]], str]]:
    """Yield blocks that have rows: a function that lists the lines of its rows by number, and the text of its rows."""
    for first_line, block in text_blocks(table.path):
        if table.has_names:
            _check_comments(table, first_line, block)
        if table.delimiter is not None and ' "' in block:  # loadtxt knows a quote at the very start of a cell alone
            block = re.sub(rf'(?m)(^|{table.delimiter}) *("(?:{_TO_QUOTE})?)', r"\1\2", block)

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
    if _all_have(table, line):
        return
    where, shown = f"{table.path}, line {number}", line.strip()[:_SHOWN]
    if table.without_quotes(line) is None:
        raise InputError(
            f"{where}: {shown!r} has a quote that does not end in this line; a row is one line: close the quote, or remove it"
        )
    if table.header is not None:
        raise InputError(f"{where}: {shown!r} must hold as many columns as the header, {table.width}")
    if [each for each, _ in numbered[:2]] == [table.first_line, number]:
        raise InputError(
            f"{table.path}, line {table.first_line}: {numbered[0][1].strip()[:_SHOWN]!r} has {table.width} columns, and "
            f"line {number}, {shown!r}, has another number; give each line the same columns, and begin a line of counts "
            "or a title with #"
        )
    raise InputError(f"{where}: {shown!r} must hold as many columns as the first line, {table.width}")


def _slices(lines: str) -> Iterator[str]:
    """Yield the lines in slices, to save memory."""
    begin = 0
    while begin < len(lines):
        end = lines.find("\n", begin + _SLICE_CHARACTERS) + 1 or len(lines)
        yield lines[begin:end]
        begin = end


def _all_have(table: TextTable, lines: str) -> bool:
    """Return whether every line that is not empty has the table's columns."""
    return all(_slice_has(table, some) for some in _slices(lines))


def _slice_has(table: TextTable, lines: str) -> bool:
    width, delimiter = table.width, table.delimiter
    if '"' in lines and (lines := table.without_quotes(lines)) is None:
        return False
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


def may_be_padded(lines: str) -> bool:
    """Return whether a cell may begin with a zero and another digit."""
    for some in _slices(lines):
        data = np.frombuffer(f"\n{some}".encode(), np.uint8)
        found = (data[1:-1] == ord("0")) & (data[2:] - ord("0") < 10)
        found &= (data[:-2] < ord("-")) | (data[:-2] == ord(";"))  # not behind the marks of 1.05 and 2024-05
        if found.any():
            return True
    return False
