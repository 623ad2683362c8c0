"""Graphs of networkx."""

from __future__ import annotations

from numbers import Number

import numpy as np

from .errors import InputError
from .raw import RawGraph


def from_networkx(graph, name: str = "networkx graph") -> RawGraph:
    """Take over a networkx graph of any of its four kinds.

    Nodes that are called 0..N-1 keep their numbers; others are numbered in the graph's own order. An undirected edge is
    stored both ways (edge ``e`` and ``E + e``; a self-loop once). Attributes that are numbers, or equally long rows of
    numbers, become node and edge data; other attributes are left out.

    Raises
    ------
    InputError
        A graph without nodes; a numeric attribute that some nodes or edges lack.
    """
    nodes = list(graph)
    if all(type(node) is int for node in nodes) and sorted(nodes) == list(range(len(nodes))):
        nodes.sort()
    number = {node: i for i, node in enumerate(nodes)}
    listed = list(graph.edges(data=True))
    src = np.fromiter((number[u] for u, _, _ in listed), np.int64, len(listed))
    dst = np.fromiter((number[v] for _, v, _ in listed), np.int64, len(listed))
    node_data = _columns([graph.nodes[node] for node in nodes], f"{name}: node", nodes)
    edge_data = _columns([data for _, _, data in listed], f"{name}: edge", [(u, v) for u, v, _ in listed])
    return RawGraph(src, dst, len(nodes), node_data, edge_data, name, listed_once=not graph.is_directed())


def _columns(rows: list[dict], what: str, names: list) -> dict[str, np.ndarray]:
    columns = {}
    for key in dict.fromkeys(key for row in rows for key in row):
        if not any(_numeric(row[key]) for row in rows if key in row):
            continue
        for row, name in zip(rows, names):
            if key not in row or not _numeric(row[key]):
                raise InputError(
                    f"{what} {name!r} has no number for {key!r}, while others have; give it to all or to none"
                )
        try:
            column = np.array([row[key] for row in rows])
        except ValueError:
            raise InputError(f"{what} data {key!r} differ in length; make them equally long") from None
        columns[str(key)] = column.astype(np.float32) if column.dtype == np.float64 else column
    return columns


def _numeric(value: object) -> bool:
    return isinstance(value, Number) or (not isinstance(value, str) and np.asarray(value).dtype.kind in "biuf")
