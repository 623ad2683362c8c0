"""Feature dropout whose mask depends on the node, not on where or in which order its row is computed."""

from __future__ import annotations

from torch import Tensor, nn

from dgl_gt.ops import keyed_dropout


class FeatureDropout(nn.Dropout):
    """``nn.Dropout``, or, with a seed, dropout keyed by (seed, node id, column).

    Attributes
    ----------
    seed : Tensor () int64 on the CPU, or None
        As set by ``GraphTransformer.set_dropout_step``; None draws from torch's generator.
    """

    seed: Tensor | None = None

    def forward(self, h: Tensor, node_ids: Tensor | None = None) -> Tensor:
        """Drop features of ``h``, (rows, C); ``node_ids`` (rows,) int64, by default the row numbers."""
        if self.seed is None or not self.training or self.p == 0:
            return super().forward(h)
        return keyed_dropout(h, self.p, self.seed, node_ids)


class RowSequential(nn.Sequential):
    """``nn.Sequential`` that tells its dropouts which nodes the rows are."""

    def forward(self, h: Tensor, node_ids: Tensor | None = None) -> Tensor:
        for module in self:
            h = module(h, node_ids) if isinstance(module, FeatureDropout) else module(h)
        return h
