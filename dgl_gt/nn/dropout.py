"""Dropout whose masks depend on nodes and edges, not on where or in which order a row is computed; and its seeds."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dgl_gt.ops import keyed_dropout
from dgl_gt.ops.attention import check_seed

_SEED_LIMIT = 2**63 - 1


def draw_seeds(*shape: int) -> Tensor:
    """Seeds of masks, int64 on the CPU, from torch's default CPU generator.

    ``torch.manual_seed`` sets that generator, and ``torch.utils.checkpoint`` restores it.
    """
    return torch.randint(_SEED_LIMIT, shape, device="cpu")


@torch.inference_mode(False)  # it is kept, and backward reads it
def as_seed(seed: int) -> Tensor:
    """A seed as modules keep it: a tensor, since torch.compile takes a number on a module for a constant and would
    compile for each step anew.
    """
    check_seed(seed)
    return torch.tensor(seed, device="cpu")


class FeatureDropout(nn.Dropout):
    """Dropout keyed by (seed, node id, column).

    Attributes
    ----------
    seed : Tensor () int64 on the CPU, or None
        As set by ``GraphTransformer.set_dropout_step``; None takes what the caller gives.
    """

    seed: Tensor | None = None

    @property
    def lacks_seed(self) -> bool:
        """Whether the next pass needs a seed from its caller."""
        return self.training and self.p > 0 and self.seed is None

    def forward(self, h: Tensor, node_ids: Tensor | None = None, seed: Tensor | None = None) -> Tensor:
        """Drop features of ``h``, (rows, C).

        Parameters
        ----------
        h : Tensor, floating point, (rows, C)
        node_ids : Tensor, int64, (rows,), optional
            By default the row numbers.
        seed : Tensor () int64 on the CPU, optional
            Where :attr:`seed` is None; by default from torch's default CPU generator.
        """
        if not self.training or self.p == 0:
            return h
        if self.seed is not None:
            seed = self.seed
        return keyed_dropout(h, self.p, draw_seeds() if seed is None else seed, node_ids)


class RowSequential(nn.Sequential):
    """``nn.Sequential`` that tells its dropouts which nodes the rows are, and gives them seeds."""

    @property
    def lacks_seed(self) -> bool:
        """Whether the next pass needs seeds from its caller."""
        return any([module.lacks_seed for module in self if isinstance(module, FeatureDropout)])

    def forward(self, h: Tensor, node_ids: Tensor | None = None, seeds: Tensor | None = None) -> Tensor:
        """Run the modules; ``seeds`` int64 (dropouts,), one for each dropout in turn."""
        used = 0
        for module in self:
            if isinstance(module, FeatureDropout):
                h = module(h, node_ids, None if seeds is None else seeds[used])
                used += 1
            else:
                h = module(h)
        return h
