"""Makes a function a torch operator, which torch.compile and autograd take as a whole."""

from collections.abc import Callable

import torch


def operator(schema: str) -> Callable[[Callable], torch._ops.OpOverload]:
    """Return a decorator that makes a function the operator of a schema, such as ``double(Tensor x) -> Tensor``.

    The function runs on all devices, without autograd, and returns new tensors. As ``torch.library.custom_op`` does, but
    the first call does not import the machinery of torch.compile, which takes a second and some 80 MB in every process.
    """
    name = f"dgl_gt::{schema.partition('(')[0]}"

    def register(function: Callable) -> torch._ops.OpOverload:
        torch.library.define(name, schema[schema.index("(") :], tags=(torch.Tag.pt2_compliant_tag,))
        torch.library.impl(name, "default", function)
        return getattr(torch.ops.dgl_gt, name.removeprefix("dgl_gt::")).default

    return register
