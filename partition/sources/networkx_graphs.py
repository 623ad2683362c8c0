"""Graphs of networkx."""

from __future__ import annotations

from numbers import Integral, Number

import numpy as np

from partition.errors import InputError

from .coo import COOGraph, narrowed


def from_networkx(graph, name: str = "networkx graph") -> COOGraph:
    """Take over a networkx graph of any of its four kinds.

    Nodes that are called 0..N-1 keep their numbers, whatever the integer type; others are numbered in the graph's own
    order, and their names are left out. An undirected edge is stored both ways (edge ``e`` and ``E + e``; a self-loop
    once). Attributes that are numbers, or equally long rows of numbers, become node and edge data. Floats become
    float32 where that is exact, else float64; ``feat`` of nodes is float32. Other attributes are left out, and named
    in ``left_out``.

    Raises
    ------
    InputError
        A graph without nodes; a numeric attribute that some nodes or edges lack.
    """
    nodes = list(graph)
    numbered = all(isinstance(node, Integral) and not isinstance(node, bool) for node in nodes)
    numbered = numbered and sorted(nodes) == list(range(len(nodes)))
    if numbered:
        nodes.sort()
    number = {node: i for i, node in enumerate(nodes)}
    listed = list(graph.edges(data=True))
    src = np.fromiter((number[u] for u, _, _ in listed), np.int64, len(listed))
    dst = np.fromiter((number[v] for _, v, _ in listed), np.int64, len(listed))
    node_data, node_rest = _columns([graph.nodes[node] for node in nodes], f"{name}: node", nodes)
    edge_data, edge_rest = _columns([data for _, _, data in listed], f"{name}: edge", [(u, v) for u, v, _ in listed])
    if "feat" in node_data and node_data["feat"].dtype.kind in "iuf":
        node_data["feat"] = node_data["feat"].astype(np.float32)
    left_out = [] if numbered else ["node names (nodes are numbered in the graph's order)"]
    left_out += [f"node data {key} (no numbers)" for key in node_rest]
    left_out += [f"edge data {key} (no numbers)" for key in edge_rest]
    coo = COOGraph(src, dst, len(nodes), node_data, edge_data, name, listed_once=not graph.is_directed())
    coo.left_out = tuple(left_out)
    return coo


def _columns(rows: list[dict], what: str, names: list) -> tuple[dict[str, np.ndarray], list]:
    """The attributes of numbers as arrays, and the names of the others."""
    columns, others = {}, []
    for key in dict.fromkeys(key for row in rows for key in row):
        if not any(_numeric(row[key]) for row in rows if key in row):
            others.append(key)
            continue
        for row, name in zip(rows, names):
            if key not in row or not _numeric(row[key]):
                raise InputError(
                    f"{what} {name!r} has no number for {key!r}, while others have; give it to all or to none"
                )
        if str(key) in columns:
            raise InputError(f"{what} data have the name {str(key)!r} twice, as text and as another type; rename one")
        columns[str(key)] = _column([row[key] for row in rows], f"{what} data {key!r}")
    return columns, others


def _column(values: list, what: str) -> np.ndarray:
    try:
        column = np.array(values)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{what} differ in length or kind; make them equally long rows of numbers") from None
    if column.dtype == np.float64:
        for value in values:  # numpy makes floats of whole numbers beside floats, and of some beyond 64 bits
            if isinstance(value, Integral) and (abs(value) > 2**64 or float(value) != value):
                raise InputError(f"{what}: {value} beside floats would lose digits; make all of them int or all float")
    return narrowed(column)


def _numeric(value: object) -> bool:
    if isinstance(value, Number):
        return True
    try:
        return not isinstance(value, (str, bytes)) and np.asarray(value).dtype.kind in "biuf"
    except (TypeError, ValueError):  # rows of unequal length, and the like
        return False
