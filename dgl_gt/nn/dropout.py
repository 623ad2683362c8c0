"""Dropout whose masks depend on nodes and edges, not on the rank or the order in which rows are computed, and their seeds."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from dgl_gt.exchange.as_view import as_view
from dgl_gt.exchange.local import leading_rows
from dgl_gt.ops.checks import check_probability, check_seed
from dgl_gt.ops.dropout import keyed_dropout

_SEED_LIMIT = 2**63 - 1


def draw_seeds(*shape: int) -> Tensor:
    """Return seeds of masks, int64 on the CPU, from torch's default CPU generator.

    ``torch.manual_seed`` sets that generator, and ``torch.utils.checkpoint`` restores it.
    """
    return torch.randint(_SEED_LIMIT, shape, device="cpu")


@torch.inference_mode(False)  # a module keeps it, and backward reads it
def as_seed(seed: int) -> Tensor:
    """Return a seed in the form in which modules keep it.

    It is a tensor, because torch.compile treats a number on a module as a constant and would compile again for each
    step.
    """
    check_seed(seed)
    return torch.tensor(seed, device="cpu")


class FeatureDropout(nn.Dropout):
    """Dropout keyed by (seed, node id, column)."""

    seed: Tensor | None = None  # () int64 on the CPU, which GraphTransformer.set_dropout_step sets

    @property
    def lacks_seed(self) -> bool:
        """Whether the next pass needs a seed from its caller."""
        return self.training and self.p > 0 and self.seed is None

    def forward(self, h: Tensor, node_ids: Tensor | None = None, seed: Tensor | None = None) -> Tensor:
        """Drop features of ``h``, (rows, C), whose node ids, (rows,) int64, are by default the row numbers.

        Where :attr:`seed` is None, the argument is the seed; without it, torch's default CPU generator draws one. A
        batch of dense graphs, (B, N, C), has the masks of ``nn.Dropout``.
        """
        if h.ndim == 3:
            return super().forward(h)
        if not self.training or self.p == 0:
            return h
        if self.seed is not None:
            seed = self.seed
        return keyed_dropout(h, self.p, draw_seeds() if seed is None else seed, node_ids)


class RowSequential(nn.Sequential):
    """An ``nn.Sequential`` that gives its dropouts the node ids of the rows, and seeds."""

    @property
    def lacks_seed(self) -> bool:
        """Whether the next pass needs seeds from its caller."""
        return any([module.lacks_seed for module in self if isinstance(module, FeatureDropout)])

    def forward(self, h: Tensor, node_ids: Tensor | None = None, seeds: Tensor | None = None) -> Tensor:
        """Run the modules; ``seeds``, int64 (dropouts,), has one seed for each dropout in turn."""
        used = 0
        for module in self:
            if isinstance(module, FeatureDropout):
                h = module(h, node_ids, None if seeds is None else seeds[used])
                used += 1
            else:
                h = module(h)
        return h


class Dropout(nn.Module):
    """``torch.nn.Dropout`` for rows of nodes: with several ranks, the masks are those of one process.

    A mask depends on a seed, the node id and the column alone. Each pass in training draws the seed from torch's default
    CPU generator, which ``torch.manual_seed`` sets, and all ranks take that of rank 0.

    Parameters
    ----------
    p : float
        Probability in [0, 1) of dropping a feature in training.

    Raises
    ------
    ValueError
        The probability is outside [0, 1).
    """

    def __init__(self, p: float = 0.5):
        super().__init__()
        self.p = check_probability("p", p)

    def forward(self, x: Tensor, graph) -> Tensor:
        """Drop features of ``x``.

        Parameters
        ----------
        x : Tensor, floating point, (rows, ...)
            Rows of nodes. On a ``ShardedGraph`` those of the owned nodes, before ``sg.pull``.
        graph : ShardedGraph, DGLGraph, DGL block, CSC, or Tensor (2, E)
            Graph to which the rows belong. With several ranks every rank takes part.

        Returns
        -------
        Tensor, (rows, ...)
            The others are multiplied by ``1 / (1 - p)``.

        Raises
        ------
        ValueError
            The rows are not those of the owned nodes, or ``graph`` is of another type.
        """
        if not self.training or self.p == 0:
            return x
        flat = x.reshape(len(x), math.prod(x.shape[1:]))
        view = as_view(graph, flat)
        ids = view.node_ids
        if ids is not None:
            if len(x) not in (view.num_dst, len(ids)):
                raise ValueError(
                    f"got {len(x)} rows, but this rank owns {view.num_owned} nodes; pass one row for each, and drop "
                    "before sg.pull"
                )
            ids = leading_rows(ids, len(x))
        return keyed_dropout(flat, self.p, view.broadcast(draw_seeds()), ids).view(x.shape)

    def extra_repr(self) -> str:
        return f"p={self.p}"
