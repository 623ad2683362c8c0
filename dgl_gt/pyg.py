"""Layers of PyG across ranks, unchanged: what they read of nodes of other ranks is brought to them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .exchange.sharded_graph import ShardedGraph
from .nn.batch_norm import BatchNorm
from .partition.errors import InputError, import_optional

__all__ = ["REFUSED", "data_of", "distribute"]

INSTALL_PYG = "pip install torch_geometric"

# Why layers that read more than the edges to their nodes cannot run on a part.
_NEEDS_DEGREES = "it scales messages by the degrees of their sources' neighbours; GCNConv and SGConv do so across ranks"
_NEEDS_NEIGHBOURS = "it looks for near rows among all nodes; find them before partitioning, and give them as edges"
_NEEDS_OUT_EDGES = (
    "it reads edges against their direction; store the reverse edges in the graph, and use a layer for each"
)
_NEEDS_TYPES = "it is for graphs of several types"
_NEEDS_ALL_NODES = "it reads all nodes at once"
REFUSED = {
    "ChebConv": _NEEDS_DEGREES,
    "DynamicEdgeConv": _NEEDS_NEIGHBOURS,
    "GravNetConv": _NEEDS_NEIGHBOURS,
    "XConv": _NEEDS_NEIGHBOURS,
    "DirGNNConv": _NEEDS_OUT_EDGES,
    "PANConv": "it multiplies the adjacency matrix of the whole graph",
    "HypergraphConv": "its edges join hyperedges",
    "GPSConv": f"{_NEEDS_ALL_NODES}; dgl_gt.nn.Polynormer has attention of all nodes to all nodes",
    "WLConv": "it numbers the neighbourhoods that a rank sees",
    "SuperGATConv": "it draws pairs among the nodes of a rank",
    "FusedGATConv": "it takes sparse matrices; GATConv computes the same",
    "CuGraphSAGEConv": "it takes a graph of NVIDIA's library; use SAGEConv",
    "CuGraphGATConv": "it takes a graph of NVIDIA's library; use GATConv",
    "CuGraphRGCNConv": "it takes a graph of NVIDIA's library; use RGCNConv",
    "HGTConv": _NEEDS_TYPES,
    "HANConv": _NEEDS_TYPES,
    "HeteroConv": _NEEDS_TYPES,
    "MeshCNNConv": "its edges are the nodes of a mesh",
}
_WHOLE_GRAPH = (  # modules that compute statistics of all nodes, or choose among them
    *("GraphNorm", "PairNorm", "MeanSubtractionNorm", "DiffGroupNorm", "GraphSizeNorm", "InstanceNorm"),
    *("HeteroBatchNorm", "HeteroLayerNorm"),
)

_running: list[ShardedGraph] = []  # the part on which a layer runs now


def distribute(model: nn.Module, sg: ShardedGraph) -> nn.Module:
    """Let the layers of a model of PyG run across ranks on ``sg.edge_index``; returns the model.

    Every ``MessagePassing`` layer, of PyG or of yours, then takes and returns rows of owned nodes, as it does of all nodes
    on one process: ``model(x, sg.edge_index)`` with ``x`` (N_owned, ...), and edge data (E, ...) of ``sg.edata``. When it
    sends messages, rows of other ranks' nodes come by :meth:`ShardedGraph.pull`. Degrees of ``gcn_norm`` are those in
    the whole graph, and self-loops that a layer adds are those of the owned nodes; a ``BatchNorm1d`` has the statistics of
    the nodes of all ranks. A layer of yours may read rows of its
    sources only by ``message`` and ``edge_update`` (``x_j``).

    Raises
    ------
    InputError
        A layer needs more of the graph than the edges to its nodes, by name; the graph has a vertex cut, or halos of several
        hops; or PyG is not installed.
    """
    if sg._shard.has_mirrors or sg.depth > 1:
        raise InputError(
            "layers of PyG need all in-edges of a node on one rank, and an exchange in each layer; partition with --cut edge, and "
            "load it with depth 1"
        )
    base = import_optional("torch_geometric.nn", "dgl_gt.pyg.distribute", INSTALL_PYG).MessagePassing
    for name, each in model.named_modules():
        _check(name or "the model", each)
        module: Any = each
        if isinstance(module, base):
            _hook(module, sg)
        elif isinstance(module, nn.BatchNorm1d):
            module.__class__ = BatchNorm
            vars(module)["forward"] = partial(BatchNorm.forward, module, graph=sg)
    return model


def _check(name: str, module: nn.Module) -> None:
    """Raise :class:`InputError` if a module cannot be right on a part."""
    kinds = [each for each in type(module).__mro__ if each.__module__.startswith("torch_geometric.")]
    for kind in kinds:
        if reason := REFUSED.get(kind.__name__):
            raise InputError(f"{name} is a {kind.__name__}, which cannot run on a part: {reason}")
        if kind.__name__ in _WHOLE_GRAPH or kind.__module__.startswith("torch_geometric.nn.pool"):
            raise InputError(f"{name} is a {kind.__name__}, which cannot run on a part: {_NEEDS_ALL_NODES}")
        if kind.__name__ == "LayerNorm" and module.mode == "graph":
            raise InputError(f"{name} is a LayerNorm with mode 'graph', and {_NEEDS_ALL_NODES}; choose mode 'node'")
    is_known = type(module) in (nn.BatchNorm1d, BatchNorm)
    if isinstance(module, nn.modules.batchnorm._BatchNorm) and not is_known:
        raise InputError(f"{name} is a {type(module).__name__}, whose statistics are of a rank's rows; use BatchNorm1d")


def _hook(module: Any, sg: ShardedGraph) -> None:
    if module.flow != "source_to_target":
        raise InputError(f"{type(module).__name__} has flow {module.flow!r}, and {_NEEDS_OUT_EDGES}")
    if not hasattr(module, "dgl_gt_part"):  # else it is given another part
        module.register_forward_pre_hook(lambda each, _: _running.append(each.dgl_gt_part))
        module.register_forward_hook(lambda *_: _running.pop() and None, always_call=True)
    module.dgl_gt_part = sg
    module.propagate = partial(_with_sources, module, type(module).propagate, "_user_args")
    module.edge_updater = partial(_with_sources, module, type(module).edge_updater, "_edge_user_args")
    for kind in type(module).__mro__:
        home: Any = sys.modules[kind.__module__]
        is_theirs = kind.__module__.startswith("torch_geometric.") and hasattr(home, "gcn_norm")
        if is_theirs and not isinstance(home.gcn_norm, _GCNNorm):
            home.gcn_norm = _GCNNorm(home.gcn_norm)


def _with_sources(
    module: Any, send: Callable, names_in: str, edge_index: Tensor, size: Any = None, **data: Any
) -> Tensor:
    """Call a method of a layer with pairs of rows of nodes: of held nodes, which are sources, and of owned ones."""
    sg: ShardedGraph = module.dgl_gt_part
    of_sources = {name[:-2] for name in getattr(module, names_in) if name.endswith("_j")}
    of_nodes = of_sources | {name[:-2] for name in getattr(module, names_in) if name.endswith("_i")}
    for name in sorted(of_nodes & data.keys()):
        src, dst = data[name] if isinstance(data[name], (tuple, list)) else (data[name], data[name])
        if isinstance(src, Tensor) and name in of_sources:
            dim = module.node_dim + src.dim() if module.node_dim < 0 else module.node_dim
            if src.shape[dim] != sg.num_nodes():
                raise InputError(
                    f"{type(module).__name__} was given {src.shape[dim]} rows of {name}; give it those of the {sg.num_nodes()} nodes "
                    "that the rank owns"
                )
            src = sg.pull(src.movedim(dim, 0)).movedim(0, dim)
        data[name] = (src if name in of_sources else None, dst)
    return send(module, edge_index, size=(sg._shard.num_held, sg.num_nodes()), **data)


class _GCNNorm:
    """PyG's ``gcn_norm``, with the degrees of the whole graph where a layer runs on a part."""

    def __init__(self, original: Any):
        self.original = original

    def __call__(
        self, edge_index, edge_weight=None, num_nodes=None, improved=False, add_self_loops=True, *args, **more
    ):
        if not _running:
            return self.original(edge_index, edge_weight, num_nodes, improved, add_self_loops, *args, **more)
        sg, utils = _running[-1], sys.modules["torch_geometric.utils"]
        owned, dtype = sg.num_nodes(), more.get("dtype") or (args[1] if len(args) > 1 else None)
        if edge_weight is None:
            edge_weight = torch.ones(edge_index.shape[1], dtype=dtype, device=edge_index.device)
        if add_self_loops:
            fill = 2.0 if improved else 1.0
            edge_index, edge_weight = utils.add_remaining_self_loops(edge_index, edge_weight, fill, owned)
        src, dst = edge_index
        degrees = utils.scatter(edge_weight, dst, 0, dim_size=owned, reduce="sum")
        scale = degrees.pow(-0.5)
        scale = scale.masked_fill(scale == torch.inf, 0)
        return edge_index, sg.pull(scale)[src] * edge_weight * scale[dst]


def data_of(sg: ShardedGraph) -> Any:
    """A ``Data`` of PyG with the part of a rank, for models that :func:`distribute` has prepared.

    ``edge_index`` is ``sg.edge_index``; ``feat`` is ``x``, ``label`` is ``y``, other node data have their names, and edge data
    begin with ``edge_``.
    """
    data = import_optional("torch_geometric.data", "dgl_gt.pyg.data_of", INSTALL_PYG).Data
    columns = {{"feat": "x", "label": "y"}.get(name, name): each for name, each in sg.ndata.items()}
    columns |= {f"edge_{name.removeprefix('edge_')}": each for name, each in sg.edata.items()}
    return data(edge_index=sg.edge_index, num_nodes=sg.num_nodes(), **columns)
