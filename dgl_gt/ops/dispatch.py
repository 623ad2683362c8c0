"""Which kernels run an operation, and what applies to every operation: autocast and refused derivatives."""

import functools
import warnings

import torch
from torch.autograd import forward_ad

from dgl_gt.torch_internals import assume_constant

from . import cpu
from .head_minor import result_strides
from .operator import no_forward_mode

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
