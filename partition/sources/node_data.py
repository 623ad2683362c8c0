"""Node data: columns from one file before it is known which node each row belongs to, and tables of text.

A table has a header that names its columns, then a node a line; plain or gzipped.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.graph import SPLIT_MASKS, Graph, as_array, check_data
from dgl_gt.partition.system.distinct import unique
from dgl_gt.partition.system.user_files import text_array

from .coo import COOGraph, with_standard_masks_and_labels
from .options import SourceOptions
from .text_table import FLOAT32_EXACT, MISSING, SHOWN, TextTable, is_named, listed, open_table, parsed_blocks

ID_NAMES = ("node", "id", "node_id", "nodeid")
LABEL_NAMES = ("label", "labels", "y", "class", "target")
_BOOLEANS = {"true": 1.0, "false": 0.0}
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")
_THOUSANDS = re.compile(r"-?\d{1,3}(,\d{3})+(\.\d+)?")
_DOUBTFUL = {"?", "-", "-1", "unknown", "none"}  # classes that may stand for no label
_BRACKETS, _COMMAS = str.maketrans("[]()", "    "), str.maketrans(",;", "  ")


@dataclass(frozen=True)
class NodeColumns:
    """Columns of node data from one file, with a row for each node."""

    data: dict[str, np.ndarray]
    name: str = "node data"  # in messages
    ids: np.ndarray | None = None  # the id of each row's node, integers or str; None: rows are in node order
    features: dict[str, np.ndarray] = field(default_factory=dict)  # (rows, width) float32 each, the columns of feat
    classes: tuple[str, ...] | None = None  # the name of each class, where labels are names
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    header: tuple[str, ...] = ()  # names of a table's columns
    maybe_ids: dict[str, np.ndarray] = field(default_factory=dict)  # in a table without ids, columns that could be them
    used_keys: frozenset[str] = frozenset()  # of the names in files that the user gave
    split_ids: dict[str, np.ndarray] = field(default_factory=dict)  # as in COOGraph

    @property
    def rows(self) -> int | None:
        """The number of rows; None where no column has any."""
        columns = [*self.data.values(), *self.features.values()]
        return next((len(value) for value in columns if value.ndim), None)

    def ordered(self, rows: np.ndarray) -> NodeColumns:
        """Return the columns with their rows in another order, and without ids."""
        data, features = ({key: value[rows] for key, value in each.items()} for each in (self.data, self.features))
        return replace(self, data=data, features=features, ids=None)


def with_columns(source: Graph | COOGraph, columns: Sequence[NodeColumns]) -> Graph | COOGraph:
    """Return the source with node data whose rows are in node order."""
    if not columns:
        return source
    node_data, classes = dict(source.node_data), source.class_names
    notes, left_out = source.notes, source.left_out
    for each in columns:
        added = dict(each.data)
        if each.features:
            added["feat"] = np.concatenate(list(each.features.values()), axis=1)
        if twice := sorted(node_data.keys() & added.keys()):
            raise InputError(f"{each.name} has node data {', '.join(twice)}, which are there already; leave one out")
        node_data |= added
        notes, left_out = notes + each.notes, left_out + each.left_out
        classes = classes if each.classes is None else each.classes
    label = node_data.get("label")
    if label is not None and label.shape == (source.num_nodes,) and label.dtype.kind in "iuf":
        notes += tuple(note for each in columns for note in _check_no_leak(each, label, classes is not None))
    source = replace(source, left_out=left_out, notes=notes, class_names=classes)
    if isinstance(source, COOGraph):
        return replace(source, node_data=node_data)
    source = replace(source, node_data=with_standard_masks_and_labels(node_data, source.name))
    check_data(source)
    return source


def _check_no_leak(columns: NodeColumns, label: np.ndarray, are_names: bool) -> list[str]:
    """Raise :class:`InputError` if a column of features equals the labels; both in the order of the same nodes.

    Returns a note for each column that tells every label by other numbers, where several nodes share most labels. The
    numbers of labels that ``are_names`` equal no column but by chance.
    """
    known = ~np.isnan(label) if label.dtype.kind == "f" else label >= 0
    notes, classes = [], len(unique(label[known]))
    for key, column in columns.features.items() if classes > 1 else ():
        if column.shape[1] > 1:
            continue
        if not are_names and np.array_equal(column[known, 0], label[known]):
            raise InputError(f"{columns.name}: column {key!r} equals the labels; leave it out: --skip {quoted(key)}")
        if 2 * classes >= known.sum() or len(np.unique(column[known])) != classes:
            continue
        if len(np.unique(np.column_stack([column[known, 0], label[known]]), axis=0)) == classes:
            notes.append(f"{columns.name}: column {key} tells the label of every row; to skip it: --skip {quoted(key)}")
    return notes


def as_classes(labels: Sequence[str]) -> tuple[np.ndarray, tuple[str, ...] | None]:
    """Return labels as numbers, float64 (N,), and the names of the classes in alphabetical order; None for numbers.

    An empty label, or one of ``MISSING``, is that of an unlabelled node, NaN.
    """
    names = sorted({*labels} - {*MISSING})
    try:
        if any("_" in name for name in names):  # Python takes 1_0 for 10
            raise ValueError
        number, classes = {name: float(name) for name in names}, None
    except ValueError:
        number, classes = {name: float(i) for i, name in enumerate(names)}, tuple(names)
    number |= dict.fromkeys(MISSING, np.nan)
    return np.array([number[label] for label in labels], np.float64), classes


def class_note(name: str, classes: tuple[str, ...]) -> str:
    """Say which names became classes."""
    doubtful = ", ".join(each for each in classes if each.lower() in _DOUBTFUL)
    doubt = f"; {doubtful} is a class, too: for a node without a label, leave the cell empty" if doubtful else ""
    return f"{name}: {len(classes)} classes from text: {listed(classes)}{doubt}"


def unlabelled(label: np.ndarray, cells: Sequence[str]) -> str:
    """Say in brackets how many nodes have no label, and which words stand for none."""
    none, words = int((~(label >= 0)).sum()), ", ".join(sorted({*cells} & {*MISSING} - {""}))
    return f" (none for {none} of {len(label)} nodes{words and ': '}{words})" if none else ""


def quoted(name: str) -> str:
    """Return the name of a column as a shell passes it to an option."""
    return shlex.quote(f'"{name}"' if "," in name else name)


def as_names(values, what: str) -> np.ndarray:
    """Return the ids of nodes, one for each node: integers or str, (N,), different from each other."""
    names = as_array(values, what)
    if names.ndim != 1 or names.dtype.kind not in "iuU":
        raise InputError(f"{what} is {names.dtype} of shape {names.shape}; it must be whole numbers or text, (N,)")
    distinct, counts = np.unique(names, return_counts=True)
    if (counts > 1).any():
        raise InputError(f"{what}: {distinct[counts > 1][0]!s:.40} names several nodes; give each its own")
    for name in names.tolist() if names.dtype.kind == "U" else ():
        if "\n" in name or any("\ud800" <= each <= "\udfff" for each in name):
            raise InputError(f"{what}: {name!r:.60} cannot be a line of a text file; rename this node")
    return names


# ---- tables of text


@dataclass(frozen=True)
class _Roles:
    """The columns of a table by what they are for."""

    id: int | None
    label: int | None
    masks: dict[str, int]
    features: list[int]
    left_out: dict[int, str]  # and why
    unnamed: int | None  # in a table without ids, the first column of numbers without a name


def read_node_table(path: Path, options: SourceOptions) -> NodeColumns:
    """Read a file of one node per line below a header that names the columns, as docs/cli.md describes it.

    ``options`` may name the label, the features, or columns to skip.
    """
    table = open_table(path, _fit, _has_header)
    if table.header is None or not table.first_row:
        raise InputError(f"{path}: a node table needs a header that names its columns, then a line for each node")
    if len(table.first_row) != table.width:
        raise InputError(
            f"{path}, line {table.first_line}: {len(table.first_row)} columns, but the header has {table.width}; correct this "
            "line or the header, or close a quote"
        )
    columns = _roles(table, options)
    ids, labels, unnamed, features = list[str](), list[str](), list[str](), []
    masks: dict[str, list[np.ndarray]] = {key: [] for key in columns.masks}
    for lines, rows in parsed_blocks(table, table.cells, "the cells of a node", with_numbers=True):
        cells = list(zip(*rows))
        if columns.id is not None:
            ids += cells[columns.id]
            if "" in cells[columns.id]:
                raise _misfit(table, columns.id, lines[cells[columns.id].index("")], "", "the id of a node")
        labels += [] if columns.label is None else cells[columns.label]
        unnamed += [] if columns.unnamed is None else cells[columns.unnamed]
        for key, column in columns.masks.items():
            masks[key].append(_numbers(table, column, lines, cells[column], "0 or 1, or true or false"))
        features.append([_features(table, column, lines, cells[column]) for column in columns.features])
    index = [number for cell in unnamed if (number := _number(cell)) is not None]  # as pandas writes it
    if len(index) == len(unnamed) and index != sorted(index):
        raise InputError(f"{path}: the column without a name has numbers in no order; call it id, or remove it")
    data = {key: np.concatenate(pieces) for key, pieces in masks.items()}
    by_name = {
        table.header[column]: np.concatenate([block[place] for block in features])
        for place, column in enumerate(columns.features)
    }
    said, classes = "no label", None
    if columns.label is not None:
        name = table.header[columns.label]
        data["label"], classes = as_classes(labels)
        said = f"label from {name}{unlabelled(data['label'], labels)}"
        if classes is not None and len(classes) == len(labels) > 2:
            raise InputError(
                f"{path}: column {name!r} has another name in each row, so it is no label; choose another with label (--label), "
                f"or leave it out with skip (--skip {quoted(name)})"
            )
    notes = [f"{path.name}: {said}; feat from {listed([*by_name]) or 'no column'}"]
    notes += [class_note(path.name, classes)] if classes else []
    if large := [name for name, values in by_name.items() if (np.abs(values) >= FLOAT32_EXACT).any()]:
        notes += [f"{path.name}: float32 rounds the large numbers of {listed(large)}"]
    left_out = (f"column {table.header[i] or i + 1} of {path.name} ({why})" for i, why in columns.left_out.items())
    return NodeColumns(
        data=data,
        features=by_name,
        ids=None if columns.id is None else text_array(ids, f"{path}: ids"),
        classes=classes,
        name=path.name,
        left_out=tuple(left_out),
        notes=tuple(notes),
        header=tuple(table.header),
        maybe_ids={}
        if columns.id is not None
        else {key: by_name[key] for key in by_name.keys() - {*(options.features or ())}},
    )


def _roles(table: TextTable, options: SourceOptions) -> _Roles:
    header = table.header or []
    names, wanted = [name.lower() for name in header], options.features or ()
    where = f"{table.path}, line {table.header_line}"
    usable = [i for i, name in enumerate(header) if name not in (options.skip or ())]
    repeated = sorted(name for name, count in Counter(names[i] for i in usable).items() if name and count > 1)
    if repeated:
        raise InputError(f"{where}: several columns are called {repeated[0]!r}; give each its own name")
    id_ = [i for i in usable if names[i] in ID_NAMES]
    if options.label in header:
        label = [header.index(options.label)]
    else:
        label = [i for i in usable if names[i] in LABEL_NAMES and header[i] not in wanted]
    for some, what in ((id_, "ids (id)"), (label, "labels (--label)")):
        if len(some) > 1:
            several = ", ".join(header[i] for i in some)
            raise InputError(f"{where}: {several} may each hold the {what}; keep one, and leave others out with --skip")
    masks = {names[i]: i for i in usable if names[i] in SPLIT_MASKS}
    others = [i for i in usable if i not in {*id_, *label, *masks.values()}]
    if wanted:
        others = [header.index(name) for name in wanted if name in header]
    left_out = {}
    for i in others:
        cell, name = table.first_row[i], header[i]
        if _DECIMAL_COMMA.fullmatch(cell) and not _THOUSANDS.fullmatch(cell):
            raise InputError(
                f"{table.path}, line {table.first_line}: column {name!r} holds {cell!r}; write {cell.replace(',', '.')} for one "
                f"number or [{cell}] for two, or leave the column out with skip (--skip {quoted(name)})"
            )
        if not is_named(name) or None in _row_numbers(table, cell):
            left_out[i] = "text" if is_named(name) else "no name"
            if wanted:
                raise InputError(f"{table.path}: column {name!r} holds {cell!r}; features (--features) must be numbers")
    features = [i for i in others if i not in left_out]
    unnamed = (i for i in left_out if not is_named(header[i]) and not id_ and _number(table.first_row[i]) is not None)
    return _Roles(next(iter(id_), None), next(iter(label), None), masks, features, left_out, next(unnamed, None))


def _has_header(table: TextTable) -> bool:
    """Return whether a comment is the header: it stands in columns, or has a known name."""
    return table.is_sure or table.delimiter is None or _fit([table.header or []]) > 0


def _fit(rows: list[list[str]]) -> int:
    """Return how many names of the first row are known."""
    known = {*ID_NAMES, *LABEL_NAMES, *SPLIT_MASKS}
    return len(known.intersection(name.lower() for name in rows[0]))


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


def _features(table: TextTable, column: int, lines: list[int], cells: Sequence[str]) -> np.ndarray:
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
        first = int(np.argmin(finite))
        raise _misfit(table, column, lines[first], cells[first], "a finite number")
    return numbers


def _numbers(table: TextTable, column: int, lines: list[int], cells: Sequence[str], wanted: str) -> np.ndarray:
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
    name, shown = (table.header or ())[column], repr(cell[:SHOWN]) if cell else "nothing"
    return InputError(
        f"{table.path}, line {line}: column {name!r} holds {shown}; it must hold {wanted}: fill it in, or leave the "
        f"column out with skip (--skip {quoted(name)})"
    )
