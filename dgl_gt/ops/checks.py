"""Checks of the arguments of attention and of dropout; each raises ``ValueError`` with what is allowed."""

import math
from numbers import Real

import torch

from .reference import MAX_HEADS, accumulation_dtype

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
KIND_DTYPES = (torch.uint8, torch.int32, torch.int64)


def unpack(q, k, v, additive=False):
    """Return q, k and v where two or three of them may be packed in one tensor.

    They are (rows, H, D) each, packed side by side in dimension 1. With additive scores, q and k are (rows, H), and
    follow the numbers of v in the last dimension, first k and then q.
    """
    if k is None and v is not None:
        raise ValueError("k is None, but v is given; pass both, or pack both in k")
    if v is not None:
        return q, k, v
    count, name, rows, others = (3, "q", "N", "k and v are None") if k is None else (2, "k", "N_src", "v is None")
    packed, extra = q if k is None else k, count - 1
    if (packed.dim() != 3 or packed.shape[2] < count) if additive else (packed.dim() != 4 or packed.shape[1] != count):
        raise ValueError(
            f"{name} has shape {tuple(packed.shape)}, and {others}; pass a packed {name} of shape "
            f"{f'({rows}, H, D + {extra})' if additive else f'({rows}, {count}, H, D)'}, or pass the others as well"
        )
    if additive:
        return (packed[..., -1] if k is None else q), packed[..., -extra], packed[..., :-extra]
    return packed.unbind(1) if k is None else (q, *packed.unbind(1))


def checked_numbers(graph, rows, bias, num_edges, scale, dropout_p, seed, negative_slope, edge=None, kind=None):
    """Check all arguments of attention on a CSC; return the last four as kernels take them.

    ``rows`` are q, k and v, and the bias and the features ``edge`` have ``num_edges`` rows; with features, q is as wide
    as a key and they together. With a negative slope, scores are additive. A scale of None becomes ``1 / sqrt(D)``, and
    the seed a tensor () int64 on the CPU, or None without dropout.
    """
    if edge is not None:
        _check_edge(rows[0], edge, num_edges)
        rows = rows[0][..., : rows[0].shape[-1] - edge.shape[1]], *rows[1:]
    _check_shapes(graph, *rows, negative_slope is not None)
    if kind is not None:
        _check_kind(kind, bias, num_edges, rows[0])
        num_edges = len(bias)
    _check_kinds(graph, *rows, bias, num_edges)
    if negative_slope is not None:
        if bias is not None:
            raise ValueError("bias is given with additive scores, which take none; leave it out")
        if not is_finite_number(negative_slope):
            raise ValueError(f"negative_slope is {negative_slope!r}; allowed: a finite number")
        negative_slope = float(negative_slope)
    if scale is not None:
        check_scale(scale, negative_slope)
    num_heads, head_dim = rows[2].shape[1:]
    scale = 1 / math.sqrt(head_dim) if scale is None else float(scale)
    check_probability("dropout_p", dropout_p)
    if dropout_p == 0:
        return scale, 0.0, None, negative_slope
    check_seed(seed)
    last = graph.head_offset + num_heads - 1
    if last >= MAX_HEADS:
        raise ValueError(
            f"dropout_p is {dropout_p} for heads {graph.head_offset} to {last}; allowed: heads below {MAX_HEADS}; use "
            "fewer heads, or no dropout"
        )
    if not isinstance(seed, torch.Tensor):
        seed = torch.tensor(seed, device="cpu")  # on the CPU, whatever the default device is
    return scale, float(dropout_p), seed, negative_slope


def _check_shapes(graph, q, k, v, additive):
    of_score, columns = (" with additive scores", "H") if additive else ("", "H, D")
    if q.dim() != (2 if additive else 3) or len(q) != graph.num_dst or 0 in q.shape[1:]:
        raise ValueError(
            f"q has shape {tuple(q.shape)}; allowed{of_score}: (N_dst, {columns}), where the graph has N_dst = "
            f"{graph.num_dst}, and H and D are at least 1"
        )
    shape = (graph.num_src, *q.shape[1:])
    if k.shape != shape:
        raise ValueError(
            f"k has shape {tuple(k.shape)}; allowed{of_score}: (N_src, {columns}) = {shape}, with N_src of the graph, and "
            f"{columns} of q"
        )
    shape = (*shape[:2], *v.shape[2:3]) if additive else shape
    if v.dim() != 3 or v.shape != shape or v.shape[2] == 0:
        raise ValueError(
            f"v has shape {tuple(v.shape)}; allowed: (N_src, H, D) = {shape}, with N_src and H as in k, and D at least 1"
        )


def _check_kinds(graph, q, k, v, bias, num_edges):
    """Check the dtypes and devices, and the shape of the bias."""
    if q.dtype not in DTYPES:
        raise ValueError(f"q has dtype {q.dtype}; allowed: {', '.join(map(str, DTYPES))}")
    for name, tensor in (("k", k), ("v", v)):
        if tensor.dtype != q.dtype:
            raise ValueError(f"{name} has dtype {tensor.dtype}; allowed: the dtype of q, {q.dtype}")
    if bias is not None:
        if bias.shape != (num_edges, q.shape[1]):
            raise ValueError(
                f"bias has shape {tuple(bias.shape)}; allowed: (E, H) = {(num_edges, q.shape[1])}, with rows in the order "
                "of edge ids"
            )
        allowed = dict.fromkeys((q.dtype, accumulation_dtype(q.dtype)))
        if bias.dtype not in allowed:
            raise ValueError(f"bias has dtype {bias.dtype}; allowed: {' or '.join(map(str, allowed))}")
    for name, value in (("k", k), ("v", v), ("bias", bias), ("the graph", graph)):
        if value is not None and value.device != q.device:
            raise ValueError(
                f"{name} is on {value.device}, but q is on {q.device}; move it with .to({str(q.device)!r})"
            )


def check_q_edge(q, features, q_edge, negative_slope):
    """Check what is multiplied with features of edges."""
    if negative_slope is not None:
        raise ValueError("edge is given with additive scores, which take none; leave it out")
    shape = (*q.shape[:2], *features.shape[1:])
    if q_edge.shape != shape or q_edge.dtype != q.dtype or q_edge.device != q.device:
        raise ValueError(
            f"edge[1] has shape {tuple(q_edge.shape)} and is {q_edge.dtype} on {q_edge.device}; allowed: (N_dst, H, F) = "
            f"{shape}, {q.dtype} on {q.device}, as q"
        )


def _check_edge(q, features, num_edges):
    if features.dim() != 2 or len(features) != num_edges or features.shape[1] == 0:
        raise ValueError(
            f"edge[0] has shape {tuple(features.shape)}; allowed: (E, F), with rows in the order of edge ids, E = "
            f"{num_edges}, and F at least 1"
        )
    if features.dtype != q.dtype or features.device != q.device:
        raise ValueError(
            f"edge[0] is {features.dtype} on {features.device}; allowed: the dtype and device of q, {q.dtype} on {q.device}"
        )


def _check_kind(kind, table, num_edges, q):
    if table is None or table.dim() != 2 or table.shape[1] != q.shape[1] or len(table) == 0:
        raise ValueError(
            f"bias_of_kind[0] has shape {None if table is None else tuple(table.shape)}; allowed: (K, H), a row for each "
            f"kind, with H = {q.shape[1]} and K at least 1"
        )
    if kind.shape != (num_edges,) or kind.dtype not in KIND_DTYPES or kind.device != q.device:
        raise ValueError(
            f"bias_of_kind[1] has shape {tuple(kind.shape)} and is {kind.dtype} on {kind.device}; allowed: (E,) = "
            f"({num_edges},), in the order of edge ids, {', '.join(map(str, KIND_DTYPES))}, on {q.device}"
        )


def check_kind_values(kind, table):
    """Raise ``ValueError`` unless all kinds, if there are any, are rows of the table; for operators, as it reads values."""
    if kind is None or not len(kind):
        return
    lowest, highest = (int(each) for each in kind.aminmax())
    if lowest < 0 or highest >= len(table):
        raise ValueError(
            f"bias_of_kind[1] holds {lowest if lowest < 0 else highest}; allowed: 0 to {len(table) - 1}, the rows of "
            "bias_of_kind[0]"
        )


def is_finite_number(value):
    """Return whether a value is a number, but no bool, NaN or infinity."""
    return isinstance(value, Real) and not isinstance(value, bool) and -math.inf < value < math.inf


def check_probability(name, p):
    """Return p; raise ``ValueError`` unless it is a probability below 1."""
    if not is_finite_number(p) or not 0 <= p < 1:
        raise ValueError(f"{name}={p!r} is not in [0, 1); choose 0 for no dropout, or a probability below 1")
    return p


def check_scale(scale, negative_slope):
    """Raise ``ValueError`` unless scores are dot products and their factor is a number, or a tensor with one."""
    if negative_slope is not None:
        raise ValueError("scale is given with additive scores, which take none; leave it out")
    if isinstance(scale, torch.Tensor):
        if scale.numel() != 1 or not scale.is_floating_point():
            raise ValueError(
                f"scale is a tensor of shape {tuple(scale.shape)} and dtype {scale.dtype}; allowed: one floating-point "
                "number, shape ()"
            )
    elif not is_finite_number(scale):
        raise ValueError(f"scale is {scale!r}; allowed: a finite number, or a tensor with one")


def check_seed(seed):
    """Raise ``ValueError`` unless a seed of dropout is an int of 63 bits, or a tensor () int64 on the CPU."""
    if seed is None:
        raise ValueError("seed is None, but dropout_p is not 0; pass an int that differs for each layer and step")
    if isinstance(seed, torch.Tensor):
        if seed.dim() != 0 or seed.dtype != torch.int64 or seed.device.type != "cpu":
            raise ValueError(
                f"seed is a tensor of shape {tuple(seed.shape)} and dtype {seed.dtype} on {seed.device}; allowed: one "
                "number, shape (), torch.int64, on the CPU"
            )
    elif not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**63:
        raise ValueError(f"seed is {seed!r}; allowed: an int from 0 to 2**63 - 1")


def check_seed_value(seed):
    """Raise ``ValueError`` if a seed tensor is negative; for operators, as reading a value is an operation of its own."""
    if seed is not None and int(seed) < 0:
        raise ValueError(f"seed is a tensor with {int(seed)}; allowed: 0 to 2**63 - 1")
