"""Any graph that a layer takes -> the strategies that run attention on it."""

from __future__ import annotations

import torch

from dgl_gt.as_csc import csc, is_dgl_graph
from dgl_gt.structure import CSC

from .local import Local
from .protocol import Strategy
from .sharded_graph import ShardedGraph


def as_strategy(graph, device: torch.device | None = None) -> Strategy:
    """Return the strategy that runs attention on ``graph``.

    Parameters
    ----------
    graph : ShardedGraph, DGLGraph, DGL block, CSC or Strategy
        A ``ShardedGraph`` has its strategy, and a strategy is returned as it is. Graphs that one process holds get
        ``Local``.
    device : torch.device, optional
        Device of the features. A DGL graph may stay on the CPU: its structure is copied to the features once.

    Raises
    ------
    ValueError
        If ``graph`` is none of these, or a DGL graph that does not have exactly one edge type, or whose edges connect
        nodes of two types.
    """
    if isinstance(graph, Strategy):
        return graph
    if isinstance(graph, ShardedGraph):
        return graph.strategy
    if isinstance(graph, CSC):
        return Local(csc(graph, device))
    if not is_dgl_graph(graph):
        raise ValueError(
            f"graph is a {type(graph).__name__}; allowed: a DGLGraph, a DGL block, a dgl_gt.CSC or a ShardedGraph. "
            "Make a graph with dgl.graph(...), or load shards with dgl_gt.load(directory)"
        )
    structure = csc(graph, device)
    source, _, destination = graph.canonical_etypes[0]
    if source != destination:
        raise ValueError(
            f"the edges go from {source!r} nodes to {destination!r} nodes, but a layer takes the features of one node "
            "type only; pass dgl.to_homogeneous(graph), or use dgl_gt.sparse_attention with queries of the "
            f"{destination!r} nodes"
        )
    return Local(structure)


def strategies_of_layers(graph, layers: int, device: torch.device | None = None) -> list[Strategy]:
    """Return the strategy of each layer of a model on ``graph``.

    Parameters
    ----------
    graph : ShardedGraph, DGLGraph, CSC, Strategy, or list of ``layers`` DGL blocks or other graphs
        A list gives each layer its own graph.
    layers : int
        Number of layers.
    device : torch.device, optional
        Device of the features.

    Raises
    ------
    ValueError
        If a list does not have one graph for each layer, or :func:`as_strategy` refuses a graph.
    """
    if isinstance(graph, ShardedGraph):
        return graph.blocks(layers)
    if not isinstance(graph, (list, tuple)):
        return [as_strategy(graph, device)] * layers
    if len(graph) != layers:
        raise ValueError(
            f"got {len(graph)} blocks for {layers} layers; pass one block for each layer (sample with as many fan-outs "
            "as there are layers), or one graph"
        )
    return [as_strategy(each, device) for each in graph]
