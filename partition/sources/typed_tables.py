"""Folders with a table for each node type and each relation, which a ``meta.yaml`` names as that of DGL's CSVDataset does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.schema import relation
from dgl_gt.partition.system.yaml_file import read_yaml

from .coo import COOGraph, nodes_alone
from .edge_tables import read_relation
from .node_data import NodeColumns, with_columns
from .node_tables import read_node_tables
from .options import SourceOptions
from .tables import quoted, tables_open
from .typed import typed_coo


class _NodeTable(msgspec.Struct):
    file_name: str
    ntype: str = "_V"
    node_id_field: str = "node_id"
    graph_id_field: str = "graph_id"


class _EdgeTable(msgspec.Struct):
    file_name: str
    etype: tuple[str, str, str] = ("_V", "_E", "_V")
    src_id_field: str = "src_id"
    dst_id_field: str = "dst_id"
    graph_id_field: str = "graph_id"


class _Meta(msgspec.Struct):
    node_data: list[_NodeTable]
    edge_data: list[_EdgeTable]
    dataset_name: str = ""
    graph_data: object = None


def read_typed_tables(path: Path, options: SourceOptions) -> COOGraph:
    """Read a graph whose files lie beside the YAML file at ``path``, CSV or Parquet; ids may be numbers or text."""
    meta = _read_meta(path)
    columns = dict[str, NodeColumns]()
    edges, of_edges = {}, {}
    left_out, notes = list[str](), list[str]()
    with tables_open(options.memory) as (con, folder):
        for number, each in enumerate(meta.node_data):
            if each.ntype in columns:
                raise InputError(
                    f"{path}: node_data names the type {each.ntype!r} twice; name a folder of files in one entry"
                )
            own = replace(
                options, node_table=path.parent / each.file_name, id=each.node_id_field, skip=(each.graph_id_field,)
            )
            columns[each.ntype] = read_node_tables(con, folder, own, quoted(f"nodes {number}"))
        tables = {name: quoted(f"nodes {number}") for number, name in enumerate(columns)}
        for item in meta.edge_data:
            key = relation(item.etype)
            if missing := [end for end in (key.source, key.destination) if end not in columns]:
                raise InputError(
                    f"{path}: the relation {key} has ends of type {missing[0]!r}, which node_data does not name; add it"
                )
            if key in edges:
                raise InputError(
                    f"{path}: edge_data names the relation {key} twice; name a folder of files in one entry"
                )
            own = replace(options, ends=(item.src_id_field, item.dst_id_field), skip=(item.graph_id_field,))
            ends = key.source, key.destination
            of_ends = [columns[end] for end in ends], [tables[end] for end in ends]
            try:
                made = read_relation(con, folder, path.parent / item.file_name, own, *of_ends)
            except InputError as error:
                raise InputError(f"the relation {key}: {error}") from error
            edges[key], of_edges[key] = (made.src, made.dst), made.edge_data
            left_out += made.left_out
            notes += made.notes
        alone = {
            name: with_columns(nodes_alone(len(each.ids), {}, each.name), [replace(each, ids=None)])
            for name, each in columns.items()
        }
        classes = [each.class_names for each in alone.values() if each.class_names is not None]
        if len(classes) > 1:
            raise InputError(f"{path}: labels of several types are text; give numbers to all but one")
        return typed_coo(
            {name: len(each.ids) for name, each in columns.items()},
            edges,
            {name: each.node_data for name, each in alone.items()},
            of_edges,
            str(path.parent),
            {name: _names(each.ids) for name, each in columns.items()},
            left_out=(*(note for each in alone.values() for note in each.left_out), *left_out),
            notes=(*(note for each in alone.values() for note in each.notes), *notes),
            class_names=next(iter(classes), None),
        )


def _read_meta(path: Path) -> _Meta:
    try:
        meta = msgspec.convert(read_yaml(path), _Meta)
    except msgspec.ValidationError as error:
        raise InputError(f"{path}: {error}; docs/cli.md shows what it holds") from None
    if meta.graph_data is not None:
        raise InputError(f"{path} has graph_data, so it holds many graphs; make a folder of the one that you want")
    if not meta.node_data or not meta.edge_data:
        raise InputError(f"{path} names no node_data or no edge_data; name a file for each type and each relation")
    return meta


def _names(ids: np.ndarray) -> np.ndarray | None:
    """The ids of a type: whole numbers where all are, and None where they are 0, 1, 2, ..."""
    if ids.dtype.kind == "U" and all(each.isdecimal() and str(int(each)) == each for each in ids.tolist()):
        ids = ids.astype(np.int64)
    return None if ids.dtype.kind != "U" and np.array_equal(ids, np.arange(len(ids))) else ids
