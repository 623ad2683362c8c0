"""Writes directories and files that appear when they are complete, and never before."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import secrets
import shutil
import tempfile
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from safetensors import SafetensorError

from dgl_gt.partition.errors import InputError

from .output_checks import (
    APPEARED,
    FILE,
    PARTIAL,
    REPLACED,
    Kind,
    already_there,
    cannot_write,
    check_target,
    leftovers,
    temporary_name,
)
from .storage import Url, cache_folder, located, put, upload

# Errors that a full, a read-only or a lost disk gives, of a network as well; libraries do not always give a number.
_OF_OUTPUT = {None, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO}
_OF_OUTPUT |= {errno.ESTALE, errno.ETIMEDOUT, errno.ENOLCK, errno.ENXIO, errno.EINVAL, errno.ENODEV}


@contextmanager
def new_directory(out, kind: Kind, *, force: bool = False):
    """Yield a temporary directory beside ``out``; it takes ``out``'s place at the end, or is removed on any error.

    Before it takes that place, its files are flushed to the disk and have the modes of the umask. With ``force`` an old
    directory of this kind is replaced in one step. Where the file system has no such step, it is moved aside first; if
    the process is killed just then, the next run that names the same ``out`` moves it back. Where ``out`` is a link,
    the directory that it leads to is made. Where it is a URL, the temporary directory is in the cache, and is uploaded
    with the kind's record last.
    """
    out = check_target(out, kind, force=force)
    parent = cache_folder("outgoing") if isinstance(out, Url) else out.parent
    temporary = parent / temporary_name(out.name, PARTIAL)
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for old in [*leftovers(parent, out.name, PARTIAL), *leftovers(parent, out.name, REPLACED)]:
            shutil.rmtree(old, ignore_errors=True)
        temporary.mkdir()
    except OSError as error:
        raise cannot_write(parent, error) from error
    try:
        yield temporary
        if isinstance(out, Url):
            with _kept(temporary, out):
                check_target(out, kind, force=force)  # again, as another process may have written there
                upload(temporary, out, kind.record)
            return
        _flush(temporary)
        _put(temporary, out, kind, force)
    except OSError as error:
        raise _cannot_fill(temporary, out, error) from error
    except SafetensorError as error:
        raise cannot_write(out, os_error(error)) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # the replaced directory, or what an error left
    with suppress(OSError):  # the output is in place and complete; only a power failure could undo that
        _flush_folder(out.parent)


def os_error(error: SafetensorError) -> OSError:
    """The error of the system that safetensors reports, such as a full disk."""
    code = re.search(r"os error (\d+)", str(error))
    return OSError(int(code[1]) if code else 0, str(error))


@contextmanager
def _kept(made: Path, url: Url):
    """Keep what was made for a URL in the cache if uploading it fails, for example as credentials have expired."""
    try:
        yield
    except InputError as error:
        kept = cache_folder("outgoing") / f"{secrets.token_hex(3)}-{url.name}"
        made.rename(kept)
        raise InputError(f"{error}. What was made for it is {kept}") from error


def _cannot_fill(temporary: Path, out: Path | Url, error: OSError) -> Exception:
    """Return the error to raise when filling an output failed; its message names the file or the limit at fault."""
    if error.errno == errno.ENOMEM:
        return MemoryError(error.strerror)
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return InputError(f"{error.strerror}; close other files or programs, or raise the limit (ulimit -n)")
    if isinstance(error.filename, (str, os.PathLike)):
        path, out = Path(error.filename).absolute(), temporary if isinstance(out, Url) else out
        if path == out.parent or any(path.is_relative_to(each) for each in (temporary, out)):
            return cannot_write(out, error)
        return InputError(f"{path}: {error.strerror}; check that file or directory")
    return cannot_write(out, error) if error.errno in _OF_OUTPUT else error


def _flush(folder: Path) -> None:
    """Flush every file of a directory to the disk, with the mode that the umask gives."""
    for root, _, files in os.walk(folder):
        mode = os.stat(root).st_mode & 0o666
        for name in files:
            with open(os.path.join(root, name), "rb") as file:
                with suppress(OSError):  # vfat and some network file systems have no modes of their own
                    os.fchmod(file.fileno(), mode)  # safetensors makes files that only their owner can read
                os.fsync(file.fileno())
        _flush_folder(root)


def _flush_folder(folder) -> None:
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems cannot flush a directory
            raise
    finally:
        os.close(number)


def _put(new: Path, out: Path, kind: Kind, force: bool) -> None:
    """Move a complete directory to its place; an old directory is at ``new`` afterwards, or gone."""
    if force and os.path.lexists(out):
        check_target(out, kind, force=True)
        if not _exchange(new, out):
            _move_aside(new, out)
        return
    try:
        new.rename(out)  # the system refuses this where a file is, or a directory that is not empty
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            raise
        raise already_there(out, "directory", APPEARED) from error


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two names in one step; return False where the system or the file system cannot."""
    AT_FDCWD, RENAME_EXCHANGE = -100, 2
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        return False
    if libc.renameat2(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
        return False
    raise OSError(code, os.strerror(code))


def _move_aside(new: Path, out: Path) -> None:
    """Replace a directory in two steps; an error, or the next run after a kill, brings the old one back."""
    replaced = out.parent / temporary_name(out.name, REPLACED)
    try:
        out.rename(replaced)
        new.rename(out)
    except BaseException:
        if not os.path.lexists(out) and os.path.lexists(replaced):
            replaced.rename(out)
        raise
    shutil.rmtree(replaced, ignore_errors=True)


@contextmanager
def new_file(out, *, force: bool = False, keep: bool = True):
    """Yield a binary file to write; it takes the place of ``out`` at the end, or is removed on any error.

    Callers run :func:`dgl_gt.partition.system.output_checks.check_file` before the work. Where ``out`` is a link, the link
    stays and the file that it leads to is made. Where it is a URL, the file is made in the cache and uploaded; if that
    fails, it stays in the cache unless ``keep`` is False.
    """
    if isinstance(url := located(out), Url):
        with tempfile.TemporaryDirectory(dir=cache_folder("outgoing")) as folder:
            with new_file(Path(folder, "file")) as file:
                yield file
            with _kept(Path(folder, "file"), url) if keep else nullcontext():
                if not force and url.is_file():
                    raise already_there(url, "file", APPEARED)
                put(Path(folder, "file"), url)
        return
    out = Path(os.path.realpath(located(out)))
    temporary = out.parent / temporary_name(out.name, FILE)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        for old in leftovers(out.parent, out.name, FILE):
            old.unlink(missing_ok=True)
        try:
            with temporary.open("xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            if force:
                temporary.replace(out)
            else:
                _put_file(temporary, out)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise _cannot_fill(temporary, out, error) from error
    with suppress(OSError):  # the output is in place and complete; only a power failure could undo that
        _flush_folder(out.parent)


def _put_file(new: Path, out: Path) -> None:
    """Move a complete file to its place; refuse where another file is."""
    try:
        put_if_absent(new, out)
    except FileExistsError as error:
        raise already_there(out, "file", APPEARED) from error


def put_if_absent(new: Path, out: Path) -> None:
    """Give a complete file its name; its old name may stay, too. ``FileExistsError`` where another file is."""
    try:
        os.link(new, out)  # unlike a rename, a link replaces nothing
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):  # a file system without hard links
            raise
        new.replace(out)
