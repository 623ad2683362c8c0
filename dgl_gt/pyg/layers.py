"""Layers of PyG across ranks, unchanged: what they read of nodes of other ranks is brought to them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dgl_gt.exchange.sharded_graph import ShardedGraph
from dgl_gt.nn.batch_norm import BatchNorm
from dgl_gt.partition.errors import INSTALL_PYG, InputError, import_optional

# Why layers that read more than the edges to their nodes cannot run on a part.
_NEEDS_NEIGHBOURS = "it looks for near rows among all nodes; find them before partitioning, and give them as edges"
_NEEDS_OUT_EDGES = (
    "it reads edges against their direction; store the reverse edges in the graph, and use a layer for each"
)
_NEEDS_TYPES = (
    "it is for graphs of several types; dgl_gt.nn has HGTLayer, and HeteroConv for a convolution of each relation"
)
_NEEDS_ALL_NODES = "it reads all nodes at once"
REFUSED = {
    "ChebConv": "it counts the out-edges of sources, which a part does not have; TAGConv spans the same polynomials",
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
_NORMS = ("GraphNorm", "PairNorm", "MeanSubtractionNorm", "DiffGroupNorm", "GraphSizeNorm", "InstanceNorm")
_OF_OTHER_ROWS = {"LSTMAggregation", "GRUAggregation", "LCMAggregation"}  # which pad to the largest in-degree
_OF_OTHER_ROWS |= {"PatchTransformerAggregation", "EquilibriumAggregation"}
_MODELS = {"BasicGNN", "GCN", "GraphSAGE", "GIN", "GAT", "PNA", "EdgeCNN"}
_MODELS |= {"MLP", "JumpingKnowledge", "DeepGCNLayer", "MaskLabel"}

_running: list[ShardedGraph] = []  # the part on which a layer runs now
_on_edges: list[str] = []  # the layer whose messages are made now


def distribute(model: nn.Module, sg: ShardedGraph) -> nn.Module:
    """Let the layers of a model of PyG run across ranks on ``sg.edge_index``; returns the model.

    Every ``MessagePassing`` layer, of PyG or of yours, then takes and returns rows of owned nodes, as it does of all nodes
    on one process: ``model(x, sg.edge_index)`` with ``x`` (N_owned, ...), and edge data (E, ...) of ``sg.edata``. When it
    sends messages, rows of other ranks' nodes come by :meth:`ShardedGraph.pull`. Degrees of ``gcn_norm`` are those in
    the whole graph, and self-loops that a layer adds are those of the owned nodes; a ``BatchNorm1d`` of rows of nodes has the
    statistics of all ranks. A layer of yours may read rows of its sources only by ``message`` and ``edge_update``
    (``x_j``); degrees of sources that it counts itself, sizes, and means over rows are those of one part. Save
    ``model.state_dict()``.

    Raises
    ------
    InputError
        A layer needs more of the graph than the edges to its nodes, by name; the graph has several types, a vertex cut, or
        halos of several hops; or PyG is not installed.
    """
    if sg._shard.has_mirrors or sg.depth > 1:
        raise InputError(
            "layers of PyG need all in-edges of a node on one rank, and an exchange in each layer; partition with --cut edge, and "
            "load it with depth 1"
        )
    _refuse_types(sg)
    home = import_optional("torch_geometric.nn", "dgl_gt.pyg.distribute", INSTALL_PYG)
    base = home.MessagePassing
    in_layers = {part for each in model.modules() if isinstance(each, base) for part in each.modules()}
    for name, each in model.named_modules():
        _check(name or "the model", each)
        if isinstance(each, home.Aggregation) and each not in in_layers:
            raise InputError(f"{name} is a {type(each).__name__} outside of a layer, and {_NEEDS_ALL_NODES}")
    part = _Part(sg)
    for each in model.modules():
        module: Any = each
        if isinstance(module, base):
            _prepare(module, part)
        elif isinstance(module, nn.BatchNorm1d):
            module.__class__ = BatchNorm
            vars(module)["forward"] = partial(_norm, part, module)
    return model


def _check(name: str, module: Any) -> None:
    """Raise :class:`InputError` if a module cannot be right on a part."""
    for kind in type(module).__mro__:
        room = kind.__module__.removeprefix("torch_geometric.nn.")
        if not kind.__module__.startswith("torch_geometric."):
            continue
        if reason := REFUSED.get(kind.__name__):
            raise InputError(f"{name} is a {kind.__name__}, which cannot run on a part: {reason}")
        reads_all = kind.__name__ in _NORMS or room.startswith(("pool", "attention")) or "_pool" in room
        if reads_all or (room.startswith("models.") and kind.__name__ not in _MODELS):
            raise InputError(f"{name} is a {kind.__name__}, which cannot run on a part: {_NEEDS_ALL_NODES}")
        if kind.__name__ == "LayerNorm" and module.mode == "graph":
            raise InputError(f"{name} is a LayerNorm with mode 'graph', and {_NEEDS_ALL_NODES}; choose mode 'node'")
        if kind.__name__ in _OF_OTHER_ROWS:
            raise InputError(
                f"{name} is a {kind.__name__}, whose result for a node depends on which other nodes a rank has"
            )
        if getattr(module, "allow_single_element", False):
            raise InputError(
                f"{name} is a {kind.__name__} with allow_single_element, and a rank may have one node of many; leave that out"
            )
    if isinstance(module, nn.modules.batchnorm._BatchNorm) and type(module) not in (nn.BatchNorm1d, BatchNorm):
        raise InputError(f"{name} is a {type(module).__name__}, whose statistics are of a rank's rows; use BatchNorm1d")
    if any(isinstance(each, nn.UninitializedParameter) for each in module.parameters(recurse=False)):
        raise InputError(
            f"{name} is a {type(module).__name__} of a width that is not known yet (-1), whose weights would differ by rank; state it"
        )


class _Part:
    """A part that a layer runs on, which copies of the layer share."""

    def __init__(self, sg: ShardedGraph):
        self.graph = sg

    def __deepcopy__(self, memo: dict) -> _Part:
        return self


def _prepare(module: Any, part: _Part) -> None:
    """Make a layer send messages on a part; what it is given stands before its methods."""
    if module.flow != "source_to_target":
        raise InputError(f"{type(module).__name__} has flow {module.flow!r}, and {_NEEDS_OUT_EDGES}")
    if not hasattr(module, "dgl_gt_part"):  # else it is given another part
        module.register_forward_pre_hook(_begin, with_kwargs=True)
        module.register_forward_hook(_end, always_call=True)
    if "size_j" in module.inspector.get_flat_param_names(["message", "aggregate", "update", "edge_update"]):
        raise InputError(f"{type(module).__name__} reads size_j, the number of all nodes, which a part does not have")
    kind, module.dgl_gt_part = type(module), part
    for name in vars(module).keys() & {f"_cached_{each}" for each in ("edge_index", "adj_t", "x", "h")}:
        setattr(module, name, None)  # of the graph that the layer had before
    module.propagate = partial(_send, module, kind.propagate, "_user_args")
    module.edge_updater = partial(_send, module, kind.edge_updater, "_edge_user_args")
    module.message = partial(_of_edges, module, kind.message)
    module.edge_update = partial(_of_edges, module, kind.edge_update)
    norm: Any = sys.modules["torch_geometric.nn.conv.gcn_conv"].gcn_norm
    norm = norm if isinstance(norm, _GCNNorm) else _GCNNorm(norm)
    for each in kind.__mro__:
        home = sys.modules[each.__module__]
        for name in [name for name, value in vars(home).items() if value is norm.original]:
            setattr(home, name, norm)
    sys.modules["torch_geometric.nn.conv.gcn_conv"].gcn_norm = norm  # type: ignore[attr-defined]


def _begin(module: Any, arguments: tuple, named: dict) -> None:
    _running.append(module.dgl_gt_part.graph)
    if any(map(sys.modules["torch_geometric.utils"].is_sparse, (*arguments, *named.values()))):
        raise InputError(f"{type(module).__name__} was given a sparse matrix; give it an edge_index, and weights apart")


def _end(*_: Any) -> None:
    _running.pop()


def _of_edges(module: Any, method: Callable, *args: Any, **more: Any) -> Tensor:
    """Call a method of a layer whose rows are edges."""
    _on_edges.append(type(module).__name__)
    try:
        return method(module, *args, **more)
    finally:
        _on_edges.pop()


def _norm(part: _Part, module: BatchNorm, x: Tensor) -> Tensor:
    """Normalise rows of owned nodes with the statistics of all nodes."""
    if _on_edges:
        raise InputError(
            f"a BatchNorm1d stands among the messages of {_on_edges[-1]}, whose rows are edges; use a LayerNorm there"
        )
    if len(x) != part.graph.num_nodes():
        raise InputError(
            f"a BatchNorm1d was given {len(x)} rows, and the rank owns {part.graph.num_nodes()} nodes; use a LayerNorm for rows of edges"
        )
    return BatchNorm.forward(module, x, graph=part.graph)


def _send(module: Any, method: Callable, names_in: str, edge_index: Tensor, size: Any = None, **data: Any) -> Tensor:
    """Call a method of a layer with pairs of rows of nodes: of held nodes, which are sources, and of owned ones.

    Where a layer also reads the rows by themselves, as in ``update(self, out, x)``, all are those of held nodes, of which
    the owned ones come first, and the others are left out of the result.
    """
    sg, names = module.dgl_gt_part.graph, getattr(module, names_in)
    _check_destinations(type(module).__name__, edge_index, sg)
    of_sources = {name[:-2] for name in names if name.endswith("_j")}
    of_nodes = (of_sources | {name[:-2] for name in names if name.endswith("_i")}) & data.keys()
    reads_rows = bool(of_nodes & {*names})
    if reads_rows:
        of_nodes |= {*module.inspector.get_param_names("update")} & data.keys()
    for name in sorted(of_nodes):
        src, dst = data[name] if isinstance(data[name], (tuple, list)) else (data[name], data[name])
        if reads_rows and src is not dst:
            raise InputError(
                f"{type(module).__name__} reads {name} by itself, and was given rows of two kinds; give it one"
            )
        if isinstance(src, Tensor) and (name in of_sources or reads_rows):
            dim = module.node_dim + src.dim() if module.node_dim < 0 else module.node_dim
            if src.shape[dim] != sg.num_nodes():
                raise InputError(
                    f"{type(module).__name__} was given {src.shape[dim]} rows of {name}; give it those of the {sg.num_nodes()} nodes "
                    "that the rank owns"
                )
            src = sg.pull(src.movedim(dim, 0)).movedim(0, dim)
        data[name] = src if reads_rows else (src if name in of_sources else None, dst)
    held, owned = sg._shard.num_held, sg.num_nodes()
    if not reads_rows:
        return method(module, edge_index, size=(held, owned), **data)
    out = method(module, edge_index, size=(held, held), **data)
    return out.narrow(module.node_dim, 0, owned) if names_in == "_user_args" else out


def _check_destinations(name: str, edge_index: Tensor, sg: ShardedGraph) -> None:
    if edge_index.shape[1] and edge_index[1].max() >= sg.num_nodes():
        raise InputError(
            f"{name} was given edges to nodes of other ranks; give it sg.edge_index, or edges made of it with the same "
            "destinations, and store reverse edges in the graph"
        )


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
        _check_destinations("gcn_norm", edge_index, sg)
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


def _refuse_types(sg: ShardedGraph) -> None:
    if sg.schema is not None:
        raise InputError(
            f"{sg.manifest['source']} has nodes of the types {', '.join(sg.ntypes)}, and a Data has one type; use "
            "dgl_gt.nn.HeteroConv with a convolution of PyG for each relation"
        )


def data_of(sg: ShardedGraph) -> Any:
    """A ``Data`` of PyG with the part of a rank, for models that :func:`distribute` has prepared.

    ``edge_index`` is ``sg.edge_index``; ``feat`` is ``x``, ``label`` is ``y``, other node data have their names, and edge data
    begin with ``edge_``. :class:`InputError` says that the graph has several types, or that two columns get one name.
    """
    _refuse_types(sg)
    data = import_optional("torch_geometric.data", "dgl_gt.pyg.data_of", INSTALL_PYG).Data
    columns = {"edge_index": sg.edge_index, "num_nodes": sg.num_nodes()}
    names = [({"feat": "x", "label": "y"}.get(name, name), each) for name, each in sg.ndata.items()]
    names += [(f"edge_{name.removeprefix('edge_')}", each) for name, each in sg.edata.items()]
    for name, each in names:
        if name in columns:
            raise InputError(
                f"{sg.manifest['source']} has two columns that a Data would call {name}; rename one of them"
            )
        columns[name] = each
    return data(**columns)
