"""Makes a function a torch operator, which torch.compile and autograd take as a whole."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache, wraps

import torch

from dgl_gt.torch_internals import is_transformed

# The layout of results follows that of the rows, so the compiler must not change it. The tag "needs_exact_strides" is
# newer than torch 2.6.
_TAGS = (
    torch.Tag.pt2_compliant_tag,
    getattr(torch.Tag, "needs_exact_strides", None) or torch.Tag.needs_fixed_stride_order,
)
_hidden = cache(torch.compiler.disable)


def operator(schema: str) -> Callable[[Callable], Callable]:
    """Return a decorator that makes a function the operator of a schema, such as ``double(Tensor x) -> Tensor``.

    The function runs on all devices, without autograd, and returns new tensors. The decorator does what
    ``torch.library.custom_op`` does, but a call does not import the machinery of torch.compile, which takes a second
    and 70 MB in every process. Where that machinery is loaded, the function is hidden from it.
    """
    name = f"dgl_gt::{schema.partition('(')[0]}"

    def register(function: Callable) -> Callable:
        @wraps(function)
        def run(*args):
            return (_hidden(function) if "torch._dynamo" in sys.modules else function)(*args)

        torch.library.define(name, schema[schema.index("(") :], tags=_TAGS)
        torch.library.impl(name, "default", run)
        return getattr(torch.ops.dgl_gt, name.removeprefix("dgl_gt::")).default

    return register


def differentiable(
    op: Callable, backward: Callable, setup_context: Callable = lambda ctx, inputs, output: None
) -> Callable:
    """Give an operator its derivative, and return the function to call instead of the operator.

    ``torch.library.register_autograd`` does not serve ``torch.func.grad`` and its relatives. For them, the function is
    a ``torch.autograd.Function`` around the operator.
    """
    torch.library.register_autograd(op, backward, setup_context=setup_context)

    def jvp(*_):
        raise no_forward_mode(op.__name__.partition(".")[0])

    methods = dict(forward=op, setup_context=setup_context, backward=backward, jvp=jvp)
    members = {name: staticmethod(method) for name, method in methods.items()}
    function = type(op.__name__, (torch.autograd.Function,), {**members, "generate_vmap_rule": True})

    def call(*args):
        return (function.apply if is_transformed() else op)(*args)

    return call


def no_forward_mode(name: str) -> NotImplementedError:
    """Return the error that says that an operator has no derivative in forward mode."""
    return NotImplementedError(
        f"{name} has no derivative in forward mode (torch.func.jvp, jacfwd, hessian, dual tensors); use reverse mode: "
        "backward or torch.autograd.grad"
    )
