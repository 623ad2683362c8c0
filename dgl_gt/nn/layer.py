"""A graph transformer layer: attention along edges, then a feed-forward network, each with a residual and a norm.

Other scores than attention's may take its place.
"""

from __future__ import annotations

from typing import Any, overload

from torch import Tensor, nn

from dgl_gt.exchange.local import leading_rows
from dgl_gt.exchange.view import SeededView
from dgl_gt.model_config import OPTION_VALUES, TRANSFORMER_RESIDUALS
from dgl_gt.partition.errors import check_flags, check_one_of
from dgl_gt.torch_internals import has_hooks

from .attention import (
    BiasedMHA,
    EdgeTerm,
    check_batch,
    check_features,
    check_heads,
    check_probability,
    check_sizes,
    is_dense,
)
from .batch_norm import NORM_MODULES, BatchNorm, normalise
from .dropout import FeatureDropout, begin_pass
from .edge_features import EdgeUpdate
from .feed_forward import FeedForward, feed_forward
from .gat import GATConv
from .graph_conv import GraphConv
from .recomputed import Normed, is_norm

Aggregation = BiasedMHA | GATConv | GraphConv
_NORM_OF = {"gcn": "both", "mean": "right"}


def make_aggregation(
    score: str,
    in_feats: int,
    feat_size: int,
    num_heads: int,
    attn_drop: float,
    attn_bias_type: str = "add",
    has_weights: bool = True,
) -> Aggregation:
    """Return the module that aggregates the rows of neighbours, (N_src, in_feats) -> (N_dst, feat_size).

    ``score`` "dot" gives a :class:`BiasedMHA`, with its output projection. "additive" gives a :class:`GATConv`, and
    "gcn" and "mean" a :class:`GraphConv` with ``norm`` "both" and "right", which has no weight matrix without
    ``has_weights``. Raises ``ValueError`` if the sizes do not fit.
    """
    check_one_of("score", score, OPTION_VALUES["score"])
    if score == "dot":
        if in_feats != feat_size:
            raise ValueError(
                f"dot-product attention takes and returns {feat_size} features, but its input has {in_feats}; choose "
                "another score, or an input projection in front of the layers"
            )
        return BiasedMHA(feat_size, num_heads, attn_bias_type=attn_bias_type, attn_drop=attn_drop)
    if score == "additive":
        check_heads(feat_size, num_heads)
        return GATConv(
            in_feats, feat_size // num_heads, num_heads, attn_drop=attn_drop, bias=False, allow_zero_in_degree=True
        )
    return GraphConv(
        in_feats, feat_size, _NORM_OF[score], weight=has_weights, bias=has_weights, allow_zero_in_degree=True
    )


def aggregate(
    module: Aggregation, seeded: SeededView, rows: Tensor, attn_bias=None, of: Normed | None = None, edge=None
) -> Tensor:
    """Run a module of :func:`make_aggregation` on the rows that a view attends; (N_dst, feat_size).

    ``of`` says which norm of which rows these are; then backward need not keep them. ``edge`` is added to keys and
    values. Raises ``ValueError`` if a module other than :class:`BiasedMHA` is given a bias.
    """
    if isinstance(module, BiasedMHA):
        is_ours = type(module).forward is BiasedMHA.forward
        return module(seeded, rows, attn_bias, **({"of": of, "edge": edge} if is_ours else {}))
    if attn_bias is not None:
        raise ValueError("attn_bias needs the score 'dot'; leave it out, or make the model with score='dot'")
    return module.aggregate(seeded if isinstance(module, GATConv) else seeded.view, rows)


class GraphTransformerLayer(nn.Module):
    """A transformer layer whose attention runs along the edges of a graph.

    The layer of Graphormer (Ying et al., arXiv:2106.05234) with attention restricted to edges (Dwivedi and Bresson,
    arXiv:2012.09699). Constructor arguments, ``state_dict`` keys, initial weights and the order of operations are those
    of ``dgl.nn.GraphormerLayer``. So its checkpoints load, and the results on edges are the same, see
    :class:`BiasedMHA`. A call without a graph, ``layer(nfeat, attn_bias=None, attn_mask=None)``, is DGL's dense one.
    The arguments from ``score`` on are not in DGL's layer.

    Parameters
    ----------
    feat_size : int
        ``C``, the width of the features.
    hidden_size : int
        Width inside the feed-forward network; 0 for a layer without one.
    num_heads : int
        ``H``, the number of heads, which divides ``feat_size``.
    attn_bias_type : {"add", "mul"}
        Whether ``attn_bias`` is added to the scores or multiplies them. On edges only "add" can have a bias.
    norm_first : bool
        Whether to normalise before attention and before the feed-forward network, instead of after each residual.
    dropout : float
        Probability in [0, 1) of dropping a feature in training.
    attn_dropout : float
        Probability in [0, 1) of dropping an attention weight in training.
    activation : Module or {"relu", "gelu", "swiglu"}
        Activation of the feed-forward network.
    score : {"dot", "additive", "gcn", "mean"}
        What the layer does along edges, see :class:`ConvolutionLayer`.
    residual : {"identity", "linear"}
        Whether attention's result is added to the row itself, or to its projection.
    norm : {"layer", "rms", "batch", "none"}
        The norms; "batch" is :class:`BatchNorm`.
    edge_hidden : int
        Width of the edge embeddings; 0 for none. They need the score "dot".
    edge_role : {"bias", "key_value"}
        Whether a linear map of them gives a bias for each head, or is added to keys and values as in
        :class:`TransformerConv`.
    edge_update : bool
        Whether the layer updates these rows, too, see :class:`EdgeUpdate`.

    Raises
    ------
    ValueError
        If ``hidden_size`` is below 0, an option is unknown, a probability is outside [0, 1), or the aggregation refuses
        its arguments.
    """

    def __init__(
        self,
        feat_size: int,
        hidden_size: int,
        num_heads: int,
        attn_bias_type: str = "add",
        norm_first: bool = False,
        dropout: float = 0.1,
        attn_dropout: float = 0.1,
        activation: nn.Module | str = "relu",
        score: str = "dot",
        residual: str = "identity",
        norm: str = "layer",
        edge_hidden: int = 0,
        edge_update: bool = False,
        edge_role: str = "bias",
    ):
        super().__init__()
        check_sizes(feat_size=feat_size, num_heads=num_heads)
        if not (type(hidden_size) is int and hidden_size == 0):
            check_sizes(hidden_size=hidden_size)
        check_flags(norm_first=norm_first, edge_update=edge_update)
        check_probability("dropout", dropout)
        check_probability("attn_dropout", attn_dropout)
        check_one_of("residual", residual, TRANSFORMER_RESIDUALS)
        check_one_of("norm", norm, OPTION_VALUES["norm"])
        if not isinstance(activation, nn.Module):
            check_one_of("activation", activation, OPTION_VALUES["activation"])
        self.feat_size, self.norm_first = feat_size, norm_first
        self.attn = make_aggregation(score, feat_size, feat_size, num_heads, attn_dropout, attn_bias_type)
        check_one_of("edge_role", edge_role, OPTION_VALUES["edge_role"])
        self.edge_hidden = edge_hidden
        self.edge_bias: nn.Module | None = None
        self.edge_proj: nn.Linear | None = None
        self.edge_update: nn.Module | None = None
        if edge_hidden:
            if score != "dot":
                raise ValueError(
                    f"edge_hidden is {edge_hidden}, which needs the score 'dot', but score is {score!r}; choose one of them, 'dot' or edge_hidden=0"
                )
            check_sizes(edge_hidden=edge_hidden)
            if edge_role == "bias":
                self.edge_bias = nn.Linear(edge_hidden, num_heads)
            else:
                self.edge_proj = nn.Linear(edge_hidden, feat_size, bias=False)
            self.edge_update = EdgeUpdate(edge_hidden, feat_size) if edge_update else None
        elif edge_update:
            raise ValueError("edge_update is True, but edge_hidden is 0; give the width of the edge embeddings")
        self.ffn = feed_forward(feat_size, hidden_size, activation, dropout) if hidden_size else None
        self.dropout = FeatureDropout(dropout)
        self.residual = nn.Linear(feat_size, feat_size) if residual == "linear" else nn.Identity()
        self.attn_layer_norm = NORM_MODULES[norm](feat_size)
        self.ffn_layer_norm = NORM_MODULES[norm](feat_size) if hidden_size else None

    @overload
    def forward(
        self, graph, feat: Tensor, attn_bias: Tensor | None = None, *, edge: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor]: ...
    @overload
    def forward(self, nfeat: Tensor, attn_bias: Tensor | None = None, attn_mask: Tensor | None = None) -> Tensor: ...
    def forward(self, *args, **kwargs):
        """Run the layer on ``graph``, or with ``nfeat`` in its place, on a batch of dense graphs.

        Parameters
        ----------
        graph, feat, attn_bias
            See :meth:`BiasedMHA.forward`, which also says what is raised.
        edge : Tensor, floating point, (E, edge_hidden), optional
            Rows of the edges, in the order of edge ids, for a layer that has an ``edge_hidden``.
        nfeat : Tensor, floating point, (B, N, C)
            Node features of a batch of graphs, for the dense call. ``attn_bias`` and ``attn_mask`` are then those of
            the dense call of :class:`BiasedMHA`. It needs the score "dot", no batch norm, and no ``edge_hidden``.

        Returns
        -------
        Tensor, (N_dst, C) or (B, N, C)
            One row for each destination; with ``edge_update`` also the new rows of the edges, (E, edge_hidden).
        """
        return (self._among_all if is_dense("nfeat", args, kwargs) else self._along_edges)(*args, **kwargs)

    def _among_all(self, nfeat: Tensor, attn_bias: Tensor | None = None, attn_mask: Tensor | None = None) -> Tensor:
        """Compute the dense call."""
        check_batch(nfeat, self.feat_size)
        if not isinstance(self.attn, BiasedMHA) or isinstance(self.attn_layer_norm, BatchNorm) or self.edge_hidden:
            raise ValueError(
                "attention among all nodes is available with score='dot', and without norm='batch' and edge_hidden; pass a "
                "graph first, and then the features (nodes, feat_size)"
            )
        rows = self.attn_layer_norm(nfeat) if self.norm_first else nfeat
        return self._after(self.attn(rows, attn_bias, attn_mask), nfeat)

    def _along_edges(self, graph, feat, attn_bias=None, *, edge: Tensor | None = None):
        """Compute the call on a graph."""
        check_features(feat, "feat_size", self.feat_size)
        seeded = begin_pass(self, graph, feat)
        view = seeded.view
        feat = view.source_rows(feat)
        rows = normalise(self.attn_layer_norm, feat, view) if self.norm_first else feat
        of = Normed(rows, feat, self.attn_layer_norm) if self.norm_first else None
        attended = aggregate(self.attn, seeded, rows, self._bias(attn_bias, edge), of, self._edge_term(edge))
        h = self._after(attended, leading_rows(feat, view.num_dst), seeded)
        if self.edge_update is None:
            return h
        attn: Any = self.attn  # a BiasedMHA, as edge_hidden needs
        return h, self.edge_update(view, edge, *attn.queries_and_keys(rows, view.num_dst))

    def _after(self, attended: Tensor, own: Tensor, seeded: SeededView | None = None) -> Tensor:
        """Return what follows attention, from its result and the layer's own rows; a dense batch has no view."""
        view = None if seeded is None else seeded.view
        h = self.residual(own) + self.dropout(attended, seeded)
        if not self.norm_first:
            h = normalise(self.attn_layer_norm, h, view)
        if self.ffn is None:
            return h
        if (
            self.norm_first
            and type(self.ffn) is FeedForward
            and is_norm(self.ffn_layer_norm)
            and not has_hooks(self.ffn)
        ):
            return h + self.ffn(h, seeded, self.ffn_layer_norm)
        if self.norm_first:
            return h + self.ffn(normalise(self.ffn_layer_norm, h, view), seeded)
        return normalise(self.ffn_layer_norm, h + self.ffn(h, seeded), view)

    def _bias(self, attn_bias: Tensor | None, edge: Tensor | None) -> Tensor | None:
        """Return the bias of attention: ``attn_bias`` plus a linear map of the edge embeddings."""
        if edge is None and self.edge_hidden:
            width = self.edge_hidden
            raise ValueError(f"edge is missing, but edge_hidden is {width}; pass edge, a tensor (E, {width})")
        if edge is not None and not self.edge_hidden:
            raise ValueError(
                "edge is given, but the layer has edge_hidden=0; leave edge out, or make the layer with an edge_hidden "
                "above 0"
            )
        if self.edge_bias is None:
            return attn_bias
        bias = self.edge_bias(edge)
        return bias if attn_bias is None else bias + attn_bias

    def _edge_term(self, edge: Tensor | None) -> EdgeTerm | None:
        """Return what is added to keys and values: a linear map of the edge embeddings."""
        if edge is None or self.edge_proj is None:
            return None
        attn: Any = self.attn  # a BiasedMHA, as edge_hidden needs
        return EdgeTerm(edge, self.edge_proj.weight.unflatten(0, (attn.num_heads, attn.head_dim)))
