"""Edges from tables: which columns are their ends, the numbers of their ids, and their edge data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.system.units import format_count
from dgl_gt.partition.system.user_files import text_array

from .coo import COOGraph
from .edge_list import known_ends
from .node_data import NodeColumns
from .node_data import quoted as quoted_option
from .options import SourceOptions
from .table_columns import (
    MISSING_TEXT,
    Column,
    expression,
    fill_of,
    filled_notes,
    first_missing,
    list_width,
    make_categories,
    read_column,
)
from .tables import PLACE, Tables, check_columns, open_tables, quoted, run
from .text_table import listed

IDS = "nodes"  # the table of DuckDB with the number n and the id of each node


def read_edge_tables(
    con, folder: Path, source, options: SourceOptions, nodes: NodeColumns | None = None
) -> tuple[COOGraph, NodeColumns]:
    """Read the edges of tables, and the names of their columns. ``nodes`` are listed in the table ``IDS`` already.

    Nodes are numbered as they are listed, and otherwise in ascending order of their ids; but whole numbers stay as they
    are, for ``numbering`` to decide.
    """
    tables = open_tables(con, folder, source, lambda columns: _ends(columns, options.ends, str(source), is_text=True))
    src, dst = _ends(tables.columns, options.ends, tables.what)
    id_type = _id_type(tables, (src, dst), nodes)
    _check_ids(tables, (src, dst))
    names, num_nodes = None, None
    if nodes is not None:
        names, num_nodes = nodes.ids, len(nodes.ids)
    elif (
        id_type == "VARCHAR"
        or options.ids == "names"
        or tables.first(f"least({quoted(src)}, {quoted(dst)}) < 0", [src, dst])
    ):
        names = _list_ids(tables, (src, dst), id_type)
    extra, left_out, notes = _edge_columns(tables, (src, dst), options)
    listed = None if names is None else (IDS, IDS)
    ends, edge_data, filled = _read(tables, folder, (src, dst), extra, id_type, options, listed)
    if names is not None and names.dtype.kind in "iu" and np.array_equal(names, np.arange(len(names))):
        names, num_nodes = None, len(names)
    coo = COOGraph(
        ends[0],
        ends[1],
        num_nodes,
        {},
        edge_data,
        str(source),
        left_out=left_out,
        notes=(*notes, *filled),
        node_names=names,
    )
    return coo, NodeColumns({}, tables.what, header=tuple(tables.columns))


def read_relation(
    con, folder: Path, path: Path, options: SourceOptions, nodes: Sequence[NodeColumns], ids: Sequence[str]
) -> COOGraph:
    """Read the edges of one relation, by numbers of its source and of its destination nodes.

    Both are listed in the tables ``ids``. They are numbers of different nodes, so the result is no graph by itself.
    """
    tables = open_tables(con, folder, path, lambda columns: _ends(columns, options.ends, str(path), is_text=True))
    ends = _ends(tables.columns, options.ends, tables.what)
    id_types = {_id_type(tables, ends, each) for each in nodes}
    _check_ids(tables, ends)
    extra, left_out, notes = _edge_columns(tables, ends, options)
    id_type = id_types.pop() if len(id_types) == 1 else "VARCHAR"
    pair, edge_data, filled = _read(tables, folder, ends, extra, id_type, options, ids)
    src, dst = pair
    return COOGraph(src, dst, None, {}, edge_data, tables.what, left_out=left_out, notes=(*notes, *filled))


def _ends(columns: Sequence[str], ends: Sequence[str] | None, what: str, *, is_text: bool = False) -> tuple[str, str]:
    """Return the names of the columns of sources and destinations."""
    columns = list(columns)
    if ends is not None:
        check_columns(what, columns, ends, "ends (--ends)")
        return ends[0], ends[1]
    src, dst = known_ends(columns)
    if len(src) == len(dst) == 1:
        return columns[src[0]], columns[dst[0]]
    is_sure = not is_text or columns == ["column0", "column1"]  # so DuckDB calls those of a text file without a header
    if len(columns) == 2 and not (src or dst) and is_sure:
        return columns[0], columns[1]
    raise InputError(
        f"{what}: of its columns ({listed(columns)}) it is not known which are the ends of an edge; name them with ends "
        "(--ends SOURCE,DESTINATION)"
    )


def _id_type(tables: Tables, ends: Sequence[str], nodes: NodeColumns | None) -> str:
    """Return the type in which ids are compared: whole numbers where all are, and text otherwise."""
    types = {tables.types[name] for name in ends}
    for name in ends:
        if tables.kind(name) not in ("whole", "text"):
            raise InputError(
                f"{tables.what}: column {name!r} holds {tables.types[name].lower()}; ids must be whole numbers or text"
            )
    if any(tables.kind(name) == "text" for name in ends) or (nodes is not None and nodes.ids.dtype.kind == "U"):
        return "VARCHAR"
    return "UBIGINT" if "UBIGINT" in types or (nodes is not None and nodes.ids.dtype.kind == "u") else "BIGINT"


def _check_ids(tables: Tables, ends: Sequence[str]) -> None:
    for name in ends:
        empty = f" OR {quoted(name)} = ''" if tables.kind(name) == "text" else ""
        if found := tables.first(f"{quoted(name)} IS NULL{empty}", [name]):
            raise InputError(f"{found[0]}, row {found[1]}: column {name!r} is empty; each edge needs both ends")


def _list_ids(tables: Tables, ends: Sequence[str], id_type: str) -> np.ndarray:
    """Make the table ``IDS`` of the ids of all edges, in ascending order, and return them."""
    used = " UNION ".join(f"SELECT {quoted(name)}::{id_type} AS id FROM {tables.union([name])}" for name in ends)
    run(
        tables.con,
        f"CREATE TABLE {IDS} AS SELECT (row_number() OVER (ORDER BY id) - 1)::BIGINT AS n, id FROM ({used})",
        tables.what,
    )
    return fetched_ids(tables.con, tables.what)


def fetched_ids(con, what: str, table: str = IDS) -> np.ndarray:
    """Return the ids of a table such as ``IDS`` in the order of their numbers, integers or str (N,)."""
    ids = np.asarray(run(con, f"SELECT id FROM {table} ORDER BY n", what, "fetchnumpy")["id"])
    if ids.dtype.kind != "O":
        return ids
    broken = next((name for name in ids.tolist() if "\n" in name), None)
    if broken is not None:
        raise InputError(f"{what}: {broken!r:.60} cannot be a line of a text file; rename this node")
    return text_array(ids.tolist(), f"{what}: ids")


def _edge_columns(
    tables: Tables, ends: Sequence[str], options: SourceOptions
) -> tuple[list[str], tuple[str, ...], tuple[str, ...]]:
    """Return the columns that become edge data, what is left out, and what is to be said of them."""
    extra, left_out, notes = [], [], []
    for name in tables.columns:
        if name in ends or name in (options.skip or ()):
            continue
        if tables.kind(name) == "other":
            left_out.append(f"edge data {name} ({tables.types[name].lower()})")
            continue
        extra.append(name)
        if tables.kind(name) == "text":
            names = make_categories(tables, name)
            notes.append(
                f"edge data {name}: {', '.join(f'{i} = {each or MISSING_TEXT}' for i, each in enumerate(names[:20]))}"
            )
        elif tables.kind(name) == "time":
            notes.append(f"edge data {name}: seconds since 1970, UTC")
    return extra, tuple(left_out), tuple(notes)


def _read(
    tables: Tables,
    folder: Path,
    ends,
    extra: list[str],
    id_type: str,
    options: SourceOptions,
    listed: Sequence[str] | None,
) -> tuple[list[np.ndarray], dict[str, np.ndarray], list[str]]:
    """Read the rows in their order: both ends, as numbers of nodes or as they are, and edge data; say what was filled.

    ``listed`` are the tables of the ids of sources and destinations that give them their numbers.
    """
    place = folder / f"edges{len(list(folder.iterdir()))}"
    place.mkdir()
    lists = [name for name in extra if tables.kind(name) == "list"]
    extra = [name for name in extra if name not in lists]
    columns = [Column(place, name) for name in ("src", "dst", *extra)]
    cells = [f"t.{quoted(name)}::{id_type}" for name in ends]
    sides, join = cells, ""
    if listed is not None:
        joined = zip(listed, "sd", cells)
        join = " ".join(f"LEFT JOIN {ids} {side} ON {side}.id::{id_type} = {cell}" for ids, side, cell in joined)
        sides = ["s.n", "d.n"]
    parts = [*sides, *(expression(tables, name) for name in extra)]
    select = f"SELECT {', '.join(f'{part} AS c{i}' for i, part in enumerate(parts))}"
    for rows in tables.pieces([*ends, *extra]):
        values = run(tables.con, f"{select} FROM {rows} {join} ORDER BY {PLACE}", tables.what, "fetchnumpy")
        for i, column in enumerate(columns):
            piece = values.pop(f"c{i}")
            if i < 2 and listed is not None and np.ma.is_masked(piece):
                _refuse_unknown(tables, ends[i], id_type, listed[i])
            column.append(_narrow(piece) if i < 2 else piece)
    for column in columns[2:]:
        if column.missing and fill_of(options.fill_missing, column.name) is None:
            found = first_missing(tables, column.name)
            raise missing_cells(found, column.name, column.missing)
    src, dst, *rest = (column.finished(rule=fill_of(options.fill_missing, column.name)) for column in columns)
    edge_data = dict(zip(extra, rest, strict=True))
    for name in lists:
        column = read_column(tables, folder, name)
        if column.missing:
            raise missing_cells(first_missing(tables, name), name, column.missing)
        edge_data[name] = column.finished((list_width(tables, name),))
    return [src, dst], edge_data, filled_notes(tables, columns[2:], options.fill_missing)


def _narrow(ids: np.ndarray) -> np.ndarray:
    ids = np.asarray(ids)
    return ids.astype(np.int32) if len(ids) and ids.min() >= 0 and ids.max() < 2**31 else ids


def _refuse_unknown(tables: Tables, end: str, id_type: str, ids: str) -> None:
    name, row, unknown = tables.first(f"{quoted(end)}::{id_type} NOT IN (SELECT id::{id_type} FROM {ids})", [end])
    raise InputError(f"{name}, row {row}: the table of nodes has no row for node {unknown!s:.80}; add its row")


def missing_cells(found: tuple, column: str, count: int) -> InputError:
    """Return the error to raise where cells of a column are missing; ``found`` is the first of them."""
    return InputError(
        f"{found[0]}, row {found[1]}: column {column!r} is empty (in {format_count(count, 'row')} in all); say what to fill in with "
        f"fill_missing (--fill-missing {column}=mean, or zero, or a number), or leave it out with skip (--skip {quoted_option(column)})"
    )
