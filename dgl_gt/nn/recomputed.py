"""Projections whose input the backward pass computes again: rows after a norm, or after an activation and its dropout.

Such rows take as much memory as those that they are made of, which backward needs anyway, and little time to compute.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from dgl_gt.torch_internals import gradients_of, has_hooks, is_transformed


class Normed(NamedTuple):
    """Rows after a norm, and what they were made of."""

    normed: Tensor
    rows: Tensor
    norm: nn.Module


def may_recompute() -> bool:
    """Whether a backward pass may follow in which this package decides; torch.compile and ``torch.func`` do so themselves."""
    return torch.is_grad_enabled() and not torch.compiler.is_compiling() and not is_transformed()


def is_norm(module: nn.Module) -> bool:
    """Whether a module is a norm of rows whose result backward can compute again."""
    return type(module) in (nn.LayerNorm, nn.RMSNorm, nn.Identity) and _runs_as_it_is(module)


def is_activation(module: nn.Module) -> bool:
    """Whether a module is an activation whose result backward can compute again."""
    is_in_place = getattr(module, "inplace", False)
    return type(module) in (nn.ReLU, nn.GELU) and not is_in_place and _runs_as_it_is(module)


def is_linear(module: nn.Module) -> bool:
    """Whether a module is a linear layer without more to it."""
    return type(module) is nn.Linear and _runs_as_it_is(module)


def _runs_as_it_is(module: nn.Module) -> bool:
    """Whether a user has put neither a hook nor another forward on a module."""
    return not has_hooks(module) and "forward" not in vars(module)


def linear_of_norm(
    rows: Tensor, norm: nn.Module, weight: Tensor, bias: Tensor | None, normed: Tensor | None = None
) -> Tensor:
    """``linear(norm(rows), weight, bias)`` for rows (n, C), of which backward keeps ``rows``.

    ``normed`` is ``norm(rows)``, where that is known.
    """
    kind = type(norm), getattr(norm, "normalized_shape", None), getattr(norm, "eps", None)
    of_norm = getattr(norm, "weight", None), getattr(norm, "bias", None)
    return _OfNorm.apply(rows, kind, None if normed is None else normed.detach(), weight, bias, *of_norm)


def linear_of_activation(
    rows: Tensor, activation: nn.Module, drop: Callable[[Tensor], Tensor], weight: Tensor, bias: Tensor | None
) -> Tensor:
    """``linear(drop(activation(rows)), weight, bias)`` for rows (n, C), of which backward keeps ``rows``.

    ``drop`` multiplies by a mask that is the same in every call, so it is its own derivative.
    """
    return _OfActivation.apply(rows, activation, drop, weight, bias)


class _OfNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, kind, normed, weight, bias, *of_norm):
        ctx.save_for_backward(rows, weight, *of_norm)
        ctx.kind, ctx.autocast = kind, _autocast_of(rows)
        return functional.linear(_norm(kind, rows, *of_norm) if normed is None else normed, weight, bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        rows, weight, *of_norm = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        leaves = [each if each is None else each.detach().requires_grad_() for each in (rows, *of_norm)]
        with torch.enable_grad(), torch.autocast(**ctx.autocast):
            normed = _norm(ctx.kind, *leaves)
        of_weight, of_bias = _of_parameters(grad, normed.detach, weight, wanted[3:5])
        places = [place for place, index in enumerate((0, 5, 6)) if wanted[index]]
        found = [None] * 3
        if places:
            upstream = (grad @ weight.to(grad.dtype)).to(normed.dtype)
            for place, each in zip(places, gradients_of([normed], [leaves[place] for place in places], [upstream])):
                found[place] = each
        return found[0], None, None, of_weight, of_bias, *found[1:]


class _OfActivation(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, activation, drop, weight, bias):
        ctx.save_for_backward(rows, weight)
        ctx.parts = activation, drop
        return functional.linear(drop(activation(rows)), weight, bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        rows, weight = ctx.saved_tensors
        activation, drop = ctx.parts
        of_weight, of_bias = _of_parameters(grad, lambda: drop(activation(rows)), weight, ctx.needs_input_grad[3:])
        if not ctx.needs_input_grad[0]:
            return None, None, None, of_weight, of_bias
        grad = drop(grad @ weight.to(grad.dtype))
        if isinstance(activation, nn.GELU):
            grad = torch.ops.aten.gelu_backward(grad, rows, approximate=activation.approximate)
        else:
            grad = torch.ops.aten.threshold_backward(grad, rows, 0)
        return grad, None, None, of_weight, of_bias


def _norm(kind: tuple, rows: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """What a norm of this class, shape and epsilon makes of rows."""
    module, shape, eps = kind
    if module is nn.LayerNorm:
        return functional.layer_norm(rows, shape, weight, bias, eps)
    return functional.rms_norm(rows, shape, weight, eps) if module is nn.RMSNorm else rows


def _autocast_of(rows: Tensor) -> dict:
    """The state of autocast for a device, as arguments of ``torch.autocast``."""
    kind = rows.device.type
    return {"device_type": kind, "dtype": torch.get_autocast_dtype(kind), "enabled": torch.is_autocast_enabled(kind)}


def _of_parameters(grad: Tensor, make_rows: Callable[[], Tensor], weight: Tensor, wanted) -> tuple:
    """The gradients of a projection's weight and bias, of those that are wanted."""
    of_weight = (grad.T @ make_rows().to(grad.dtype)).to(weight.dtype) if wanted[0] else None
    return of_weight, grad.sum(0).to(weight.dtype) if wanted[1] else None
