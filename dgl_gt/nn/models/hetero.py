"""A graph transformer for typed graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from dgl_gt.exchange.any_graph import views_of
from dgl_gt.exchange.typed_graphs import as_typed
from dgl_gt.exchange.view import SeededView, View
from dgl_gt.model_config import GraphTransformerConfig
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.schema import Relation, Schema
from dgl_gt.partition.schema import relation as as_relation

from ..attention import check_sizes
from ..batch_norm import NORM_MODULES, normalise
from ..dropout import FeatureDropout, with_seeds
from ..edge_features import RelationEdgeEncoder
from ..feed_forward import make_encoder, make_output
from ..traits import ModelTraits
from ..typed_layer import TypedTransformerLayer

OfRelations = Mapping[Any, Tensor] | None


class HeteroGraphTransformer(nn.Module):
    """Graph transformer for typed graphs: a projection for each node type, then layers of :class:`TypedTransformerLayer`.

    All in-edges of a node share one softmax, whatever their relations. Rows travel between ranks once a layer.

    Parameters
    ----------
    in_dim : dict of str to int
        Width of the features of each node type, in the order of the graph's types. A type without features reads how many
        in-edges it has of each relation, as logarithms; it has the width 0.
    hidden, out, layers, heads : int
        See :class:`GraphTransformer`.
    relations : sequence of (str, str, str)
        The relations of the graph, in its order.
    edge_feats, edge_kinds : dict of str to int, optional
        By relation, such as "user,rates,item", the numbers of columns of numbers and of kinds that describe its edges, see
        :class:`EdgeEncoder`.
    **options
        Settings of :class:`GraphTransformerConfig` by name; ``score`` may be "dot", "hgt" or "mean".

    Raises
    ------
    ValueError
        An option is out of range or is not for typed graphs; the message names it and says what is allowed.
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
        edge_feats: Mapping[str, int] = {},
        edge_kinds: Mapping[str, int] = {},
        **options,
    ):
        super().__init__()
        check_sizes(out=out)
        self.config = config = self.Config(**{"dropout": 0.0} | options, hidden=hidden, layers=layers, heads=heads)
        config.check_typed()
        of_edges = {"edge_feats": dict(edge_feats), "edge_kinds": dict(edge_kinds)}
        self._edge_widths = {name: widths for name, widths in of_edges.items() if widths}
        has_edges = bool(self._edge_widths)
        config.check_with_edges(has_edges)
        self.relations = tuple(as_relation(each) for each in relations)
        self.in_dim, self.out_dim = dict(in_dim), out
        schema = Schema(dict.fromkeys(in_dim, 0), dict.fromkeys(self.relations, 0))
        sources = torch.from_numpy(schema.ends[:, 0].copy())
        self.input_dropout = FeatureDropout(config.input_dropout)
        widths = [width or len(self.relations) for width in self.in_dim.values()]
        self.encoders = nn.ModuleList(
            make_encoder(config.input, width, hidden, config.activation, config.dropout) for width in widths
        )
        self.edge_encoder, edge_width = None, 0
        if has_edges:
            names, of_input = [*map(str, self.relations)], (config.edge_hidden, config.edge_input)
            encoder = RelationEdgeEncoder(names, edge_feats, edge_kinds, *of_input)
            self.edge_encoder, edge_width = encoder, encoder.width
        layer = config.ffn * hidden, heads, len(self.in_dim), sources, config.score, config.norm_first
        more = config.dropout, config.attention_dropout, config.activation, config.norm, edge_width, config.edge_role
        self.layers = nn.ModuleList(TypedTransformerLayer(hidden, *layer, *more) for _ in range(layers))
        self.output_norm = NORM_MODULES[config.norm](hidden) if config.norm_first else nn.Identity()
        self.output = make_output(config.output, hidden, out, config.activation)

    def forward(
        self, graph, feat: Mapping[str, Tensor], edge_feat: OfRelations = None, edge_kind: OfRelations = None
    ) -> Tensor:
        """Predict for all nodes, (N, out).

        Parameters
        ----------
        graph : ShardedGraph, DGLGraph, HeteroData, or what :func:`dgl_gt.typed_graph` returns
        feat : dict of str to Tensor, (N, F)
            By node type, the features of its nodes, on a ``ShardedGraph`` of its owned nodes, see ``sg.nodes[name].data``.
        edge_feat, edge_kind : dict of relation to Tensor, (E, edge_feats) and (E, edge_kinds), optional
            By relation, as three names or one string, what describes its edges, on a ``ShardedGraph`` of this part's edges,
            see ``sg.edges[relation].data``.

        Returns
        -------
        Tensor, (N, out)
            Rows of all nodes, type by type; on a ``ShardedGraph`` of the owned nodes, in the order of ``sg.node_ids``.

        Raises
        ------
        ValueError
            The graph has other types, or the features of a type are missing or of another shape.
        """
        views = views_of(as_typed(graph, next(self.parameters()).device), self, len(self.layers))
        schema = views[0].checked_schema
        check_schema(schema, self.in_dim, self.relations)
        seeded = with_seeds(self, views)
        h, edge = self._encoded(seeded[0], feat), self._edges(seeded[0].view, edge_feat, edge_kind)
        for layer, view in zip(self.layers, seeded, strict=True):
            h = layer(view, h, edge) if edge is not None else layer(view, h)
        return self.output(normalise(self.output_norm, h, views[-1]))

    def _edges(self, view: View, edge_feat: OfRelations, edge_kind: OfRelations) -> Tensor | None:
        of_relation = [
            {str(as_relation(name)): x for name, x in (each or {}).items()} for each in (edge_feat, edge_kind)
        ]
        if self.edge_encoder is not None:
            return self.edge_encoder(view, *of_relation)
        if any(of_relation):
            raise InputError("the model takes no edge_feat or edge_kind; make it with edge_feats or edge_kinds")
        return None

    def _encoded(self, seeded: SeededView, feat: Mapping[str, Tensor]) -> Tensor:
        """The rows of the owned nodes before the first layer."""
        view, of_types = seeded.view, []
        degrees: Tensor | None = None
        ids = torch.arange(view.num_owned) if view.node_ids is None else view.node_ids[: view.num_owned]
        for number, ((name, width), encoder) in enumerate(zip(self.in_dim.items(), self.encoders)):
            at = view.owned_types.group(number)
            if width:
                rows = features_of_type(feat, name, len(at), width)
            else:
                degrees = view.in_degrees_by_relation() if degrees is None else degrees
                rows = degrees[at].to(torch.get_default_dtype()).log1p()
            of_type = SeededView(RowIds(ids.to(at.device)[at]), seeded.seeds)
            of_types.append(encoder(self.input_dropout(rows, of_type), of_type))
        return view.owned_types.joined(of_types)

    @property
    def dgl_gt_traits(self) -> ModelTraits:
        """What the trainer and plans know of the model."""
        sizes = {"in_dim": self.in_dim, "relations": [list(each) for each in self.relations], **self._edge_widths}
        return ModelTraits(len(self.layers), sizes, (*self.layers, *self.encoders, self.input_dropout))


class RowIds(View):
    """Rows with the ids by which dropout knows them, such as those of one node type."""

    def __init__(self, node_ids: Tensor):
        self.node_ids = node_ids


def check_schema(schema: Schema, in_dim: Mapping[str, int], relations: Sequence[Relation]) -> None:
    """Raise :class:`InputError` unless a graph has the types and relations that a model was made for."""
    if (schema.node_types, schema.relations) != (tuple(in_dim), tuple(relations)):
        raise InputError(
            f"the model was made for the types {' '.join(in_dim)} and relations {' '.join(map(str, relations))}, and the graph "
            f"has {' '.join(schema.node_types)} and {' '.join(map(str, schema.relations))}"
        )


def features_of_type(feat: Mapping[str, Tensor], name: str, rows: int, width: int) -> Tensor:
    """The features of a node type; ``InputError`` if they are missing or have another shape."""
    found = feat.get(name)
    if found is None:
        raise InputError(
            f"there are no features of the node type {name!r}, of which the model reads {width}; pass feat[{name!r}]"
        )
    if tuple(found.shape) != (rows, width):
        raise InputError(f"feat[{name!r}] has shape {tuple(found.shape)}; it must be ({rows}, {width})")
    return found
