"""A directory or a file that appears when it is complete, never before."""

from __future__ import annotations

import os
import secrets
import shutil
from contextlib import contextmanager, suppress
from pathlib import Path

from .console import size
from .errors import InputError


@contextmanager
def new_directory(out, *, marker: str, force: bool = False):
    """Give a temporary sibling of ``out`` to fill; it takes ``out``'s place at the end, or is removed on any error.

    Parameters
    ----------
    out : path
    marker : str
        The file that shows that an existing directory is one of ours, hence one that ``force`` may replace.
    force : bool
        Replace ``out`` where it exists.

    Raises
    ------
    InputError
        ``out`` exists, or cannot be written to.
    """
    out = check_target(out, marker=marker, force=force)
    temporary = out.parent / f".{out.name}.partial-{os.getpid()}"
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(out)
        temporary.mkdir()
    except OSError as error:
        raise InputError(
            f"cannot write to {out.parent}: {error.strerror or error}; choose a writable directory"
        ) from error
    try:
        yield temporary
        if out.exists():
            replaced = out.parent / f".{out.name}.replaced-{os.getpid()}"
            out.rename(replaced)
            temporary.rename(out)
            shutil.rmtree(replaced)
        else:
            temporary.rename(out)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(error, OSError):
            raise InputError(
                f"cannot write {out}: {error.strerror or error}; free space or choose another directory"
            ) from error
        raise


def check_target(out, *, marker: str, force: bool) -> Path:
    """The absolute path of ``out``, if :func:`new_directory` may make or replace it; else :class:`InputError`."""
    out = Path(out).absolute()
    if out.exists() and not force:
        raise InputError(f"{out} exists; choose another directory, or replace it with --force (in Python force=True)")
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file; choose a directory")
    if force and out.is_dir() and any(out.iterdir()) and not (out / marker).is_file():
        raise InputError(f"{out} has no {marker}, so --force will not replace it; choose another directory")
    check_parent(out)
    return out


def check_parent(out: Path) -> None:
    """Raise :class:`InputError` where ``out``'s nearest existing parent is not a directory that can be written to."""
    parent = next(parent for parent in out.absolute().parents if parent.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise InputError(f"cannot write {out}: {parent} is not a writable directory; choose another place")


def _remove_leftovers(out: Path) -> None:
    """Remove what killed runs left beside ``out``; a run that is still alive keeps its directory."""
    for old in out.parent.iterdir():
        if not old.name.startswith((f".{out.name}.partial-", f".{out.name}.replaced-")):
            continue
        pid = old.name.rpartition("-")[2]
        if pid.isdigit() and (int(pid) == os.getpid() or not _alive(int(pid))):
            shutil.rmtree(old, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


@contextmanager
def new_file(out):
    """Give the path of a temporary sibling of ``out`` to write; it takes ``out``'s place at the end, or is removed on
    any error. What must not be replaced is refused before the work, by :func:`check_file`.

    Raises
    ------
    InputError
        ``out`` cannot be written: no space, no permission, a name that is too long.
    """
    out = Path(out).resolve()  # a symbolic link stays, and what it leads to is written
    temporary = out.parent / f".dgl-gt-{secrets.token_hex(4)}{out.suffix}"
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(out)
    except OSError as error:
        raise InputError(
            f"cannot write {out}: {error.strerror or error}; free space or choose another place"
        ) from error
    finally:
        with suppress(OSError):
            temporary.unlink()


def check_file(out, *, force: bool = False) -> Path:
    """The path of a file that :func:`new_file` may make, or with ``force`` replace; else :class:`InputError`."""
    path = Path(out)
    try:
        if path.is_dir():
            raise InputError(f"{out} is a directory; choose a file")
        exists = path.exists()
    except OSError as error:
        raise InputError(f"cannot write {out}: {error.strerror}; choose another name") from error
    if exists and not force:
        raise InputError(f"{out} exists; choose another file, or replace it with force=True")
    check_parent(path)
    return path


def check_room(out, needed_bytes: int) -> None:
    """Raise :class:`InputError` where the disk of ``out`` has less room than needed."""
    parent = next(parent for parent in Path(out).absolute().parents if parent.exists())
    free_bytes = shutil.disk_usage(parent).free
    if free_bytes < needed_bytes:
        raise InputError(
            f"{out} needs {size(needed_bytes)} of disk, and {parent} has {size(free_bytes)} left; free space or choose "
            "another place"
        )
