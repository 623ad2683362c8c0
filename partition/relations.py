"""A typed graph from its relations, and back."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from .errors import InputError, whole_number
from .graph import SPLIT_MASKS, Graph, as_array, from_edges, named_arrays
from .schema import Relation, Schema, columns_by_type, relation
from .system.child_process import temporary_space
from .system.mapped_arrays import is_mapped, release_pages

_AT_ONCE = 1 << 22  # ids


class Edges(NamedTuple):
    """The edges of one relation, by numbers of nodes within their types, and their data."""

    src: np.ndarray  # integers, (E,)
    dst: np.ndarray
    data: dict[str, np.ndarray]

    def reversed(self) -> Edges:
        """Return the edges the other way, without labels and masks, which are for one of the two directions alone."""
        kept = {key: value for key, value in self.data.items() if key not in (*SPLIT_MASKS, "label")}
        return Edges(self.dst, self.src, kept)

    def without(self, gone: np.ndarray) -> Edges:
        """Return the other edges than some, bool (E,), without masks."""
        data = {key: value[~gone] for key, value in self.data.items() if key not in SPLIT_MASKS}
        return Edges(self.src[~gone], self.dst[~gone], data)

    def are_reverse_of(self, other: Edges) -> bool:
        """Return whether these are exactly the edges of another relation the other way, parallel ones as often."""
        if len(self.src) != len(other.src):
            return False
        keys = ((src.astype(np.int64) << 32) + dst for src, dst in ((self.src, self.dst), (other.dst, other.src)))
        return bool(np.array_equal(*map(np.sort, keys)))


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


def relations_of(graph: Graph) -> dict[Relation, Edges]:
    """Return the edges of each relation of a typed graph."""
    schema = graph.schema
    assert schema is not None
    data, (src, dst) = columns_by_type(graph.edge_data), graph.edges()
    return {
        each: Edges(src[at:to] - src.dtype.type(first), dst[at:to] - dst.dtype.type(second), data.get(str(each), {}))
        for each, at, to, (first, second) in zip(
            schema.edges, schema.edge_ptr, schema.edge_ptr[1:], schema.node_ptr[schema.ends]
        )
    }


def with_relations(graph: Graph, relations: Mapping[Relation, Edges]) -> Graph:
    """Return a typed graph with other edges; its edges are numbered anew."""
    assert graph.schema is not None
    ends, data = {key: each[:2] for key, each in relations.items()}, {key: each.data for key, each in relations.items()}
    whole = union_of(graph.schema.nodes, ends, None, data, graph.name)
    made = from_edges(whole.src, whole.dst, graph.num_nodes)
    structure = {name: getattr(made, name) for name in ("indptr", "indices", "edge_ids")}
    return replace(graph, **structure, edge_data=whole.edge_data, schema=whole.schema)


def reverse_relation(relations: Mapping[Relation, Edges], key: Relation) -> Relation | None:
    """Return the relation that holds exactly the edges of another one the other way, perhaps itself; None if there is none."""
    for other, edges in relations.items():
        fits = (other.source, other.destination) == (key.destination, key.source)
        if fits and edges.are_reverse_of(relations[key]):
            return other
    return None


def union_of(num_nodes, edges, node_data=None, edge_data=None, name="graph") -> Union:
    """Return the edges of all relations as those of one graph; the arguments are those of :func:`from_relations`."""
    counts = {each: whole_number(f"{name}: num_nodes of {each!r}", count, 0) for each, count in num_nodes.items()}
    ends = {relation(key): tuple(as_array(part, f"{name}: {key}") for part in pair) for key, pair in edges.items()}
    if len(ends) < len(edges):
        raise InputError(f"{name}: two relations have the same name; rename one of {', '.join(map(str, ends))}")
    schema = Schema(counts, {each: len(src) for each, (src, _) in ends.items()})
    begins = dict(zip(counts, schema.node_ptr.tolist()))
    dtype = np.int32 if schema.node_ptr[-1] < 2**31 else np.int64
    for each, pair in ends.items():
        _check_ends(f"{name}: {each}", pair[0], pair[1], counts[each.source], counts[each.destination])
    src = _joined([(pair[0], begins[each.source]) for each, pair in ends.items()], np.dtype(dtype))
    dst = _joined([(pair[1], begins[each.destination]) for each, pair in ends.items()], np.dtype(dtype))
    data = _by_type(node_data, f"{name}: node data", str), _by_type(edge_data, f"{name}: edge data", relation)
    return Union(src, dst, schema, *data)


def _joined(pieces: list[tuple[np.ndarray, int]], dtype: np.dtype) -> np.ndarray:
    """The ids of all pieces, each counted from its own number, one piece after the other.

    Where a piece is mapped from a file, so is the result, from one without a name.
    """
    blocks = (
        (piece[start : start + _AT_ONCE].astype(dtype) + dtype.type(begin), piece)
        for piece, begin in pieces
        for start in range(0, len(piece), _AT_ONCE)
    )
    if not any(len(piece) and is_mapped(piece) for piece, _ in pieces):
        return np.concatenate([np.zeros(0, dtype), *(ids for ids, _ in blocks)])
    with temporary_space() as folder, tempfile.TemporaryFile(dir=folder) as file:
        for ids, piece in blocks:
            file.write(ids.data)
            release_pages(piece)
        file.flush()
        return np.memmap(file, dtype, "r", shape=sum(len(piece) for piece, _ in pieces))


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
