"""Tables as DuckDB reads them: one or many CSV, TSV and Parquet files with the same columns, in little memory.

Text files become Parquet files in a temporary folder, so all later passes read columns of known types in ranges of
rows. Of the libraries that read such files, DuckDB alone bounds its memory, and mapped the ids of 20 million edges
fastest (docs/benchmarks.md).
"""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dgl_gt.partition.errors import InputError, first_line, import_optional
from dgl_gt.partition.system.memory import available_memory_bytes

from .table_files import INSTALL, TableFile, table_files
from .text_table import MISSING, listed

ROWS = 1 << 21  # that are in memory at a time
_MOST_CATEGORIES = 1 << 12
_LEAST_MEMORY_BYTES = 256 << 20
_WHOLE = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT")
_NUMBERS = ("FLOAT", "DOUBLE", "DECIMAL", "HUGEINT", "UHUGEINT")
_TEXT = ("VARCHAR", "ENUM", "UUID")
_FROM_TEXT = ".from-text.parquet"  # ends the name of a file that was text
_NUMBER = r"[-+]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][-+]?[0-9]+)?"
_LIST = rf"\s*[[(]?\s*{_NUMBER}(\s*,\s*{_NUMBER})+\s*[])]?\s*"  # such as "0.1, 2"
_THOUSANDS = r"-?[0-9]{1,3}(,[0-9]{3})+([.][0-9]+)?"  # such as "1,000", which may be a thousand


FILE, ROW = (
    '"dgl-gt: file"',
    '"dgl-gt: row"',
)  # columns that say where a row is from; no column of a user has such a name
PLACE = f"{FILE}, {ROW}"


def quoted(name: str) -> str:
    """Return the name of a column, or a path, as SQL writes an identifier."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Return a text as SQL writes it."""
    return "'" + text.replace("'", "''") + "'"


def kind_of_type(name: str) -> str:
    """Return what a column of a type of DuckDB holds: whole, number, flag, time, text, list or other."""
    base = name.partition("(")[0]
    if name.endswith("]"):
        inner = kind_of_type(name[: name.rindex("[")])
        return "list" if inner in ("whole", "number") else "other"
    if base in _WHOLE:
        return "whole"
    kinds = {"BOOLEAN": "flag", "DATE": "time"} | dict.fromkeys(_TEXT, "text") | dict.fromkeys(_NUMBERS, "number")
    return "time" if base.startswith("TIMESTAMP") else kinds.get(base, "other")


@dataclass
class Tables:
    """Files with the same columns, now all Parquet, and the columns by name."""

    con: Any  # of DuckDB
    files: list[TableFile]
    rows: list[int]  # of each file
    types: dict[str, str]  # of each column, as DuckDB names them; HUGEINT, DOUBLE or VARCHAR where files differ
    present: list[frozenset[str]]  # columns of each file
    what: str  # in messages

    @property
    def columns(self) -> list[str]:
        return list(self.types)

    @property
    def num_rows(self) -> int:
        return sum(self.rows)

    def kind(self, column: str) -> str:
        return kind_of_type(self.types[column])

    def scan(self, number: int) -> str:
        """Return the SQL of the rows of a file."""
        path = literal(str(self.files[number].path))
        return f"read_parquet({path}, file_row_number = true, hive_partitioning = false)"

    def pieces(self, columns: Sequence[str]) -> Iterator[str]:
        """Yield the SQL of all rows, at most ``ROWS`` at a time, as :meth:`union` does."""
        selects, room = [], ROWS
        for number, rows in enumerate(self.rows):
            start = 0
            while start < rows:
                count = min(room, rows - start)
                selects.append(
                    self._select(number, columns, f" WHERE file_row_number BETWEEN {start} AND {start + count - 1}")
                )
                start, room = start + count, room - count
                if room == 0:
                    yield f"({' UNION ALL '.join(selects)}) t"
                    selects, room = [], ROWS
        if selects:
            yield f"({' UNION ALL '.join(selects)}) t"

    def union(self, columns: Sequence[str]) -> str:
        """Return the SQL of all rows with these columns, the numbers of their ``FILE`` and of their ``ROW`` in it, as ``t``."""
        return f"({' UNION ALL '.join(self._select(number, columns) for number in range(len(self.files)))}) t"

    def _select(self, number: int, columns: Sequence[str], where: str = "") -> str:
        values = ", ".join(f"{self._value(name, number)} AS {quoted(name)}" for name in columns)
        return f"SELECT {values}, {number} AS {FILE}, file_row_number AS {ROW} FROM {self.scan(number)}{where}"

    def _value(self, column: str, number: int) -> str:
        """Return the SQL of a column in a file: its cells, what the folder stands for, or NULL where it has neither."""
        file, dtype = self.files[number], self.types[column]
        if column in self.present[number] and dtype == "DOUBLE[]" and file.path.name.endswith(_FROM_TEXT):
            return f"string_split(regexp_replace({quoted(column)}, '[][()\\s]', '', 'g'), ',')::{dtype}"
        if column in self.present[number]:
            return f"{quoted(column)}::{dtype}"
        return literal(file.folders[column]) if column in file.folders else f"NULL::{dtype}"

    def categories(self, column: str) -> list[str]:
        """Return the different texts of a column, in order."""
        found = run(
            self.con,
            f"SELECT DISTINCT {quoted(column)}::VARCHAR AS v FROM {self.union([column])} WHERE {quoted(column)} IS NOT NULL "
            f"ORDER BY v LIMIT {_MOST_CATEGORIES + 1}",
            self.what,
            "fetchall",
        )
        if len(found) > _MOST_CATEGORIES:
            raise InputError(
                f"{self.what}: column {column!r} has over {_MOST_CATEGORIES} different texts, too many to encode; group "
                f"the rare ones, or leave it out with skip (--skip)"
            )
        return [value for (value,) in found]

    def first(self, condition: str, columns: Sequence[str]):
        """Return the file, the number (from 1) and the first column of the first row that meets a condition, or None."""
        row = run(
            self.con,
            f"SELECT {PLACE}, {quoted(columns[0])} FROM {self.union(columns)} WHERE {condition} ORDER BY {PLACE} LIMIT 1",
            self.what,
            "fetchone",
        )
        return None if row is None else (self.files[row[0]].name, row[1] + 1, row[2])


@contextmanager
def tables_open(memory_bytes: int | None) -> Iterator[tuple[Any, Path]]:
    """Give a connection of DuckDB that stays within a bound on memory, and a temporary folder that lives as long."""
    duckdb = import_optional("duckdb", "reading tables", INSTALL)
    bound = available_memory_bytes() // 2 if memory_bytes is None else memory_bytes // 2
    with tempfile.TemporaryDirectory(prefix="dgl-gt-") as name:
        folder = Path(name)
        con = duckdb.connect(":memory:")
        try:
            for setting in (
                f"memory_limit = '{max(bound, _LEAST_MEMORY_BYTES)}B'",
                f"temp_directory = {literal(str(folder / 'spill'))}",
                "autoinstall_known_extensions = false",  # would fetch from the network
                "autoload_known_extensions = false",
                "enable_progress_bar = false",
                "TimeZone = 'UTC'",
            ):
                con.execute(f"SET {setting}")
            yield con, folder
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise InputError(
                f"the disk of {folder.parent} is full, where tables are read; free space, or name a folder on another disk in the "
                "environment variable TMPDIR"
            ) from error
        finally:
            con.close()


def run(con, sql: str, what: str, fetch: str | None = None) -> Any:
    """Execute SQL, and return what the method ``fetch`` of the result returns.

    What DuckDB refuses becomes an :class:`InputError` that names ``what``. It runs in a thread, because DuckDB puts an
    error of its own in the place of what a signal's handler raises.
    """
    duckdb = import_optional("duckdb", what, INSTALL)

    def work():
        done = con.execute(sql)
        return None if fetch is None else getattr(done, fetch)()

    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(work)
        try:
            return found.result()
        except duckdb.OutOfMemoryException as error:
            raise InputError(
                f"{what}: reading it needs more memory ({first_line(error)}); raise memory (--memory)"
            ) from error
        except duckdb.Error as error:
            if "No space left" in str(error):
                raise OSError(errno.ENOSPC, "the disk is full") from error
            raise InputError(f"{what} cannot be read ({_in_one_line(error)}); correct it") from error
        except BaseException:  # a signal, while this waits
            con.interrupt()
            raise


def _in_one_line(error: Exception) -> str:
    """Return the first lines of a message of DuckDB, which say what is wrong and on which line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    kept = [line for line in lines[:4] if not line.startswith(("Possible", "*", "LINE 1"))]
    return " ".join(kept)[:300]


def open_tables(con, folder: Path, source, ids: Callable[[list[str]], Sequence[str]]) -> Tables:
    """Open the files of a source. ``ids`` of a text file's columns names those that hold ids, which stay text."""
    place = folder / f"tables{len(list(folder.iterdir()))}"
    place.mkdir()
    files, rows = list[TableFile](), list[int]()
    present, types = list[frozenset[str]](), dict[str, str]()
    for number, file in enumerate(table_files(source, place)):
        if file.path.stat().st_size == 0:
            raise InputError(f"{file.name} is empty; remove it, or write it again")
        if set("*?[") & set(str(file.path)):  # DuckDB would take it for a pattern
            link = place / f"{number:06d}{''.join(file.path.suffixes[-2:])}"
            link.symlink_to(file.path.absolute())
            file = TableFile(link, file.name, file.folders)
        is_text = file.kind != ".parquet"
        if is_text:
            path = place / f"{number:06d}{_FROM_TEXT}"
            _text_to_parquet(con, file, path, ids)
            file = TableFile(path, file.name, file.folders)
        scan = f"read_parquet({literal(str(file.path))}, hive_partitioning = false)"
        found = {name: kind for name, kind, *_ in run(con, f"DESCRIBE SELECT * FROM {scan}", file.name, "fetchall")}
        count = _fit_types(con, scan, found, file.name, is_text=is_text)
        for name, kind in found.items():
            _check_case(name, types, file.name)
            types[name] = _joined(types.get(name), kind, name, file.name, files)
        files.append(file)
        rows.append(count)
        present.append(frozenset(found))
    for name in {name for file in files for name in file.folders} - types.keys():
        types[name] = "VARCHAR"
    tables = Tables(con, files, rows, types, present, str(source) if len(files) > 1 else files[0].name)
    if not tables.num_rows:
        raise InputError(f"{tables.what} has no rows; write it again")
    return tables


def _fit_types(con, scan: str, found: dict[str, str], name: str, *, is_text: bool) -> int:
    """Return the number of rows; leave out columns that are empty and so fit any type, and read true and false as such."""
    words = [f"bool_and(lower({quoted(each)}::VARCHAR) IN ('true', 'false'))" for each in found]
    cells = [*(f"count({quoted(each)})" for each in found), *(words if is_text else ())]
    rows, *numbers = run(con, f"SELECT {', '.join(['count(*)', *cells])} FROM {scan}", name, "fetchone")
    for column, filled, is_flag in zip([*found], numbers, numbers[len(found) :] or [False] * len(found)):
        if is_flag:
            found[column] = "BOOLEAN"
        if not filled and (is_text or not rows):
            del found[column]
    texts = [each for each in found if found[each] == "VARCHAR"] if is_text else []
    if texts:
        are_lists = run(con, f"SELECT {', '.join(map(_is_list, texts))} FROM {scan}", name, "fetchone")
        found |= {each: "DOUBLE[]" for each, is_list in zip(texts, are_lists) if is_list}
    return rows


def _is_list(column: str) -> str:
    """Return the SQL of whether all texts of a column are lists of numbers."""
    patterns = (f"bool_and(regexp_full_match({quoted(column)}, {literal(each)}))" for each in (_LIST, _THOUSANDS))
    return "({} AND NOT {})".format(*patterns)


def _check_case(name: str, types: dict[str, str], file: str) -> None:
    """Raise :class:`InputError` where DuckDB would take a column for another one, or for one that it makes."""
    others = [each for each in types if each != name and each.lower() == name.lower()]
    if others or name.lower() == "file_row_number":
        but = f"another file has {others[0]!r}" if others else "DuckDB gives this name to the places of rows"
        raise InputError(f"{file}: a column is called {name!r}, and {but}; rename it")


def _joined(before: str | None, kind: str, column: str, name: str, files: list[TableFile]) -> str:
    """Return a type that holds the cells of a column in all files so far and in this one."""
    if before is None or before == kind:
        return kind
    kinds = {kind_of_type(before), kind_of_type(kind)}
    if kinds == {"time"}:
        return "TIMESTAMPTZ"
    if kinds == {"whole"}:
        return "BIGINT" if not (before.startswith("UBIG") or kind.startswith("UBIG")) else "HUGEINT"
    if kinds <= {"whole", "number"}:
        return "DOUBLE"
    if kinds == {"text"}:
        return "VARCHAR"
    raise InputError(
        f"{name}: column {column!r} holds {kind.lower()}, but {before.lower()} in {files[0].name}; write it alike in all files"
    )


def _text_to_parquet(con, file: TableFile, path: Path, ids: Callable[[list[str]], Sequence[str]]) -> None:
    """Write a text file as Parquet. Its numbers are float64, and ids stay as they are written."""
    null = ", ".join(map(literal, MISSING))
    kinds = ", ".join(map(literal, ("DOUBLE", "TIMESTAMP", "TIMESTAMPTZ", "VARCHAR")))
    read = f"read_csv({literal(str(file.path))}, nullstr = [{null}], auto_type_candidates = [{kinds}]"
    columns = [name for name, *_ in run(con, f"DESCRIBE SELECT * FROM {read})", file.name, "fetchall")]
    if len(columns) == 1 and set(",;\t|") & set(columns[0]):
        raise InputError(f"{file.name}: its lines have different numbers of columns, or a quote is open; correct them")
    types = ", ".join(f"{literal(name)}: 'VARCHAR'" for name in ids(columns))
    read += f", types = {{{types}}})" if types else ")"
    run(con, f"COPY (SELECT * FROM {read}) TO {literal(str(path))} (FORMAT parquet)", file.name)


def check_columns(what: str, columns: Sequence[str], names: Sequence[str], option: str) -> None:
    """Raise :class:`InputError` for a name that is no column of ``what``."""
    for name in names:
        if name not in columns:
            raise InputError(
                f"{option} names {name!r}, which is no column of {what}; the columns are: {listed(columns)}"
            )


def write_id_map(path: Path, names: np.ndarray) -> None:
    """Write the number and the user's id of each node as a Parquet file with the columns ``node`` and ``id``."""
    duckdb = import_optional("duckdb", f"writing {path}", INSTALL)
    with duckdb.connect(":memory:") as con:
        ids = names.astype(object) if names.dtype.kind == "U" else names
        con.register("ids", {"node": np.arange(len(names)), "id": ids})
        con.execute(f"COPY (SELECT node, id FROM ids) TO {literal(str(path))} (FORMAT parquet)")
