"""A transformer layer for typed graphs: attention across relations, then a feed-forward network for each node type."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor, nn

from dgl_gt.exchange.local import leading_rows
from dgl_gt.exchange.relations import RowGroups
from dgl_gt.exchange.view import SeededView
from dgl_gt.ops.head_minor import has_head_minor_kernel

from .attention import EdgeAttention, EdgeTerm, check_heads
from .batch_norm import NORM_MODULES, normalise
from .dropout import FeatureDropout, begin_pass
from .feed_forward import make_activation
from .relational_conv import RelationalConv
from .typed_linear import grouped_linear


class TypeMaps(nn.Module):
    """A linear map with a bias for each type; weights are (types, in, out), with the initial values of ``nn.Linear``."""

    def __init__(self, types: int, in_size: int, out_size: int):
        super().__init__()
        bound = 1 / math.sqrt(in_size)
        self.weight = nn.Parameter(torch.empty(types, in_size, out_size).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(types, out_size).uniform_(-bound, bound))

    def forward(self, h: Tensor, types: RowGroups) -> Tensor:
        """Map each row by the map of its type."""
        return grouped_linear(h, types, self.weight, self.bias)

    def extra_repr(self) -> str:
        return "types={}, in_size={}, out_size={}".format(*self.weight.shape)


class RelationAttention(EdgeAttention):
    r"""Attention across the relations of a typed graph in one softmax.

    Queries, keys and values are linear maps of the nodes' types, and each relation adds vectors of its own to the keys and to
    the values of its sources: scores are :math:`q_i^\top (k_j + b_r) / \sqrt{D}`. With ``maps``, keys and values pass
    through matrices of the relation for each head, as in HGT (Hu et al., arXiv:2003.01332), which start at the identity.

    Parameters
    ----------
    feat_size, num_heads : int
        ``C`` and ``H``, which divides it.
    types, sources : int, and Tensor, int64, (relations,)
        Number of node types, and the number of the source type of each relation.
    attn_drop : float
        Probability in [0, 1) of dropping an attention weight in training.
    maps : bool
    edge_width : int
        Width of the edge embeddings; 0 for none.
    edge_role
        See :class:`GraphTransformerLayer`.
    """

    sources: Tensor

    def __init__(
        self,
        feat_size: int,
        num_heads: int,
        types: int,
        sources: Tensor,
        attn_drop: float,
        maps: bool,
        edge_width: int = 0,
        edge_role: str = "bias",
    ):
        super().__init__(attn_drop)
        check_heads(feat_size, num_heads)
        self.num_heads, self.head_dim = num_heads, feat_size // num_heads
        self.register_buffer("sources", sources, persistent=False)
        self.query, self.output = TypeMaps(types, feat_size, feat_size), TypeMaps(types, feat_size, feat_size)
        self.key_value = TypeMaps(types, feat_size, 2 * feat_size)
        self.relation = nn.Parameter(torch.zeros(len(sources), 2 * feat_size))
        shape = len(sources), 2, num_heads, self.head_dim, self.head_dim
        self.maps = nn.Parameter(torch.eye(self.head_dim).expand(shape).clone()) if maps else None
        of_scores, of_rows = (edge_width if edge_role == role else 0 for role in ("bias", "key_value"))
        self.edge_bias = nn.Linear(of_scores, num_heads) if of_scores else None
        self.edge_proj = nn.Linear(of_rows, feat_size, bias=False) if of_rows else None

    def forward(self, seeded: SeededView, h: Tensor, edge: Tensor | None = None) -> Tensor:
        """Attend; ``h`` are the rows that the view attends, and the result those of its destinations.

        ``edge`` (E, edge_width) are edge embeddings, in the order of a bias.
        """
        attend, dropout, term = seeded.view.attend_relations, self._dropout(seeded), None
        if edge is not None and self.edge_proj is not None:
            term = EdgeTerm(edge, self.edge_proj.weight.unflatten(0, (self.num_heads, self.head_dim)))
            out = term.folded(attend(h, partial(self._project, term), edge=edge, dropout=dropout))
        else:
            bias = None if edge is None or self.edge_bias is None else self.edge_bias(edge)
            out = attend(h, partial(self._project, None), bias=bias, dropout=dropout)
        return self.output(out.flatten(1), seeded.view.types)

    def _project(self, edge: EdgeTerm | None, h: Tensor, groups: RowGroups, which: str) -> Tensor:
        shape = self.num_heads, self.head_dim
        if which == "q":
            weight, bias = (x.unflatten(-1, (1, *shape)) for x in (self.query.weight, self.query.bias))
        else:
            weight, bias = (
                x.index_select(0, self.sources).unflatten(-1, (2, *shape))
                for x in (self.key_value.weight, self.key_value.bias)
            )
            if self.maps is not None:
                weight = torch.einsum("ricHd,rcHde->ricHe", weight, self.maps)
                bias = torch.einsum("rcHd,rcHde->rcHe", bias, self.maps)
            bias = bias + self.relation.unflatten(1, (2, *shape))
        head_minor = edge is None and has_head_minor_kernel(*shape, h)
        if head_minor:
            weight, bias = weight.transpose(-2, -1), bias.transpose(-2, -1)
        made = grouped_linear(h, groups, weight.flatten(2), bias.flatten(1), in_place=which == "q")
        rows = made.unflatten(1, weight.shape[2:])
        rows = rows.transpose(2, 3) if head_minor else rows
        if which != "q":
            return rows
        return rows.squeeze(1) if edge is None else edge.queries(rows.squeeze(1))


class TypedTransformerLayer(nn.Module):
    """A transformer layer for typed graphs, with residuals and norms as in :class:`GraphTransformerLayer`.

    Parameters
    ----------
    feat_size, hidden_size, num_heads : int
        Width of the rows, of the feed-forward networks (0 for none), and the number of heads.
    types, sources
        See :class:`RelationAttention`.
    score : {"dot", "hgt", "mean"}
        What the layer does along edges: :class:`RelationAttention`, the same with maps of relations, or means of
        :class:`RelationalConv`.
    norm_first, dropout, attn_dropout, activation, norm
        See :class:`GraphTransformerLayer`; ``activation`` is "relu" or "gelu".
    edge_width, edge_role
        See :class:`RelationAttention`.
    """

    def __init__(
        self,
        feat_size: int,
        hidden_size: int,
        num_heads: int,
        types: int,
        sources: Tensor,
        score: str = "dot",
        norm_first: bool = True,
        dropout: float = 0.0,
        attn_dropout: float = 0.0,
        activation: str = "gelu",
        norm: str = "layer",
        edge_width: int = 0,
        edge_role: str = "bias",
    ):
        super().__init__()
        self.norm_first = norm_first
        if score == "mean":
            self.attn: nn.Module = RelationalConv(feat_size, feat_size, len(sources), self_loop=False, aggregate="mean")
        else:
            of_edges = edge_width, edge_role
            self.attn = RelationAttention(feat_size, num_heads, types, sources, attn_dropout, score == "hgt", *of_edges)
        self.dropout, self.inner_dropout, self.ffn_dropout = (FeatureDropout(dropout) for _ in range(3))
        self.attn_layer_norm = NORM_MODULES[norm](feat_size)
        self.ffn_layer_norm = NORM_MODULES[norm](feat_size) if hidden_size else None
        if hidden_size:
            self.activation = make_activation(activation)
            self.inner, self.outer = TypeMaps(types, feat_size, hidden_size), TypeMaps(types, hidden_size, feat_size)

    def forward(self, graph, h: Tensor, edge: Tensor | None = None) -> Tensor:
        """Run the layer on the rows of a view; (num_dst, C)."""
        seeded = begin_pass(self, graph, h)
        view = seeded.view
        h = view.source_rows(h)
        rows = normalise(self.attn_layer_norm, h, view) if self.norm_first else h
        h = leading_rows(h, view.num_dst) + self.dropout(self._attend(seeded, rows, edge), seeded)
        if not self.norm_first:
            h = normalise(self.attn_layer_norm, h, view)
        if self.ffn_layer_norm is None:
            return h
        if self.norm_first:
            return h + self._feed_forward(normalise(self.ffn_layer_norm, h, view), seeded)
        return normalise(self.ffn_layer_norm, h + self._feed_forward(h, seeded), view)

    def _attend(self, seeded: SeededView, rows: Tensor, edge: Tensor | None) -> Tensor:
        if isinstance(self.attn, RelationalConv):
            return self.attn.along_edges(seeded, rows)
        return self.attn(seeded, rows, edge)

    def _feed_forward(self, h: Tensor, seeded: SeededView) -> Tensor:
        types = seeded.view.types
        inner = self.inner_dropout(self.activation(self.inner(h, types)), seeded)
        return self.ffn_dropout(self.outer(inner, types), seeded)
