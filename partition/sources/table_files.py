"""The files of a source of tables: a file, a folder, a pattern or an address; those of an address are fetched first."""

from __future__ import annotations

import glob
import os
from dataclasses import dataclass, field
from pathlib import Path

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.system.storage import Url, access, located
from dgl_gt.partition.system.user_files import regular_file

from .folders import meta_of_types, metadata_of_chunks, raw_folder

TEXT = (".csv", ".tsv", ".txt")
_PACKED = (".gz", ".zst")
_FOLDER_COLUMN = "relation"  # the column that folders make whose names do not say another, as type=pays does
INSTALL = "pip install duckdb fsspec"


@dataclass(frozen=True)
class TableFile:
    """One file of a source."""

    path: Path  # where it lies here
    name: str  # in messages: the path, or the address that it was fetched from
    folders: dict[str, str] = field(default_factory=dict)  # values of columns that its folders stand for

    @property
    def kind(self) -> str:
        """Its suffix, without that of packing."""
        return kind_of(self.name)


def kind_of(name: str) -> str:
    """Return the suffix of a name in lower case, without that of packing."""
    stem, suffix = os.path.splitext(name.lower())
    return os.path.splitext(stem)[1] if suffix in _PACKED else suffix


def _is_pattern(name: str) -> bool:
    return "*" in name or "?" in name


def names_tables(source, ends=None) -> bool:
    """Return whether a source is read as tables: a Parquet file, a folder, a pattern, or an address of these.

    So is a text file of which ``ends`` are named.
    """
    if not isinstance(source, (str, os.PathLike)) or source == "":
        return False
    place = located(source, is_source=True)
    name = os.fspath(place.without_query() if isinstance(place, Url) else place)
    if ends is not None and kind_of(name) in TEXT:
        return True
    if isinstance(place, Url):
        return kind_of(name) in (".parquet", *TEXT, "") or _is_pattern(name)
    if _is_pattern(name) and not os.path.lexists(name):
        return not name.startswith(("sample:", "ogb:", "dgl:", "pyg:"))  # whose ? begins their options
    if kind_of(name) == ".parquet":
        return True
    others = (metadata_of_chunks, raw_folder, meta_of_types)
    return os.path.isdir(os.path.expanduser(name)) and all(each(name) is None for each in others)


def table_files(source, folder: Path) -> list[TableFile]:
    """Return the files of a source in the order of their names; those of an address are fetched into ``folder``.

    Names that begin with ``.`` or ``_`` are left out, as Spark and Hive do, such as ``_SUCCESS``.
    """
    place = located(source, is_source=True)
    if isinstance(place, Url):
        local = fetched(place, folder)
    else:
        local = [(path, os.fspath(path)) for path in _local_paths(Path(os.path.expanduser(place)))]
    homes = [os.path.dirname(name) or "." for _, name in local]
    base = os.path.commonpath(homes)
    folders = [_folder_columns(os.path.relpath(home, base)) for home in homes]
    if all(each == folders[0] for each in folders):
        folders = [{} for _ in local]
    return [TableFile(path, name, columns) for (path, name), columns in zip(local, folders)]


def _local_paths(path: Path) -> list[Path]:
    if path.is_dir():
        found = (Path(root) / name for root, _, names in os.walk(path) for name in names)
        paths = _tables(path, (each for each in found if _is_seen(os.path.relpath(each, path))))
    elif _is_pattern(str(path)) and not os.path.lexists(path):
        paths = _tables(path, (Path(each) for each in glob.glob(str(path), recursive=True) if not os.path.isdir(each)))
    else:
        return [regular_file(path)]
    return [regular_file(each) for each in paths]


def _tables(source: Path, paths) -> list[Path]:
    """Return in order those paths that are tables; :class:`InputError` if there is none."""
    tables = sorted(each for each in paths if _is_table(str(each)))
    if not tables:
        what = "is a directory, and no table is in it" if source.is_dir() else "matches no table"
        raise InputError(f"{source} {what}; tables are files .parquet, .csv, .tsv and .txt, also with .gz or .zst")
    return tables


def _is_seen(relative: str) -> bool:
    """Return whether no folder on the way, below the source, begins with ``.`` or ``_``."""
    return not any(part[:1] in (".", "_") for part in Path(relative).parts)


def _is_table(name: str) -> bool:
    return os.path.basename(name)[:1] not in ("", ".", "_") and kind_of(name) in (".parquet", *TEXT)


def _folder_columns(relative: str) -> dict[str, str]:
    """Return the columns that the folders of a file stand for: type=pays is ``pays`` in ``type``."""
    named, plain = {}, []
    for part in Path(relative).parts:
        key, mark, value = part.partition("=")
        if mark and key:
            named[key] = value
        else:
            plain.append(part)
    return named | ({_FOLDER_COLUMN: "/".join(plain)} if plain else {})


def fetched(address: Url, folder: Path) -> list[tuple[Path, str]]:
    """Fetch the files of an address into ``folder``; return their paths here and their addresses, in order of these.

    The addresses have no queries.
    """
    with access(address, "read") as (system, path):
        if address.without_query() != address:
            names = [path]
        elif _is_pattern(path):
            names = system.glob(path)
        elif kind_of(path):
            names = [path]
        else:
            names = [name for name in system.find(path) if _is_seen(name[len(path.rstrip("/")) :])]
        if len(names) != 1 or not kind_of(path):
            names = [str(each) for each in _tables_at(address, names)]
        local = list[tuple[Path, str]]()
        for number, name in enumerate(names):
            shown = Url(system.unstrip_protocol(name)).without_query()
            target = folder / f"{number:06d}{''.join(Path(shown.name).suffixes[-2:])}"
            system.get_file(name, str(target))
            local.append((target, shown))
    return local


def _tables_at(address: str, names) -> list[str]:
    tables = sorted(name for name in names if _is_table(name))
    if not tables:
        raise InputError(
            f"{address} has no file of a table, or is not there; allowed are .parquet, .csv, .tsv and .txt"
        )
    return tables
