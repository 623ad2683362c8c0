"""Models around any model of nodes: results of pairs, which are scores of both ends; and trained rows of nodes as input."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import repeat
from typing import Any

import torch
from torch import Tensor, nn

from dgl_gt.exchange.sharded_graph import ShardedGraph
from dgl_gt.nn import NodeEmbedding
from dgl_gt.nn.node_embedding import ids_in_table
from dgl_gt.nn.pair_scorer import PairScorer
from dgl_gt.nn.traits import ModelTraits, traits_of
from dgl_gt.partition.errors import InputError

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
    """A model of nodes that reads a trained row of each node after its features; ``nodes_of`` are those of the table.

    Of a typed graph, the types ``ntypes``, which have no features, have trained rows, and no others.
    """

    def __init__(self, nodes: nn.Module, nodes_of: ShardedGraph | int, width: int, ntypes: Sequence[str] | None = None):
        super().__init__(nodes)
        self.ntypes, is_read = ntypes, isinstance(nodes_of, int)  # from a file
        self.table = NodeEmbedding(nodes_of, width, None if is_read else ntypes)
        count = nodes_of if isinstance(nodes_of, int) else ids_in_table(nodes_of, ntypes)[1]
        with torch.no_grad():  # rows as Xavier's: large ones tell nodes apart by noise
            self.table.weight.mul_(math.sqrt(2 / (count + width)))

    @property
    def dgl_gt_traits(self) -> ModelTraits:
        """Those of the model of nodes; types with trained rows have features of the width 0."""
        traits = traits_of(self.nodes)
        sizes: Any = traits.input_sizes
        if self.ntypes is None or sizes is None:
            return traits
        return replace(traits, input_sizes={**sizes, "in_dim": sizes["in_dim"] | dict.fromkeys(self.ntypes, 0)})

    def forward(self, graph: ShardedGraph, feat: Tensor | dict[str, Tensor], **more: Any) -> Tensor:
        """Return the results of the owned nodes."""
        rows = self.table.weight
        if self.table.node_ids is None:  # a table that was read from a file
            ids, count = ids_in_table(graph, self.ntypes)
            if len(rows) != count:
                of_types = f" of type {' and '.join(self.ntypes)}" if self.ntypes else ""
                raise InputError(
                    f"the model has trained rows of {len(rows):,} nodes{of_types} (node_embedding), and "
                    f"{graph.manifest['source']} has {count:,}; use the graph that it was trained on"
                )
            rows = rows[ids]
        if isinstance(feat, dict):
            assert self.ntypes is not None
            trained = rows.split([len(graph.rows(name)) for name in self.ntypes])
            return self.nodes(graph, feat | dict(zip(self.ntypes, trained)), **more)
        return self.nodes(graph, torch.cat([feat, rows.to(feat.dtype)], 1), **more)


class PairModel(AroundNodes):
    """Any model that gives rows of nodes, (N_owned, C), and a :class:`PairScorer`: results of pairs of nodes.

    Of a typed graph, ``relation`` is that of the edges which the pairs are.
    """

    def __init__(self, nodes: nn.Module, scorer: PairScorer, relation: str = ""):
        super().__init__(nodes)
        self.scorer, self.relation = scorer, relation

    def forward(self, graph: ShardedGraph, feat: Tensor, *, pairs: Pairs | None = None, **edges: Any) -> Tensor:
        """Return the results of pairs, (n, out); without pairs the rows of the owned nodes, (N_owned, C)."""
        own = self.nodes(graph, feat, **edges)
        if tuple(own.shape) != (graph.num_nodes(), self.scorer.width):
            raise InputError(
                f"the model returned {tuple(own.shape)}; for a task on edges or links it must return a row of {self.scorer.width} "
                f"numbers (hidden) for each of the {graph.num_nodes():,} nodes that the rank owns"
            )
        if pairs is None:
            return own
        rows, edge_feat, numbers = pairs.rows(own), edges.get("edge_feat"), pairs.edges
        if isinstance(edge_feat, dict):
            edge_feat = edge_feat.get(self.relation)
            if edge_feat is not None and numbers is not None:
                numbers = torch.searchsorted(graph.edge_rows(self.relation), numbers)
        edge_feat = None if numbers is None or edge_feat is None else edge_feat[numbers]
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
