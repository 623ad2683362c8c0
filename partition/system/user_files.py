"""Opening what users name: files that may be missing or damaged, text in blocks, optional packages, options."""

from __future__ import annotations

import errno
import gzip
import io
import stat
import urllib.parse
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from partition.errors import InputError

from .memory import available_memory_bytes

_BLOCK_BYTES = 1 << 22  # parsing takes about ten times as much
_LONGEST_LINE_BYTES = 1 << 28
# Deflate packs zeros to a thousandth; features of one word in a thousand pack to a two-hundredth.
_TRUSTED_BYTES, _MOST_EXPANSION = 1 << 28, 500
_KINDS = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


def regular_file(path) -> Path:
    """The path with ``~`` expanded, after checking that it names a regular file, which no reading can wait for.

    Raises
    ------
    InputError
        No such file, a name that the system refuses, a directory, a pipe, a socket or a device.
    """
    try:
        path = Path(path).expanduser()
        with reading(path):
            mode = path.stat().st_mode
    except InputError:  # from `reading`; it is a ValueError, too
        raise
    except (RuntimeError, ValueError) as error:  # the home of an unknown user; a character that no name may have
        raise InputError(f"{str(path)!r} cannot be the path of a file ({error}); check it") from None
    if stat.S_ISDIR(mode):
        raise InputError(f"{path} is a directory; name a file in it")
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "no regular file")
        raise InputError(f"{path} is {kind}; only regular files can be read: save its contents as a file first")
    return path


def check_unpacked_size(path: Path, unpacked_bytes: int) -> None:
    """Refuse a compressed file that claims to hold, or holds, far more than graphs compress to."""
    if unpacked_bytes > max(_TRUSTED_BYTES, _MOST_EXPANSION * path.stat().st_size):
        raise InputError(
            f"{path} unpacks to over {_MOST_EXPANSION} times its size, {unpacked_bytes >> 20} MiB or more, as a file "
            "does that was made to fill the memory; if it is sound, unpack it and give the unpacked file"
        )


def check_fits_memory(what: str, needed_bytes: int) -> None:
    """Refuse what would need more memory than there is, before it is asked for."""
    if needed_bytes < _TRUSTED_BYTES:
        return
    available = available_memory_bytes()
    if needed_bytes > available:
        raise InputError(
            f"{what} would need at least {needed_bytes >> 20} MiB of memory, but {available >> 20} MiB are available; "
            "check the numbers, or use a larger machine"
        )


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn the errors of an unreadable file into :class:`InputError`; wrap only code that reads ``path``."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"{path}: no such file; check the path") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a directory; name a file in it") from None
    except PermissionError:
        raise InputError(f"{path}: no permission to read it; check its owner and mode") from None
    except (OSError, EOFError, zlib.error) as error:
        if isinstance(error, OSError) and error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
            raise InputError(f"{path} cannot be opened ({error.strerror}); check the path") from None
        raise InputError(f"{path} cannot be read ({error}); it may be damaged or cut short: fetch it again") from error


def text_blocks(path: Path) -> Iterator[tuple[int, str]]:
    """Read a text file, gzipped if its name ends in ``.gz``, in blocks of whole lines.

    Yields
    ------
    (int, str)
        The number of the block's first line, counted from 1, and its text.

    Raises
    ------
    InputError
        A file that cannot be read or is not text.
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
    """Make CR LF, and CR alone, LF; a CR at the very end stays, as its LF may come with the next block."""
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
    raise InputError(f"{path} is not UTF-8 text (near line {line}); convert it, or name it after what it is")


def parse_rows(lines: str, **options) -> np.ndarray:
    """``numpy.loadtxt`` of a block of text; ValueError where a row does not fit ``options``."""
    with warnings.catch_warnings():
        # numpy before 2.4 only warns where it reads an integer such as "1.5" by way of a float
        warnings.simplefilter("error", DeprecationWarning)
        try:
            return np.loadtxt(io.StringIO(lines), comments=None, quotechar='"', encoding=None, **options)
        except DeprecationWarning as warning:
            raise ValueError(str(warning)) from warning


def first_bad_line(lines: list[tuple[int, str]], fits: Callable[[str], bool]) -> tuple[int, str]:
    """The number and text of the first line of a block that does not fit, found by halving."""
    while len(lines) > 1:
        half = len(lines) // 2
        first = lines[:half]
        lines = lines[half:] if fits("\n".join(text for _, text in first)) else first
    return lines[0]


def split_name(source: str, allowed: dict[str, Callable]) -> tuple[str, dict]:
    """Take ``prefix:name?key=value&...`` apart.

    Parameters
    ----------
    source : str
    allowed : dict of str to callable
        For each option, what makes its value of the text; it raises ValueError for a wrong one.

    Returns
    -------
    (str, dict)
        The name between the prefix and the question mark, and the options given.

    Raises
    ------
    InputError
        An unknown, repeated or wrong option.
    """
    name, _, query = source.partition(":")[2].partition("?")
    options: dict = {}
    for key, text in urllib.parse.parse_qsl(query, keep_blank_values=True):
        if key not in allowed:
            raise InputError(f"{source!r}: unknown option {key!r}; allowed are {', '.join(allowed)}")
        if key in options:
            raise InputError(f"{source!r}: option {key!r} is given twice; give it once")
        try:
            options[key] = allowed[key](text)
        except ValueError:
            kind = {int: "a whole number", float: "a number"}.get(allowed[key], "a non-empty text")
            raise InputError(f"{source!r}: {key}={text!r} is wrong; it must be {kind}") from None
    return name, options


def nonempty(text: str) -> str:
    """The text itself; ValueError where it is empty."""
    if not text:
        raise ValueError("empty")
    return text
