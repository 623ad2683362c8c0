"""Scores of pairs of rows."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from dgl_gt.partition.errors import InputError
from dgl_gt.torch_internals import is_watched


class PairScorer(nn.Module):
    """Scores pairs of rows: (N, C) rows, sources and destinations (E,), and numbers of edges (E, F) -> (E, out).

    ``dot`` is the scaled dot product of both rows, for one number; ``bilinear`` that of all source rows, mapped for each
    number, and destination rows; ``mlp`` a layer of C units of both rows and the edge's numbers, and a linear layer;
    ``hadamard`` the same of the product of both rows, number by number.
    """

    def __init__(self, decoder: str, width: int, out_dim: int, edge_feats: int = 0):
        super().__init__()
        if decoder == "dot" and out_dim != 1:
            raise InputError(
                f"decoder is dot, which gives one number, and the task needs {out_dim}; choose mlp or bilinear"
            )
        self._decoder, self._out_dim, self.width = decoder, out_dim, width
        if decoder == "mlp":
            self.of_source, self.of_destination = nn.Linear(width, width), nn.Linear(width, width, bias=False)
            self.of_edge = nn.Linear(edge_feats, width, bias=False) if edge_feats else None
            self.output = nn.Linear(width, out_dim)
        elif decoder == "hadamard":
            self.of_product, self.output = nn.Linear(width, width), nn.Linear(width, out_dim)
        elif decoder == "bilinear":
            self.maps = nn.Linear(width, out_dim * width, bias=False)
            self.bias = nn.Parameter(torch.zeros(out_dim))

    @property
    def is_symmetric(self) -> bool:
        """Whether a score does not depend on which end is the source."""
        return self._decoder in ("dot", "hadamard")

    def forward(self, rows: Tensor, src: Tensor, dst: Tensor, edge_feat: Tensor | None = None) -> Tensor:
        """Return the scores, (E, out)."""
        if self._decoder == "mlp":  # each row is mapped once, not once for each of its edges
            hidden = self.of_source(rows)[src] + self.of_destination(rows)[dst]
            if self.of_edge is not None:
                hidden = hidden + self.of_edge(edge_feat)
            return self.output(functional.gelu(hidden))
        if self._decoder == "hadamard":
            return self.output(functional.gelu(self.of_product(rows[src] * rows[dst])))
        scale = rows.shape[1] ** -0.5
        if self._decoder == "dot":
            return _dots(rows, src, dst)[:, None] * scale
        mapped = self.maps(rows).unflatten(1, (self._out_dim, -1))
        return (mapped[src] * rows[dst][:, None]).sum(2) * scale + self.bias


def _dots(rows: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    """Return the dot products of pairs of rows, (N, C) -> (n,)."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing():  # what is recorded holds for any number of pairs
        return (rows[src] * rows[dst]).sum(1)
    return _Dots.apply(rows, src, dst)


class _Dots(torch.autograd.Function):
    """Dot products of pairs of rows, (N, C) -> (n,), some pairs at a time, whose rows stay in the processor's cache."""

    @staticmethod
    def forward(ctx, rows: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        ctx.save_for_backward(rows, src, dst)
        pieces = zip(src.split(_pairs_at_once(rows)), dst.split(_pairs_at_once(rows)))
        return torch.cat([(rows.index_select(0, a) * rows.index_select(0, b)).sum(1) for a, b in pieces])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor):
        rows, src, dst = ctx.saved_tensors
        found = torch.zeros_like(rows)
        for a, b, weight in zip(*(each.split(_pairs_at_once(rows)) for each in (src, dst, grad[:, None]))):
            found.index_add_(0, a, rows.index_select(0, b) * weight)
            found.index_add_(0, b, rows.index_select(0, a) * weight)
        return found, None, None


def _pairs_at_once(rows: Tensor) -> int:
    return 2**12 if rows.device.type == "cpu" and not is_watched() else 2**20  # a trace has one piece on every part
