"""DGL's chunked format: a ``metadata.json`` that lists files of edges, node data and edge data (DGL's chunk_graph.py)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from dgl_gt.partition.errors import InputError, first_line
from dgl_gt.partition.schema import Relation
from dgl_gt.partition.system.user_files import reading, regular_file

from .coo import COOGraph
from .number_files import as_in_text, read_pieces
from .typed import typed_coo


class _Format(msgspec.Struct):
    name: Literal["csv", "numpy", "parquet"]
    delimiter: str = ","


class _Files(msgspec.Struct):
    format: _Format
    data: list[str]
    row_counts: list[int] = []  # of each file; GraphStorm writes them


class _Metadata(msgspec.Struct):
    node_type: list[str]
    edge_type: list[str]
    edges: dict[str, _Files]
    graph_name: str = ""
    num_nodes_per_type: list[int] = []
    num_nodes_per_chunk: list[list[int]] = []
    num_edges_per_chunk: list[list[int]] = []
    node_data: dict[str, dict[str, _Files]] = {}
    edge_data: dict[str, dict[str, _Files]] = {}


def read_dgl_chunks(path: Path) -> COOGraph:
    """Read a graph; ``path`` is its ``metadata.json``, beside which its files lie. Edges name nodes within their types."""
    metadata = _read_metadata(path)
    relations = {name: _relation(path, name, metadata.node_type) for name in metadata.edge_type}
    known = {"edges": {*relations}, "node_data": {*metadata.node_type}, "edge_data": {*relations}}
    for key, allowed in known.items():
        if other := sorted({*getattr(metadata, key)} - allowed):
            raise InputError(
                f"{path}: {key} is of {other[0]!r}, and the graph has {', '.join(sorted(allowed))}; correct it"
            )
    if missing := [each for each in relations if each not in metadata.edges]:
        raise InputError(f"{path}: edges has no files of {missing[0]!r}; add them")
    per_node = _per_file(path, "num_nodes_per_chunk", metadata.num_nodes_per_chunk, metadata.node_type)
    per_edge = _per_file(path, "num_edges_per_chunk", metadata.num_edges_per_chunk, metadata.edge_type)
    counts = metadata.num_nodes_per_type or [sum(counts) for counts in per_node.values()]
    if len(counts) != len(metadata.node_type) or not any((metadata.num_nodes_per_type, metadata.num_nodes_per_chunk)):
        raise InputError(
            f"{path} has no num_nodes_per_type and no num_nodes_per_chunk of each of {', '.join(metadata.node_type)}; add one of them"
        )
    num_nodes = dict(zip(metadata.node_type, counts))
    ends, of_edges = {}, {}
    for name, relation in relations.items():
        limits = num_nodes[relation.source], num_nodes[relation.destination]
        ends[relation] = _edges(path, metadata.edges[name], limits, per_edge[name])
        rows, files = len(ends[relation][0]), metadata.edge_data.get(name, {})
        of_edges[relation] = _data(path, "edge data", files, rows, per_edge[name])
    of_nodes = {
        name: _data(path, "node data", metadata.node_data.get(name, {}), rows, per_node[name])
        for name, rows in num_nodes.items()
    }
    return typed_coo(num_nodes, ends, of_nodes, of_edges, metadata.graph_name or path.absolute().parent.name)


def _relation(path: Path, name: str, node_types: list[str]) -> Relation:
    """The relation that a text such as ``author:writes:paper`` names; the only one of a graph may have a name alone."""
    found = Relation(*name.split(":")) if name.count(":") == 2 else Relation(node_types[0], name, node_types[0])
    wrong = [end for end in (found.source, found.destination) if end not in node_types]
    if wrong or (len(node_types) > 1 and name.count(":") != 2):
        raise InputError(
            f"{path}: edge_type has {name!r}; it must be SOURCE:RELATION:DESTINATION, of the types {', '.join(node_types)}"
        )
    return found


def _per_file(path: Path, key: str, counts: list[list[int]], names: list[str]) -> dict[str, list[int]]:
    """The rows of each file of each type; nothing where they are not listed."""
    if counts and len(counts) != len(names):
        raise InputError(f"{path}: {key} lists {len(counts)} types, and there are {', '.join(names)}; list each")
    return dict(zip(names, counts or [[] for _ in names]))


def _read_metadata(path: Path) -> _Metadata:
    try:
        with reading(path):
            text = regular_file(path).read_bytes()
        return msgspec.json.decode(text, type=_Metadata)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        is_partition = b'"node_map"' in text and b'"part-0"' in text
        advice = f"it is of a partition: dgl-gt import {path} --out DIR" if is_partition else "write it again"
        raise InputError(f"{path} is no metadata of DGL's chunked format ({first_line(error)}); {advice}") from None


def _edges(path: Path, files: _Files, limits: tuple[int, int], per_file: list[int]) -> list[np.ndarray]:
    """Sources and destinations, whose ids are below ``limits``."""
    ends: list[list[np.ndarray]] = [[], []]
    counts = _counts(files, per_file)
    for number, file in enumerate(_paths(path, files)):
        rows = read_pieces([file], files.format.name, np.int64, _delimiter(path, files), counts[number : number + 1])
        if not len(rows):
            continue
        if rows.ndim != 2 or rows.shape[1] != 2 or rows.dtype.kind not in "iu":
            raise InputError(f"{file} holds {rows.dtype} {rows.shape}; edges are two whole numbers each, (E, 2)")
        outside = (rows < 0) | (rows >= np.array(limits))
        if outside.any():
            row, column = np.argwhere(outside)[0]
            raise InputError(
                f"{file}: edge {row + 1} of this file names node {rows[row, column]}, and {path.name} has nodes 0 to "
                f"{limits[column] - 1}{' of that type' if len(set(limits)) > 1 else ''}; correct one of them"
            )
        for some, column, limit in zip(ends, rows.T, limits):
            some.append(column.astype(np.int32 if limit < 2**31 else np.int64))
    return [np.concatenate(some or [np.zeros(0, np.int32)]) for some in ends]


def _data(path: Path, what: str, columns: Mapping[str, _Files], rows: int, per_file: list[int]) -> dict:
    """The columns of node data or edge data by name."""
    data = {}
    for key, files in columns.items():
        kind, delimiter = files.format.name, _delimiter(path, files)
        dtype = np.float32 if key == "feat" else np.float64
        values = read_pieces(_paths(path, files), kind, dtype, delimiter, _counts(files, per_file))
        if files.format.name == "csv":
            values = as_in_text(values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values)
        if len(values) != rows:
            raise InputError(
                f"{path}: the files of {what} {key!r} have {len(values)} rows, not {rows}; write them again"
            )
        data[key] = values[:, None] if key == "feat" and values.ndim == 1 else values
    return data


def _counts(files: _Files, per_file: list[int]) -> list[int]:
    """The rows of each file, as far as they are known."""
    counts = files.row_counts or per_file
    return counts if len(counts) == len(files.data) else []


def _paths(path: Path, files: _Files) -> list[Path]:
    return [path.parent / name for name in files.data]  # a name may be absolute


def _delimiter(path: Path, files: _Files) -> str | None:
    delimiter = files.format.delimiter
    if files.format.name == "csv" and (len(delimiter) != 1 or delimiter in '\n\r"'):
        raise InputError(
            f"{path}: the delimiter {json.dumps(delimiter)} of csv files must be one character; correct it"
        )
    return None if delimiter.isspace() else delimiter
