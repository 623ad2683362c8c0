"""What a layer does along edges: the module for each kind of score."""

from __future__ import annotations

from torch import Tensor

from dgl_gt.exchange.view import SeededView
from dgl_gt.model_config import OPTION_VALUES
from dgl_gt.partition.errors import check_one_of

from .attention import BiasedMHA, check_heads
from .gat import GATConv
from .graph_conv import GraphConv

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


def aggregate(module: Aggregation, seeded: SeededView, rows: Tensor, attn_bias=None) -> Tensor:
    """Run a module of :func:`make_aggregation` on the rows that a view attends; (N_dst, feat_size).

    Raises ``ValueError`` if a module other than :class:`BiasedMHA` is given a bias.
    """
    if isinstance(module, BiasedMHA):
        return module(seeded, rows, attn_bias)
    if attn_bias is not None:
        raise ValueError("attn_bias needs the score 'dot'; leave it out, or make the model with score='dot'")
    return module.aggregate(seeded if isinstance(module, GATConv) else seeded.view, rows)
