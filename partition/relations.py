"""A typed graph from its relations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from .errors import InputError, whole_number
from .graph import Graph, as_array, from_edges, named_arrays
from .schema import Schema, relation


class Union(NamedTuple):
    """The graph of all types: edges by ids of all nodes, and data under names with their type."""

    src: np.ndarray  # int32 or int64, (E,)
    dst: np.ndarray
    schema: Schema
    node_data: dict[str, np.ndarray]
    edge_data: dict[str, np.ndarray]


def from_relations(num_nodes, edges, node_data=None, edge_data=None, name="graph") -> Graph:
    """Build a :class:`Graph` of several types of nodes or edges, and check it.

    Parameters
    ----------
    num_nodes : dict of str to int
        How many nodes each type has; some type may have none.
    edges : dict of (str, str, str) to two arrays of integers, (E,)
        Sources and destinations of each relation, which is (source type, name, destination type) or
        ``"author,writes,paper"``; both are numbers of nodes within their type.
    node_data : dict of str to dict of str to array, (N, ...), optional
        By node type, the columns that :func:`from_edges` takes.
    edge_data : dict of (str, str, str) to dict of str to array, (E, ...), optional
        The same by relation.
    name : str
        The source of the graph, for messages.

    Returns
    -------
    Graph
        Its ``schema`` has the types, in the given order. Nodes are numbered type by type, and edges relation by relation.

    Raises
    ------
    InputError
        As :func:`from_edges`; or a relation has an id that its type does not have, or names a type that is not listed;
        or data are of no such type or relation.

    Examples
    --------
    >>> from dgl_gt.partition import from_relations
    >>> graph = from_relations({"user": 3, "item": 2}, {("user", "rates", "item"): ([0, 2, 2], [1, 0, 1])})
    >>> graph.schema.relations
    (Relation(source='user', name='rates', destination='item'),)
    """
    src, dst, schema, of_nodes, of_edges = union_of(num_nodes, edges, node_data, edge_data, name)
    return from_edges(src, dst, int(schema.node_ptr[-1]), of_nodes, of_edges, name, schema)


def union_of(num_nodes, edges, node_data=None, edge_data=None, name="graph") -> Union:
    """Return the edges of all relations as those of one graph; the arguments are those of :func:`from_relations`."""
    counts = {each: whole_number(f"{name}: num_nodes of {each!r}", count, 0) for each, count in num_nodes.items()}
    ends = {relation(key): tuple(as_array(part, f"{name}: {key}") for part in pair) for key, pair in edges.items()}
    if len(ends) < len(edges):
        raise InputError(f"{name}: two relations have the same name; rename one of {', '.join(map(str, ends))}")
    schema = Schema(counts, {each: len(src) for each, (src, _) in ends.items()})
    begins = dict(zip(counts, schema.node_ptr.tolist()))
    dtype = np.int32 if schema.node_ptr[-1] < 2**31 else np.int64
    src, dst = (np.empty(schema.edge_ptr[-1], dtype) for _ in range(2))
    for each, at, to in zip(ends, schema.edge_ptr, schema.edge_ptr[1:]):
        pair = ends[each]
        _check_ends(f"{name}: {each}", pair[0], pair[1], counts[each.source], counts[each.destination])
        for whole, part, end in zip((src, dst), pair, (each.source, each.destination)):
            whole[at:to] = part
            whole[at:to] += dtype(begins[end])
    data = _by_type(node_data, f"{name}: node data", str), _by_type(edge_data, f"{name}: edge data", relation)
    return Union(src, dst, schema, *data)


def _check_ends(what: str, src: np.ndarray, dst: np.ndarray, sources: int, destinations: int) -> None:
    if src.ndim != 1 or src.shape != dst.shape:
        raise InputError(f"{what}: sources {src.shape} and destinations {dst.shape} must be two lists of one length")
    for side, ids, limit in (("source", src, sources), ("destination", dst, destinations)):
        if not len(ids):
            continue
        if not np.issubdtype(ids.dtype, np.integer):
            raise InputError(f"{what}: node ids must be integers, not {ids.dtype}")
        if ids.min() < 0 or ids.max() >= limit:
            bad = int(ids.min() if ids.min() < 0 else ids.max())
            raise InputError(
                f"{what}: {side} {bad} is outside 0..{limit - 1}, the nodes of its type; correct the id, or num_nodes"
            )


def _by_type(data: Mapping | None, what: str, key_of) -> dict[str, np.ndarray]:
    """Columns under names with the type before a slash."""
    found = {}
    for of_type, columns in (data or {}).items():
        for key, value in named_arrays(columns, f"{what} of {of_type}").items():
            found[f"{key_of(of_type)}/{key}"] = value
    return found
