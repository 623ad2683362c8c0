"""DGL's chunked format: a ``metadata.json`` that lists files of edges, node data and edge data (DGL's chunk_graph.py)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from dgl_gt.partition.errors import InputError, first_line
from dgl_gt.partition.system.user_files import reading, regular_file

from .coo import COOGraph
from .number_files import as_in_text, read_pieces


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
    """Read a graph of one node type and one relation; ``path`` is its ``metadata.json``, beside which its files lie."""
    metadata = _read_metadata(path)
    if len(metadata.node_type) != 1 or len(metadata.edge_type) != 1:
        raise InputError(
            f"{path} has types {metadata.node_type}, {metadata.edge_type}; convert the graph with dgl.to_homogeneous, and "
            "chunk that"
        )
    (node_type,), (relation,) = metadata.node_type, metadata.edge_type
    known = {"edges": {relation}, "node_data": {node_type}, "edge_data": {relation}}
    for key, allowed in known.items():
        if other := sorted({*getattr(metadata, key)} - allowed):
            raise InputError(f"{path}: {key} is of {other[0]!r}, and the graph has {', '.join(allowed)}; correct it")
    if relation not in metadata.edges:
        raise InputError(f"{path}: edges has no files of {relation!r}; add them")
    per_node, per_edge = (sum(counts, []) for counts in (metadata.num_nodes_per_chunk, metadata.num_edges_per_chunk))
    if not (metadata.num_nodes_per_type or per_node):
        raise InputError(f"{path} has no num_nodes_per_type and no num_nodes_per_chunk; add one of them")
    num_nodes = sum(metadata.num_nodes_per_type or per_node)
    src, dst = _edges(path, metadata.edges[relation], num_nodes, per_edge)
    of_nodes = _data(path, "node data", metadata.node_data.get(node_type, {}), num_nodes, per_node)
    of_edges = _data(path, "edge data", metadata.edge_data.get(relation, {}), len(src), per_edge)
    name = metadata.graph_name or path.absolute().parent.name
    return COOGraph(src, dst, num_nodes, of_nodes, of_edges, name, node_type=node_type)


def _read_metadata(path: Path) -> _Metadata:
    try:
        with reading(path):
            text = regular_file(path).read_bytes()
        return msgspec.json.decode(text, type=_Metadata)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        is_partition = b'"node_map"' in text and b'"part-0"' in text
        advice = f"it is of a partition: dgl-gt import {path} --out DIR" if is_partition else "write it again"
        raise InputError(f"{path} is no metadata of DGL's chunked format ({first_line(error)}); {advice}") from None


def _edges(path: Path, files: _Files, num_nodes: int, per_file: list[int]) -> list[np.ndarray]:
    """Sources and destinations, whose ids are below ``num_nodes``."""
    ends: list[list[np.ndarray]] = [[], []]
    counts = _counts(files, per_file)
    for number, file in enumerate(_paths(path, files)):
        rows = read_pieces([file], files.format.name, np.int64, _delimiter(path, files), counts[number : number + 1])
        if not len(rows):
            continue
        if rows.ndim != 2 or rows.shape[1] != 2 or rows.dtype.kind not in "iu":
            raise InputError(f"{file} holds {rows.dtype} {rows.shape}; edges are two whole numbers each, (E, 2)")
        outside = (rows < 0) | (rows >= num_nodes)
        if outside.any():
            row, column = np.argwhere(outside)[0]
            raise InputError(
                f"{file}: edge {row + 1} of this file names node {rows[row, column]}, and {path.name} has nodes 0 to "
                f"{num_nodes - 1}; correct one of them"
            )
        for some, column in zip(ends, rows.T):
            some.append(column.astype(np.int32 if num_nodes < 2**31 else np.int64))
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
