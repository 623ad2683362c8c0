"""Sparse attention: the public function, which checks and dispatches, and its torch operators."""

import functools
import math
import warnings

import torch
from torch.autograd import forward_ad

from dgl_gt.as_csc import csc
from dgl_gt.structure import CSC

from . import cpu
from .reference import MAX_HEADS, accumulation_dtype, reference_attention

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def sparse_attention(graph, q, k=None, v=None, *, bias=None, scale=None, dropout_p=0.0, seed=None, return_lse=False):
    """Softmax attention of every destination node over its in-edges.

    For each destination i and head, over the in-edges e = (j, i):
    ``s_e = scale * q_i . k_j + bias_e``, ``out_i = sum_e drop(softmax(s)_e) v_j`` and ``lse_i = log sum_e exp(s_e)``.
    One pass with an online softmax [1]_, and a backward pass that computes the weights again from ``lse`` [2]_, in C++
    on the CPU and in Triton on CUDA devices: nothing of size E x H x D is stored, and nothing of size E x H unless
    `bias` needs a gradient. The result is the same, bit for bit, at every run. Elsewhere, and for float64 on CUDA
    devices, plain torch operations give it, with a warning.

    Parameters
    ----------
    graph : dgl.DGLGraph or CSC
        A DGL graph or block with one edge type, or ``dgl_gt.csc(graph)``. Inside ``torch.compile`` pass the CSC.
    q : torch.Tensor, (N_dst, H, D), or (N, 3, H, D)
        Queries, one row for each destination node; or queries, keys and values of one packed projection, with `k` and
        `v` None. float32, float64, bfloat16 or float16; sums are held in float32 (float64 for float64). Any strides of
        rows and heads: views are not copied.
    k : torch.Tensor, (N_src, H, D), or (N_src, 2, H, D), optional
        Keys, one row for each source node; or keys and values packed, with `v` None. Dtype and device of `q`.
    v : torch.Tensor, (N_src, H, D), optional
        Values. The gradient of a packed tensor is written in place, where autograd would copy the gradients of views
        of it together.
    bias : torch.Tensor, (E, H), optional
        Added to the scores, in order of edge id; dtype of `q` or of the sums. ``-inf`` takes the edge out.
    scale : float, optional
        ``1 / sqrt(D)`` by default.
    dropout_p : float, default 0.0
        Probability in [0, 1) of dropping a normalised weight; those kept are multiplied by ``1 / (1 - dropout_p)``.
    seed : int, or torch.Tensor () int64 on the CPU, optional
        Key of the dropout mask, 0 to 2**63 - 1; required with dropout. The mask is a function of (seed, global edge
        id, global head) alone, by SplitMix64 [3]_. Give each layer and step its own seed. As a tensor it can change
        without a compiled graph being compiled again.
    return_lse : bool, default False
        Whether to return ``lse`` too; it can be differentiated, and ``dgl_gt.merge`` takes it.

    Returns
    -------
    out : torch.Tensor, (N_dst, H, D)
        Zeros for a row without edges.
    lse : torch.Tensor, (N_dst, H)
        Only with `return_lse`; float32, or float64 for float64. ``-inf`` for a row without edges.

    Raises
    ------
    ValueError
        A shape, dtype, device or value does not fit.
    NotImplementedError
        The gradient of a gradient, or a derivative in forward mode, is asked of a kernel.

    References
    ----------
    .. [1] M. Milakov, N. Gimelshein, Online normalizer calculation for softmax, 2018, arXiv 1805.02867.
    .. [2] T. Dao et al., FlashAttention, NeurIPS 2022, arXiv 2205.14135.
    .. [3] G. Steele, D. Lea, C. Flood, Fast splittable pseudorandom number generators, OOPSLA 2014.
    """
    if not isinstance(graph, CSC):
        graph = csc(graph, q.device)
    q, k, v = _autocast(q, k, v)
    _check_tensors(graph, *_unpacked(q, k, v), bias)
    num_heads, head_dim = q.shape[-2:]
    _check_dropout(graph, num_heads, dropout_p, seed)
    scale = 1 / math.sqrt(head_dim) if scale is None else float(scale)
    if dropout_p == 0:
        seed = None
    elif not isinstance(seed, torch.Tensor):
        seed = torch.tensor(seed, device="cpu")  # whatever the default device is
    if _kernel_at_hand(q.device.type, q.dtype):
        refuse_forward_mode("sparse_attention", q, k, v, bias)
        fields = (graph.indptr, graph.indices, graph.edge_ids, graph.global_edge_ids, graph.rev_indptr)
        out, lse = _attention(
            q, k, v, bias, *fields, graph.rev_dst, graph.rev_position, seed, graph.head_offset, scale, float(dropout_p)
        )
    else:
        out, lse = reference_attention(graph, *_unpacked(q, k, v), bias, scale, float(dropout_p), seed)
    return (out, lse) if return_lse else out


def refuse_forward_mode(name, *tensors):
    """Raise ``NotImplementedError`` where a tensor has a tangent, which an operator would lose without a word."""
    if torch.compiler.is_compiling():
        return
    if any(x is not None and forward_ad.unpack_dual(x).tangent is not None for x in tensors):
        raise NotImplementedError(
            f"{name} has no derivative in forward mode (torch.func.jvp, jacfwd, dual tensors); use reverse mode: "
            "backward or torch.autograd.grad"
        )


def _autocast(*tensors):
    """Cast float32 to the dtype of an active ``torch.autocast``, as torch's own attention does."""
    device_type = tensors[0].device.type
    if not torch.amp.is_autocast_available(device_type) or not torch.is_autocast_enabled(device_type):
        return tensors
    dtype = torch.get_autocast_dtype(device_type)
    return tuple(x.to(dtype) if x is not None and x.dtype != torch.float64 else x for x in tensors)


def _unpacked(q, k, v):
    """Return q, k and v, each (rows, H, D), of what may be packed."""
    if k is None and v is None:
        if q.dim() != 4 or q.shape[1] != 3:
            raise ValueError(
                f"q has shape {tuple(q.shape)} and k and v are None; allowed: (N, 3, H, D), or k and v too"
            )
        return q.unbind(1)
    if v is None:
        if k.dim() != 4 or k.shape[1] != 2:
            raise ValueError(
                f"k has shape {tuple(k.shape)} and v is None; allowed: (N_src, 2, H, D), the two packed, or v"
            )
        return q, *k.unbind(1)
    if k is None:
        raise ValueError("k is None, but v is given; pass both, or k with both packed, (N_src, 2, H, D)")
    return q, k, v


def _check_tensors(graph, q, k, v, bias):
    if q.dim() != 3 or q.shape[0] != graph.num_dst or q.shape[1] == 0 or q.shape[2] == 0:
        raise ValueError(
            f"q has shape {tuple(q.shape)}; allowed: (N_dst, H, D) with N_dst = {graph.num_dst} as in the graph, and H "
            "and D at least 1"
        )
    if q.dtype not in DTYPES:
        raise ValueError(f"q has dtype {q.dtype}; allowed: {', '.join(map(str, DTYPES))}")
    rows_shape = (graph.num_src, q.shape[1], q.shape[2])
    for name, tensor in (("k", k), ("v", v)):
        if tensor.shape != rows_shape:
            raise ValueError(
                f"{name} has shape {tuple(tensor.shape)}; allowed: (N_src, H, D) = {rows_shape}, with N_src as in the "
                "graph, and H and D as in q"
            )
        if tensor.dtype != q.dtype:
            raise ValueError(f"{name} has dtype {tensor.dtype}; allowed: that of q, {q.dtype}")
    if bias is not None:
        if bias.shape != (graph.num_edges, q.shape[1]):
            raise ValueError(
                f"bias has shape {tuple(bias.shape)}; allowed: (E, H) = {(graph.num_edges, q.shape[1])}, in order of "
                "edge id"
            )
        if bias.dtype not in (q.dtype, accumulation_dtype(q.dtype)):
            raise ValueError(f"bias has dtype {bias.dtype}; allowed: {bias_dtypes(q.dtype)}")
    for name, value in (("k", k), ("v", v), ("bias", bias), ("the graph", graph)):
        if value is not None and value.device != q.device:
            raise ValueError(f"{name} is on {value.device}, q on {q.device}; move it with .to({str(q.device)!r})")


def bias_dtypes(dtype):
    """Say which dtypes a bias may have beside queries of this one."""
    return " or ".join(dict.fromkeys(str(each) for each in (dtype, accumulation_dtype(dtype))))


def _check_dropout(graph, num_heads, dropout_p, seed):
    if not 0 <= dropout_p < 1:
        raise ValueError(f"dropout_p is {dropout_p}; allowed: 0 <= dropout_p < 1")
    if dropout_p == 0:
        return
    check_seed(seed)
    if graph.head_offset + num_heads > MAX_HEADS:
        raise ValueError(
            f"heads {graph.head_offset} to {graph.head_offset + num_heads - 1} with dropout; allowed: below {MAX_HEADS}"
        )


def check_seed(seed):
    """Raise ``ValueError`` unless a seed of dropout is an int of 63 bits, or a tensor () int64 on the CPU."""
    if seed is None:
        raise ValueError("seed is None, but dropout_p is not 0; pass an int, another for each layer and step")
    if isinstance(seed, torch.Tensor):
        if seed.dim() != 0 or seed.dtype != torch.int64 or seed.device.type != "cpu":
            raise ValueError(
                f"seed is a tensor of shape {tuple(seed.shape)} and dtype {seed.dtype} on {seed.device}; allowed: one "
                "number, (), of torch.int64 on the CPU"
            )
    elif not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise ValueError(f"seed is {seed!r}; allowed: an int from 0 to 2**63 - 1")


@torch.compiler.assume_constant_result
def _kernel_at_hand(device_type, dtype):
    if device_type == "meta":  # shapes alone, which the operator knows
        return True
    if _backend(device_type) is None:
        _warn_slow(_REMEDY.get(device_type, f"this version of dgl_gt has no kernel for {device_type} tensors"))
        return False
    if device_type == "cuda" and dtype == torch.float64:
        _warn_slow("the kernel for CUDA devices takes float32, bfloat16 and float16, not float64")
        return False
    return True


def _backend(device_type):
    """Return the module that has the kernels for tensors on such devices, or None."""
    if device_type == "cpu":
        return None if cpu.library() is None else cpu
    return _triton() if device_type == "cuda" else None


@functools.cache
def _triton():
    try:
        from .gpu import attention  # here, as most installs of torch for the CPU have no Triton
    except ImportError:
        return None
    return attention


_REMEDY = {
    "cpu": "dgl_gt was installed without its compiled CPU kernel. For the fast path install a C++ compiler (on Debian "
    "or Ubuntu: apt install g++) and then dgl_gt again: pip install --force-reinstall --no-deps dgl_gt",
    "cuda": "Triton, in which the kernels for CUDA devices are written, cannot be imported. For the fast path: pip "
    "install triton",
}


@functools.cache
def _warn_slow(reason):
    message = f"sparse_attention runs its slower path, which stores E x H x D elements: {reason}."
    warnings.warn(message, RuntimeWarning, stacklevel=4)


@torch.library.custom_op("dgl_gt::sparse_attention", mutates_args=())
def _attention(
    q: torch.Tensor,
    k: torch.Tensor | None,
    v: torch.Tensor | None,
    bias: torch.Tensor | None,
    indptr: torch.Tensor,
    indices: torch.Tensor,
    edge_ids: torch.Tensor | None,
    global_edge_ids: torch.Tensor | None,
    rev_indptr: torch.Tensor,
    rev_dst: torch.Tensor,
    rev_position: torch.Tensor,
    seed: torch.Tensor | None,
    head_offset: int,
    scale: float,
    dropout_p: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    q, k, v = _unpacked(q, k, v)
    structure = CSC(
        indptr, indices, edge_ids, global_edge_ids, k.shape[0], head_offset, rev_indptr, rev_dst, rev_position
    )
    return _backend(q.device.type).forward(structure, q, k, v, bias, scale, dropout_p, seed)


@_attention.register_fake
def _attention_fake(q, k, v, *_):
    q, _, _ = _unpacked(q, k, v)
    return q.new_empty(q.shape), q.new_empty(q.shape[:2], dtype=accumulation_dtype(q.dtype))


# An operator cannot return None, so a gradient that is not wanted is an empty tensor.
@torch.library.custom_op("dgl_gt::sparse_attention_backward", mutates_args=())
def _attention_backward(
    grad_out: torch.Tensor,
    grad_lse: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor | None,
    v: torch.Tensor | None,
    bias: torch.Tensor | None,
    indptr: torch.Tensor,
    indices: torch.Tensor,
    edge_ids: torch.Tensor | None,
    global_edge_ids: torch.Tensor | None,
    rev_indptr: torch.Tensor,
    rev_dst: torch.Tensor,
    rev_position: torch.Tensor,
    seed: torch.Tensor | None,
    head_offset: int,
    scale: float,
    dropout_p: float,
    needs_q: bool,
    needs_kv: bool,
    needs_bias: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    needs = _needed(k, v, needs_q, needs_kv, needs_bias)
    backend = _backend(q.device.type)
    empty = cpu.empty if backend is cpu else functools.partial(torch.empty, device=q.device)
    grads = [empty(x.shape if needed else 0, dtype=q.dtype) for x, needed in zip((q, k, v), needs)]
    grads.append(torch.empty_like(bias) if needs_bias else q.new_empty(0))
    packed = [grad if needed else None for grad, needed in zip(grads, needs)]
    if k is None:
        written = packed[0].unbind(1) if needs_q else (None, None, None)
    elif v is None and needs_kv:
        written = packed[0], *packed[1].unbind(1)
    else:
        written = packed[:3]
    q, k, v = _unpacked(q, k, v)
    structure = CSC(
        indptr, indices, edge_ids, global_edge_ids, k.shape[0], head_offset, rev_indptr, rev_dst, rev_position
    )
    written = (*written, packed[3])
    backend.backward(structure, grad_out, grad_lse, out, lse, q, k, v, bias, scale, dropout_p, seed, written)
    return tuple(grads)


def _needed(k, v, needs_q, needs_kv, needs_bias):
    """Whether each of the four gradients is a tensor of its own."""
    return needs_q, needs_kv and k is not None, needs_kv and v is not None, needs_bias


@_attention_backward.register_fake
def _attention_backward_fake(grad_out, grad_lse, out, lse, q, k, v, bias, *rest):
    pairs = zip((q, k, v, bias), _needed(k, v, *rest[-3:]))
    return tuple(x.new_empty(x.shape) if needed else q.new_empty(0) for x, needed in pairs)


def _save(ctx, inputs, output):
    *tensors, head_offset, scale, dropout_p = inputs
    ctx.save_for_backward(*output, *tensors)
    ctx.numbers = (head_offset, scale, dropout_p)


def _differentiate(ctx, grad_out, grad_lse):
    needs_q, needs_k, needs_v, needs_bias = needs = ctx.needs_input_grad[:4]
    needs_kv = needs_k or needs_v
    grads = _attention_backward(grad_out, grad_lse, *ctx.saved_tensors, *ctx.numbers, needs_q, needs_kv, needs_bias)
    others = (None,) * 11
    return *(grad if needed else None for grad, needed in zip(grads, needs)), *others


def _refuse_second_derivative(ctx, *_):
    raise NotImplementedError(
        "sparse_attention has no second derivative in its kernels; call backward or autograd.grad without "
        "create_graph=True"
    )


def _refuse_vmap(*_):
    raise NotImplementedError(
        "sparse_attention has no batching rule for torch.vmap; put what is mapped over into the heads, or join "
        "the graphs with dgl.batch and the rows with torch.cat"
    )


if hasattr(_attention, "register_vmap"):  # torch 2.5
    _attention.register_vmap(_refuse_vmap)
    _attention_backward.register_vmap(_refuse_vmap)
_attention.register_autograd(_differentiate, setup_context=_save)
_attention_backward.register_autograd(_refuse_second_derivative)
