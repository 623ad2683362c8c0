"""Convolutions of a user's own, one for each relation of a typed graph."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from dgl_gt.exchange.any_graph import as_view
from dgl_gt.exchange.typed_graphs import as_typed
from dgl_gt.exchange.typed_parts import RelationPart, typed_parts
from dgl_gt.partition.errors import InputError, check_one_of
from dgl_gt.partition.schema import relation

AGGREGATES = {"sum": lambda x: x.sum(0), "mean": lambda x: x.mean(0), "max": lambda x: x.max(0).values}


class HeteroConv(nn.Module):
    """A convolution for each relation of a typed graph, whose results are joined by the type of the destinations.

    It does what ``HeteroConv`` of PyG and ``HeteroGraphConv`` of DGL do, on one process or on the shards of an edge cut.
    With :class:`GATConv` for each relation, it is R-GAT with a softmax in each relation. Rows travel once for each type
    that a convolution reads, whatever the number of its relations, and types may have rows of different widths.

    A convolution is one of PyG, which gets ``(x_src, x_dst), edge_index``; or one of DGL or of this package, which gets a
    graph of the relation and ``(x_src, x_dst)``. It must take this pair, as ``SAGEConv`` and ``GATConv`` do. Nodes without
    in-edges are allowed, where a convolution can be told so. Masks of dropout differ from those of one process.

    Parameters
    ----------
    convs : dict of relation to Module
        A relation is three names: source type, relation and destination type, also in one text, as ``"user,rates,item"``.
    aggr : {"sum", "mean", "max"}
        How the results of several relations to one type are joined.

    Raises
    ------
    ValueError
        ``aggr`` is unknown, a relation is not three names or there is none, or a convolution of PyG adds self-loops to a
        relation between two types.
    """

    def __init__(self, convs: Mapping[Any, nn.Module], aggr: str = "sum"):
        super().__init__()
        check_one_of("aggr", aggr, tuple(AGGREGATES))
        self.relations = [relation(each) for each in convs]
        if not convs:
            raise InputError("convs is empty; give at least one relation a convolution")
        for each, conv in zip(self.relations, convs.values()):
            if each.source != each.destination and _is_of_pyg(conv) and getattr(conv, "add_self_loops", False):
                raise InputError(
                    f"the convolution of {each} adds self-loops, between nodes of two types; set add_self_loops=False"
                )
            if callable(allow := getattr(conv, "set_allow_zero_in_degree", None)):
                allow(True)
        names = [str(each).replace(".", "#") for each in self.relations]  # a module's name has no dot
        self.convs, self.aggr = nn.ModuleDict(dict(zip(names, convs.values()))), aggr

    def forward(
        self, graph, h: Mapping[str, Tensor], mod_kwargs: Mapping[Any, dict[str, Any]] | None = None
    ) -> dict[str, Tensor]:
        """Run the convolutions.

        Parameters
        ----------
        graph : ShardedGraph, DGLGraph, HeteroData, or TypedGraph
            A typed graph with the relations.
        h : dict of str to Tensor, (N_type, ...)
            Rows of each type; on a ``ShardedGraph`` those of the owned nodes, as in ``sg.nodes[type].data``, for the same
            types on every rank. Relations with an end of another type are left out.
        mod_kwargs : dict of relation to dict, optional
            More arguments of the relations' convolutions, such as rows of edges, in the order of the relation's edge data.

        Returns
        -------
        dict of str to Tensor, (N_type, ...)
            For each type to which a convolution was run.

        Raises
        ------
        ValueError
            A relation or a type is not in the graph, or a type has another number of rows.
        InputError
            The graph is a vertex cut.
        """
        device = next((rows.device for rows in h.values()), None)
        parts = typed_parts(as_view(as_typed(graph, device), next(iter(h.values()), None), self))
        more = {relation(key): value for key, value in (mod_kwargs or {}).items()}
        types = {name: parts.schema.node_type(name) for name in h}
        numbers = {each: parts.schema.relation(each) for each in (*self.relations, *more)}
        run = [
            pair for pair in zip(self.relations, self.convs.values()) if {pair[0].source, pair[0].destination} <= {*h}
        ]
        sources = {each.source for each, _ in run}
        held = {name: parts.pull(types[name], rows) for name, rows in h.items() if name in sources}
        results: dict[str, list[Tensor]] = {}
        for each, conv in run:
            rows = held[each.source], h[each.destination]
            made = _convolve(conv, parts.relation(numbers[each]), rows, more.get(each, {}))
            results.setdefault(each.destination, []).append(made)
        return {name: AGGREGATES[self.aggr](torch.stack(made)) for name, made in results.items()}

    def extra_repr(self) -> str:
        return f"aggr={self.aggr!r}"


def _is_of_pyg(conv: nn.Module) -> bool:
    home = sys.modules.get("torch_geometric.nn")
    return home is not None and isinstance(conv, home.MessagePassing)


def _convolve(conv: nn.Module, part: RelationPart, rows: tuple[Tensor, Tensor], more: dict[str, Any]) -> Tensor:
    """Call a convolution as its package does."""
    if _is_of_pyg(conv):
        return conv(rows, part.edge_index, **more)
    is_ours = any(each.__module__.startswith("dgl_gt.") for each in type(conv).__mro__)
    return conv(part.csc if is_ours else part.block, rows, **more)
