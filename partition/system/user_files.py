"""Safe opening of files that users name: they may be missing, damaged, not regular files, or far too large."""

from __future__ import annotations

import errno
import stat
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np

from dgl_gt.partition.errors import InputError

from .memory import available_memory_bytes
from .storage import Url, located

# Deflate packs zeros to a thousandth; features of which one word in a thousand is not zero pack to a two-hundredth.
_TRUSTED_BYTES, _MAX_EXPANSION = 1 << 28, 500
_KINDS = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


def regular_file(path) -> Path:
    """Return the path with ``~`` expanded, after checking that it names a regular file.

    Reading a pipe or a device could wait for ever. A :class:`Url` is returned as it is, and its text refused: readers
    that take URLs make one.
    """
    if isinstance(path, Url):
        return cast(Any, path)  # it has those methods of a path that readers use
    if isinstance(place := located(path), Url):
        raise InputError(f"{place} is a URL, and this must be a local file; copy it here, and name the copy")
    try:
        path = place.expanduser()
        with reading(path):
            mode = path.stat().st_mode
    except InputError:  # from `reading`; it is a ValueError, too
        raise
    except (RuntimeError, ValueError) as error:  # the home of an unknown user; a character that no name may have
        raise InputError(f"{str(path)!r} cannot be the path of a file ({error})") from None
    if stat.S_ISDIR(mode):
        raise InputError(f"{path} is a directory; name a file in it")
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "not a regular file")
        raise InputError(f"{path} is {kind}; only regular files can be read: save its contents as a file first")
    return path


def check_unpacked_size(path: Path, unpacked_bytes: int) -> None:
    """Raise :class:`InputError` if a compressed file unpacks to far more than real graphs do."""
    if unpacked_bytes > max(_TRUSTED_BYTES, _MAX_EXPANSION * path.stat().st_size):
        raise InputError(
            f"{path} unpacks to over {_MAX_EXPANSION} times its size, {unpacked_bytes >> 20} MiB or more; such files "
            "are usually made to fill the memory. If you trust it, unpack it and use the unpacked file"
        )


def check_fits_memory(what: str, needed_bytes: int) -> None:
    """Raise :class:`InputError` if more memory is needed than is available; call it before allocating."""
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
        raise InputError(f"{path} cannot be read ({error}); it may be damaged or incomplete: fetch it again") from error


def text_array(words: Sequence[str], what: str) -> np.ndarray:
    """Return words as an array of str, in which each takes the room of the longest."""
    longest = max(map(len, words), default=0)
    check_fits_memory(f"{what}, of which the longest has {longest} characters,", 4 * longest * len(words))
    return np.array(words, dtype=np.str_)
