"""Checks, before the work starts, that an output may be written and has room, and names it has while it is written."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from dgl_gt.partition.errors import InputError, check_flags

from .storage import UNFINISHED, Url, cache_folder, check_writable, located, names_at
from .units import format_bytes

_FULL = (errno.ENOSPC, errno.EDQUOT)
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)
LONGEST_RECORD_BYTES = 1 << 30  # that of a run of a million epochs holds two million numbers
# Purposes: a directory that is being written, one that was moved aside, a file that is being written.
PARTIAL, REPLACED, FILE = "partial", "replaced", "file"
APPEARED = "was created by another process during this run and was not replaced"


@dataclass(frozen=True)
class Kind:
    """A kind of directory that dgl-gt writes, so that ``force`` replaces nothing else."""

    name: str  # in messages, such as "shards"
    record: str  # JSON file in the directory that says who made it
    is_ours: Callable[[dict], bool]  # of the record's value: whether dgl-gt made the directory
    files: str  # regular expression of the names of all other files, relative to the directory


def check_target(out, kind: Kind, *, force: bool, foreign: bool = False) -> Path | Url:
    """Return the real path of a directory that may be made, or with ``force`` replaced; else raise :class:`InputError`.

    An old directory that a killed run moved aside is put back first. With ``foreign``, other files in it are no reason
    to refuse; the caller keeps them. A URL is returned as it is, after a trial of writing there.
    """
    check_flags(force=force)
    if isinstance(given := located(out), Url):
        if names := names_at(given):
            if names == [""]:
                raise InputError(f"{given} is a file; choose a directory")
            if not force:
                raise already_there(given, "directory")
            _check_kind(given, names, kind, foreign)
        check_writable(given)
        return given
    given = given.absolute()
    with _usable(given):
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
            raise already_there(out, "directory")
        _check_kind(out, sorted(os.listdir(out)), kind, foreign)
    return out


def check_file(out, *, force: bool = False) -> Path | Url:
    """Return the path of a file that may be made, or with ``force`` replaced; else raise :class:`InputError`."""
    check_flags(force=force)
    path = located(out)
    if isinstance(path, Url):
        if not force and path.is_file():
            raise already_there(path, "file")
        check_writable(path.with_name(""))
        return path
    with _usable(path):
        try:
            mode = path.stat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            check_parent(Path(os.path.realpath(path)))  # for a link that leads nowhere, the file that it names
            return path
        if not stat.S_ISREG(mode):
            kind = "directory" if stat.S_ISDIR(mode) else "device, a pipe or a socket, which is never replaced"
            raise InputError(f"{out} is a {kind}; choose a file")
        if not force:
            raise already_there(out, "file")
        check_parent(path)
    return path


@contextmanager
def _usable(path: Path) -> Iterator[None]:
    """Turn the errors of an impossible path into :class:`InputError`: too long, links in a circle, a NUL."""
    try:
        yield
    except InputError:  # InputError is a ValueError, too
        raise
    except (OSError, RuntimeError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(f"cannot use {path}: {why}; choose another place") from error


def already_there(out: Path | Url, kind: str, found: str = "exists") -> InputError:
    """Return the error to raise where a file or a directory must not be replaced."""
    return InputError(f"{out} {found}; choose another {kind}, or replace it with force (--force)")


def check_parent(out: Path) -> None:
    """Raise :class:`InputError` unless the nearest existing parent of ``out`` is a writable directory."""
    parent = nearest_existing(out.parent)
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise InputError(f"cannot write {out}: {parent} is not a writable directory; choose another place")


def nearest_existing(path) -> Path:
    """Return the path itself where it exists, else the nearest of its parents that exists."""
    path = Path(path).absolute()
    with _usable(path):
        return next(each for each in (path, *path.parents) if each.exists())


def cannot_write(path, error: OSError) -> InputError:
    """Return the error to raise when a file or directory could not be written; its advice depends on the cause."""
    if error.errno in _REFUSED:
        advice = "choose a writable place"
    elif error.errno in (None, 0, *_FULL):  # libraries do not always give a cause
        advice = "free space, or choose a place on another disk"
    else:
        advice = "choose another place"
    return InputError(f"cannot write {path}: {os.strerror(error.errno) if error.errno else error}; {advice}")


def check_room(out, needed_bytes: int) -> None:
    """Raise :class:`InputError` where the disk of ``out`` has less room than needed."""
    free_bytes = free_disk_bytes(out)
    if free_bytes < needed_bytes:
        raise InputError(
            f"{out} needs {format_bytes(needed_bytes)} of disk, and its disk has {format_bytes(free_bytes)} left; free space, or "
            "choose a place on another disk"
        )


def free_disk_bytes(path) -> int:
    """Return the free room on the disk where a path is or would be made (bytes); of a URL, on that of the cache."""
    place = located(path)
    place = cache_folder() if isinstance(place, Url) else place
    return shutil.disk_usage(nearest_existing(os.path.realpath(place))).free


def _check_kind(folder: Path | Url, names: list[str], kind: Kind, foreign: bool) -> None:
    """Raise :class:`InputError` unless a directory is empty or holds files of this kind; ``foreign`` allows others."""
    if not names:
        return
    refused = "so --force will not replace it; move it away, or choose another directory"
    if not (_is_ours(folder / kind.record, kind) or (isinstance(folder, Url) and UNFINISHED in names)):
        is_there = kind.record in names
        why = f"its {kind.record} is another program's" if is_there else f"it has no {kind.record}"
        but = "" if is_there else f", but it holds {names[0]!r}"
        raise InputError(f"{folder} does not hold {kind.name} made by dgl-gt: {why}{but}, {refused}")
    if not foreign and (name := _foreign_entry(folder, kind)) is not None:
        raise InputError(f"{folder} holds {name!r} besides {kind.name}, so --force will not replace it; move that away")


def _is_ours(record: Path | Url, kind: Kind) -> bool:
    if (
        (isinstance(record, Path) and record.is_symlink())
        or not record.is_file()
        or record.stat().st_size > LONGEST_RECORD_BYTES
    ):
        return False
    try:
        value = json.loads(record.read_bytes())
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and kind.is_ours(value)


def _foreign_entry(folder: Path | Url, kind: Kind) -> str | None:
    """Return the first name in a directory that is not of a kind: another file, a link or an empty directory."""
    if isinstance(folder, Url):
        ours = re.compile(rf"{kind.files}|{re.escape(kind.record)}|{re.escape(UNFINISHED)}")
        return next((name for name in names_at(folder) if not ours.fullmatch(name)), None)
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
    """Put back an old directory that a run moved aside before it was killed."""
    if out.parent.is_dir() and not os.path.lexists(out):
        for old in leftovers(out.parent, out.name, REPLACED)[:1]:
            old.rename(out)


# ---- temporary names that tell which process writes an output, so that other runs know whether it is alive
#
# A name holds the host and its system's installation, the process id namespace (every container has its own ids), the
# process id, and the time at which the process started, because ids are used again. A lock file would be simpler. But
# some network file systems do not pass locks on to other hosts, so a writer that is alive there would look dead here.


def temporary_name(stem: str, purpose: str) -> str:
    """Return a new hidden name of at most 255 bytes for a purpose of this process; :func:`leftovers` finds it again."""
    return f"{_prefix(stem, purpose)}{process_name(os.getpid())}-{secrets.token_hex(3)}"


def process_name(pid: int) -> str:
    """Return a name for a process of this host that no other process on any host has."""
    return f"{_home()}-{pid}-{_started(pid)[1]}"


def leftovers(folder: Path, stem: str, purpose: str) -> list[Path]:
    """Return the paths in a folder that dead processes left under names of :func:`temporary_name`.

    Paths of processes on other hosts or in other containers are never listed, because they may be alive.
    """
    prefix = _prefix(stem, purpose)
    found = [each for each in folder.iterdir() if each.name.startswith(prefix)]
    return sorted(each for each in found if _is_dead(each.name[len(prefix) :]))


def _prefix(stem: str, purpose: str) -> str:
    coded = os.fsencode(stem)
    short = stem if len(coded) <= 100 else hashlib.sha256(coded).hexdigest()[:32]
    return f".{short}.{purpose}-"


def _home() -> str:
    """Return the host, the installation of its system (hosts may share a name) and the process id namespace."""
    host = re.sub(r"[^\w.]", "_", socket.gethostname(), flags=re.ASCII)[:64]
    machine, namespace = Path("/etc/machine-id"), Path("/proc/self/ns/pid")
    with suppress(OSError):
        host += "." + hashlib.sha256(machine.read_bytes()).hexdigest()[:8]
    return f"{host}-{namespace.stat().st_ino if namespace.exists() else 0}"


def _is_dead(process: str) -> bool:
    """Return whether the process at the end of a temporary name has ended; False where that is not certain."""
    found = re.fullmatch(r"([\w.]*-\d+)-(\d{1,9})-(\d+)-[0-9a-f]{6}", process, re.ASCII)
    if found is None or found[1] != _home():
        return False
    pid = int(found[2])
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # the process is another user's
        pass
    state, started = _started(pid)
    return state in ("Z", "X") or started not in ("0", found[3])


def _started(pid: int) -> tuple[str, str]:
    """Return the state of a process and its start in clock ticks since boot; a start of 0 is unknown."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # not on Linux, or hidden from this user
        return "?", "0"
    return fields[0], fields[19]
