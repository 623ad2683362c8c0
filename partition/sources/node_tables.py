"""Node data from tables, with the ids that edges name their nodes by."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.graph import SPLIT_MASKS
from dgl_gt.partition.system.user_files import check_fits_memory

from .edge_tables import IDS, fetched_ids, missing_cells
from .node_data import ID_NAMES, LABEL_NAMES, NodeColumns, class_note, unlabelled
from .options import SourceOptions
from .table_columns import MISSING_TEXT, fill_of, filled_notes, first_missing, list_width, make_categories, read_column
from .tables import PLACE, Tables, check_columns, literal, open_tables, quoted, run
from .text_table import listed


def read_node_tables(con, folder: Path, options: SourceOptions, ids: str = IDS) -> NodeColumns:
    """Read the tables of nodes that ``options`` name, and list their ids in the table ``ids`` of the connection."""
    tables = open_tables(
        con, folder, options.node_table, lambda columns: [_id_column(columns, options, str(options.node_table))]
    )
    id_ = _id_column(tables.columns, options, tables.what)
    _list_ids(tables, id_, ids)
    wanted = options.features or ()
    skip = options.skip or ()
    usable = [name for name in tables.columns if name not in skip]
    label = options.label or next((name for name in usable if name.lower() in LABEL_NAMES and name not in wanted), None)
    if options.label is not None:
        check_columns(tables.what, tables.columns, [options.label], "label (--label)")
    check_columns(tables.what, tables.columns, wanted, "features (--features)")
    masks = [name for name in usable if name in SPLIT_MASKS]
    others = list(wanted) or [name for name in usable if name not in (id_, label, *masks)]
    features, left_out, notes = dict[str, np.ndarray](), list[str](), list[str]()
    for name in others:
        kind = tables.kind(name)
        if kind == "other" or (kind in ("text", "time") and name not in wanted):
            why = "text; to encode it, name it in --features" if kind == "text" else tables.types[name].lower()
            left_out.append(f"column {name} of {tables.what} ({why})")
        else:
            features[name], notes_of_column = _features(tables, folder, name, options)
            notes += notes_of_column
    data, classes = {name: _mask(tables, folder, name) for name in masks}, None
    said = "no label"
    if label is not None:
        data["label"], classes = _labels(tables, folder, label)
        said = f"label from {label}{unlabelled(data['label'], [])}"
    notes.insert(0, f"{tables.what}: {said}; feat from {listed([*features]) or 'no column'}")
    notes += [class_note(tables.what, classes)] if classes else []
    return NodeColumns(
        data=data,
        features=features,
        ids=fetched_ids(con, tables.what, ids),
        classes=classes,
        name=tables.what,
        left_out=tuple(left_out),
        notes=tuple(notes),
        header=tuple(tables.columns),
    )


def _id_column(columns, options: SourceOptions, what: str) -> str:
    if options.id is not None:
        check_columns(what, columns, [options.id], "id (--id)")
        return options.id
    found = [name for name in columns if name.lower() in ID_NAMES]
    if len(found) != 1:
        raise InputError(
            f"{what}: of its columns ({listed(list(columns))}) it is not known which holds the ids of nodes; name it with id (--id)"
        )
    return found[0]


def _list_ids(tables: Tables, id_: str, ids: str) -> None:
    """Make the table ``ids``: nodes are numbered as they are listed."""
    kind = tables.kind(id_)
    if kind not in ("whole", "text"):
        raise InputError(
            f"{tables.what}: column {id_!r} holds {tables.types[id_].lower()}; ids must be whole numbers or text"
        )
    empty = f" OR {quoted(id_)} = ''" if kind == "text" else ""
    if found := tables.first(f"{quoted(id_)} IS NULL{empty}", [id_]):
        raise InputError(f"{found[0]}, row {found[1]}: column {id_!r} is empty; each node needs an id")
    dtype = "VARCHAR" if kind == "text" else "UBIGINT" if tables.types[id_] == "UBIGINT" else "BIGINT"
    run(
        tables.con,
        f"CREATE TABLE {ids} AS SELECT (row_number() OVER (ORDER BY {PLACE}) - 1)::BIGINT AS n, {quoted(id_)}::{dtype} AS id "
        f"FROM {tables.union([id_])}",
        tables.what,
    )
    twice = f"SELECT id FROM {ids} GROUP BY id HAVING count(*) > 1 ORDER BY min(n) LIMIT 1"
    if (found := run(tables.con, twice, tables.what, "fetchone")) is not None:
        wanted = f"{literal(str(found[0]))}::{dtype}"
        sql = f"SELECT {PLACE} FROM {tables.union([id_])} WHERE {quoted(id_)}::{dtype} = {wanted} ORDER BY {PLACE} LIMIT 2"
        places = run(tables.con, sql, tables.what, "fetchall")
        where = " and ".join(f"{tables.files[file].name}, row {row + 1}" for file, row in places)
        raise InputError(f"{where}: node {found[0]!s:.80} has several rows; list each node once")


def _features(tables: Tables, folder: Path, name: str, options: SourceOptions) -> tuple[np.ndarray, list[str]]:
    """Return a column as features, float32 (N, width): a category has a column of zeros and ones."""
    if tables.kind(name) == "text":
        categories = make_categories(tables, name)
        codes = read_column(tables, folder, name).finished()
        check_fits_memory(f"{tables.what}: column {name!r}, encoded,", 4 * len(codes) * len(categories))
        encoded = np.zeros((len(codes), len(categories)), np.float32)
        encoded[np.arange(len(codes)), codes] = 1
        return encoded, [
            f"{tables.what}: column {name} is encoded, a column for each of: {listed([each or MISSING_TEXT for each in categories])}"
        ]
    width = (1,)
    if tables.kind(name) == "list":
        width = (list_width(tables, name),)
    column = read_column(tables, folder, name)
    rule = fill_of(options.fill_missing, name)
    if column.missing and rule is None:
        raise missing_cells(first_missing(tables, name), name, column.missing)
    notes = filled_notes(tables, [column], options.fill_missing)
    values = column.finished(width, rule)
    with np.errstate(over="ignore"):
        values = values.astype(np.float32)
    if not np.isfinite(values).all():
        row = int(np.argmin(np.isfinite(values).all(axis=1)))
        raise InputError(
            f"{tables.what}, row {row + 1}: column {name!r} holds a number that is not finite in float32; correct it"
        )
    return values, notes


def _labels(tables: Tables, folder: Path, name: str) -> tuple[np.ndarray, tuple[str, ...] | None]:
    """Return labels as numbers, NaN for a missing one, and the names of the classes in order where they are text."""
    if tables.kind(name) == "other":
        raise InputError(
            f"{tables.what}: column {name!r} holds {tables.types[name].lower()}, which is no label; choose another"
        )
    if tables.kind(name) != "text":
        width = (list_width(tables, name),) if tables.kind(name) == "list" else ()
        return read_column(tables, folder, name).finished(width), None
    classes = make_categories(tables, name)
    codes = read_column(tables, folder, name).finished()
    if classes[0] != "":
        return codes, tuple(classes)
    return np.where(codes == 0, np.nan, codes.astype(np.float64) - 1), tuple(classes[1:])


def _mask(tables: Tables, folder: Path, name: str) -> np.ndarray:
    if tables.kind(name) not in ("flag", "whole", "number"):
        raise InputError(
            f"{tables.what}: column {name!r} holds {tables.types[name].lower()}; a mask must hold 0 and 1, or true and false"
        )
    column = read_column(tables, folder, name)
    if column.missing:
        raise InputError(f"{tables.what}: column {name!r} is empty in {column.missing} rows; a mask must hold 0 and 1")
    return column.finished()
