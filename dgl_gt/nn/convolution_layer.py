"""A convolution layer: aggregation, residual, norm, ReLU and dropout, and optionally Polynormer's gate."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from dgl_gt.exchange.local import leading_rows
from dgl_gt.model_config import MAP_WEIGHTS, OPTION_VALUES
from dgl_gt.partition.errors import check_flags, check_one_of, whole_number

from .attention import check_features, check_number, check_probability, check_sizes
from .batch_norm import NORM_MODULES, normalise
from .dropout import FeatureDropout, begin_pass
from .global_attention import Gate
from .layer import aggregate, make_aggregation


class InitialResidual(nn.Module):
    r"""Initial residual and identity mapping of GCNII (Chen et al., arXiv:2007.02133).

    From the rows :math:`a` that layer :math:`l` has aggregated, and the rows :math:`h_0` before the first layer, it
    computes

    .. math:: s = (1 - \alpha) a + \alpha h_0, \qquad y = (1 - \beta_l) s + \beta_l W s, \qquad
        \beta_l = \log(\lambda / l + 1)

    So a deep layer is near the identity, and every layer keeps a share of a node's initial row. With
    :math:`\lambda = 0` there is no :math:`W`, and the layers propagate as in APPNP (Gasteiger et al.,
    arXiv:1810.05997).

    Parameters
    ----------
    feats : int
        Width of the rows.
    layer : int
        :math:`l`, the number of the layer, counted from 1.
    initial_weight : float
        :math:`\alpha`, in [0, 1].
    map_weight : float
        :math:`\lambda`, in [0, 1.7], so that :math:`\beta_l` is at most 1.

    Raises
    ------
    ValueError
        If a size is below 1, or a weight is out of range.
    """

    def __init__(self, feats: int, layer: int, initial_weight: float = 0.1, map_weight: float = 0.5):
        super().__init__()
        check_sizes(feats=feats)
        layer = whole_number("layer", layer, 1)
        for name, value, most in (("initial_weight", initial_weight, 1.0), ("map_weight", map_weight, MAP_WEIGHTS[1])):
            check_number(name, value, 0.0, most)
        self.feats, self.initial_weight = feats, float(initial_weight)
        self.map_share = math.log(map_weight / layer + 1)
        self.linear = nn.Linear(feats, feats, bias=False) if map_weight else None

    def forward(self, aggregated: Tensor, initial: Tensor) -> Tensor:
        """Return (rows, feats) for what the layer has aggregated and the rows before the first layer, (rows, feats) each.

        Raises ``ValueError`` if the shapes do not fit.
        """
        check_features(initial, "feats", self.feats)
        if len(initial) != len(aggregated):
            raise ValueError(
                f"initial has {len(initial)} rows, but aggregated has {len(aggregated)}; pass one row of initial for each row of "
                "aggregated"
            )
        rows = torch.lerp(aggregated, initial.to(aggregated.dtype), self.initial_weight)
        return rows if self.linear is None else torch.lerp(rows, self.linear(rows).to(rows.dtype), self.map_share)

    def extra_repr(self) -> str:
        return f"{self.feats}, initial_weight={self.initial_weight:g}, map_share={self.map_share:.4g}"


class ConvolutionLayer(nn.Module):
    r"""The layer of tuned GNNs (Luo et al., arXiv:2406.08993), and with a gate that of Polynormer (arXiv:2403.01232).

    With the aggregation :math:`A` that the score names, the layer computes

    .. math:: y = \mathrm{drop}(\mathrm{ReLU}(\mathrm{norm}(A(x) + W_r x)))

    and with a gate, where :math:`g = \mathrm{ReLU}(W_h x)`, returns

    .. math:: (1 - \beta) * \mathrm{LN}(g * y) + \beta * y .

    Parameters
    ----------
    in_feats, feat_size : int
        Widths of the rows that the layer takes, and returns.
    num_heads : int
        ``H``, for the scores "dot" and "additive".
    score : {"dot", "additive", "gcn", "mean"}
        Attention with dot-product scores (:class:`BiasedMHA`) or additive ones (:class:`GATConv`), or a sum weighted by
        degrees (:class:`GraphConv` with ``norm`` "both") or the mean.
    residual : {"none", "identity", "linear", "initial"}
        What is added to the aggregation: nothing, the row itself, or its projection :math:`W_r x`. With "initial", the
        aggregation is combined with the rows before the first layer, see :class:`InitialResidual`; the scores "gcn" and
        "mean" then have no weights of their own.
    norm : {"layer", "rms", "batch", "none"}
        The norm; "batch" is :class:`BatchNorm`.
    norm_first : bool
        Whether to normalise the rows that the layer takes, in place of the sum.
    gate : {"none", "sigmoid", "free", "constant"}
        Whether the layer has a gate, and what :math:`\beta` is, see :class:`Gate`.
    gate_start : float
        See :class:`Gate`.
    dropout, attn_dropout : float
        Probabilities in [0, 1) of dropping a feature, and an attention weight, in training.
    layer, initial_weight, map_weight : int, float, float
        See :class:`InitialResidual`, for the residual "initial".

    Raises
    ------
    ValueError
        If an option is unknown, a size is below 1 or does not fit, or a probability is outside [0, 1).
    """

    def __init__(
        self,
        in_feats: int,
        feat_size: int,
        num_heads: int = 1,
        score: str = "gcn",
        residual: str = "linear",
        norm: str = "layer",
        norm_first: bool = False,
        gate: str = "none",
        gate_start: float = 0.9,
        dropout: float = 0.1,
        attn_dropout: float = 0.0,
        layer: int = 1,
        initial_weight: float = 0.1,
        map_weight: float = 0.5,
    ):
        super().__init__()
        check_sizes(in_feats=in_feats, feat_size=feat_size, num_heads=num_heads)
        check_one_of("residual", residual, OPTION_VALUES["residual"])
        check_one_of("norm", norm, OPTION_VALUES["norm"])
        check_one_of("gate", gate, OPTION_VALUES["gate"])
        check_flags(norm_first=norm_first)
        check_probability("dropout", dropout)
        check_probability("attn_dropout", attn_dropout)
        check_number("gate_start", gate_start)
        if residual in ("identity", "initial") and in_feats != feat_size:
            raise ValueError(
                f"residual is {residual!r}, but the layer takes {in_feats} features and returns {feat_size}; choose "
                "'linear' or 'none'"
            )
        self.in_feats, self.norm_first = in_feats, norm_first
        has_weights = residual != "initial"
        self.conv = make_aggregation(score, in_feats, feat_size, num_heads, attn_dropout, has_weights=has_weights)
        residuals: dict[str, Callable[[], nn.Module | None]] = {
            "none": lambda: None,
            "identity": nn.Identity,
            "linear": lambda: nn.Linear(in_feats, feat_size),
            "initial": lambda: InitialResidual(feat_size, layer, initial_weight, map_weight),
        }
        self.residual = residuals[residual]()
        self.norm = NORM_MODULES[norm](in_feats if norm_first else feat_size)
        self.dropout = FeatureDropout(dropout)
        self.gate = None if gate == "none" else Gate(1, feat_size, gate, gate_start)
        if self.gate is not None:
            self.gate_proj = nn.Linear(in_feats, feat_size)
            self.gate_norm = nn.LayerNorm(feat_size)

    def forward(self, graph, feat: Tensor, attn_bias: Tensor | None = None, *, initial: Tensor | None = None) -> Tensor:
        """Run the layer on ``graph``; the arguments, the result and the errors are those of the transformer layer.

        ``attn_bias`` needs the score "dot". ``initial``, (N, feat_size), are the rows before the first layer, for the
        residual "initial". Their first rows are those of the result, and there may be more.
        """
        check_features(feat, "in_feats", self.in_feats)
        seeded = begin_pass(self, graph, feat)
        view = seeded.view
        feat = view.source_rows(feat)
        x = normalise(self.norm, feat, view) if self.norm_first else feat
        own = leading_rows(x, view.num_dst)
        y = aggregate(self.conv, seeded, x, attn_bias)
        if isinstance(self.residual, InitialResidual):
            if initial is None:
                raise ValueError("residual is 'initial', which needs the rows before the first layer; pass initial")
            y = self.residual(y, leading_rows(initial, view.num_dst))
        elif self.residual is not None:
            y = y + self.residual(own)
        if not self.norm_first:
            y = normalise(self.norm, y, view)
        y = self.dropout(functional.relu(y), seeded)
        if self.gate is None:
            return y
        beta, gated = self.gate(), functional.relu(self.gate_proj(own)) * y
        return (1 - beta) * self.gate_norm(gated) + beta * y
