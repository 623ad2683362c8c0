"""Models around any model of nodes: results of pairs, which are scores of both ends; and trained rows of nodes as input."""

from __future__ import annotations

import math
from itertools import repeat
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from dgl_gt.exchange.sharded_graph import ShardedGraph
from dgl_gt.nn import NodeEmbedding
from dgl_gt.nn.traits import ModelTraits, traits_of
from dgl_gt.partition.errors import InputError
from dgl_gt.torch_internals import is_watched

from .inputs import Pairs

_PIECE = 2**18  # edges that are scored at a time where no gradient is wanted


class AroundNodes(nn.Module):
    """A model around a model of nodes, which trainers and plans see through."""

    def __init__(self, nodes: nn.Module):
        super().__init__()
        self.nodes = nodes

    @property
    def dgl_gt_traits(self) -> ModelTraits:
        """Those of the model of nodes."""
        return traits_of(self.nodes)

    @property
    def uses_global(self) -> bool:
        """Whether Polynormer's global attention is on."""
        nodes: Any = self.nodes
        return nodes.uses_global

    @uses_global.setter
    def uses_global(self, flag: bool) -> None:
        nodes: Any = self.nodes
        nodes.uses_global = flag


class EmbeddedModel(AroundNodes):
    """A model of nodes that reads a trained row of each node after its features; ``nodes_of`` are those of the table."""

    def __init__(self, nodes: nn.Module, nodes_of: ShardedGraph | int, width: int):
        super().__init__(nodes)
        self.table = NodeEmbedding(nodes_of, width)
        count = nodes_of if isinstance(nodes_of, int) else nodes_of.manifest["nodes"]
        with torch.no_grad():  # rows as Xavier's: large ones tell nodes apart by noise
            self.table.weight.mul_(math.sqrt(2 / (count + width)))

    def forward(self, graph: ShardedGraph, feat: Tensor, **more: Any) -> Tensor:
        """Return the results of the owned nodes."""
        rows = self.table.weight
        if self.table.node_ids is None:  # a table that was read from a file
            if len(rows) != graph.manifest["nodes"]:
                raise InputError(
                    f"the model has trained rows of {len(rows):,} nodes (node_embedding), and {graph.manifest['source']} has "
                    f"{graph.manifest['nodes']:,}; use the graph that it was trained on"
                )
            rows = rows[graph.node_ids]
        return self.nodes(graph, torch.cat([feat, rows.to(feat.dtype)], 1), **more)


class PairScorer(nn.Module):
    """Scores pairs of rows: (N, C) rows, sources and destinations (E,), and numbers of edges (E, F) -> (E, out).

    ``dot`` is the scaled dot product of both rows, for one number; ``bilinear`` that of all source rows, mapped for each
    number, and destination rows; ``mlp`` a layer of C units of both rows and the edge's numbers, and a linear layer;
    ``hadamard`` the same of the product of both rows, number by number.
    """

    def __init__(self, decoder: str, width: int, out_dim: int, edge_feats: int = 0):
        super().__init__()
        if decoder == "dot" and out_dim != 1:
            raise InputError(
                f"decoder is dot, which gives one number, and the task needs {out_dim}; choose mlp or bilinear"
            )
        self._decoder, self._out_dim, self.width = decoder, out_dim, width
        if decoder == "mlp":
            self.of_source, self.of_destination = nn.Linear(width, width), nn.Linear(width, width, bias=False)
            self.of_edge = nn.Linear(edge_feats, width, bias=False) if edge_feats else None
            self.output = nn.Linear(width, out_dim)
        elif decoder == "hadamard":
            self.of_product, self.output = nn.Linear(width, width), nn.Linear(width, out_dim)
        elif decoder == "bilinear":
            self.maps = nn.Linear(width, out_dim * width, bias=False)
            self.bias = nn.Parameter(torch.zeros(out_dim))

    @property
    def is_symmetric(self) -> bool:
        """Whether a score does not depend on which end is the source."""
        return self._decoder in ("dot", "hadamard")

    def forward(self, rows: Tensor, src: Tensor, dst: Tensor, edge_feat: Tensor | None = None) -> Tensor:
        """Return the scores, (E, out)."""
        if self._decoder == "mlp":  # each row is mapped once, not once for each of its edges
            hidden = self.of_source(rows)[src] + self.of_destination(rows)[dst]
            if self.of_edge is not None:
                hidden = hidden + self.of_edge(edge_feat)
            return self.output(functional.gelu(hidden))
        if self._decoder == "hadamard":
            return self.output(functional.gelu(self.of_product(rows[src] * rows[dst])))
        scale = rows.shape[1] ** -0.5
        if self._decoder == "dot":
            return _Dots.apply(rows, src, dst)[:, None] * scale
        mapped = self.maps(rows).unflatten(1, (self._out_dim, -1))
        return (mapped[src] * rows[dst][:, None]).sum(2) * scale + self.bias


class _Dots(torch.autograd.Function):
    """Dot products of pairs of rows, (N, C) -> (n,), some pairs at a time, whose rows stay in the processor's cache."""

    @staticmethod
    def forward(ctx, rows: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        ctx.save_for_backward(rows, src, dst)
        pieces = zip(src.split(_pairs_at_once(rows)), dst.split(_pairs_at_once(rows)))
        return torch.cat([(rows.index_select(0, a) * rows.index_select(0, b)).sum(1) for a, b in pieces])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor):
        rows, src, dst = ctx.saved_tensors
        found = torch.zeros_like(rows)
        for a, b, weight in zip(*(each.split(_pairs_at_once(rows)) for each in (src, dst, grad[:, None]))):
            found.index_add_(0, a, rows.index_select(0, b) * weight)
            found.index_add_(0, b, rows.index_select(0, a) * weight)
        return found, None, None


def _pairs_at_once(rows: Tensor) -> int:
    return 2**12 if rows.device.type == "cpu" and not is_watched() else 2**20  # a trace has one piece on every part


class PairModel(AroundNodes):
    """Any model that gives rows of nodes, (N_owned, C), and a :class:`PairScorer`: results of pairs of nodes."""

    def __init__(self, nodes: nn.Module, scorer: PairScorer):
        super().__init__(nodes)
        self.scorer = scorer

    def forward(self, graph: ShardedGraph, feat: Tensor, *, pairs: Pairs | None = None, **edges: Tensor) -> Tensor:
        """Return the results of pairs, (n, out); without pairs the rows of the owned nodes, (N_owned, C)."""
        own = self.nodes(graph, feat, **edges)
        if tuple(own.shape) != (graph.num_nodes(), self.scorer.width):
            raise InputError(
                f"the model returned {tuple(own.shape)}; for a task on edges or links it must return a row of {self.scorer.width} "
                f"numbers (hidden) for each of the {graph.num_nodes():,} nodes that the rank owns"
            )
        if pairs is None:
            return own
        rows, edge_feat = pairs.rows(own), edges.get("edge_feat")
        edge_feat = None if pairs.edges is None or edge_feat is None else edge_feat[pairs.edges]
        if torch.is_grad_enabled():
            return self.scores(rows, pairs.source, pairs.destination, edge_feat, pairs.both_ways)
        pieces = zip(
            pairs.source.split(_PIECE),
            pairs.destination.split(_PIECE),
            repeat(None) if edge_feat is None else edge_feat.split(_PIECE),
        )
        return torch.cat([self.scores(rows, *piece, pairs.both_ways) for piece in pieces])

    def scores(self, rows: Tensor, src: Tensor, dst: Tensor, edge_feat: Tensor | None, both_ways: bool) -> Tensor:
        """Return the results of pairs of rows, (n, out); where wanted the means of those of both directions."""
        with torch.autocast(rows.device.type, enabled=False):  # bfloat16 would make many scores equal
            rows = rows.float() if rows.dtype == torch.bfloat16 else rows
            scores = self.scorer(rows, src, dst, edge_feat)
            if not both_ways or self.scorer.is_symmetric:
                return scores
            return (scores + self.scorer(rows, dst, src, edge_feat)) / 2
