"""Text files in blocks of whole lines, and the parsing of such blocks."""

from __future__ import annotations

import gzip
import io
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.system.user_files import check_unpacked_size, reading

_BLOCK_BYTES = 1 << 22  # parsing takes about ten times as much memory
_LONGEST_LINE_BYTES = 1 << 28


def text_blocks(path: Path) -> Iterator[tuple[int, str]]:
    """Read a text file in blocks of whole lines; a name that ends in ``.gz`` is unpacked.

    Yields the number of the block's first line, counted from 1, and the block's text.
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
                raise InputError(
                    f"{path}, line {line}: over {_LONGEST_LINE_BYTES} bytes without an end of line; is it a text file?"
                )
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
    raise InputError(
        f"{path} is not UTF-8 text (near line {line}); convert it, or give it the suffix of its real format"
    )


def parse_rows(lines: str, **options) -> np.ndarray:
    """Parse a block of text with ``numpy.loadtxt``; raise ValueError if a row does not fit ``options``."""
    with warnings.catch_warnings():
        # numpy before 2.4 only warns when it reads an integer such as "1.5" as a float first
        warnings.simplefilter("error", DeprecationWarning)
        try:
            return np.loadtxt(io.StringIO(lines), comments=None, quotechar='"', encoding=None, **options)
        except DeprecationWarning as warning:
            raise ValueError(str(warning)) from warning


def parses(parse: Callable, *arguments) -> bool:
    """Return whether a parser takes the arguments, that is, raises no ValueError."""
    try:
        parse(*arguments)
    except ValueError:
        return False
    return True


def first_bad_line(lines: list[tuple[int, str]], fits: Callable[[str], bool]) -> tuple[int, str]:
    """Find the first numbered line of a block that does not fit, by bisection."""
    while len(lines) > 1:
        half = len(lines) // 2
        first = lines[:half]
        lines = lines[half:] if fits("\n".join(text for _, text in first)) else first
    return lines[0]
