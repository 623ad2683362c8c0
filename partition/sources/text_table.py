"""Text files in blocks of whole lines, and the tables in them: their format, their rows and their cells."""

from __future__ import annotations

import csv
import gzip
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.system.user_files import check_unpacked_size, reading

COMMENTS = ("#", "%")
MISSING = ("", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "<NA>", "#N/A")  # in place of a value
SHOWN = 80  # characters of a line in a message
_BLOCK_BYTES = 1 << 22  # parsing takes up to 25 times as much memory
_LONGEST_LINE_BYTES = 1 << 28
_MARKS = "\t;,"  # between columns; of two that split all lines, the later one is in names, or in numbers such as 0,5
_NO_WORDS = {*MISSING, "?", "-"}
FLOAT64_EXACT = 2**53  # float64 holds every whole number below
FLOAT32_EXACT = 2**24  # and float32
_WHOLE_FLOAT = re.compile(r"[0-9]+(\.0*)?|[0-9](\.[0-9]+)?e\+[0-9]+", re.IGNORECASE)  # as pandas and R write it
_SAMPLE_LINES = 50
_WORD = re.compile(r'"([^"]*)"|(\S+)')
_MOST_LISTED = 10

Parsed = TypeVar("Parsed")


# ---- blocks of lines


def text_blocks(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the text of a file in blocks of whole lines, each with the number of its first line, from 1.

    A file whose name ends in ``.gz`` is unpacked. Every end of line becomes LF.
    """
    packed = path.suffix.lower() == ".gz"
    line, count, rest = 1, 0, b""
    with reading(path), gzip.open(path, "rb") if packed else open(path, "rb") as stream:
        while chunk := stream.read(_BLOCK_BYTES):
            count += len(chunk)
            if packed:
                check_unpacked_size(path, count)
            chunk = _with_line_feeds(rest + chunk)
            cut = chunk.rfind(b"\n") + 1
            if cut == 0 and len(chunk) > _LONGEST_LINE_BYTES:
                raise InputError(f"{path}, line {line}: {len(chunk)} bytes without an end of line; is it a text file?")
            rest = chunk[cut:]
            if cut:
                yield line, _decoded(path, chunk[:cut], line)
                line += chunk.count(b"\n", 0, cut)
    if rest:
        yield line, _decoded(path, rest.replace(b"\r", b"\n"), line)


def _with_line_feeds(block: bytes) -> bytes:
    """Turn CR LF and lone CR into LF; a CR at the very end stays, because its LF may come with the next block."""
    if b"\r" not in block:
        return block
    last = b"\r" if block.endswith(b"\r") else b""
    return block.removesuffix(last).replace(b"\r\n", b"\n").replace(b"\r", b"\n") + last


def _decoded(path: Path, block: bytes, line: int) -> str:
    if b"\0" not in block:
        try:
            return block.decode("utf-8-sig" if line == 1 else "utf-8")
        except UnicodeDecodeError:
            pass
    raise InputError(f"{path} is not UTF-8 text (near line {line}); convert it, or give it the suffix of its format")


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield every line of a text file with its number."""
    for first_line, text in text_blocks(path):
        yield from enumerate(text.removesuffix("\n").split("\n"), first_line)


def parses(parse: Callable, *arguments) -> bool:
    """Return whether a parser takes the arguments, that is, raises no ValueError."""
    try:
        parse(*arguments)
    except ValueError:
        return False
    return True


def first_bad_line(lines: list[tuple[int, str]], parse: Callable[[str], object]) -> tuple[int, str]:
    """Find the first numbered line of a block that does not parse, by bisection."""
    while len(lines) > 1:
        half = len(lines) // 2
        first = lines[:half]
        lines = lines[half:] if parses(parse, "\n".join(text for _, text in first)) else first
    return lines[0]


# ---- the format of a table


@dataclass(frozen=True)
class TextTable:
    """The format of a table, found from its first rows. Lines that start with ``#`` or ``%`` are comments."""

    path: Path
    delimiter: str | None = None  # None: any white space
    header: list[str] | None = None
    header_line: int = 0  # 0 without a header
    first_row: Sequence[str] = ()  # empty without rows
    first_line: int = 0  # line of the first row
    preamble: str = ""  # the comments before the first row
    is_sure: bool = False  # that the header is one
    has_names: bool = True  # so that a row may look like a comment

    @property
    def width(self) -> int:
        """Number of columns."""
        return len(self.first_row if self.header is None else self.header)

    @property
    def header_note(self) -> str:
        """Say that the first line is taken for a header."""
        return f"{self.path.name}: line {self.header_line} ({listed(self.header or ())}) is taken for a header"

    def cells(self, lines: str) -> list[list[str]]:
        """Return the cells of each line; ValueError where a line has other columns, or a quote that it does not end."""
        if self.delimiter is None:
            words = [_WORD.findall(line) for line in lines.split("\n")]
            rows = [[quoted or word for quoted, word in line] for line in words]
            is_open = any(word.startswith('"') for line in words for _, word in line)
        else:
            ends = [line + "\n" for line in lines.split("\n")]
            try:
                rows = list(csv.reader(ends, delimiter=self.delimiter, skipinitialspace=True))
            except csv.Error as error:
                raise ValueError(str(error)) from error
            is_open = len(rows) < len(ends) or any("\n" in cell for cell in rows[-1])
            rows = [[cell.strip() for cell in row] for row in rows]
        if is_open or any(len(row) != self.width for row in rows):
            raise ValueError("ragged")
        return rows


def open_table(
    path: Path, known: Callable[[list[list[str]]], int], is_header: Callable[[TextTable], bool]
) -> TextTable:
    """Find the format of a table.

    The mark between columns is one that splits all of the first lines in the same way; of several, the one for which
    ``known`` of the rows is largest, and then the likeliest. The first line is a header if it has no number, or has
    text where all other of the first lines have numbers. So is a comment before it with a word for each column, none of
    them a number, if ``is_header`` of the table that it makes; of several comments the one that ``known`` and the marks
    between its words make likeliest, then the last.
    """
    comments, lines = _first_lines(path)
    if not lines:
        return TextTable(path)
    delimiter = _delimiter(path, [line for _, line in lines], known)
    rows = [line_cells(path, number, line, delimiter) for number, line in lines]
    header, header_line, numbers_below = None, 0, _have_words_above_numbers(rows)
    is_sure = any(numbers_below[2:]) or all(numbers_below)  # where the first two are ends, one may have a first name
    if any(numbers_below) or not any(parses(float, cell) for cell in rows[0]):
        header, header_line = rows.pop(0), lines.pop(0)[0]
    if not rows:
        return TextTable(path, delimiter, header, header_line)
    before = [each for each in comments if each[0] < lines[0][0]]
    preamble = "\n".join(comment for _, comment in before)
    table = TextTable(path, delimiter, header, header_line, rows[0], lines[0][0], preamble, is_sure)
    likeliest, commented = (0, False), table
    for number, comment in before[-1000:] if header is None else ():
        words = line_cells(path, number, comment, delimiter)
        in_columns = delimiter is not None and len(words) == table.width
        words = words if in_columns else line_cells(path, number, comment, None)
        likely = (known([words]), in_columns)
        if len(words) == table.width and likely >= likeliest and not any(parses(float, word) for word in words):
            likeliest, commented = likely, replace(table, header=words, header_line=number, is_sure=in_columns)
    return commented if commented is not table and is_header(commented) else table


def _first_lines(path: Path) -> tuple[list[tuple[int, str]], list[tuple[int, str]]]:
    """Return comments without their marks, and other lines, both by number."""
    comments, lines = [], []
    for number, line in numbered_lines(path):
        text = line.strip()
        if text.startswith(COMMENTS):
            comments.append((number, text.lstrip("".join(COMMENTS)).strip()))
        elif text:
            lines.append((number, line.strip(" ")))
        if len(lines) == _SAMPLE_LINES:
            break
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
        return max(splits, key=lambda mark: splits[mark])  # of equals the first
    return next((mark for mark in _MARKS if mark in lines[0]), None)


def _have_words_above_numbers(rows: list[list[str]]) -> list[bool]:
    """Return for each column whether it has a word in the first row, and numbers in all others."""
    first, *others = rows
    if others and first == ["", *map(str, range(len(first) - 1))]:
        return [True]  # as pandas writes columns without names beside its index
    columns = [[row[i] for row in others if i < len(row)] for i in range(len(first))]
    words = [cell not in _NO_WORDS and not parses(float, cell) for cell in first]
    return [word and bool(each) and all(parses(float, cell) for cell in each) for word, each in zip(words, columns)]


# ---- rows and cells


def line_cells(path: Path, number: int, line: str, delimiter: str | None) -> list[str]:
    """Split a line into its cells, whatever their number."""
    if delimiter is None:
        return [quoted or word for quoted, word in _WORD.findall(line)]
    try:
        return [cell.strip() for cell in next(csv.reader([line], delimiter=delimiter, skipinitialspace=True), [])]
    except csv.Error as error:
        raise InputError(
            f"{path}, line {number} cannot be split into columns ({error}); correct it, or give the file the ending of "
            "its format"
        ) from None


def parsed_blocks(
    table: TextTable, parse: Callable[[str], Parsed], wanted: str, *, with_numbers: bool = False
) -> Iterator[tuple[list[int], Parsed]]:
    """Parse the rows block by block; an error names the first line that ``parse`` refuses with ValueError.

    Yields the number of the line of each row, which is empty unless ``with_numbers``, and what ``parse`` returns.
    """
    for first_line, block in text_blocks(table.path):
        if block.isspace():
            continue
        if not (with_numbers or first_line <= table.header_line or any(mark in block for mark in COMMENTS)):
            try:
                yield [], parse(block.removesuffix("\n"))
                continue
            except ValueError:
                pass  # perhaps for a blank line
        lines = list(enumerate(block.split("\n"), first_line))
        rows = [(number, line) for number, line in lines if number > table.header_line and _is_row(line)]
        _check_comments(table, lines)
        if not rows:
            continue
        try:
            parsed = parse("\n".join(line for _, line in rows))
        except ValueError:
            number, line = first_bad_line(rows, parse)
            where = f"{table.path}, line {number}: {line.strip()[:SHOWN]!r}"
            if parses(table.cells, line):
                raise InputError(f"{where} must hold {wanted}; correct it") from None
            as_what = "the first line" if table.header is None else "the header"
            raise InputError(
                f"{where} must have as many columns as {as_what}, {table.width}, and each quote must end in its line; correct "
                "it, or begin with # what is no row, such as a line of counts"
            ) from None
        yield [number for number, _ in rows], parsed


def _check_comments(table: TextTable, lines: list[tuple[int, str]]) -> None:
    """Raise :class:`InputError` where a comment may be a row whose first name begins with # or %."""
    for number, line in lines if table.has_names else ():
        line = line.strip(" ")
        name = line.lstrip("".join(COMMENTS))[:1] if line.startswith(COMMENTS) and number != table.header_line else ""
        is_row = name.isalnum() or (name.strip() and number > table.first_line)  # before rows, dashes are usual
        if is_row and len(line_cells(table.path, number, line, table.delimiter)) == table.width:
            raise InputError(
                f"{table.path}, line {number}: {line[:SHOWN]!r} begins like a comment, but has {table.width} columns, as "
                "rows have; put a name that begins with # or % in quotes, or remove the line"
            )


def _is_row(line: str) -> bool:
    text = line.lstrip()
    return text != "" and not text.startswith(COMMENTS)


def listed(names: Sequence[str]) -> str:
    """Name the first few of columns, of classes and their like."""
    return ", ".join([name[:SHOWN] for name in names[:_MOST_LISTED]] + ["..."] * (len(names) > _MOST_LISTED))


def are_whole(words: list[str]) -> bool:
    """Return whether all words are whole numbers from 0, also as floats: 1.0, 1e+05; but 1e5 may be a part of a hash."""
    return all(_WHOLE_FLOAT.fullmatch(word) and float(word) % 1 == 0 and float(word) < FLOAT64_EXACT for word in words)


def is_named(column: str) -> bool:
    """Return whether a header names a column; pandas calls one without a name ``Unnamed: 0``."""
    return column != "" and not column.startswith("Unnamed: ")
