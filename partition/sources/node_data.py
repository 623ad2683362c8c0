"""Node data that the user adds to a source: files, tables and arrays."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.graph import Graph, check_data, named_arrays
from dgl_gt.partition.system.user_files import regular_file

from .coo import COOGraph, with_standard_masks_and_labels
from .file_kinds import TEXT_TABLES, file_kind
from .node_columns import NodeColumns, check_no_leak
from .node_table import read_node_table
from .numpy_file import read_npy_node_data, read_npz_node_data
from .options import SourceOptions


def read_node_data(options: SourceOptions) -> list[NodeColumns]:
    """Read the columns to add, file by file."""
    node_data = options.node_data
    if node_data is None:
        columns = []
    elif isinstance(node_data, dict):
        columns = [NodeColumns(named_arrays(node_data, "node data"))]
    else:
        paths = node_data if isinstance(node_data, (list, tuple)) else [node_data]
        columns = [_read_file(path, options) for path in paths]
    listed = {name for each in columns for name in each.header}
    if missing := sorted(options.roles.named - listed):
        names = ", ".join(sorted(listed)) or "none, as no table of node data is given"
        raise InputError(f"there is no column {missing[0]!r} of node data; the columns are: {names}")
    return columns


def _read_file(path, options: SourceOptions) -> NodeColumns:
    if not isinstance(path, (str, os.PathLike)):
        raise InputError(
            f"node data cannot be read from an object of type {type(path).__name__}; pass a path, a list of paths, or "
            "a dict of arrays"
        )
    kind = file_kind(Path(path))
    if kind not in (".npz", ".npy", *TEXT_TABLES):
        raise InputError(
            f"{str(path)!r} is not a file of node data; allowed are .npz, .npy, .csv, .tsv and .txt, the last three "
            "also with .gz"
        )
    path = regular_file(path)
    if kind == ".npz":
        return read_npz_node_data(path, options.keys)
    if kind == ".npy":
        return read_npy_node_data(path)
    return read_node_table(path, options.roles)


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
        if each.classes is not None:
            classes = each.classes
    label = node_data.get("label")
    if label is not None and label.ndim == 1 and label.dtype.kind in "iuf" and len(label) == source.num_nodes:
        notes += tuple(note for each in columns for note in check_no_leak(each, label, are_names=classes is not None))
    source = replace(source, left_out=left_out, notes=notes, class_names=classes)
    if isinstance(source, COOGraph):
        return replace(source, node_data=node_data)
    source = replace(source, node_data=with_standard_masks_and_labels(node_data, source.name))
    check_data(source)
    return source
