"""Columns of node data from one file, before it is known which node each row belongs to."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from dgl_gt.partition.errors import InputError

from .text_table import MISSING, listed

FLOAT32_EXACT = 2**24  # float32 holds every whole number below
_DOUBTFUL = {"?", "-", "-1", "unknown", "none"}  # classes that may stand for no label


@dataclass(frozen=True)
class ColumnRoles:
    """What the user says of the columns of node tables, by name."""

    label: str | None = None
    features: tuple[str, ...] = ()  # empty: all columns of numbers that are nothing else
    skip: tuple[str, ...] = ()

    @property
    def named(self) -> set[str]:
        return {*([] if self.label is None else [self.label]), *self.features, *self.skip}


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

    @property
    def rows(self) -> int | None:
        """The number of rows; None where no column has any."""
        columns = [*self.data.values(), *self.features.values()]
        return next((len(value) for value in columns if value.ndim), None)

    def ordered(self, rows: np.ndarray) -> NodeColumns:
        """Return the columns with their rows in another order, and without ids."""
        data, features = ({key: value[rows] for key, value in each.items()} for each in (self.data, self.features))
        return replace(self, data=data, features=features, ids=None)


def as_classes(labels: Sequence[str]) -> tuple[np.ndarray, tuple[str, ...] | None]:
    """Return labels as numbers, float64 (N,), and the names of the classes in alphabetical order; None for numbers.

    An empty label, or one of ``MISSING``, is that of an unlabelled node, NaN.
    """
    names = {label for label in labels if label not in MISSING}
    number = dict.fromkeys(MISSING, np.nan)
    try:
        if any("_" in name for name in names):  # Python takes 1_0 for 10
            raise ValueError
        number |= {name: float(name) for name in names}
        return np.array([number[label] for label in labels], np.float64), None
    except ValueError:
        number |= {name: i for i, name in enumerate(sorted(names))}
        return np.array([number[label] for label in labels], np.float64), tuple(sorted(names))


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


def check_no_leak(columns: NodeColumns, label: np.ndarray, *, are_names: bool) -> list[str]:
    """Raise :class:`InputError` if a column of features equals the labels; both in the order of the same nodes.

    ``are_names`` says that labels are numbers of names, which no column can equal. Returns a note for each column that tells every label by other numbers, where several nodes share most labels.
    """
    known = ~np.isnan(label) if label.dtype.kind == "f" else label >= 0
    notes, classes = [], len(np.unique(label[known]))
    if classes < 2:
        return notes
    for key, column in columns.features.items():
        if column.shape[1] == 1 and not are_names and np.array_equal(column[known, 0], label[known]):
            raise InputError(
                f"{columns.name}: column {key!r} equals the labels, so it cannot be a feature; leave it out with skip "
                f"(--skip {quoted(key)})"
            )
        if column.shape[1] == 1 and 2 * classes < known.sum() and len(np.unique(column[known])) == classes:
            pairs = np.unique(np.column_stack([column[known, 0], label[known]]), axis=0)
            if len(pairs) == classes:
                notes.append(
                    f"{columns.name}: column {key} tells the label of every row; if it is the label, leave it out with skip "
                    f"(--skip {quoted(key)})"
                )
    return notes
