"""A model whose results are of edges: rows of nodes by any model, and a score of both ends."""

from __future__ import annotations

from itertools import repeat
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from dgl_gt.exchange.sharded_graph import ShardedGraph
from dgl_gt.nn.traits import ModelTraits, traits_of
from dgl_gt.partition.errors import InputError

_PIECE = 2**18  # edges that are scored at a time where no gradient is wanted


class PairScorer(nn.Module):
    """Scores pairs of rows: (N, C) rows, sources and destinations (E,), and numbers of edges (E, F) -> (E, out).

    ``dot`` is the scaled dot product of both rows, for one number; ``bilinear`` that of all source rows, mapped for each
    number, and destination rows; ``mlp`` a layer of C units of both rows and the edge's numbers, and a linear layer.
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
        elif decoder == "bilinear":
            self.maps = nn.Linear(width, out_dim * width, bias=False)
            self.bias = nn.Parameter(torch.zeros(out_dim))

    def forward(self, rows: Tensor, src: Tensor, dst: Tensor, edge_feat: Tensor | None = None) -> Tensor:
        """Return the scores, (E, out)."""
        if self._decoder == "mlp":  # each row is mapped once, not once for each of its edges
            hidden = self.of_source(rows)[src] + self.of_destination(rows)[dst]
            if self.of_edge is not None:
                hidden = hidden + self.of_edge(edge_feat)
            return self.output(functional.gelu(hidden))
        scale = rows.shape[1] ** -0.5
        if self._decoder == "dot":
            return (rows[src] * rows[dst]).sum(1, keepdim=True) * scale
        mapped = self.maps(rows).unflatten(1, (self._out_dim, -1))
        return (mapped[src] * rows[dst][:, None]).sum(2) * scale + self.bias


class PairModel(nn.Module):
    """Any model that gives rows of nodes, (N_owned, C), and a :class:`PairScorer`: results of the edges of a graph."""

    def __init__(self, nodes: nn.Module, scorer: PairScorer):
        super().__init__()
        self.nodes, self.scorer = nodes, scorer

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

    def forward(self, graph: ShardedGraph, feat: Tensor, *, chosen: Tensor | None = None, **edges: Tensor) -> Tensor:
        """Return the results of all edges of the part, or of those that are ``chosen``, int64, (n,)."""
        own = self.nodes(graph, feat, **edges)
        if tuple(own.shape) != (graph.num_nodes(), self.scorer.width):
            raise InputError(
                f"the model returned {tuple(own.shape)}; for a task on edges it must return a row of {self.scorer.width} numbers "
                f"(hidden) for each of the {graph.num_nodes():,} nodes that the rank owns"
            )
        rows = graph.pull(own)
        src, dst = graph.edges()
        edge_feat = edges.get("edge_feat")
        if chosen is not None:
            src, dst = src[chosen], dst[chosen]
            edge_feat = None if edge_feat is None else edge_feat[chosen]
        if torch.is_grad_enabled():
            return self.scorer(rows, src, dst, edge_feat)
        pieces = zip(
            src.split(_PIECE), dst.split(_PIECE), repeat(None) if edge_feat is None else edge_feat.split(_PIECE)
        )
        return torch.cat([self.scorer(rows, *piece) for piece in pieces])
