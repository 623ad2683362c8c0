"""A graph transformer: layers of attention along edges, each with a feed-forward network."""

from __future__ import annotations

from torch import Tensor, nn

from dgl_gt.exchange.view import View
from dgl_gt.model_config import GraphTransformerConfig
from dgl_gt.settings import describing

from ..batch_norm import NORM_MODULES, BatchNorm
from ..edge_features import EdgeEncoder
from ..layer import GraphTransformerLayer
from .node_model import NodeModel


@describing(GraphTransformerConfig, "architecture", "layers", "hidden", "heads", "dropout")
class GraphTransformer(NodeModel):
    """Graph transformer for node-level prediction on one graph.

    By default it has a linear projection with dropout and GELU, layers of attention along edges (Dwivedi and Bresson,
    arXiv:2012.09699) with GELU inside, and a linear projection. With ``norm_first`` the layers are pre-norm and a norm
    precedes the last projection, as in the GT of Platonov et al. (arXiv:2302.11640). To save memory in training, see
    :func:`apply_activation_checkpoint`.

    Attributes
    ----------
    config : GraphTransformerConfig
    uses_global : bool
        Whether the forward pass uses Polynormer's global attention, True at first. Its authors train the layers alone
        until they are good, and then the whole.

    Parameters
    ----------
    in_dim : int
        Width of the node features.
    hidden : int
        ``C``, the width of the layers.
    out : int
        Width of the result: number of classes or targets.
    layers : int
        ``L``, the number of layers, at least 1.
    heads : int
        ``H``, the number of heads, which divides ``hidden``.
    edge_feats, edge_kinds : int
        Number of columns of numbers and of kinds that describe an edge, see :class:`EdgeEncoder`; 0 and 0 for none.
        Each layer adds a linear map of them to its scores, one number for each head, or to keys and values.
    **options
        The settings of the architecture, by name: ``dropout``, by default 0, and those below.

    Raises
    ------
    ValueError
        An option is out of range or contradicts another one; the message names it and says what is allowed.
    """

    Config = GraphTransformerConfig
    config: GraphTransformerConfig

    def __init__(
        self,
        in_dim: int,
        hidden: int,
        out: int,
        layers: int,
        heads: int,
        *,
        edge_feats: int = 0,
        edge_kinds: int = 0,
        **options,
    ):
        super().__init__(in_dim, hidden, out, layers, heads, options)
        config = self.config
        has_edges = bool(edge_feats or edge_kinds)
        config.check_with_edges(has_edges)
        sizes = edge_feats, edge_kinds, config.edge_hidden
        self.edge_encoder = EdgeEncoder(*sizes, kind=config.edge_input) if has_edges else None
        for index in range(layers):
            layer = GraphTransformerLayer(
                hidden,
                config.ffn * hidden,
                heads,
                norm_first=config.norm_first,
                dropout=config.dropout,
                attn_dropout=config.attention_dropout,
                activation=config.activation,
                score=config.score,
                residual=config.residual,
                norm=config.norm,
                edge_hidden=0 if self.edge_encoder is None else self.edge_encoder.width,
                edge_role=config.edge_role,
                edge_update=config.edge_update and index + 1 < layers,
            )
            self.layers.append(layer)
        self._make_end(NORM_MODULES[config.norm](self.width) if config.norm_first else nn.Identity())

    def forward(self, graph, feat: Tensor, attn_bias=None, edge_feat=None, edge_kind=None) -> Tensor:
        """Predict for the destinations of ``graph``, (N_dst, out).

        Parameters
        ----------
        graph, feat, attn_bias
            See :meth:`GNN.forward`, which also says what is raised.
        edge_feat, edge_kind : Tensor, (E, edge_feats) and (E, edge_kinds), optional
            Numbers and kinds of the edges, see :meth:`EdgeEncoder.forward`; for a model that takes them, on one graph.
        """
        return self._predict(graph, feat, attn_bias, self._edges(graph, edge_feat, edge_kind))

    def _edges(self, graph, edge_feat: Tensor | None, edge_kind: Tensor | None) -> Tensor | None:
        """Return the edge embeddings with which the first layer begins; None for a model without edge features."""
        if self.edge_encoder is None:
            if edge_feat is not None or edge_kind is not None:
                raise ValueError("the model takes no edge_feat or edge_kind; make it with edge_feats or edge_kinds")
            return None
        if isinstance(graph, (list, tuple)) and not all(isinstance(each, View) for each in graph):
            raise ValueError(
                "a model with edge features needs one graph, but got a list of blocks, whose edges differ; pass one graph"
            )
        return self.edge_encoder(edge_feat, edge_kind)

    @property
    def input_sizes(self) -> dict[str, int]:
        """The arguments ``in_dim``, ``edge_feats`` and ``edge_kinds`` with which the model was made."""
        encoder = self.edge_encoder
        widths = {name: 0 if encoder is None else getattr(encoder, name) for name in ("edge_feats", "edge_kinds")}
        return super().input_sizes | widths

    def _prefixes_after_attention(self) -> list[str]:
        last = self.layers[-1]
        if last.ffn is None or any(isinstance(norm, BatchNorm) for norm in (self.output_norm, last.ffn_layer_norm)):
            return ["output."]
        return ["output.", f"layers.{len(self.layers) - 1}.ffn."]
