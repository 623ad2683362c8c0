"""The ``local`` strategy: this process holds every row it needs, so nothing travels."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

from torch import Tensor

from dgl_gt.ops import sparse_attention
from dgl_gt.structure import CSC


def leading_rows(x: Tensor, rows: int) -> Tensor:
    """The first ``rows`` rows of ``x``: those of a block's destinations, or all of a graph's."""
    # A slice that keeps everything would still cost a zero-filled copy of the gradient in backward.
    return x if x.shape[0] == rows else x[:rows]


@dataclass(frozen=True)
class Local:
    """Attention on a graph or block that one process holds.

    Attributes
    ----------
    csc : CSC
        Its in-edges. For a block the first ``num_dst`` sources are the destinations, as DGL's samplers arrange them.
    node_ids : Tensor, int64, (N_src,), optional
        See :class:`dgl_gt.exchange.Strategy`.
    """

    csc: CSC
    node_ids: Tensor | None = None
    name = "local"

    def input_rows(self, x: Tensor) -> Tensor:
        """The rows themselves."""
        if x.shape[0] != self.csc.num_src:
            raise ValueError(
                f"the features have {x.shape[0]} rows, but the graph has {self.csc.num_src} source nodes: pass one row "
                "for each (for a block, those of block.srcdata, with the destinations first)"
            )
        return x

    def source_rows(self, h: Tensor) -> Tensor:
        """The rows themselves."""
        return h

    def agreed(self, seeds: Tensor) -> Tensor:
        """The seeds themselves."""
        return seeds

    def kept_exchanges(self):
        """Contexts that do nothing: there are no exchanges."""
        return nullcontext(), nullcontext()

    @property
    def num_owned(self) -> int:
        """``N_dst``, the rows of the result."""
        return self.csc.num_dst

    def attend(self, h, project, *, bias=None, dropout=None) -> Tensor:
        """Attend from the destinations to the sources; see :meth:`dgl_gt.exchange.Strategy.attend`.

        Here ``h`` is ``(N_src, C)``, and ``bias`` has one row for each edge id of the graph or block.
        """
        h = self.input_rows(h)
        if self.csc.num_dst == self.csc.num_src:
            rows = (project(h, "qkv"),)
        else:
            rows = project(leading_rows(h, self.csc.num_dst), "q"), project(h, "kv")
        p, seed = dropout if dropout is not None else (0.0, None)
        return sparse_attention(self.csc, *rows, bias=bias, dropout_p=p, seed=seed)
