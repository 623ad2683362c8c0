"""Graphs from networkx, and from the files that it reads: GraphML, GML, GEXF, Pajek and node-link JSON."""

from __future__ import annotations

import json
import re
from collections import Counter
from numbers import Integral, Number
from pathlib import Path

import numpy as np

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.system.optional_packages import first_line, import_optional
from dgl_gt.partition.system.user_files import reading

from .arrays import as_names
from .coo import COOGraph, as_float32_if_exact
from .pajek_file import read_pajek


def read_networkx_file(path: Path) -> COOGraph:
    """Read a file by networkx's reader for its ending; nodes keep their names."""
    networkx = import_optional("networkx", str(path), "pip install networkx")
    kind = path.suffix.lower()
    try:
        with reading(path), open(path, "rb") as file:
            own = {".gml": _gml, ".json": _node_link, ".net": read_pajek}.get(kind)
            graph = getattr(networkx, f"read_{kind[1:]}")(file) if own is None else own(networkx, path)
    except (InputError, MemoryError):
        raise
    except Exception as error:  # parsers of XML and JSON, and plain exceptions of networkx
        raise InputError(
            f"{path} cannot be read as {kind} by networkx ({first_line(error)}); write it with networkx, or as an edge list"
        ) from error
    if all(isinstance(node, str) and node.isascii() and node.isdecimal() and str(int(node)) == node for node in graph):
        graph = networkx.relabel_nodes(graph, int)  # files of XML hold text alone
    return from_networkx(graph, path.name)


def _gml(networkx, path: Path):
    """Return the graph of a GML file; nodes without labels are called by their ids, and edges may be parallel."""
    text, label = path.read_text("ascii"), "label"
    parallel = re.sub(r"(?m)^(\s*graph\s*\[)", r"\1 multigraph 1", text, count=1)  # takes the edge attribute `key`
    while True:
        try:
            return networkx.parse_gml(text, label=label)
        except networkx.NetworkXError as error:
            if "no 'label'" in str(error) and label == "label":
                label = "id"
            elif "duplicated" in str(error) and text != parallel and "multigraph" not in text:
                text = parallel
            else:
                raise


def _node_link(networkx, path: Path):
    """Return the graph of node-link JSON, whose edges are called links or edges."""
    data = json.loads(path.read_bytes())
    edges = "links" if "links" in data else "edges"
    try:
        graph = networkx.node_link_graph(data, edges=edges)
    except TypeError:  # networkx before 3.4
        graph = networkx.node_link_graph({**data, "links": data[edges]})
    ids = Counter(str(node.get("id", i)) for i, node in enumerate(data["nodes"]))
    if twice := [each for each, count in ids.items() if count > 1]:
        raise ValueError(f"several nodes have the id {twice[0]}")
    if len(graph) > len(data["nodes"]):  # links by position, for instance
        raise ValueError(f"{edges} name nodes that are not among the ids of nodes")
    return graph


def from_networkx(graph, name: str = "networkx graph") -> COOGraph:
    """Make a COOGraph of a networkx graph of any class.

    If the node names are the integers 0..N-1, nodes keep these numbers. Otherwise nodes are numbered in the graph's
    order, and ``node_names`` holds their names as text, or as integers if all are. An undirected edge is stored in both
    directions (edges ``e`` and ``E + e``; a self-loop once). Attributes that are numbers, or rows of numbers of one length, become node and edge data. Floats
    become float32 if it holds them exactly, else float64; ``feat`` of nodes is always float32. Other attributes are
    left out and listed in ``left_out``.
    """
    nodes = list(graph)
    has_numbers = all(isinstance(node, Integral) and not isinstance(node, bool) for node in nodes)
    has_numbers = has_numbers and sorted(nodes) == list(range(len(nodes)))
    if has_numbers:
        nodes.sort()
    number = {node: i for i, node in enumerate(nodes)}
    listed = list(graph.edges(data=True))
    src = np.fromiter((number[u] for u, _, _ in listed), np.int64, len(listed))
    dst = np.fromiter((number[v] for _, v, _ in listed), np.int64, len(listed))
    node_data, node_others = _columns([graph.nodes[node] for node in nodes], f"{name}: node", nodes)
    edge_data, edge_others = _columns([data for _, _, data in listed], f"{name}: edge", [(u, v) for u, v, _ in listed])
    if "feat" in node_data and node_data["feat"].dtype.kind in "iuf":
        node_data["feat"] = node_data["feat"].astype(np.float32)
    names = None if has_numbers or not nodes else _names(nodes, name)
    left_out = [f"node data {key} (no numbers)" for key in node_others]
    left_out += [f"edge data {key} (no numbers)" for key in edge_others]
    once = not graph.is_directed()
    return COOGraph(
        src,
        dst,
        len(nodes),
        node_data,
        edge_data,
        name,
        listed_once=once,
        left_out=tuple(left_out),
        node_names=names,
    )


def _names(nodes: list, name: str) -> np.ndarray:
    if all(isinstance(node, Integral) and not isinstance(node, bool) and abs(node) < 2**63 for node in nodes):
        return np.array(nodes, np.int64)
    return as_names(np.array([str(node) for node in nodes]), f"{name}: the name of a node, as text,")


def _columns(rows: list[dict], what: str, names: list) -> tuple[dict[str, np.ndarray], list]:
    """Return the numeric attributes as arrays by name, and the names of the other attributes."""
    columns, others = {}, []
    for key in dict.fromkeys(key for row in rows for key in row):
        if not any(_numeric(row[key]) for row in rows if key in row):
            others.append(key)
            continue
        for row, name in zip(rows, names):
            if key not in row or not _numeric(row[key]):
                raise InputError(
                    f"{what} {name!r} has no number for {key!r}, but others have; set it for all or for none"
                )
        if str(key) in columns:
            raise InputError(f"{what} data have the name {str(key)!r} twice, as a str and as another type; rename one")
        columns[str(key)] = _column([row[key] for row in rows], f"{what} data {key!r}")
    return columns, others


def _column(values: list, what: str) -> np.ndarray:
    try:
        column = np.array(values)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{what} differ in length or type; make them rows of numbers of the same length") from None
    if column.dtype == np.float64:
        for value in values:  # numpy converts integers among floats to float64, and some integers beyond 64 bits
            if isinstance(value, Integral) and (abs(value) > 2**64 or float(value) != value):
                raise InputError(
                    f"{what}: the integer {value} would lose digits next to floats; use only int or only float"
                )
    return as_float32_if_exact(column)


def _numeric(value: object) -> bool:
    if isinstance(value, Number):
        return True
    try:
        return not isinstance(value, (str, bytes)) and np.asarray(value).dtype.kind in "biuf"
    except (TypeError, ValueError):  # for example rows of unequal length
        return False
