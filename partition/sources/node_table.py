"""Node tables as text: a header that names the columns, then a node a line; plain or gzipped."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.graph import SPLIT_MASKS
from dgl_gt.partition.system.user_files import text_array

from .node_columns import FLOAT32_EXACT, ColumnRoles, NodeColumns, as_classes, class_note, quoted, unlabelled
from .text_table import TextTable, cell_blocks, is_named, listed, open_table

_ID_NAMES = ("node", "id", "node_id", "nodeid")
_LABEL_NAMES = ("label", "labels", "y", "class", "target")
_BOOLEANS = {"true": 1.0, "false": 0.0}
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")
_THOUSANDS = re.compile(r"-?\d{1,3}(,\d{3})+(\.\d+)?")
_BRACKETS, _COMMAS = str.maketrans("[]()", "    "), str.maketrans(",;", "  ")


@dataclass(frozen=True)
class _Roles:
    """The columns of a table by what they are for."""

    id: int | None
    label: int | None
    masks: dict[str, int]
    features: list[int]
    left_out: dict[int, str]  # and why
    unnamed: int | None  # the first column of numbers without a name


def read_node_table(path: Path, roles: ColumnRoles) -> NodeColumns:
    """Read a file of one node per line below a header that names the columns.

    ``node``, ``id``, ``node_id`` or ``nodeid`` is the node of each row, a whole number or a name; without it rows are
    in node order. ``label``, ``labels``, ``y``, ``class`` or ``target`` is the label, a whole number or a name, empty
    for an unlabelled node; ``roles`` may name another column. ``train_mask``, ``val_mask`` and ``test_mask`` are 0 and
    1, or true and false. Other columns become the columns of ``feat``, float32 (N, F), in the same order: numbers, true
    and false, or lists of numbers in quotes; columns of text are left out. ``roles`` may name the features, or columns
    to skip.
    """
    table = open_table(path, _fit)
    is_header = table.commented is not None and (table.is_sure or table.delimiter is None or _fit([table.commented]))
    if table.header is None and is_header:
        table = replace(table, header=table.commented, header_line=table.commented_line)
    if table.header is None or not table.first_row:
        raise InputError(f"{path}: a node table needs a header that names its columns, then a line for each node")
    if len(table.first_row) != table.width:
        raise InputError(
            f"{path}, line {table.first_line}: {len(table.first_row)} columns, but the header has {table.width}; correct this "
            "line or the header, or close a quote"
        )
    columns = _roles(table, roles)
    ids, labels, masks, features, unnamed = [], [], {key: [] for key in columns.masks}, [], []
    for lines, rows in cell_blocks(table):
        cells = list(zip(*rows))
        ids += [] if columns.id is None else _ids(table, columns.id, lines, cells[columns.id])
        labels += [] if columns.label is None else cells[columns.label]
        for key, column in columns.masks.items():
            masks[key].append(_numbers(table, column, lines, cells[column], "0 or 1, or true or false"))
        if columns.id is None and columns.unnamed is not None:
            unnamed += cells[columns.unnamed]
        features.append([_features(table, column, lines, cells[column]) for column in columns.features])
    _check_order(table, unnamed)
    data = {key: np.concatenate(pieces) for key, pieces in masks.items()}
    by_name = {}
    for place, column in enumerate(columns.features):
        by_name[table.header[column]] = np.concatenate([block[place] for block in features])
    classes = None
    if columns.label is not None:
        data["label"], classes = as_classes(labels)
        if classes is not None and len(classes) == len(labels) > 2:
            name = table.header[columns.label]
            raise InputError(
                f"{path}: column {name!r} has another name in each row, so it is no label; choose another with label (--label), "
                f"or leave it out with skip (--skip {quoted(name)})"
            )
    return NodeColumns(
        data=data,
        features=by_name,
        ids=None if columns.id is None else text_array(ids, f"{path}: ids"),
        classes=classes,
        name=path.name,
        left_out=tuple(
            f"column {table.header[column] or column + 1} of {path.name} ({why})"
            for column, why in columns.left_out.items()
        ),
        notes=(
            _note(table, columns, data.get("label"), labels),
            *([class_note(path.name, classes)] if classes else []),
            *_rounded(table, by_name),
        ),
        header=tuple(table.header),
        maybe_ids={} if columns.id is not None else {key: by_name[key] for key in by_name.keys() - {*roles.features}},
    )


def _roles(table: TextTable, roles: ColumnRoles) -> _Roles:
    names = [name.lower() for name in table.header]
    where = f"{table.path}, line {table.header_line}"
    skipped = {i for i, name in enumerate(table.header) if name in roles.skip}
    usable = [i for i in range(len(names)) if i not in skipped]
    repeated = sorted(name for name, count in Counter(names[i] for i in usable).items() if name and count > 1)
    if repeated:
        raise InputError(f"{where}: several columns are called {repeated[0]!r}; give each its own name")
    id_ = [i for i in usable if names[i] in _ID_NAMES]
    if roles.label in table.header:
        label = [table.header.index(roles.label)]
    else:
        label = [i for i in usable if names[i] in _LABEL_NAMES and table.header[i] not in roles.features]
    if len(id_) > 1:
        raise InputError(f"{where}: more than one column of node ids ({', '.join(_ID_NAMES)}); keep or skip one")
    if len(label) > 1:
        found = ", ".join(table.header[i] for i in label)
        raise InputError(
            f"{where}: {found} may each be the label; choose one with label (--label), and skip the others"
        )
    masks = {names[i]: i for i in usable if names[i] in SPLIT_MASKS}
    others = [i for i in usable if i not in {*id_, *label, *masks.values()}]
    if roles.features:
        others = [table.header.index(name) for name in roles.features if name in table.header]
    for i in others:
        cell, name = table.first_row[i], table.header[i]
        if _DECIMAL_COMMA.fullmatch(cell) and not _THOUSANDS.fullmatch(cell):
            raise InputError(
                f"{table.path}, line {table.first_line}: column {name!r} holds {cell!r}; write {cell.replace(',', '.')} for one "
                f"number or [{cell}] for two, or leave the column out with skip (--skip {quoted(name)})"
            )
    left_out = {i: "text" if is_named(table.header[i]) else "no name" for i in others if not _is_feature(table, i)}
    if roles.features and left_out:
        text = next(iter(left_out))
        raise InputError(
            f"{table.path}: column {table.header[text]!r} holds {table.first_row[text]!r}; features must be "
            "numbers: encode the column as numbers, or leave it out of features (--features)"
        )
    features = [i for i in others if i not in left_out]
    unnamed = (i for i in left_out if not is_named(table.header[i]) and _number(table.first_row[i]) is not None)
    return _Roles(next(iter(id_), None), next(iter(label), None), masks, features, left_out, next(unnamed, None))


def _fit(rows: list[list[str]]) -> int:
    """Return how many names of the first row are known."""
    known = {*_ID_NAMES, *_LABEL_NAMES, *SPLIT_MASKS}
    return len(known.intersection(name.lower() for name in rows[0]))


def _check_order(table: TextTable, index: list[str]) -> None:
    """Raise :class:`InputError` for an index without a name, as pandas writes it, that is not in the order of the rows."""
    numbers = [_number(cell) for cell in index]
    if None not in numbers and numbers != sorted(numbers):
        raise InputError(f"{table.path}: the column without a name has numbers in no order; call it id, or remove it")


def _rounded(table: TextTable, features: dict[str, np.ndarray]) -> list[str]:
    """Note columns whose numbers float32 may have rounded."""
    large = [name for name, values in features.items() if (np.abs(values) >= FLOAT32_EXACT).any()]
    return [f"{table.path.name}: float32 rounds the large numbers of {listed(large)}"] if large else []


def _is_feature(table: TextTable, column: int) -> bool:
    """Return whether a column has a name and begins with a number or numbers."""
    return is_named(table.header[column]) and None not in _row_numbers(table, table.first_row[column])


def _note(table: TextTable, columns: _Roles, label: np.ndarray | None, cells: list[str]) -> str:
    """Say what the columns were taken for, and how many nodes have no label."""
    features = [table.header[column] for column in columns.features]
    said = "no label" if label is None else f"label from {table.header[columns.label]}{unlabelled(label, cells)}"
    return f"{table.path.name}: {said}; feat from {listed(features) or 'no column'}"


def _row_numbers(table: TextTable, cell: str) -> list[float | None]:
    """Return the numbers that a cell holds, None for a word that is none.

    A comma stands between numbers, but not where semicolons stand between columns: there 1,5 may be one and a half.
    """
    if _THOUSANDS.fullmatch(cell):  # 1,000 may be a thousand
        return [None]
    cell = cell.translate(_BRACKETS)
    return [_number(word) for word in (cell if table.delimiter == ";" else cell.translate(_COMMAS)).split()]


def _number(word: str) -> float | None:
    try:
        return float(word) if "_" not in word else None  # Python takes 1_0 for 10
    except ValueError:
        return _BOOLEANS.get(word.strip().lower())


def _features(table: TextTable, column: int, lines: list[int], cells) -> np.ndarray:
    """Return a block of a column of features, float32 (rows, width)."""
    width = len(_row_numbers(table, table.first_row[column]))
    if width < 2:
        numbers = _numbers(table, column, lines, cells, "a number")[:, None]
    else:
        rows = [_row_numbers(table, cell) for cell in cells]
        for line, cell, row in zip(lines, cells, rows):
            if len(row) != width or None in row:
                raise _misfit(table, column, line, cell, f"{width} numbers, as in the first row")
        numbers = np.array(rows, np.float64)
    with np.errstate(over="ignore"):
        numbers = numbers.astype(np.float32)
    if not (finite := np.isfinite(numbers).all(axis=1)).all():
        row = int(np.argmin(finite))
        raise _misfit(table, column, lines[row], cells[row], "a finite number")
    return numbers


def _numbers(table: TextTable, column: int, lines: list[int], cells, wanted: str) -> np.ndarray:
    """Return a block of a column of numbers, float64 (rows,)."""
    if "_" not in "".join(cells):
        try:
            return np.fromiter(map(float, cells), np.float64, len(cells))
        except ValueError:
            pass  # a boolean, or a misfit
    numbers = [_number(cell) for cell in cells]
    if None in numbers:
        row = numbers.index(None)
        raise _misfit(table, column, lines[row], cells[row], wanted)
    return np.array(numbers, np.float64)


def _misfit(table: TextTable, column: int, line: int, cell: str, wanted: str) -> InputError:
    name, shown = table.header[column], repr(cell[:80]) if cell else "nothing"
    return InputError(
        f"{table.path}, line {line}: column {name!r} holds {shown}; it must hold {wanted}: fill it in, or leave the "
        f"column out with skip (--skip {quoted(name)})"
    )


def _ids(table: TextTable, column: int, lines: list[int], cells) -> list[str]:
    """Return the ids of a block of rows."""
    if "" in cells:
        raise _misfit(table, column, lines[cells.index("")], "", "the id of a node")
    return list(cells)
