"""How an operation runs: as a torch operator, with the kernels of its device, announced to torch's profiler.

What applies to every operation is here, too: autocast and refused derivatives.
"""

import functools
import sys
import warnings
from collections.abc import Callable

import torch
from torch.autograd import forward_ad

from dgl_gt.torch_internals import assume_constant, is_transformed

from . import cpu
from .head_minor import result_strides

EDGES = "dgl_gt::edges"
ADDITIVE_PASS = 0.85  # time of a pass with additive scores, as a share of one with dot products
# The layout of results follows that of the rows, so the compiler must not change it. The tag "needs_exact_strides" is
# newer than torch 2.6.
_TAGS = (
    torch.Tag.pt2_compliant_tag,
    getattr(torch.Tag, "needs_exact_strides", None) or torch.Tag.needs_fixed_stride_order,
)
_hidden = functools.cache(torch.compiler.disable)
_REMEDY = {
    "cpu": "dgl_gt was installed without its compiled CPU kernel. To get the fast path, install a C++ compiler (on "
    "Debian or Ubuntu: apt install g++) and then run, in the checkout of dgl-gt: pip install --force-reinstall --no-deps .",
    "cuda": "Triton, in which the kernels for CUDA devices are written, cannot be imported. To get the fast path: pip "
    "install triton",
}


@assume_constant
def has_kernel(device_type):
    """Return whether there is a kernel for tensors of this device type; warn once where there is none."""
    if device_type == "meta":  # a meta tensor has a shape alone, which the operator can handle
        return True
    if backend(device_type) is None:
        warn_slow(_REMEDY.get(device_type, f"this version of dgl_gt has no kernel for {device_type} tensors"))
        return False
    return True


def backend(device_type):
    """Return the module that has the kernels for this device type, or None."""
    if device_type == "cpu":
        return None if cpu.library() is None else cpu
    return triton_kernels() if device_type == "cuda" else None


@functools.cache
def triton_kernels():
    """Return the module of Triton kernels, or None where Triton cannot be imported."""
    try:
        from .gpu import attention  # imported here, because most installs of torch for the CPU have no Triton
    except ImportError:
        return None
    return attention


@functools.cache
def warn_slow(reason):
    """Warn, once for each reason, that no kernel runs."""
    message = f"sparse_attention runs its slower path, which stores E x H x D elements: {reason}."
    warnings.warn(message, RuntimeWarning, stacklevel=4)


def empty_like(rows, additive):
    """Return an uninitialised tensor for the gradient of rows that a kernel attends to, by additive scores or not."""
    if backend(rows.device.type) is cpu:
        return cpu.empty(rows.shape, rows.dtype, None if additive else result_strides(rows))
    return torch.empty(rows.shape, dtype=rows.dtype, device=rows.device)


def autocast(*tensors):
    """Cast tensors, or None, to the dtype of an active ``torch.autocast``, as torch's own attention does."""
    device_type = tensors[0].device.type
    if not torch.amp.is_autocast_available(device_type) or not torch.is_autocast_enabled(device_type):
        return tensors
    dtype = torch.get_autocast_dtype(device_type)
    return tuple(x.to(dtype) if x is not None and x.dtype != torch.float64 else x for x in tensors)


def refuse_forward_mode(name, *tensors):
    """Raise ``NotImplementedError`` where a tensor has a tangent, which an operator would drop silently."""
    if torch.compiler.is_compiling():
        return
    if any(x is not None and forward_ad.unpack_dual(x).tangent is not None for x in tensors):
        raise no_forward_mode(name)


def edge_range(edges: int, rows: int, sources: int, heads: int, head_dim: int, itemsize: int, passes: float):
    """Return a context for passes over edges, a range of ``torch.profiler`` with these numbers as its argument.

    There are so many edges, and rows at their ends. Each edge reads a row (heads, head_dim) of numbers of ``itemsize``
    bytes, ``passes`` times: once forward, and once each for the gradients of the two ends.
    """
    numbers = edges, rows, sources, heads, head_dim, itemsize, passes
    return torch.profiler.record_function(EDGES, " ".join(map(str, numbers)))


def operator(schema: str) -> Callable[[Callable], Callable]:
    """Return a decorator that makes a function the operator of a schema, such as ``double(Tensor x) -> Tensor``.

    The function runs on all devices, without autograd, and returns new tensors. The decorator does what
    ``torch.library.custom_op`` does, but a call does not import the machinery of torch.compile, which takes a second
    and 70 MB in every process. Where that machinery is loaded, the function is hidden from it.
    """
    name = f"dgl_gt::{schema.partition('(')[0]}"

    def register(function: Callable) -> Callable:
        @functools.wraps(function)
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


def refuse_second_derivative(ctx, *_):
    """Raise ``NotImplementedError``; the derivative of a backward operator."""
    raise NotImplementedError(
        "sparse_attention has no second derivative in its kernels; call backward or autograd.grad without "
        "create_graph=True, and torch.func.grad once"
    )


def _no_batching_rule(*_):
    raise NotImplementedError(
        "sparse_attention has no batching rule for torch.vmap; put the mapped dimension into the heads, or join the "
        "graphs with dgl.batch and the rows with torch.cat; for torch.func.jacrev, pass chunk_size=1"
    )


def refuse_vmap(*ops: Callable) -> None:
    """Let ``torch.vmap`` of an operator raise ``NotImplementedError``."""
    for op in ops if hasattr(torch.library, "register_vmap") else ():  # torch 2.5
        torch.library.register_vmap(op, _no_batching_rule)
