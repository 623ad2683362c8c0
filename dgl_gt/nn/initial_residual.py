"""A residual connection to the rows before the first layer, which makes deep stacks of convolutions possible."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from dgl_gt.model_config import MAP_WEIGHTS
from dgl_gt.partition.errors import whole_number

from .attention import check_features, check_number, check_sizes


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
