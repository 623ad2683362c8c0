"""A directory or file that appears when it is complete, never before; a directory replaces only one of its kind."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import re
import shutil
import stat
from collections.abc import Callable
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError

from partition.errors import InputError

from .temporary_names import FILE, PARTIAL, REPLACED, leftovers, temporary_name
from .units import size

_FULL = (errno.ENOSPC, errno.EDQUOT)
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)
_LONGEST_RECORD_BYTES = 1 << 30


@dataclass(frozen=True)
class Kind:
    """What a directory of ours holds, so that ``force`` replaces nothing else.

    Attributes
    ----------
    name : str
        In messages: "shards".
    record : str
        A file of JSON that says who made the directory.
    is_ours : callable
        Tells from the record's value, a dict, whether we made it.
    files : str
        Regular expression of the names of all other files, relative to the directory.
    """

    name: str
    record: str
    is_ours: Callable[[dict], bool]
    files: str


@contextmanager
def new_directory(out, kind: Kind, *, force: bool = False):
    """Give a temporary sibling of ``out`` to fill; it takes ``out``'s place at the end, or is removed on any error.

    Its files are on the disk, flushed and with the modes of the umask, before it takes that place in one step. Where
    the file system has no such step, an old directory is moved aside first; it comes back if the process is killed
    just then and another run names the same ``out``.

    Parameters
    ----------
    out : path
        A link is followed.
    kind : Kind
        What an existing directory must be for ``force`` to replace it.
    force : bool
        Replace ``out`` where it exists.

    Raises
    ------
    InputError
        ``out`` exists or appears meanwhile, holds what is not of this kind, or cannot be written to.
    """
    out = check_target(out, kind, force=force)
    temporary = out.parent / temporary_name(out.name, PARTIAL)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        for old in [*leftovers(out.parent, out.name, PARTIAL), *leftovers(out.parent, out.name, REPLACED)]:
            shutil.rmtree(old, ignore_errors=True)
        temporary.mkdir()
    except OSError as error:
        raise cannot_write(out.parent, error) from error
    try:
        yield temporary
        _flush(temporary)
        _put(temporary, out, kind, force)
    except OSError as error:
        raise _cannot_fill(temporary, out, error) from error
    except SafetensorError as error:  # how that library reports a full disk
        code = re.search(r"os error (\d+)", str(error))
        raise cannot_write(out, OSError(int(code[1]) if code else 0, str(error))) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # what was replaced, or what an error left
    with suppress(OSError):  # it is in place and complete, though a power failure may still undo that
        _flush_folder(out.parent)


def check_target(out, kind: Kind, *, force: bool) -> Path:
    """The real path of ``out``, if :func:`new_directory` may make or replace it; else :class:`InputError`.

    An old directory that a killed run moved aside is put back first.
    """
    given = Path(out).absolute()
    try:
        if given.is_symlink() and not given.exists():
            target = os.readlink(given)
            raise InputError(f"{given} is a link to {target}, which does not exist; make that, or remove the link")
        out = given.resolve()
        check_parent(out)
        _restore(out)
        if not os.path.lexists(out):
            return out
        if not out.is_dir():
            raise InputError(f"{out} is a file; choose a directory")
        if not force:
            raise InputError(f"{out} exists; choose another directory, or replace it with --force")
        _check_kind(out, kind)
    except InputError:  # it is a ValueError, too
        raise
    except (OSError, RuntimeError, ValueError) as error:  # a name that is too long; links in a circle; a NUL
        raise InputError(f"cannot use {given}: {getattr(error, 'strerror', None) or error}; choose another") from error
    return out


def check_parent(out: Path) -> None:
    """Raise :class:`InputError` where ``out``'s nearest existing parent is not a directory that can be written to."""
    parent = nearest_existing(out.parent)
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise InputError(f"cannot write {out}: {parent} is not a writable directory; choose another place")


def nearest_existing(path) -> Path:
    """The path itself where it exists, else the nearest of its parents that does."""
    path = Path(path).absolute()
    return next(each for each in (path, *path.parents) if each.exists())


def cannot_write(path, error: OSError) -> InputError:
    """What to tell a user whose file or directory could not be written, by the cause."""
    if error.errno in _REFUSED:
        advice = "choose a writable place"
    elif error.errno in (None, 0, *_FULL):  # libraries do not always say why
        advice = "free space, or choose a place on another disk"
    else:
        advice = "choose another place"
    return InputError(f"cannot write {path}: {os.strerror(error.errno) if error.errno else error}; {advice}")


def _cannot_fill(temporary: Path, out: Path, error: OSError) -> InputError:
    """What to tell of an error while a directory was filled; another file's is not blamed on ``out``."""
    if isinstance(error.filename, (str, os.PathLike)):
        path = Path(error.filename).absolute()
        if path != out.parent and path != out and not path.is_relative_to(temporary) and not path.is_relative_to(out):
            return InputError(f"{path}: {error.strerror}; check that file or directory")
    return cannot_write(out, error)


def _check_kind(folder: Path, kind: Kind) -> None:
    """Raise :class:`InputError` unless all that a directory holds is of a kind; an empty one may be replaced."""
    names = sorted(os.listdir(folder))
    if not names:
        return
    refused = "so --force will not replace it; move it away, or choose another directory"
    if not _is_ours(folder / kind.record, kind):
        is_there = kind.record in names
        why = f"its {kind.record} is another program's" if is_there else f"it has no {kind.record}"
        but = "" if is_there else f", but it holds {names[0]!r}"
        raise InputError(f"{folder} does not hold {kind.name} made by dgl-gt: {why}{but}, {refused}")
    if (foreign := _foreign_entry(folder, kind)) is not None:
        raise InputError(
            f"{folder} holds {foreign!r} besides {kind.name}, so --force will not replace it; move that away, or "
            "choose another directory"
        )


def _is_ours(record: Path, kind: Kind) -> bool:
    if record.is_symlink() or not record.is_file() or record.stat().st_size > _LONGEST_RECORD_BYTES:
        return False
    try:
        value = json.loads(record.read_bytes())
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and kind.is_ours(value)


def _foreign_entry(folder: Path, kind: Kind) -> str | None:
    """The first name in a directory that is not of a kind: another file, a link, an empty directory."""
    for entry in sorted(folder.rglob("*")):
        name = entry.relative_to(folder).as_posix()
        mode = entry.lstat().st_mode
        if stat.S_ISDIR(mode):
            if not any(entry.iterdir()):
                return name
        elif not stat.S_ISREG(mode) or (name != kind.record and not re.fullmatch(kind.files, name)):
            return name
    return None


def _restore(out: Path) -> None:
    """Put back what a run moved aside that was killed before its own directory took the place."""
    if out.parent.is_dir() and not os.path.lexists(out):
        for old in leftovers(out.parent, out.name, REPLACED)[:1]:
            old.rename(out)


def _flush(folder: Path) -> None:
    """Have every file of a directory on the disk, with the mode that the umask gives."""
    for root, _, files in os.walk(folder):
        mode = os.stat(root).st_mode & 0o666
        for name in files:
            with open(os.path.join(root, name), "rb") as file:
                with suppress(OSError):  # vfat and some network file systems have no modes of their own
                    os.fchmod(file.fileno(), mode)  # safetensors keeps its files from everybody else
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
    """Move a complete directory to its place; one that was there is at ``new`` afterwards, or gone."""
    if force and os.path.lexists(out):
        check_target(out, kind, force=True)
        if not _exchange(new, out):
            _move_aside(new, out)
        return
    try:
        new.rename(out)  # refused by the system where there is a file, or a directory that is not empty
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            raise
        raise _appeared(out, "directory") from error


def _appeared(out: Path, kind: str) -> InputError:
    return InputError(
        f"{out} appeared while this run was at work, and is kept; choose another {kind}, or replace it with --force"
    )


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two names in one step; False where the system or the file system cannot."""
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
    """Replace a directory in two steps; the old one comes back on an error, and by :func:`_restore` after a kill."""
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
def new_file(out, *, force: bool = False):
    """Give a binary file to write, which takes the place of ``out`` at the end, or is removed on any error.

    What must not be replaced is refused before the work, by :func:`check_file`.

    Parameters
    ----------
    out : path
        A link stays, and the file that it leads to is written.
    force : bool
        Replace ``out`` where it exists.

    Raises
    ------
    InputError
        ``out`` cannot be written: no room, no permission, a name that is too long; or it appeared meanwhile.
    """
    out = Path(os.path.realpath(out))
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        for old in leftovers(out.parent, out.name, FILE):
            old.unlink(missing_ok=True)
        temporary = out.parent / temporary_name(out.name, FILE)
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
        raise cannot_write(out, error) from error
    with suppress(OSError):  # it is in place and complete, though a power failure may still undo that
        _flush_folder(out.parent)


def _put_file(new: Path, out: Path) -> None:
    """Move a complete file to its place, where no file may be."""
    try:
        os.link(new, out)  # which replaces nothing, unlike a rename
    except FileExistsError as error:
        raise _appeared(out, "file") from error
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):  # a file system without hard links
            raise
        new.replace(out)


def check_file(out, *, force: bool = False) -> Path:
    """The path of a file that :func:`new_file` may make, or with ``force`` replace; else :class:`InputError`."""
    path = Path(out)
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        check_parent(Path(os.path.realpath(path)))  # of a link that leads nowhere, the file to be
        return path
    except ValueError as error:
        raise InputError(f"{str(out)!r} cannot be a path ({error}); choose another name") from error
    except OSError as error:  # a name that is too long, links that lead to each other
        raise InputError(f"cannot use {out}: {error.strerror}; choose another name") from error
    if stat.S_ISDIR(mode):
        raise InputError(f"{out} is a directory; choose a file")
    if not stat.S_ISREG(mode):
        raise InputError(f"{out} is a device, a pipe or a socket, which is never replaced; choose a file")
    if not force:
        raise InputError(f"{out} exists; choose another file, or replace it with --force")
    check_parent(path)
    return path


def check_room(out, needed_bytes: int) -> None:
    """Raise :class:`InputError` where the disk of ``out`` has less room than is needed."""
    free_bytes = free_disk_bytes(out)
    if free_bytes < needed_bytes:
        raise InputError(
            f"{out} needs {size(needed_bytes)} of disk, and its disk has {size(free_bytes)} left; free space, or "
            "choose a place on another disk"
        )


def free_disk_bytes(path) -> int:
    """Room on the disk where a path is or would be made."""
    return shutil.disk_usage(nearest_existing(os.path.realpath(path))).free
