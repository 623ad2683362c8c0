"""A differentiable sum over ranks."""

from __future__ import annotations

import torch


class SumOverRanks(torch.autograd.Function):
    """The sum over ranks. Every rank gets it, so the gradient of a value is the sum of the gradients on all ranks.

    The token needs a gradient wherever autograd is on. So the backward pass, which is a collective, also runs on a rank
    whose own values need no gradient.
    """

    @staticmethod
    def forward(ctx, values, token, comm):
        ctx.comm = comm
        return comm.all_reduce(values)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        return ctx.comm.all_reduce(grad), None, None


def sum_over_ranks(values: torch.Tensor, comm) -> torch.Tensor:
    """See :meth:`dgl_gt.comm.group.Comm.all_reduce_sum`."""
    if not values.is_floating_point():
        raise ValueError(f"values are {values.dtype}; allowed: floating point; use all_reduce for other numbers")
    return SumOverRanks.apply(values, torch.zeros((), requires_grad=torch.is_grad_enabled()), comm)
