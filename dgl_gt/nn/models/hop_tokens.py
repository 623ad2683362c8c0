"""A transformer that reads a node's hop tokens, and no other node's rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from dgl_gt.exchange.any_graph import views_of
from dgl_gt.exchange.typed_graphs import as_typed
from dgl_gt.exchange.view import SeededView
from dgl_gt.model_config import GraphTransformerConfig
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.schema import relation as as_relation

from ..attention import check_sizes
from ..batch_norm import NORM_MODULES
from ..dropout import FeatureDropout, with_seeds
from ..feed_forward import feed_forward, make_activation, make_output
from ..traits import ModelTraits
from .hetero import RowIds, check_schema, features_of_type


class HopTokenTransformer(nn.Module):
    """Transformer over the hop tokens of each node of a typed graph, after RpHGNN (arXiv:2310.14481).

    The tokens were made before the graph was cut (``dgl-gt partition --encode hops=K``), so ranks exchange no rows. Each
    token of a node type has a projection of its own; what ``dropout`` drops there is whole tokens, so that no result hangs on
    one of them. Then come layers of attention among the tokens of a node, with a feed-forward network, and the mean over
    the tokens.

    Parameters
    ----------
    in_dim : dict of str to int
        Width of the tokens of a node, side by side, of each node type, in the order of the graph's types. A type of width
        0 is left out, and its nodes get results that mean nothing.
    hidden, out, layers, heads : int
        See :class:`GraphTransformer`.
    relations : sequence of (str, str, str)
        The relations of the graph, in its order.
    token_width : int
        Width of one token, which divides ``in_dim``.
    **options
        Settings of :class:`GraphTransformerConfig` by name; edges have no scores here, so ``score`` must be "dot".

    Raises
    ------
    ValueError
        An option is out of range or is not for tokens; the message names it and says what is allowed.
    """

    Config: ClassVar = GraphTransformerConfig

    def __init__(
        self,
        in_dim: Mapping[str, int],
        hidden: int,
        out: int,
        layers: int,
        heads: int,
        *,
        relations: Sequence[Sequence[str]],
        token_width: int,
        **options,
    ):
        super().__init__()
        check_sizes(out=out, token_width=token_width)
        self.config = config = self.Config(**{"dropout": 0.0} | options, hidden=hidden, layers=layers, heads=heads)
        config.check_tokens()
        for name, width in in_dim.items():
            if width % token_width:
                raise InputError(f"in_dim[{name!r}] is {width}; it must be a multiple of token_width ({token_width})")
        self.relations = tuple(as_relation(each) for each in relations)
        self.in_dim, self.out_dim, self.token_width = dict(in_dim), out, token_width
        self.input_dropout = FeatureDropout(config.input_dropout)
        self.dropout = FeatureDropout(config.dropout)
        tokens = [width // token_width for width in in_dim.values()]
        self.tokens = nn.ModuleList(
            _Projections(count, token_width, hidden, NORM_MODULES[config.norm]) if count else nn.Identity()
            for count in tokens
        )
        self.activation = make_activation(config.activation)
        self.layers = nn.ModuleList(_TokenLayer(config) for _ in range(layers))
        self.output_norm = NORM_MODULES[config.norm](hidden) if config.norm_first else nn.Identity()
        self.output = make_output(config.output, hidden, out, config.activation)

    def forward(self, graph, feat: Mapping[str, Tensor]) -> Tensor:
        """Predict for all nodes, (N, out).

        Parameters
        ----------
        graph, feat
            See :meth:`HeteroGraphTransformer.forward`; ``feat`` holds tokens, ``sg.nodes[name].data["hops"]``.

        Returns
        -------
        Tensor, (N, out)
            Rows of all nodes, type by type; on a ``ShardedGraph`` of the owned nodes, in the order of ``sg.node_ids``.

        Raises
        ------
        ValueError
            The graph has other types, or the tokens of a type are missing or of another shape.
        """
        views = views_of(as_typed(graph, next(self.parameters()).device), self, 1)
        check_schema(views[0].checked_schema, self.in_dim, self.relations)
        (seeded,) = with_seeds(self, views)
        view, of_types = seeded.view, []
        ids = torch.arange(view.num_owned) if view.node_ids is None else view.node_ids[: view.num_owned]
        for number, (name, width) in enumerate(self.in_dim.items()):
            at = view.owned_types.group(number)
            if not width:
                of_types.append(next(self.parameters()).new_zeros(len(at), self.config.hidden))
                continue
            rows = features_of_type(feat, name, len(at), width)
            of_types.append(self._of_type(number, rows, ids.to(at.device)[at], seeded.seeds))
        return self.output(view.owned_types.joined(of_types))

    def _of_type(self, number: int, rows: Tensor, ids: Tensor, seeds) -> Tensor:
        """The rows of the nodes of one type that the output reads, (nodes, hidden)."""
        of_nodes = SeededView(RowIds(ids), seeds)
        count = rows.shape[1] // self.token_width
        kept = self.dropout(rows.new_ones(len(rows), count), of_nodes) if self.dropout.drops else None
        h = self.tokens[number](self.input_dropout(rows, of_nodes), kept)
        if self.config.input == "activated":
            h = self.activation(h)
        token_ids = ids.unsqueeze(1) * count + torch.arange(count, device=ids.device)
        of_tokens = SeededView(RowIds(token_ids.flatten()), seeds)
        h = h.flatten(0, 1)
        for layer in self.layers:
            h = layer(h, count, of_tokens)
        return self.output_norm(h).unflatten(0, (-1, count)).mean(1)

    @property
    def dgl_gt_traits(self) -> ModelTraits:
        """What the trainer and plans know of the model."""
        relations = [list(each) for each in self.relations]
        sizes = {"in_dim": self.in_dim, "relations": relations, "token_width": self.token_width}
        return ModelTraits(None, sizes, (*self.layers, self.input_dropout, self.dropout))


class _Projections(nn.Module):
    """A linear map for each token, then a norm; weights are (tokens, in, out), with the initial values of ``nn.Linear``."""

    def __init__(self, tokens: int, in_size: int, out_size: int, norm: type[nn.Module]):
        super().__init__()
        bound = 1 / math.sqrt(in_size)
        self.weight = nn.Parameter(torch.empty(tokens, in_size, out_size).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(tokens, 1, out_size).uniform_(-bound, bound))
        self.norm = norm(out_size)

    def forward(self, rows: Tensor, kept: Tensor | None = None) -> Tensor:
        """Map tokens side by side, (nodes, tokens * in), each times its factor, (nodes, tokens), to (nodes, tokens, out)."""
        tokens = rows.unflatten(1, self.weight.shape[:2]).transpose(0, 1)
        weight, bias = self.weight.to(rows.dtype), self.bias.to(rows.dtype)
        if kept is None:
            return self.norm(torch.baddbmm(bias, tokens, weight).transpose(0, 1))
        found = torch.bmm(tokens, weight)
        return self.norm((found * kept.T.unsqueeze(2).to(found.dtype) + bias.to(found.dtype)).transpose(0, 1))


class _TokenLayer(nn.Module):
    """Attention among the tokens of each node, then a feed-forward network, with residuals and norms."""

    def __init__(self, config: GraphTransformerConfig):
        super().__init__()
        width, norm = config.hidden, NORM_MODULES[config.norm]
        self.heads, self.norm_first = config.heads, config.norm_first
        self.query_key_value, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.attn_norm, self.dropout = norm(width), FeatureDropout(config.dropout)
        self.ffn_norm = norm(width) if config.ffn else None
        if config.ffn:
            self.ffn = feed_forward(width, config.ffn * width, config.activation, config.dropout)

    def forward(self, h: Tensor, tokens: int, seeded: SeededView) -> Tensor:
        """Run the layer on the tokens of all nodes, (nodes * tokens, C)."""
        rows = self.attn_norm(h) if self.norm_first else h
        h = h + self.dropout(self.output(self._attended(rows, tokens)), seeded)
        h = h if self.norm_first else self.attn_norm(h)
        if self.ffn_norm is None:
            return h
        if self.norm_first:
            return h + self.ffn(self.ffn_norm(h), seeded)
        return self.ffn_norm(h + self.ffn(h, seeded))

    def _attended(self, h: Tensor, tokens: int) -> Tensor:
        shape = len(h) // tokens, tokens, 3, self.heads, h.shape[1] // self.heads
        query, key, value = self.query_key_value(h).view(shape).permute(2, 0, 3, 1, 4)
        out = functional.scaled_dot_product_attention(query, key, value)
        return out.transpose(1, 2).reshape(h.shape)
