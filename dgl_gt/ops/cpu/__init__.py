"""The CPU kernel: a shared library without torch headers, called through ctypes with pointers and strides."""

import ctypes
import functools
import importlib.util
import types

import torch  # before the library is loaded: it brings the OpenMP runtime, and one process must hold only one

from dgl_gt.ops.reference import accumulation_dtype, dropout_threshold


class _Array(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("row_stride", ctypes.c_int64), ("head_stride", ctypes.c_int64)]


_ARRAYS = ("q", "k", "v", "bias", "out", "lse", "grad_out", "grad_lse", "delta")
_GRADIENTS = ("grad_q", "grad_k", "grad_v", "grad_bias")
_INDEX_ARRAYS = ("indptr", "indices", "edge_ids", "global_edge_ids", "rev_indptr", "rev_dst", "rev_position")
_SIZES = ("num_dst", "num_src", "num_heads", "head_dim", "head_offset")


class _Problem(ctypes.Structure):
    """Mirrors ``struct Problem`` of kernel.cpp, field by field."""

    _fields_ = [
        *((name, _Array) for name in (*_ARRAYS, *_GRADIENTS)),
        *((name, ctypes.c_void_p) for name in _INDEX_ARRAYS),
        *((name, ctypes.c_int64) for name in _SIZES),
        ("scale", ctypes.c_double),
        ("keep_scale", ctypes.c_double),
        ("seed", ctypes.c_uint64),
        ("drop_threshold", ctypes.c_uint64),
        ("is_double", ctypes.c_int32),
        ("is_int64", ctypes.c_int32),
        ("is_backward", ctypes.c_int32),
        ("num_threads", ctypes.c_int32),
    ]


@functools.cache
def library():
    """Return the loaded library, or None where the package was installed without it."""
    spec = importlib.util.find_spec("dgl_gt.ops.cpu._kernel")
    if spec is None:
        return None
    try:
        loaded = ctypes.CDLL(spec.origin)
        loaded.dgl_gt_problem_bytes.restype = ctypes.c_int64
        loaded.dgl_gt_run.argtypes = [ctypes.POINTER(_Problem)]
        loaded.dgl_gt_run.restype = None
        fits = loaded.dgl_gt_problem_bytes() == ctypes.sizeof(_Problem)
    except (OSError, AttributeError):  # built for another system, or for another version of this package
        return None
    return loaded if fits else None


def forward(csc, q, k, v, bias, scale, dropout_p, seed):
    """Run the forward kernel; arguments and results as of ``reference_attention``, without gradients."""
    dtype = accumulation_dtype(q.dtype)
    out = torch.empty(q.shape, dtype=dtype)
    lse = torch.empty(q.shape[:2], dtype=dtype)
    arrays = {"q": _readable(q, dtype), "k": _readable(k, dtype), "v": _readable(v, dtype), "out": out, "lse": lse}
    if bias is not None:
        arrays["bias"] = bias.to(dtype)
    library().dgl_gt_run(_problem(csc, arrays, scale, dropout_p, seed))
    return out.to(q.dtype), lse


def backward(csc, grad_out, grad_lse, out, lse, q, k, v, bias, scale, dropout_p, seed, needs):
    """Run the backward kernels.

    Parameters
    ----------
    csc, q, k, v, bias, scale, dropout_p, seed
        As given to :func:`forward`.
    grad_out : torch.Tensor, (N_dst, H, D)
    grad_lse : torch.Tensor, (N_dst, H)
    out, lse : torch.Tensor
        Results of :func:`forward`.
    needs : (bool, bool, bool)
        Whether the gradients of q, of k and v, and of bias are wanted; what is not wanted is not computed.

    Returns
    -------
    types.SimpleNamespace
        ``q, k, v, bias``: gradients in the inputs' dtypes, None where not wanted.
    """
    dtype = accumulation_dtype(q.dtype)
    needs_q, needs_kv, needs_bias = needs
    wanted = types.SimpleNamespace(
        q=torch.empty(q.shape, dtype=dtype) if needs_q else None,
        k=torch.empty(k.shape, dtype=dtype) if needs_kv else None,
        v=torch.empty(v.shape, dtype=dtype) if needs_kv else None,
        bias=torch.empty(bias.shape, dtype=dtype) if needs_bias else None,
    )
    arrays = {
        **{name: _readable(tensor, dtype) for name, tensor in dict(q=q, k=k, v=v, out=out, grad_out=grad_out).items()},
        **{f"grad_{name}": tensor for name, tensor in vars(wanted).items() if tensor is not None},
        "lse": lse,
        "grad_lse": grad_lse,
        "delta": torch.empty(lse.shape, dtype=dtype),
    }
    if bias is not None:
        arrays["bias"] = bias.to(dtype)
    library().dgl_gt_run(_problem(csc, arrays, scale, dropout_p, seed))
    for name, source in dict(q=q, k=k, v=v, bias=bias).items():
        gradient = getattr(wanted, name)
        if gradient is not None:
            setattr(wanted, name, gradient.to(source.dtype))
    return wanted


def _readable(tensor, dtype):
    # The kernel walks any row and head strides, but only neighbouring elements within a head.
    tensor = tensor.to(dtype)
    return tensor if tensor.stride(-1) == 1 or tensor.shape[-1] == 1 else tensor.contiguous()


def _problem(csc, arrays, scale, dropout_p, seed):
    problem = _Problem(
        num_dst=csc.num_dst,
        num_src=csc.num_src,
        num_heads=arrays["q"].shape[1],
        head_dim=arrays["q"].shape[2],
        head_offset=csc.head_offset,
        scale=scale,
        keep_scale=1 / (1 - dropout_p),
        seed=seed,
        drop_threshold=dropout_threshold(dropout_p),
        is_double=arrays["q"].dtype == torch.float64,
        is_int64=csc.indices.dtype == torch.int64,
        is_backward="grad_out" in arrays,
        num_threads=torch.get_num_threads(),
    )
    for name, tensor in arrays.items():
        setattr(problem, name, _Array(tensor.data_ptr(), tensor.stride(0), tensor.stride(1)))
    for name in _INDEX_ARRAYS:
        tensor = getattr(csc, name)
        setattr(problem, name, None if tensor is None else tensor.data_ptr())
    problem.keep_alive = arrays  # casts and copies that nothing else refers to live as long as their addresses
    return ctypes.byref(problem)
