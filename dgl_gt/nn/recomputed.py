"""Projections whose input the backward pass computes again: rows after a norm, or after an activation and its dropout.

Such rows take as much memory as those that they are made of, which backward needs anyway, and little time to compute.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from dgl_gt.torch_internals import has_hooks, is_transformed

_NORMS = (nn.LayerNorm, nn.RMSNorm, nn.Identity)


def is_recomputed(*modules: nn.Module) -> bool:
    """Whether backward may compute the results of these modules again: norms of rows, ReLU, GELU and linear layers.

    Modules with hooks run as they are, and so do all within ``torch.func``; in torch.compile the compiler decides.
    """
    if not torch.is_grad_enabled() or torch.compiler.is_compiling() or is_transformed():
        return False
    kinds = (*_NORMS, nn.ReLU, nn.GELU, nn.Linear)
    return all(type(each) in kinds and not has_hooks(each) for each in modules)


def linear_of_norm(h: Tensor, norm: nn.Module, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``linear(norm(h), weight, bias)`` for rows (n, C), of which backward keeps ``h``."""
    return _OfNorm.apply(h, norm, weight, bias, *norm.parameters())


def linear_of_activation(
    h: Tensor, activation: nn.Module, drop: Callable[[Tensor], Tensor], weight: Tensor, bias: Tensor | None
) -> Tensor:
    """``linear(drop(activation(h)), weight, bias)`` for rows (n, C), of which backward keeps ``h``.

    ``drop`` multiplies by a mask that is the same in every call, so it is its own derivative.
    """
    return _OfActivation.apply(h, activation, drop, weight, bias)


class _OfNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h, norm, weight, bias, *of_norm):
        ctx.save_for_backward(h, weight, *of_norm)
        ctx.norm = norm
        return functional.linear(norm(h), weight, bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        h, weight, *of_norm = ctx.saved_tensors
        norm, has_bias = ctx.norm, ctx.needs_input_grad[3]
        if isinstance(norm, nn.LayerNorm):
            settings = norm.normalized_shape, norm.weight, norm.bias
            normed, *statistics = torch.native_layer_norm(h, *settings, norm.eps)
            of_weight, of_bias = _of_parameters(grad, normed, weight, has_bias)
            del normed  # before the gradient of its size
            grad = (grad @ weight.to(grad.dtype)).to(h.dtype)
            wanted = [True, *(each is not None for each in settings[1:])]
            of_h, *found = torch.ops.aten.native_layer_norm_backward(
                grad, h, settings[0], *statistics, *settings[1:], wanted
            )
            return of_h, None, of_weight, of_bias, *(each for each in found if each is not None)
        with torch.enable_grad():
            rows = h.detach().requires_grad_()
            normed = norm(rows)
        of_weight, of_bias = _of_parameters(grad, normed.detach(), weight, has_bias)
        trained = [each for each in of_norm if each.requires_grad]
        grad = (grad @ weight.to(grad.dtype)).to(normed.dtype)
        of_h, *found = torch.autograd.grad(normed, [rows, *trained], grad)
        of_trained = iter(found)
        return of_h, None, of_weight, of_bias, *(next(of_trained) if each.requires_grad else None for each in of_norm)


class _OfActivation(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h, activation, drop, weight, bias):
        ctx.save_for_backward(h, weight)
        ctx.parts = activation, drop
        return functional.linear(drop(activation(h)), weight, bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        h, weight = ctx.saved_tensors
        activation, drop = ctx.parts
        of_weight, of_bias = _of_parameters(grad, drop(activation(h)), weight, ctx.needs_input_grad[4])
        grad = drop(grad @ weight.to(grad.dtype))
        if isinstance(activation, nn.GELU):
            grad = torch.ops.aten.gelu_backward(grad, h, approximate=activation.approximate)
        else:
            grad = torch.ops.aten.threshold_backward(grad, h, 0)
        return grad, None, None, of_weight, of_bias


def _of_parameters(grad: Tensor, rows: Tensor, weight: Tensor, has_bias: bool) -> tuple[Tensor, Tensor | None]:
    """The gradients of a projection's weight and bias."""
    of_bias = grad.sum(0).to(weight.dtype) if has_bias else None
    return (grad.T @ rows.to(grad.dtype)).to(weight.dtype), of_bias
