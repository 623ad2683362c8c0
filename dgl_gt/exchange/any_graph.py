"""Any graph that a layer takes, as views of it."""

from __future__ import annotations

from torch import Tensor, nn

from dgl_gt.structure import CSC, csc, is_dgl_graph, is_pyg_data
from dgl_gt.torch_internals import is_transformed

from .local import Local
from .sharded_graph import ShardedGraph
from .view import SeededView, View


def as_view(graph, feat: Tensor | None = None, module: nn.Module | None = None) -> View:
    """Return the view of a ShardedGraph, DGL graph or block, CSC, ``edge_index`` or ``Data``; a view is returned as it is.

    Graphs that one process holds get ``Local``. ``feat`` are the features. A DGL graph may stay on the CPU, and its
    structure is copied to their device once. An ``edge_index``, or that of a ``Data``, takes its number of nodes from
    them. ``module`` is the layer whose forward pass on a ``ShardedGraph`` begins; layers of a larger model of this
    package get a view. Raises ``ValueError`` if ``graph`` is none of these, an ``edge_index`` does not fit the features,
    or a DGL graph has several edge types or edges between two types of nodes.
    """
    device = None if feat is None else feat.device
    if isinstance(graph, SeededView):
        graph = graph.view
    if isinstance(graph, (View, ShardedGraph)):
        view = graph.view if isinstance(graph, ShardedGraph) else graph
        if is_transformed() and not view.holds_all:
            raise NotImplementedError(
                "a layer on a ShardedGraph exchanges rows between ranks, which transforms of torch.func cannot follow; use "
                "backward or torch.autograd.grad"
            )
        if isinstance(graph, ShardedGraph) and module is not None:
            view.before_pass(module)
        return view
    if is_dgl_graph(graph):
        structure = csc(graph, device)
        source, _, destination = graph.canonical_etypes[0]
        if source != destination:
            raise ValueError(
                f"the edges go from {source!r} nodes to {destination!r} nodes, but a layer takes the features of one node "
                "type only; pass dgl.to_homogeneous(graph), or use dgl_gt.sparse_attention with queries of the "
                f"{destination!r} nodes"
            )
        return Local(structure)
    if isinstance(graph, (CSC, Tensor)) or is_pyg_data(graph):
        return Local(csc(graph, device, None if feat is None else len(feat)))
    raise ValueError(
        f"graph is a {type(graph).__name__}; allowed: a DGLGraph, a DGL block, a dgl_gt.CSC, an edge_index, a Data of PyG with "
        "one or a ShardedGraph. Make a graph with dgl.graph(...), or load shards with dgl_gt.load(directory)"
    )


def views_of(graph, model: nn.Module, layers: int, feat: Tensor | None = None) -> list[View]:
    """Return the view of each layer of a model on a graph that :func:`as_view` takes, or on a list of graphs.

    A list gives each layer its own graph; ``ValueError`` is raised if it does not have one for each.
    """
    if isinstance(graph, ShardedGraph):
        graph = graph.views(layers)
    if isinstance(graph, SeededView):
        raise ValueError("graph is that of a pass of another model; a model is no layer of it: put its layers there")
    if not isinstance(graph, (list, tuple)):
        return [as_view(graph, feat)] * layers
    if len(graph) != layers:
        raise ValueError(
            f"got {len(graph)} blocks for {layers} layers; pass one block for each layer (sample with as many fan-outs "
            "as there are layers), or one graph"
        )
    views = [as_view(each, feat) for each in graph]
    views[0].before_pass(model)
    return views
