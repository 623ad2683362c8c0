"""A typed graph of DGL or PyG that one process holds, as a view."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.schema import Relation, Schema
from dgl_gt.structure import is_dgl_graph

from .local import Local
from .relations import union_csc

_CACHE = "_dgl_gt_typed"


def is_typed(graph) -> bool:
    """Whether a graph is a heterograph of DGL or a ``HeteroData`` of PyG."""
    if is_dgl_graph(graph):
        return len(graph.ntypes) > 1 or len(graph.canonical_etypes) > 1
    data = sys.modules.get("torch_geometric.data")
    return data is not None and isinstance(graph, data.HeteroData)


def as_typed(graph, device):
    """Return what a typed layer passes on in place of a graph: the view of a heterograph, or else the graph itself."""
    return typed_graph(graph, device) if is_typed(graph) else graph


def typed_graph(graph, device=None) -> Local:
    """Return a typed graph as layers for typed graphs take it, to make it once for many calls.

    Such layers take a ``DGLGraph``, too, and keep what they make of it; of a ``HeteroData`` they would make it at every
    call.

    Parameters
    ----------
    graph : DGLGraph or HeteroData
        Nodes are numbered type by type, in the order of ``ntypes`` or ``node_types``, as ``to_homogeneous`` numbers them.
    device : torch.device, optional
        Device of the result; that of the graph by default.

    Raises
    ------
    ValueError
        ``graph`` is neither, or a ``HeteroData`` does not say how many nodes a type has.
    """
    if is_dgl_graph(graph):
        kept: tuple[Any, dict] = getattr(graph, _CACHE, (None, {}))
        if kept[0] is not graph._graph:
            kept = graph._graph, {}
            setattr(graph, _CACHE, kept)
        device = torch.device(device or graph.device)
        if device not in kept[1]:
            schema, ends = _of_dgl(graph)
            kept[1][device] = _view(schema, ends, device)
        return kept[1][device]
    if not is_typed(graph):
        raise ValueError(f"graph is a {type(graph).__name__}; allowed: a DGLGraph, or a HeteroData of PyG")
    schema, ends = _of_pyg(graph)
    return _view(schema, ends, device)


def _view(schema: Schema, ends: list[tuple[Tensor, Tensor]], device) -> Local:
    return Local(union_csc(schema, ends, device), schema=schema)


def _of_dgl(graph: Any):
    relations = [Relation(*each) for each in graph.canonical_etypes]
    nodes = {each: graph.num_nodes(each) for each in graph.ntypes}
    schema = Schema(nodes, {each: graph.num_edges(tuple(each)) for each in relations})
    return schema, [graph.edges(etype=tuple(each), order="eid") for each in relations]


def _of_pyg(data: Any):
    nodes = {each: data[each].num_nodes for each in data.node_types}
    if missing := [each for each, count in nodes.items() if count is None]:
        raise InputError(f"data[{missing[0]!r}] does not say how many nodes it has; set its x or num_nodes")
    ends = [tuple(data[each].edge_index) for each in data.edge_types]
    return Schema(nodes, {Relation(*each): len(src) for each, (src, _) in zip(data.edge_types, ends)}), ends
