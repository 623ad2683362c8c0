"""Edges that are added to a graph: self-loops and reverse edges, with their edge data."""

from __future__ import annotations

import math
from dataclasses import replace
from numbers import Real

import numpy as np
import scipy  # imports its parts at their first use

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.graph import SPLIT_MASKS, Graph, from_edges
from dgl_gt.partition.relations import Edges, relations_of, reverse_relation, with_relations
from dgl_gt.partition.schema import Relation, columns_by_type

REVERSE_KIND = "reverse_kind"
_FILLS = ("mean", "zero")


def with_added_edges(
    graph: Graph, *, undirected: bool, self_loops: bool, self_loop_fill=None, reverse_kind: bool = False
) -> Graph:
    """The graph with reverse edges, self-loops or both; ``reverse_kind`` marks them in edge data of this name, uint8.

    These are 0 for an edge of the graph, 1 for a reverse edge, and 2 for a self-loop that was added. A typed graph gets
    relations of reverse edges, ``(destination type, "rev_NAME", source type)``, and self-loops in each relation within a
    type.
    """
    if graph.schema is not None:
        return _with_edges_by_relation(graph, undirected, self_loops, self_loop_fill, reverse_kind)
    if reverse_kind and REVERSE_KIND in graph.edge_data:
        raise InputError(
            f"{graph.name} has edge data {REVERSE_KIND!r} already; rename them, or leave reverse_kind (--reverse-kind) out"
        )
    ends = [0, graph.num_edges]
    graph = with_reverse_edges(graph) if undirected else graph
    ends.append(graph.num_edges)
    graph = with_self_loops(graph, self_loop_fill) if self_loops else graph
    ends.append(graph.num_edges)
    if not reverse_kind:
        return graph
    kinds = np.repeat(np.arange(3, dtype=np.uint8), np.diff(ends))
    return replace(graph, edge_data={**graph.edge_data, REVERSE_KIND: kinds})


def _with_edges_by_relation(graph: Graph, undirected: bool, self_loops: bool, fill, reverse_kind: bool) -> Graph:
    if not (undirected or self_loops):
        return graph
    if reverse_kind:
        raise InputError(
            f"{graph.name} has relations, and reverse edges have relations of their own, rev_NAME; leave reverse_kind "
            "(--reverse-kind) out"
        )
    _check_untouched(graph, "reverse edges and self-loops")
    relations = relations_of(graph)
    if undirected:
        for key, edges in [*relations.items()]:
            if reverse_relation(relations, key) is not None:
                continue
            reverse = Relation(key.destination, f"rev_{key.name}", key.source)
            if reverse in relations:
                raise InputError(
                    f"{graph.name} has a relation {reverse}, whose edges are not those of {key} the other way; rename it, or leave "
                    "undirected (--undirected) out"
                )
            relations[reverse] = edges.reversed()
    within = [key for key in relations if key.source == key.destination]
    if self_loops and not within:
        raise InputError(
            f"{graph.name} has no relation within a node type, and self-loops go into these; leave self_loops (--self-loops) out"
        )
    assert graph.schema is not None
    for key in within if self_loops else ():
        edges = relations[key]
        alone = from_edges(
            edges.src, edges.dst, graph.schema.nodes[key.source], None, edges.data, f"{graph.name}: {key}"
        )
        alone = with_self_loops(alone, fill)
        relations[key] = Edges(*alone.edges(), alone.edge_data)
    return with_relations(graph, relations)


def with_self_loops(graph: Graph, fill=None) -> Graph:
    """The graph with a self-loop at every node; new edges get the ids after the existing ones.

    ``fill`` says what their edge data are: a number; ``"mean"``, the mean over the in-edges of the node, or zero where
    it has none; ``"zero"``; or a dict of these by the name of the edge data. It is needed where there are edge data other
    than masks, which are false, and ``label``, which is missing.
    """
    has_loop = np.zeros(graph.num_nodes, dtype=bool)
    dst = graph.destinations()
    has_loop[dst[graph.indices == dst]] = True
    new = np.flatnonzero(~has_loop)
    if len(new) and graph.edge_data:
        _check_untouched(graph, "self-loops")
        if fill is None and (asked := _asked(graph.edge_data)):
            raise InputError(
                f"{graph.name}: self-loops need edge data {', '.join(asked)}; say what they get with self_loop_fill "
                "(--self-loop-fill): a number, mean or zero"
            )
    missing = np.nan if "label" in graph.edge_data and graph.edge_data["label"].dtype.kind == "f" else -1
    fills = {**_by_name(_asked(graph.edge_data), fill), **dict.fromkeys(SPLIT_MASKS, 0), "label": missing}
    rows = {key: _loop_rows(graph, value, new, fills[key]) for key, value in graph.edge_data.items() if len(new)}
    return _with_edges(graph, new, new, rows)


def check_fill_values(option: str, fill) -> None:
    """Raise :class:`InputError` unless it is a number, "mean", "zero", a dict of these by the names of columns, or None."""
    for value in fill.values() if isinstance(fill, dict) else () if fill is None else (fill,):
        is_number = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
        if not is_number and not (isinstance(value, str) and value in _FILLS):
            raise InputError(
                f"{option} is {value!r}; it must be a finite number, {' or '.join(_FILLS)}, or one of these for each column by name "
                "(weight=mean,type=0)"
            )


def check_fill(source, fill) -> None:
    """Raise :class:`InputError` unless the edge data of self-loops of a Graph or COOGraph can be these.

    Without a source only the values are checked. None stands for none.
    """
    check_fill_values("self_loop_fill (--self-loop-fill)", fill)
    if source is None or fill is None:
        return
    if source.schema is None:
        _check_fill_of(source.name, source.edge_data, fill)
        return
    columns = columns_by_type(source.edge_data)
    for key in source.schema.edges:
        if key.source == key.destination:
            _check_fill_of(f"{source.name}: {key}", columns.get(str(key), {}), fill)


def _check_fill_of(name: str, edge_data: dict, fill) -> None:
    asked = _asked(edge_data)
    if isinstance(fill, dict) and {*fill} != {*asked}:
        raise InputError(
            f"self_loop_fill (--self-loop-fill) names edge data {', '.join(map(str, fill)) or 'nothing'}, and {name} has "
            f"{', '.join(asked) or 'none'}; give a value for each"
        )
    for key, value in _by_name(asked, fill).items():
        dtype = edge_data[key].dtype
        if not (dtype.kind == "f" if value == "mean" else value == "zero" or _holds(dtype, value)):
            raise InputError(
                f"self_loop_fill (--self-loop-fill) is {value} for edge data {key!r} of {name}, which are {dtype} and cannot "
                f"hold it; give a number within their range, or a value for each edge data by name ({key}=0)"
            )


def _holds(dtype: np.dtype, number: float) -> bool:
    """Whether a dtype holds a number, integers and bools exactly."""
    if dtype.kind == "f":
        return abs(number) <= np.finfo(dtype).max
    low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return low <= number <= high and int(number) == number


def _asked(edge_data: dict) -> list[str]:
    """The edge data of which it must be said what new edges have."""
    return [each for each in edge_data if each not in (*SPLIT_MASKS, "label")]


def _by_name(edge_data, fill) -> dict:
    return fill if isinstance(fill, dict) else dict.fromkeys(edge_data, fill)


def _loop_rows(graph: Graph, values: np.ndarray, nodes: np.ndarray, fill) -> np.ndarray:
    """Edge data of new self-loops."""
    if fill != "mean":
        return np.full((len(nodes), *values.shape[1:]), 0 if fill == "zero" else fill, values.dtype)
    ones = np.ones(graph.num_edges)
    in_edges = scipy.sparse.csr_array((ones, graph.edge_ids, graph.indptr), (graph.num_nodes, graph.num_edges))
    sums = in_edges[nodes] @ values.reshape(len(values), math.prod(values.shape[1:])).astype(np.float64)
    means = sums / np.maximum(graph.in_degrees()[nodes], 1)[:, None]
    return means.reshape(len(nodes), *values.shape[1:]).astype(values.dtype)


def with_reverse_edges(graph: Graph) -> Graph:
    """The graph with v -> u for every edge u -> v; new edges get the ids after the existing ones.

    A new edge takes the edge data of the edge whose reverse it is. Where parallel edges have no edge back, each of them
    gets a reverse of its own.
    """
    n, dst = graph.num_nodes, graph.destinations()
    keys = np.sort(dst.astype(np.int64) * n + graph.indices)
    wanted = graph.indices.astype(np.int64) * n + dst
    order = np.argsort(wanted, kind="stable")
    wanted = wanted[order]  # a search for ascending numbers is several times as fast
    missing = order[keys[np.searchsorted(keys, wanted).clip(max=max(len(keys) - 1, 0))] != wanted]
    del keys, wanted, order
    rows = {}
    if len(missing) and graph.edge_data:
        _check_untouched(graph, "reverse edges")
        rows = {key: value[graph.edge_ids[missing]] for key, value in graph.edge_data.items()}
    return _with_edges(graph, dst[missing], graph.indices[missing], rows)


def _check_untouched(graph: Graph, what: str) -> None:
    """Raise :class:`InputError` if a graph has what describes its edges as they are now."""
    stale = [key for key in graph.encodings if key in graph.edge_data]
    if stale or graph.transforms:
        present = f"the encoding {stale[0]}" if stale else " and ".join(graph.transforms).replace("_", " ")
        raise InputError(
            f"{graph.name} has {present}, which {what} would lack; add them to the graph without it, and then make it again"
        )


def _with_edges(graph: Graph, src: np.ndarray, dst: np.ndarray, rows: dict[str, np.ndarray]) -> Graph:
    """The graph with new edges and their rows of edge data."""
    if not len(src):
        return graph
    edge_data = {key: np.concatenate([value, rows[key]]) for key, value in graph.edge_data.items()}
    return replace(with_more_edges(graph, src, dst, graph.num_nodes), edge_data=edge_data)


def with_more_edges(graph: Graph, src: np.ndarray, dst: np.ndarray, num_nodes: int) -> Graph:
    """The graph with more edges, which get the next ids, and ``num_nodes`` nodes; callers extend the data."""
    old_src, old_dst = graph.edges()
    edges = from_edges(np.concatenate([old_src, src]), np.concatenate([old_dst, dst]), num_nodes)
    return replace(graph, indptr=edges.indptr, indices=edges.indices, edge_ids=edges.edge_ids)
