"""The passes over edges that both scores make on CUDA devices: arguments, order and launches of kernels.

``attention.py`` has a kernel for results and one for gradients. The backward passes compute the weights again from
``lse`` (Dao et al., FlashAttention, arXiv 2205.14135): one over in-edges for the gradients of q and bias, one over
out-edges for those of k and v.

One program writes each element, without atomics; shapes, strides and dtypes decide the order of sums. Rows with the
edges of two pieces or more leave partial sums in slots, and another kernel merges them in order. ``blocks.span``
computes the slots on the device, so the host never waits for it.
"""

import math
from dataclasses import replace

import torch
import triton
import triton.language as tl

from dgl_gt.ops.reference import accumulation_dtype, dropout_threshold

from . import blocks
from .dropout import halves

# Edges of a piece; more where there would be over _MAX_SLOTS pieces.
_MIN_PIECE = 128
_MAX_SLOTS = 2**14
# Bytes of a row that a program reads: it takes as many heads as fit into them. Twice as many where an edge has one row and
# not two, and four times where it has features, which a program reads for all of its heads at once. Programs of other heads come after those of all rows, so that a smaller share of K and V is in use at a
# time, and more of it in the cache.
_ROW_BYTES = 256
# Bytes of a wider head for each warp; one warp sums without barriers.
_WARP_BYTES = 1024

# Arguments that vary between calls. Triton must not compile a kernel again because one is 1 or a multiple of 16.
VARYING = ("num_rows", "num_slots", "head_offset", "seed_high", "seed_low", "drop_threshold")


@triton.jit(do_not_specialize=VARYING)
def _merge(
    target, target_row, target_head, lse, partial, partial_top, partial_total, indptr, num_rows, num_slots,
    H: tl.constexpr, D: tl.constexpr, ALIGN: tl.constexpr, PIECE: tl.constexpr, BLOCK_E: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Write the rows that are cut, from the sums of their pieces: results, or without lse a gradient."""
    row, _begin, _count, number, pieces, slot = blocks.span(indptr, num_rows, num_slots, PIECE)
    if number != 0:
        return
    heads, columns, inside = blocks.columns_of(H, D, BLOCK_H, BLOCK_D)
    top, total, sums = blocks.no_edges(partial.dtype.element_ty, BLOCK_H, BLOCK_D)
    for first in range(0, pieces.to(tl.int32), BLOCK_E):
        lanes, _real, wanted, present = blocks.lanes_of(first, pieces, heads, inside, H, BLOCK_E)
        slots = slot + lanes
        parts = blocks.load(partial, slots, present, H * D // ALIGN, D // ALIGN, heads, columns, ALIGN)
        if lse is not None:
            at = slots[:, None] * H + heads[None, :]
            top, shrink, factors = blocks.rise(top, tl.load(partial_top + at, mask=wanted, other=float("-inf")))
            total = total * shrink + tl.sum(tl.load(partial_total + at, mask=wanted, other=0.0) * factors, 0)
            sums *= shrink[:, None]
            parts *= factors[:, :, None]
        sums += tl.sum(parts, 0)
    merged = sums if lse is None else blocks.result(lse, row, sums, top, total, heads, H)
    blocks.store(target, row, merged, inside, target_row, target_head, heads, columns, ALIGN)


def forward(kernel, csc, q, k, v, bias, setting, dropout_p, seed, edge, kind):
    """Run a kernel for results; return out and lse. ``setting`` is the factor of its scores, and whether they are additive."""
    out = torch.empty(len(q), *(v if edge is None else q).shape[1:], dtype=q.dtype, device=q.device)
    values = _arguments(csc, dict(q=q, k=k, v=v, bias=bias, edge=edge, out=out), setting, dropout_p, seed, kind)
    slots, sums = values["num_slots"], accumulation_dtype(q.dtype)
    scratch = dict(lse=len(q), partial_top=slots, partial_total=slots)
    values |= {name: q.new_empty(rows, q.shape[1], dtype=sums) for name, rows in scratch.items()}
    values["partial"] = q.new_empty(slots, *out.shape[1:], dtype=sums)
    launch(kernel, slots + csc.num_dst, values)
    launch(_merge, slots, _renamed(values, target="out") | dict(D=out.shape[2]))
    return out, values["lse"]


def backward(
    kernel, csc, grad_out, grad_lse, out, lse, q, k, v, bias, setting, dropout_p, seed, grads, edge, kind, adds=False
):
    """Run a kernel for the gradients that ``grads`` wants, over in-edges and over out-edges; see `cpu.backward`.

    A program sums gradients of features over the heads that it processes. Where these are not all, groups of heads come
    one after the other, and ``adds`` says that there was one before.
    """
    names = ("grad_q", "grad_k", "grad_v", "grad_bias", "grad_edge")
    arrays = dict(
        q=q, k=k, v=v, bias=bias, edge=edge, grad_out=grad_out, out=out, **dict(zip(names, grads, strict=True))
    )
    values = _arguments(csc, arrays, setting, dropout_p, seed, kind)
    group = values["BLOCK_H"]
    if grads[4] is not None and group < q.shape[1]:
        of_edge = grads[4]
        for first in range(0, q.shape[1], group):
            rows = (
                x if x is None else x[:, first : first + group] for x in (grad_out, grad_lse, out, lse, q, k, v, bias)
            )
            written = [x if x is None else x[:, first : first + group] for x in grads[:4]] + [of_edge]
            part = replace(csc, head_offset=csc.head_offset + first)
            backward(kernel, part, *rows, setting, dropout_p, seed, written, edge, kind, first > 0)
        return
    values["ADDS"] = adds
    values |= dict(lse=lse.contiguous(), grad_lse=grad_lse.contiguous(), partial_top=None, partial_total=None)
    slots, sums = values["num_slots"], accumulation_dtype(q.dtype)
    values["stats"] = q.new_empty(csc.num_dst, 2, q.shape[1], dtype=sums)
    values |= dict(partial=q.new_empty(slots, *q.shape[1:], dtype=sums), partial_2=None)
    over_in_edges = _renamed(values, own="q", far="k", own_2="grad_out", far_2="v", grad="grad_q", grad_2=None)
    launch(kernel, slots + csc.num_dst, over_in_edges)
    values |= dict(out=None, lse=None, grad_lse=None)
    if values["grad_q"] is not None:
        _merge_gradient(values, "grad_q", "partial")
    values["grad_edge"] = None
    if values["grad_k"] is not None:
        values |= dict(indptr=csc.rev_indptr, indices=csc.rev_dst, num_rows=csc.num_src, order=csc.rev_position)
        partials = [q.new_empty(slots, *x.shape[1:], dtype=sums) for x in (k, v)]
        values |= dict(grad_bias=None, **dict(zip(("partial", "partial_2"), partials)))
        over_out_edges = _renamed(values, own="k", far="q", own_2="v", far_2="grad_out", grad="grad_k", grad_2="grad_v")
        launch(kernel, slots + csc.num_src, over_out_edges)
        _merge_gradient(values, "grad_k", "partial")
        _merge_gradient(values, "grad_v", "partial_2")


def _merge_gradient(values, name, partial):
    values = _renamed(values, target=name) | dict(partial=values[partial])
    if values["target"].dim() == 2:  # one number per row and head
        values |= dict(D=1, ALIGN=1, BLOCK_D=1)
    else:
        values["D"] = values["target"].shape[2]
    launch(_merge, values["num_slots"], values)


def _renamed(values, **names):
    """Return the values, with an array and its strides also under the name that a kernel uses for it."""
    pairs = [(new + end, f"{old}{end}") for new, old in names.items() for end in ("", "_row", "_head")]
    return values | {new: values.get(old) for new, old in pairs}


def sum_by_kind(gradients, kind, kinds):
    """Return the sums (K, H) of the gradients (E, H) of edges of each kind, in an order that the kinds alone decide."""
    gradients = gradients[kind.sort(stable=True).indices]
    counts = torch.bincount(kind, minlength=kinds)
    pieces = counts // _MIN_PIECE + 1
    lengths = torch.full((int(pieces.sum()),), _MIN_PIECE, device=kind.device)
    lengths[pieces.cumsum(0) - 1] = counts % _MIN_PIECE
    for sizes in (lengths, pieces):
        gradients = torch.segment_reduce(gradients, "sum", lengths=sizes, axis=0)
    return gradients


def _arguments(csc, arrays, setting, dropout_p, seed, kind):
    """Return the arguments of kernels over in-edges, by name."""
    num_heads, head_dim = arrays["v"].shape[1:]
    wide = [x for x in arrays.values() if x is not None and x.dim() == 3]
    edge_dim = 0 if arrays["edge"] is None else arrays["edge"].shape[1]
    align = math.gcd(16, head_dim, edge_dim, *(stride for x in wide for stride in x.stride()[:2]))
    piece = max(_MIN_PIECE, triton.next_power_of_2(triton.cdiv(csc.num_edges, _MAX_SLOTS)))
    slots = csc.num_edges // piece if csc.num_edges >= 2 * piece else 0
    values = dict(H=num_heads, D=head_dim, F=edge_dim, ALIGN=align, PIECE=piece, num_slots=slots, kind=kind)
    row_bytes = _ROW_BYTES * (2 if setting[1] else 4 if edge_dim else 1)
    values |= _tile(num_heads, head_dim + edge_dim, arrays["v"].element_size(), row_bytes, setting[1])
    values |= dict(indptr=csc.indptr, indices=csc.indices, num_rows=csc.num_dst, order=None)
    values |= dict(edge_ids=csc.edge_ids, head_offset=csc.head_offset, DROPOUT=dropout_p > 0)
    values |= dict(dropout_ids=csc.edge_ids if csc.global_edge_ids is None else csc.global_edge_ids)
    values |= dict(drop_threshold=dropout_threshold(dropout_p))
    factor, values["ADDITIVE"] = setting
    for name, number in (("factor", factor), ("keep_scale", 1 / (1 - dropout_p))):
        values[name] = arrays["v"].new_full((), number) if arrays["v"].dtype == torch.float64 else number
    seed_high, seed_low = halves(int(seed) if dropout_p > 0 else 0)
    values |= dict(seed_high=seed_high, seed_low=seed_low)
    for name, tensor in arrays.items():
        unit = align if tensor is not None and tensor.dim() == 3 else 1
        strides = (None, None) if tensor is None else (stride // unit for stride in tensor.stride()[:2])
        values |= zip((name, f"{name}_row", f"{name}_head"), (tensor, *strides))
    return values


def _tile(num_heads, head_dim, element_bytes, row_bytes, additive):
    """Return the shape of the block that a program reads at once, and its number of warps."""
    block_d = triton.next_power_of_2(head_dim)
    block_h = min(triton.next_power_of_2(num_heads), max(1, row_bytes // (block_d * element_bytes)))
    columns = block_h * block_d
    warps = min(8, max(1, columns * element_bytes // _WARP_BYTES))
    # 16 elements of keys per thread (8 of float64), and as many of values: with more, fewer warps run at a time. Additive
    # scores have no rows of keys.
    summed_bytes = element_bytes if additive else max(4, element_bytes)
    edges = min(16, max(4, 2048 * warps // (columns * summed_bytes)))
    return dict(BLOCK_E=edges, BLOCK_H=block_h, BLOCK_D=block_d, num_warps=warps)


def launch(kernel, programs, values):
    """Run a kernel for each group of heads, with the arguments that it names."""
    if programs == 0:
        return
    arguments = {name: values[name] for name in kernel.arg_names}
    groups = triton.cdiv(values["H"], values["BLOCK_H"])
    with torch.cuda.device_of(values["indptr"]):  # does nothing on the CPU, where Triton's interpreter runs
        kernel[programs, groups](**arguments, num_warps=values["num_warps"], enable_fp_fusion=True)
