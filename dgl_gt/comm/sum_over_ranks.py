"""A sum over ranks that autograd knows."""

from __future__ import annotations

import torch


class SumOverRanks(torch.autograd.Function):
    """Every rank gets the sum, so a value's gradient is the sum of what all ranks did with it.

    The token asks for a gradient where gradients are recorded: then the backward pass, which is a collective, runs on
    a rank whose own values need none as well.
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
