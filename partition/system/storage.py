"""Files at URLs of fsspec, such as ``s3://bucket/folder``: the one place that knows how they are read, written and cached.

Drivers try again where a request fails (botocore's ``AWS_MAX_ATTEMPTS`` times for S3), and read credentials from the
environment. This module only says what went wrong in the end.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import io
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

from dgl_gt.partition.errors import InputError, first_line, import_optional

_URL = re.compile(r"((?:[a-z][a-z0-9+]+::)*[a-z][a-z0-9+]+)://", re.IGNORECASE)
_LOCAL = re.compile(r"(?:file|local)://(?:localhost(?=/))?")
# user:password@, in which a password may have a "/"; or a key of a query as in signed URLs
_SECRET = re.compile(
    r"://[^/@]*:.*@|[?&][^/?&=]*(?:sig|signature|token|credential|secret|password|key)=", re.IGNORECASE
)
_QUERY = re.compile(r"\?[^/]*=[^/]*$")  # a "?" in the name of a folder is part of a pattern
_DRIVERS = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs"}
UNFINISHED = ".dgl-gt-unfinished"  # lies in a directory at a URL while it is uploaded
_HASH_BLOCK_BYTES = 1 << 20


def located(place, *, is_source: bool = False) -> Path | Url:
    """Return a path, or a :class:`Url` where the place is one; ``file://`` URLs are paths.

    Raises
    ------
    InputError
        A URL has credentials, and the message does not repeat it; or it has a query, which only a source at ``http(s)://``
        may have; or several schemes, such as ``simplecache::s3://``.
    """
    if not isinstance(place, str) or (match := _URL.match(place)) is None:
        return Path(place)
    scheme = match[1].lower()
    url = scheme + place[match.end(1) :]
    if _SECRET.search(url) or (_QUERY.search(url) and not (is_source and scheme in ("http", "https"))):
        raise InputError(
            f"a URL that begins with {scheme}:// holds a user:password@ or a query (?key=...); leave that out, and put credentials "
            "into the environment, where its driver of fsspec reads them"
        )
    if "::" in url:
        raise InputError(
            f"{place}: a URL must not have '::' in it; give one scheme, such as s3://, and rename such files"
        )
    local = _LOCAL.match(url)
    return Path(url[local.end() :]) if local else Url(url)


def is_file(place: Path | Url) -> bool:
    """Return whether a file is there; False, too, for a name that is too long."""
    return place.is_file() if isinstance(place, Url) else os.path.isfile(place)


class Url(str):
    """A URL, with those methods of a path that its readers use; their errors are :class:`InputError`."""

    def __truediv__(self, name) -> Url:
        return Url(f"{self.rstrip('/')}/{name}")

    @property
    def name(self) -> str:
        return self.rstrip("/").rpartition("/")[2]

    @property
    def suffix(self) -> str:
        return Path(self.name).suffix

    def without_query(self) -> Url:
        """Return it without ``?key=value``, which only ``http(s)://`` has; elsewhere a ``?`` is part of a pattern."""
        return Url(self.partition("?")[0]) if self.startswith("http") else self

    def absolute(self) -> Url:
        return self

    def with_name(self, name: str) -> Url:
        return Url(self.rstrip("/").rpartition("/")[0]) / name

    def with_suffix(self, suffix: str) -> Url:
        return self.with_name(str(Path(self.name).with_suffix(suffix)))

    def is_file(self) -> bool:
        with access(self, "read") as (system, path):
            system.invalidate_cache()
            try:
                return system.info(path)["type"] == "file"  # isfile would call whatever goes wrong a missing file
            except FileNotFoundError:
                return False

    def stat(self) -> SimpleNamespace:
        with access(self, "read") as (system, path):
            return SimpleNamespace(st_size=int(system.info(path)["size"]))

    def read_bytes(self) -> bytes:
        with access(self, "read") as (system, path):
            return system.cat_file(path)

    def read_text(self, encoding: str = "utf-8") -> str:
        return self.read_bytes().decode(encoding)

    def open(self, mode: str = "rb") -> io.BytesIO:
        return io.BytesIO(self.read_bytes())

    def iterdir(self) -> Iterator[Url]:
        """Yield the files and folders in a folder, but not what is in these; none where nothing is there."""
        names = (name.partition("/")[0] for name in names_at(self))
        return (self / name for name in dict.fromkeys(names) if name)

    def unlink(self, missing_ok: bool = False) -> None:
        with access(self, "remove") as (system, path):
            try:
                system.rm_file(path)
            except FileNotFoundError:
                if not missing_ok:
                    raise

    def rename(self, other: Url) -> None:
        with access(self, "move") as (system, path):
            system.mv(path, system._strip_protocol(other))


@contextmanager
def access(url: str, doing: str) -> Iterator[tuple]:
    """Yield the file system of a URL and the path there; errors of drivers become :class:`InputError`."""
    core = import_optional("fsspec.core", f"to {doing} {url}", "pip install fsspec")
    try:
        yield core.url_to_fs(url)
    except (InputError, MemoryError):
        raise
    except ImportError as error:
        driver = _DRIVERS.get(url.partition("://")[0])
        advice = f"run pip install {driver}" if driver else "install it"
        raise InputError(f"{url} needs a driver of fsspec ({first_line(error)}); {advice}") from error
    except Exception as error:  # drivers raise errors of their own
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):  # here, not there
            raise
        advice = "check the URL, the network and the credentials in the environment"
        if isinstance(error, PermissionError):
            advice = "check the credentials in the environment, and their rights there"
        elif isinstance(error, FileNotFoundError):
            advice = "check the URL; a bucket must exist"
        raise InputError(f"cannot {doing} {url} ({first_line(error)}); {advice}") from error


def names_at(url: Url) -> list[str]:
    """Return the names of all files below a URL, relative to it, in order; "" for a file at the URL itself."""
    with access(url, "list") as (system, path):
        system.invalidate_cache()
        root = path.rstrip("/")
        return sorted(name[len(root) :].lstrip("/") for name in system.find(path))


def put(local: Path, place: Path | Url) -> None:
    """Copy a file to a place; it is there whole, or not at all, since object stores show an object when it is complete."""
    if isinstance(place, Path):
        get(local, place)
        return
    with access(place, "write") as (system, path):
        system.put_file(os.fspath(local), path)


def get(place: Path | Url, local: Path) -> None:
    """Copy a file from a place; it appears when it is complete."""
    temporary = local.parent / _unfinished(local, secrets.token_hex(6))
    try:
        local.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(place, Path):
            shutil.copyfile(place, temporary)
        else:
            with access(place, "read") as (system, path):
                system.get_file(path, os.fspath(temporary))
        temporary.replace(local)
    except OSError as error:
        raise InputError(
            f"cannot copy {place} to {local} ({error.strerror}); free space, or choose another disk (DGL_GT_CACHE is where the cache is)"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def _unfinished(local: Path, mark: str) -> str:
    """Return the name of a copy that is not complete; ``mark`` is 12 hexadecimal digits, or a pattern of these."""
    return f".{local.name}.{mark}"


# ---- directories that are complete once one file is there


def upload(folder: Path, url: Url, last: str) -> None:
    """Upload a folder in place of what is at a URL: the old file ``last`` goes first, and the new one comes last.

    If that fails, what was uploaded is removed; after a kill, ``UNFINISHED`` tells whose files these are.
    """
    old = names_at(url)
    with access(url, "write to") as (system, _):
        system.pipe_file(system._strip_protocol(url / UNFINISHED), b"")
    for name in sorted({*old} - {UNFINISHED}, key=lambda name: name != last):
        (url / name).unlink(missing_ok=True)
    names = [each.relative_to(folder).as_posix() for each in folder.rglob("*") if each.is_file()]
    names.sort(key=lambda name: (name == last, name))
    try:
        for name in names:
            put(folder / name, url / name)
    except BaseException:
        for name in reversed(names):
            with suppress(InputError):
                (url / name).unlink(missing_ok=True)
        raise
    finally:
        with suppress(InputError):  # it does no harm beside a complete directory
            (url / UNFINISHED).unlink(missing_ok=True)


def check_writable(url: Url) -> None:
    """Raise :class:`InputError` unless files can be written and removed at a URL: before work, not after."""
    probe = url / f".dgl-gt-{secrets.token_hex(6)}"
    with access(url, "write to") as (system, _):
        path = system._strip_protocol(probe)
        system.pipe_file(path, b"")
        system.rm_file(path)


# ---- the cache


def cache_folder(*names: str) -> Path:
    """Return a folder of the cache, which is made where it is missing: in DGL_GT_CACHE, or else in the user's cache."""
    home = os.environ.get("DGL_GT_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "dgl-gt"
    )
    folder = Path(home, *names).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise InputError(f"cannot make {folder} ({error.strerror}); set DGL_GT_CACHE to a writable folder") from error
    return folder


def cached(url: Url, path: Path, size_bytes: int, sha256: str) -> Path:
    """Return ``path`` in the cache after making it a whole copy of the file at ``url``.

    A copy that is there already is verified, and downloaded again if it is damaged. Processes of a host take turns at a
    file, and remove what a killed one left; where locks do not work, each downloads it, and the last one wins.
    """

    def is_whole(copy: Path) -> bool:
        return copy.is_file() and copy.stat().st_size == size_bytes and file_checksum(copy) == sha256

    with _locked(path.parent / f".{path.name}.lock") as is_alone:
        if not is_whole(path):
            for unfinished in path.parent.glob(_unfinished(path, "[0-9a-f]" * 12)) if is_alone else ():
                unfinished.unlink()
            get(url, path)
            if not is_whole(path):
                path.unlink()
                raise InputError(
                    f"{url} is damaged, or was replaced just now: it has not the checksum that the manifest says; try again, or "
                    "partition the graph again"
                )
    return path


def file_checksum(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_HASH_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


@contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Wait for a lock; yield whether the file system has locks."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            is_locked = True
        except OSError:
            is_locked = False
        yield is_locked


def short_name(url: str) -> str:
    """Return a name for a URL that no other URL has."""
    return f"{Url(url).name[:40]}-{hashlib.sha256(url.encode()).hexdigest()[:16]}"
