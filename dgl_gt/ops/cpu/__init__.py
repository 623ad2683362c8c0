"""The CPU kernel: a shared library without torch headers, called through ctypes with pointers and strides."""

import ctypes
import functools
import importlib.util

import torch  # before the library is loaded: torch brings the OpenMP runtime, and a process must hold only one

from dgl_gt.ops.head_minor import has_head_minor_kernel, is_head_minor, result_strides
from dgl_gt.ops.reference import accumulation_dtype, dropout_threshold, readable


class _Array(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("row_stride", ctypes.c_int64), ("head_stride", ctypes.c_int64)]


_ARRAYS = ("q", "k", "v", "bias", "out", "lse", "grad_out", "grad_lse", "stats")
_GRADIENTS = ("grad_q", "grad_k", "grad_v", "grad_bias", "grad_edge")
_OF_EDGES = ("edge", "q_edge", "out_edge", "grad_out_edge", "grad_q_edge")
_WIDE = ("q", "out", "grad_out", "grad_q")  # with features of edges, the last F columns are an array of their own
_INDEX_ARRAYS = ("indptr", "indices", "edge_ids", "global_edge_ids", "rev_indptr", "rev_dst", "rev_position")
_SIZES = ("num_dst", "num_src", "num_heads", "head_dim", "edge_dim", "head_offset", "num_kinds", "num_tables")
_FACTORS = ("scale", "keep_scale", "negative_slope")
_FLAGS = ("storage", "bias_storage", "is_int64", "is_backward", "is_head_minor", "is_additive", "path", "num_threads")
_TABLES = 64  # tables in which gradients of a bias by kind are summed
_EDGES_PER_ROW = 40  # edges per row from which copying rows to the head-minor layout pays
_STORAGE = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}


class _Problem(ctypes.Structure):
    """Mirrors ``struct Problem`` of problem.h, field by field."""

    _fields_ = [
        *((name, _Array) for name in (*_ARRAYS, *_GRADIENTS, *_OF_EDGES)),
        *((name, ctypes.c_void_p) for name in (*_INDEX_ARRAYS, "kind")),
        *((name, ctypes.c_int64) for name in _SIZES),
        *((name, ctypes.c_double) for name in _FACTORS),
        *((name, ctypes.c_uint64) for name in ("seed", "drop_threshold")),
        *((name, ctypes.c_int32) for name in _FLAGS),
    ]


@functools.cache
def library():
    """Return the loaded library, or None where the package was installed without it."""
    spec = importlib.util.find_spec("dgl_gt.ops.cpu._kernel")
    if spec is None:
        return None
    try:
        loaded = ctypes.CDLL(spec.origin)
        pointer, number, flag, bits = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_uint64
        for name, result, *arguments in (
            ("problem_bytes", number),
            ("best_path", flag),
            ("use_huge_pages", None, pointer, number, flag),
            ("run", None, ctypes.POINTER(_Problem)),
            ("drop_rows", None, pointer, pointer, number, number, pointer, bits, bits, ctypes.c_double, *[flag] * 3),
            ("quantise_rows", None, pointer, pointer, number, number, pointer, bits, *[flag] * 3),
        ):
            function = getattr(loaded, f"dgl_gt_{name}")
            function.restype, function.argtypes = result, arguments
        fits = loaded.dgl_gt_problem_bytes() == ctypes.sizeof(_Problem)
    except (OSError, AttributeError):  # it was built for another system, or for another version of this package
        return None
    return loaded if fits else None


@functools.cache
def best_path():
    """Return the number of the fastest instruction set that this processor has: 0 portable, 1 AVX2, 2 AVX-512."""
    return library().dgl_gt_best_path()


def empty(shape, dtype, strides=None):
    """Return an uninitialised tensor for a result of the kernel, on huge pages where the system grants them."""
    like = dict(dtype=dtype, device="cpu")
    tensor = torch.empty(shape, **like) if strides is None else torch.empty_strided(shape, strides, **like)
    library().dgl_gt_use_huge_pages(tensor.data_ptr(), tensor.nbytes, torch.get_num_threads())
    return tensor


def drop(x, seed, ids, threshold, scale):
    """Return keyed dropout of x, (rows, C); see ``dgl_gt.ops.dropout``."""
    x, out = x.contiguous(), empty(x.shape, x.dtype)
    ids = None if ids is None else ids.contiguous()
    settings = _STORAGE[x.dtype], best_path(), torch.get_num_threads()
    library().dgl_gt_drop_rows(_address(x), _address(out), *x.shape, _address(ids), seed, threshold, scale, *settings)
    return out


def quantise(rows, bits, keys, seed, packed):
    """Write float32 rows, (n, C), to ``packed``, uint8; see ``dgl_gt.ops.quantise``."""
    _quantise(rows.contiguous(), packed, bits, keys.contiguous(), seed)


def restore(packed, bits, columns):
    """Return the float32 rows, (n, C), that ``packed`` holds; see ``dgl_gt.ops.quantise``."""
    rows = empty((len(packed), columns), torch.float32)
    _quantise(rows, packed, bits, None, 0)
    return rows


def _quantise(rows, packed, bits, keys, seed):
    assert packed.is_contiguous()
    settings = seed % 2**64, bits, best_path(), torch.get_num_threads()
    library().dgl_gt_quantise_rows(_address(rows), _address(packed), *rows.shape, _address(keys), *settings)


def _address(tensor):
    return None if tensor is None else tensor.data_ptr()


def forward(csc, q, k, v, bias, scale, dropout_p, seed, negative_slope=None, edge=None, kind=None):
    """Run the forward kernel; arguments and results are those of ``reference_attention``, without gradients."""
    additive = negative_slope is not None
    minor = not additive and edge is None and gathers_head_minor(csc, q, k, v)
    if additive:
        out = empty((len(q), *v.shape[1:]), q.dtype)
    else:
        out = empty(q.shape, q.dtype, result_strides(q) if edge is None else None)
    arrays = {
        "q": q if additive else _read_once(q, minor),
        "k": k if additive else _gathered(k, minor),
        "v": _gathered(v, minor),
        "bias": bias,
        "edge": edge,
        "out": out,
        "lse": q.new_empty(q.shape[:2], dtype=accumulation_dtype(q.dtype)),
    }
    library().dgl_gt_run(_problem(csc, arrays, scale, dropout_p, seed, negative_slope, minor, kind))
    return out, arrays["lse"]


def backward(
    csc, grad_out, grad_lse, out, lse, q, k, v, bias, scale, dropout_p, seed, grads, negative_slope=None, edge=None,
    kind=None,
):  # fmt: skip
    """Run the backward kernels on the arguments and results of :func:`forward` and the gradients of the results.

    ``grads`` are tensors that receive the gradients of q, k, v, bias and edge, each with its input's shape and dtype,
    and with any strides of rows and heads. A gradient that is None is not computed; k and v have both gradients or none.
    """
    additive = negative_slope is not None
    minor = not additive and edge is None and gathers_head_minor(csc, q, k, v)
    of_bias = grads[3]
    if of_bias is not None and kind is not None:  # tables of so many ranges of rows, which the kernel adds up in order
        tables = max(1, min(_TABLES, len(kind) // (8 * len(bias))))
        grads = (*grads[:3], lse.new_zeros(tables, *bias.shape), *grads[4:])
    if additive and _is_flat(q, k, negative_slope):
        if grads[0] is not None:
            grads[0].zero_()
        grads = (None, *grads[1:])
    # the code for features writes heads whose numbers are neighbours
    written = [
        x if edge is None or x is None or x.dim() < 3 or x.stride(2) == 1 else x.new_empty(x.shape) for x in grads
    ]
    arrays = {
        "q": q if additive else _gathered(q, minor),
        "k": k if additive else _gathered(k, minor),
        "v": _gathered(v, minor),
        "grad_out": _gathered(grad_out, minor),
        **dict(zip(_GRADIENTS, written, strict=True)),
        "out": _read_once(out, minor),
        "bias": bias,
        "edge": edge,
        "lse": lse,
        "grad_lse": grad_lse,
        "stats": lse.new_empty(lse.shape[0], 2, lse.shape[1]),
    }
    library().dgl_gt_run(_problem(csc, arrays, scale, dropout_p, seed, negative_slope, minor, kind))
    for to, found in zip(grads, written, strict=True):
        if found is not to:
            to.copy_(found)
    if of_bias is not None and kind is not None:
        of_bias.copy_(grads[3][0])


def _is_flat(q, k, negative_slope):
    """Return whether LeakyReLU has the slope 0 at every score, as in a mean: then q and k have the gradient 0, if all is finite."""
    return negative_slope == 0 and q.numel() > 0 and k.numel() > 0 and bool(q.max() + k.max() <= 0)


def gathers_head_minor(csc, q, k, v):
    """Return whether rows are gathered head-minor: some already are, or there are enough edges to pay for a copy."""
    if not has_head_minor_kernel(*k.shape[1:], k):
        return False
    return any(map(is_head_minor, (q, k, v))) or csc.num_edges >= _EDGES_PER_ROW * max(csc.num_dst, csc.num_src)


def _gathered(tensor, minor):
    """Return rows as the kernel gathers them."""
    if not minor:
        return readable(tensor)
    return tensor if is_head_minor(tensor) else tensor.transpose(1, 2).contiguous().transpose(1, 2)


def _read_once(tensor, minor):
    """Return rows that the kernel reads once, in either layout, which it tells by the stride of a head."""
    if minor and tensor.stride(1) == 1 and tensor.shape[2] > 1:
        return tensor if is_head_minor(tensor) else tensor.contiguous()
    return readable(tensor)


def _problem(csc, arrays, scale, dropout_p, seed, negative_slope, is_head_minor, kind):
    kind = None if kind is None else kind.to(torch.int32).contiguous()
    if arrays["edge"] is not None:
        arrays["edge"] = readable(arrays["edge"])
        columns = arrays["v"].shape[2]
        for name in _WIDE:
            if arrays.get(name) is not None:
                arrays[f"{name}_edge"], arrays[name] = arrays[name][..., columns:], arrays[name][..., :columns]
    problem = _Problem(
        num_dst=csc.num_dst,
        num_src=csc.num_src,
        num_heads=arrays["q"].shape[1],
        head_dim=arrays["v"].shape[2],
        edge_dim=0 if arrays["edge"] is None else arrays["edge"].shape[1],
        head_offset=csc.head_offset,
        num_kinds=0 if kind is None else len(arrays["bias"]),
        num_tables=0 if kind is None or arrays.get("grad_bias") is None else len(arrays["grad_bias"]),
        scale=scale,
        keep_scale=1 / (1 - dropout_p),
        negative_slope=0.0 if negative_slope is None else negative_slope,
        seed=0 if seed is None else int(seed),
        drop_threshold=dropout_threshold(dropout_p),
        storage=_STORAGE[arrays["q"].dtype],
        bias_storage=_STORAGE[arrays["q"].dtype if arrays["bias"] is None else arrays["bias"].dtype],
        is_int64=csc.indices.dtype == torch.int64,
        is_backward="grad_out" in arrays,
        is_head_minor=is_head_minor,
        is_additive=negative_slope is not None,
        path=best_path(),
        num_threads=torch.get_num_threads(),
    )
    for name, tensor in arrays.items():
        if tensor is not None:
            tensor = tensor[0] if problem.num_tables and name == "grad_bias" else tensor
            head_stride = 0 if name in ("edge", "grad_edge") else tensor.stride(1)  # all heads share them
            setattr(problem, name, _Array(tensor.data_ptr(), tensor.stride(0), head_stride))
    for name in _INDEX_ARRAYS:
        setattr(problem, name, _address(getattr(csc, name)))
    problem.kind = _address(kind)
    problem.keep_alive = arrays, kind  # keeps casts and copies alive as long as their addresses are in use
    return ctypes.byref(problem)
