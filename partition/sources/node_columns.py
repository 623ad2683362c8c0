"""Columns of node data from one file, before it is known which node each row belongs to."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.graph import Graph, as_array, check_data

from .coo import COOGraph, with_standard_masks_and_labels
from .text_table import MISSING, listed


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
    if classes is None and label is not None and label.shape == (source.num_nodes,) and label.dtype.kind in "iuf":
        for each in columns:
            _check_no_leak(each, label)
    source = replace(source, left_out=left_out, notes=notes, class_names=classes)
    if isinstance(source, COOGraph):
        return replace(source, node_data=node_data)
    source = replace(source, node_data=with_standard_masks_and_labels(node_data, source.name))
    check_data(source)
    return source


def _check_no_leak(columns: NodeColumns, label: np.ndarray) -> None:
    """Raise :class:`InputError` if a column of features equals the labels; both in the order of the same nodes."""
    known = ~np.isnan(label) if label.dtype.kind == "f" else label >= 0
    if len(np.unique(label[known])) < 2:
        return
    for key, column in columns.features.items():
        if column.shape[1] == 1 and np.array_equal(column[known, 0], label[known]):
            raise InputError(
                f"{columns.name}: column {key!r} equals the labels, so it cannot be a feature; leave it out with skip "
                f"(--skip {quoted(key)})"
            )


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
    return f"{name}: {len(classes)} classes from text: {listed(classes)}"


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
