"""The CUDA kernels of sparse attention, in Triton; imported only where tensors are on a CUDA device.

One program processes a row, or a piece of a row with many edges, and several heads side by side, so that the keys (or
values) of a node are one contiguous read. It takes BLOCK_E edges at a time with an online softmax (Milakov, Gimelshein,
arXiv 1805.02867). The backward passes compute the weights again from ``lse`` (Dao et al., FlashAttention, arXiv
2205.14135): one over in-edges for the gradients of q and bias, one over out-edges for those of k and v.

One program writes each element, without atomics; shapes, strides and dtypes decide the order of sums, and tuning
chooses only options that change no bit. Rows with the edges of two pieces or more leave partial sums in slots, and
another kernel merges them in order. ``_span`` computes the slots on the device, so the host never waits for it.
"""

import math
import os

import torch
import triton
import triton.language as tl

from dgl_gt.ops.reference import dropout_threshold, readable

from .splitmix64 import halves, random_bits

# Edges of a piece; more where there would be over _MAX_SLOTS pieces.
_MIN_PIECE = 256
_MAX_SLOTS = 2**14
# Bytes that a warp reads at once. A program takes as many heads as fit into it, because one warp sums without barriers.
_WARP_BYTES = 512

# Numbers that vary between calls: a value of 1 or a multiple of 16 compiles no kernel again.
_VARYING = ("num_rows", "num_slots", "head_offset", "seed_high", "seed_low", "drop_threshold")


def _tuned(kernel):
    """Tune how far ahead loads are issued; other tiles or warps would change the order of sums."""
    stages = [1] if os.environ.get("TRITON_INTERPRET") == "1" else [1, 2, 3, 4]
    configs = [triton.Config({}, num_warps=None, num_stages=number) for number in stages]
    return triton.autotune(configs, key=["H", "D", "ALIGN"])(kernel)


@triton.jit
def _row_of(indptr, position, num_rows):
    """Return the row that has this position, by bisection."""
    low = position * 0
    high = low + num_rows
    while high - low > 1:
        middle = (low + high) >> 1
        is_above = tl.load(indptr + middle) > position
        low = tl.where(is_above, low, middle)
        high = tl.where(is_above, middle, high)
    return low


@triton.jit
def _span(indptr, num_rows, num_slots, PIECE: tl.constexpr):
    """Return this program's row, first position, number of edges, piece number, number of pieces, and slot.

    The first num_slots programs belong to slots, the others to rows. A program whose piece number is not below the
    number of pieces has nothing to do. A row with at least 2 * PIECE edges that begins at position b is cut into
    edges // PIECE pieces of even size. They take the slots from b // PIECE on, all below (b + edges) // PIECE, where
    the slots of later rows begin. The positions slot * PIECE to (slot + 1) * PIECE - 1 of piece n contain b + n *
    PIECE, and PIECE edges of the row follow. So the last position is in the row, and a slot finds its row by it.
    """
    program = tl.program_id(0).to(tl.int64)
    is_slot = program < num_slots
    row = program - num_slots
    if is_slot:
        row = _row_of(indptr, (program + 1) * PIECE - 1, num_rows)
    begin = tl.load(indptr + row)
    count = tl.load(indptr + row + 1) - begin
    pieces = tl.maximum(count // PIECE, 1)
    number = tl.where(is_slot, program - begin // PIECE, 0)
    number = tl.where(is_slot == (pieces > 1), number, pieces)
    if pieces > 1:
        first = count * number // pieces
        count = count * (number + 1) // pieces - first
        begin += first
    return row, begin, count.to(tl.int32), number, pieces, program


@triton.jit
def _columns(H: tl.constexpr, D: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr):
    """Return the numbers of this program's heads (BLOCK_H,), of elements (1, 1, BLOCK_D), and which of these exist."""
    heads = (tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)).to(tl.int64)
    columns = tl.arange(0, BLOCK_D)[None, None, :]
    return heads, columns, (heads[None, :, None] < H) & (columns < D)


@triton.jit
def _lanes(first, end, heads, inside, H: tl.constexpr, BLOCK_E: tl.constexpr):
    """Return the numbers from first, which are below end, and the same with heads and with all elements."""
    lanes = first + tl.arange(0, BLOCK_E)
    real = lanes < end
    return lanes, real, real[:, None] & (heads < H)[None, :], real[:, None, None] & inside


@triton.jit
def _at(array, rows, row_stride, head_stride, heads, columns, ALIGN: tl.constexpr):
    """Return pointers (rows, BLOCK_H, BLOCK_D)."""
    # Strides come divided by ALIGN: the product tells the compiler that reads of so many elements are aligned.
    starts = rows[:, None, None] * row_stride + heads[None, :, None] * head_stride
    return array + (starts * ALIGN + columns)


@triton.jit
def _load(array, rows, mask, row_stride, head_stride, heads, columns, ALIGN: tl.constexpr):
    """Load heads of rows as float32 (rows, BLOCK_H, BLOCK_D)."""
    at = _at(array, rows, row_stride, head_stride, heads, columns, ALIGN)
    return tl.load(at, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _store(array, row, values, mask, row_stride, head_stride, heads, columns, ALIGN: tl.constexpr):
    """Store (BLOCK_H, BLOCK_D) as heads of one row."""
    at = _at(array, row + tl.arange(0, 1), row_stride, head_stride, heads, columns, ALIGN)
    tl.store(at, values[None, :, :].to(array.dtype.element_ty), mask=mask)


@triton.jit
def _ids(ids, positions, real):
    """Return the ids of positions; None means the positions themselves."""
    if ids is not None:
        positions = tl.load(ids + positions, mask=real, other=0)
    return positions


@triton.jit
def _keep_factors(ids, heads, head_offset, seed_high, seed_low, drop_threshold, keep_scale):
    """Return the factors of the weights (edges, heads): 0 where dropout drops one. reference.py defines the bits."""
    bits = random_bits(seed_high, seed_low, ids[:, None] * 65536 + (heads[None, :] + head_offset + 1)) >> 40
    return tl.where(bits.to(tl.int32) >= drop_threshold, keep_scale, 0.0)


@triton.jit
def _rise(top, scores):
    """Return per head the new top score, the factor by which earlier sums shrink, and the weights of the scores."""
    higher = tl.maximum(top, tl.max(scores, 0))
    base = tl.where(higher == float("-inf"), 0.0, higher)  # all edges so far are masked; -inf - -inf is NaN
    return higher, tl.exp(top - base), tl.exp(scores - base[None, :])


@triton.jit
def _result(lse, row, sums, top, total, heads, H: tl.constexpr):
    """Store lse of a row and return its result (BLOCK_H, BLOCK_D)."""
    divisor = tl.where(total == 0, 1.0, total)
    tl.store(lse + row * H + heads, tl.where(total == 0, float("-inf"), top + tl.log(divisor)), mask=heads < H)
    return sums / divisor[:, None]


@_tuned
@triton.jit(do_not_specialize=_VARYING)
def _forward(
    q, q_row, q_head, k, k_row, k_head, v, v_row, v_head, bias, bias_row, bias_head, out, out_row, out_head, lse,
    partial, partial_top, partial_total, indptr, indices, edge_ids, dropout_ids, num_rows, num_slots, scale,
    head_offset, seed_high, seed_low, drop_threshold, keep_scale, DROPOUT: tl.constexpr, H: tl.constexpr,
    D: tl.constexpr, ALIGN: tl.constexpr, PIECE: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
):  # fmt: skip
    row, begin, count, number, pieces, slot = _span(indptr, num_rows, num_slots, PIECE)
    if number >= pieces:
        return
    heads, columns, inside = _columns(H, D, BLOCK_H, BLOCK_D)
    query = _load(q, row + tl.arange(0, 1), inside, q_row, q_head, heads, columns, ALIGN) * scale
    top = tl.full((BLOCK_H,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_H,), tl.float32)
    sums = tl.zeros((BLOCK_H, BLOCK_D), tl.float32)
    for first in range(0, count, BLOCK_E):
        lanes, real, wanted, present = _lanes(first, count, heads, inside, H, BLOCK_E)
        positions = begin + lanes
        src = tl.load(indices + positions, mask=real, other=0).to(tl.int64)
        keys = _load(k, src, present, k_row, k_head, heads, columns, ALIGN)
        values = _load(v, src, present, v_row, v_head, heads, columns, ALIGN)
        scores = tl.sum(query * keys, 2)
        if bias is not None:
            at = bias + _ids(edge_ids, positions, real)[:, None] * bias_row + heads[None, :] * bias_head
            scores += tl.load(at, mask=wanted, other=0.0).to(tl.float32)
        top, shrink, weights = _rise(top, tl.where(wanted, scores, float("-inf")))
        total = total * shrink + tl.sum(weights, 0)
        if DROPOUT:
            ids = _ids(dropout_ids, positions, real)
            weights *= _keep_factors(ids, heads, head_offset, seed_high, seed_low, drop_threshold, keep_scale)
        sums = sums * shrink[:, None] + tl.sum(weights[:, :, None] * values, 0)
    if pieces > 1:
        _store(partial, slot, sums, inside, H * D // ALIGN, D // ALIGN, heads, columns, ALIGN)
        tl.store(partial_top + slot * H + heads, top, mask=heads < H)
        tl.store(partial_total + slot * H + heads, total, mask=heads < H)
    else:
        result = _result(lse, row, sums, top, total, heads, H)
        _store(out, row, result, inside, out_row, out_head, heads, columns, ALIGN)


@triton.jit(do_not_specialize=_VARYING)
def _stats(
    grad_out, grad_out_row, grad_out_head, out, out_row, out_head, lse, grad_lse, stats, num_rows, H: tl.constexpr,
    D: tl.constexpr, ALIGN: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Write per row lse, and delta = grad_out . out - grad_lse, which every score gradient of the row subtracts."""
    heads, columns, inside = _columns(H, D, BLOCK_H, BLOCK_D)
    block = tl.program_id(0).to(tl.int64)
    rows, _real, wanted, present = _lanes(block * BLOCK_E, num_rows, heads, inside, H, BLOCK_E)
    upstream = _load(grad_out, rows, present, grad_out_row, grad_out_head, heads, columns, ALIGN)
    results = _load(out, rows, present, out_row, out_head, heads, columns, ALIGN)
    at = rows[:, None] * H + heads[None, :]
    row_lse = tl.load(lse + at, mask=wanted, other=0.0)
    delta = tl.sum(upstream * results, 2) - tl.load(grad_lse + at, mask=wanted, other=0.0)
    # Where every edge is masked lse becomes inf: exp(score - inf) is 0.
    at += rows[:, None] * H
    tl.store(stats + at, tl.where(row_lse == float("-inf"), float("inf"), row_lse), mask=wanted)
    tl.store(stats + at + H, delta, mask=wanted)


@_tuned
@triton.jit(do_not_specialize=_VARYING)
def _gradients(
    own, own_row, own_head, far, far_row, far_head, own_2, own_2_row, own_2_head, far_2, far_2_row, far_2_head, stats,
    bias, bias_row, bias_head, grad, grad_row, grad_head, grad_2, grad_2_row, grad_2_head, grad_bias, grad_bias_row,
    grad_bias_head, partial, partial_2, indptr, indices, order, edge_ids, dropout_ids, num_rows, num_slots, scale,
    head_offset, seed_high, seed_low, drop_threshold, keep_scale, DROPOUT: tl.constexpr, H: tl.constexpr,
    D: tl.constexpr, ALIGN: tl.constexpr, PIECE: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Write the gradients that are sums over the edges of a row; one that is None is not computed.

    Over in-edges own, far, own_2, far_2 are q, k, grad_out, v, and grad is the gradient of q. Over out-edges, whose
    positions are in order, they are k, q, v, grad_out, and grad and grad_2 are the gradients of k and v. In both cases
    own . far gives the scores, and own_2 . far_2 the gradients of the kept weights.
    """
    row, begin, count, number, pieces, slot = _span(indptr, num_rows, num_slots, PIECE)
    if number >= pieces:
        return
    heads, columns, inside = _columns(H, D, BLOCK_H, BLOCK_D)
    mine = _load(own, row + tl.arange(0, 1), inside, own_row, own_head, heads, columns, ALIGN) * scale
    mine_2 = _load(own_2, row + tl.arange(0, 1), inside, own_2_row, own_2_head, heads, columns, ALIGN)
    sums = tl.zeros((BLOCK_H, BLOCK_D), tl.float32)
    sums_2 = tl.zeros((BLOCK_H, BLOCK_D), tl.float32)
    if order is None:
        stat = stats + row * (2 * H) + heads[None, :]
        lse = tl.load(stat, mask=(heads < H)[None, :], other=0.0)
        delta = tl.load(stat + H, mask=(heads < H)[None, :], other=0.0)
    for first in range(0, count, BLOCK_E):
        lanes, real, wanted, present = _lanes(first, count, heads, inside, H, BLOCK_E)
        ends = tl.load(indices + begin + lanes, mask=real, other=0).to(tl.int64)
        theirs = _load(far, ends, present, far_row, far_head, heads, columns, ALIGN)
        theirs_2 = _load(far_2, ends, present, far_2_row, far_2_head, heads, columns, ALIGN)
        scores = tl.sum(mine * theirs, 2)
        positions = begin + lanes
        if order is not None:
            positions = tl.load(order + positions, mask=real, other=0)
            at = stats + ends[:, None] * (2 * H) + heads[None, :]
            lse = tl.load(at, mask=wanted, other=0.0)
            delta = tl.load(at + H, mask=wanted, other=0.0)
        edges = _ids(edge_ids, positions, real)[:, None]
        if bias is not None:
            at = bias + edges * bias_row + heads[None, :] * bias_head
            scores += tl.load(at, mask=wanted, other=0.0).to(tl.float32)
        weights = tl.exp(tl.where(wanted, scores - lse, float("-inf")))
        kept = weights
        if DROPOUT:
            ids = _ids(dropout_ids, positions, real)
            kept *= _keep_factors(ids, heads, head_offset, seed_high, seed_low, drop_threshold, keep_scale)
        grads = kept * tl.sum(mine_2 * theirs_2, 2) - weights * delta
        if grad_bias is not None:
            at = grad_bias + edges * grad_bias_row + heads[None, :] * grad_bias_head
            tl.store(at, grads.to(grad_bias.dtype.element_ty), mask=wanted)
        sums += tl.sum(grads[:, :, None] * theirs, 0)
        if grad_2 is not None:
            sums_2 += tl.sum(kept[:, :, None] * theirs_2, 0)
    if grad is not None:
        if pieces > 1:
            _store(partial, slot, sums, inside, H * D // ALIGN, D // ALIGN, heads, columns, ALIGN)
        else:
            _store(grad, row, sums * scale, inside, grad_row, grad_head, heads, columns, ALIGN)
    if grad_2 is not None:
        if pieces > 1:
            _store(partial_2, slot, sums_2, inside, H * D // ALIGN, D // ALIGN, heads, columns, ALIGN)
        else:
            _store(grad_2, row, sums_2, inside, grad_2_row, grad_2_head, heads, columns, ALIGN)


@triton.jit(do_not_specialize=_VARYING)
def _merge(
    target, target_row, target_head, lse, partial, partial_top, partial_total, indptr, num_rows, num_slots, scale,
    H: tl.constexpr, D: tl.constexpr, ALIGN: tl.constexpr, PIECE: tl.constexpr, BLOCK_E: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Write the rows that are cut, from the sums of their pieces: results, or without lse a gradient."""
    row, _begin, _count, number, pieces, slot = _span(indptr, num_rows, num_slots, PIECE)
    if number != 0:
        return
    heads, columns, inside = _columns(H, D, BLOCK_H, BLOCK_D)
    top = tl.full((BLOCK_H,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_H,), tl.float32)
    sums = tl.zeros((BLOCK_H, BLOCK_D), tl.float32)
    for first in range(0, pieces.to(tl.int32), BLOCK_E):
        lanes, _real, wanted, present = _lanes(first, pieces, heads, inside, H, BLOCK_E)
        slots = slot + lanes
        parts = _load(partial, slots, present, H * D // ALIGN, D // ALIGN, heads, columns, ALIGN)
        if lse is not None:
            at = slots[:, None] * H + heads[None, :]
            top, shrink, factors = _rise(top, tl.load(partial_top + at, mask=wanted, other=float("-inf")))
            total = total * shrink + tl.sum(tl.load(partial_total + at, mask=wanted, other=0.0) * factors, 0)
            sums *= shrink[:, None]
            parts *= factors[:, :, None]
        sums += tl.sum(parts, 0)
    result = sums * scale if lse is None else _result(lse, row, sums, top, total, heads, H)
    _store(target, row, result, inside, target_row, target_head, heads, columns, ALIGN)


def forward(csc, q, k, v, bias, scale, dropout_p, seed, negative_slope=None):
    """Run the forward kernels; arguments and results are those of ``reference_attention``, but no float64."""
    q, k, v = (readable(tensor) for tensor in (q, k, v))
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    values = _arguments(csc, dict(q=q, k=k, v=v, out=out), bias, None, scale, dropout_p, seed)
    values |= dict(indptr=csc.indptr, indices=csc.indices, num_rows=csc.num_dst)
    slots = values["num_slots"]
    scratch = dict(lse=len(q), partial_top=slots, partial_total=slots)
    values |= {name: q.new_empty(rows, q.shape[1], dtype=torch.float32) for name, rows in scratch.items()}
    _launch(_forward, slots + csc.num_dst, values)
    _launch(_merge, slots, _renamed(values, target="out"))
    return out, values["lse"]


def backward(csc, grad_out, grad_lse, out, lse, q, k, v, bias, scale, dropout_p, seed, grads, negative_slope=None):
    """Run the backward kernels; arguments are those of ``cpu.backward``, but no float64."""
    q, k, v, grad_out, out = (readable(tensor) for tensor in (q, k, v, grad_out, out))
    grad_q, grad_k, grad_v, grad_bias = grads
    arrays = dict(q=q, k=k, v=v, grad_out=grad_out, out=out, grad_q=grad_q, grad_k=grad_k, grad_v=grad_v)
    values = _arguments(csc, arrays, bias, grad_bias, scale, dropout_p, seed)
    values |= dict(indptr=csc.indptr, indices=csc.indices, num_rows=csc.num_dst, order=None)
    values |= dict(lse=lse.contiguous(), grad_lse=grad_lse.contiguous(), partial_top=None, partial_total=None)
    values["stats"] = q.new_empty(csc.num_dst, 2, q.shape[1], dtype=torch.float32)
    slots = values["num_slots"]
    _launch(_stats, triton.cdiv(csc.num_dst, values["BLOCK_E"]), values)
    values["lse"] = None
    if grad_q is not None or grad_bias is not None:
        over_in_edges = _renamed(values, own="q", far="k", own_2="grad_out", far_2="v", grad="grad_q", grad_2=None)
        _launch(_gradients, slots + csc.num_dst, over_in_edges)
        if grad_q is not None:
            _launch(_merge, slots, _renamed(values, target="grad_q"))
    if grad_k is not None:
        values |= dict(indptr=csc.rev_indptr, indices=csc.rev_dst, num_rows=csc.num_src, order=csc.rev_position)
        values |= dict(grad_bias=None, partial_2=torch.empty_like(values["partial"]))
        over_out_edges = _renamed(values, own="k", far="q", own_2="v", far_2="grad_out", grad="grad_k", grad_2="grad_v")
        _launch(_gradients, slots + csc.num_src, over_out_edges)
        _launch(_merge, slots, _renamed(values, target="grad_k"))
        values |= dict(partial=values["partial_2"], scale=1.0)
        _launch(_merge, slots, _renamed(values, target="grad_v"))


def _renamed(values, **names):
    """Return the values, with an array and its strides also under the name that a kernel uses for it."""
    pairs = [(new + end, f"{old}{end}") for new, old in names.items() for end in ("", "_row", "_head")]
    return values | {new: values.get(old) for new, old in pairs}


def _arguments(csc, arrays, bias, grad_bias, scale, dropout_p, seed):
    """Return the arguments of kernels, by name."""
    num_heads, head_dim = arrays["q"].shape[1:]
    align = math.gcd(16, head_dim, *(stride for x in arrays.values() if x is not None for stride in x.stride()[:2]))
    piece = max(_MIN_PIECE, triton.next_power_of_2(triton.cdiv(csc.num_edges, _MAX_SLOTS)))
    slots = csc.num_edges // piece if csc.num_edges >= 2 * piece else 0
    values = dict(H=num_heads, D=head_dim, ALIGN=align, PIECE=piece, num_slots=slots, scale=scale)
    values |= _tile(num_heads, head_dim, arrays["q"].element_size())
    values |= dict(partial=arrays["q"].new_empty(slots, num_heads, head_dim, dtype=torch.float32), partial_2=None)
    values |= dict(edge_ids=csc.edge_ids, head_offset=csc.head_offset, DROPOUT=dropout_p > 0)
    values |= dict(dropout_ids=csc.edge_ids if csc.global_edge_ids is None else csc.global_edge_ids)
    values |= dict(drop_threshold=dropout_threshold(dropout_p), keep_scale=1 / (1 - dropout_p))
    seed_high, seed_low = halves(int(seed) if dropout_p > 0 else 0)
    values |= dict(seed_high=seed_high, seed_low=seed_low)
    for name, tensor in dict(**arrays, bias=bias, grad_bias=grad_bias).items():
        unit = align if name in arrays else 1
        strides = (None, None) if tensor is None else (stride // unit for stride in tensor.stride()[:2])
        values |= zip((name, f"{name}_row", f"{name}_head"), (tensor, *strides))
    return values


def _tile(num_heads, head_dim, element_bytes):
    """Return the shape of the block that a program reads at once, and its number of warps."""
    block_d = triton.next_power_of_2(head_dim)
    block_h = min(triton.next_power_of_2(num_heads), max(1, _WARP_BYTES // (block_d * element_bytes)))
    warps = min(8, max(1, block_h * block_d * element_bytes // _WARP_BYTES))
    # 32 elements of keys per thread, and as many of values; with more edges at once, blocks would often be half empty.
    edges = min(16, max(4, 1024 * warps // (block_h * block_d)))
    return dict(BLOCK_E=edges, BLOCK_H=block_h, BLOCK_D=block_d, num_warps=warps)


def _launch(kernel, programs, values):
    """Run a kernel for each group of heads, with the arguments that it names."""
    if programs == 0:
        return
    arguments = {name: values[name] for name in kernel.arg_names}
    groups = triton.cdiv(values["H"], values["BLOCK_H"])
    with torch.cuda.device_of(values["indptr"]):  # does nothing on the CPU, where Triton's interpreter runs
        kernel[programs, groups](**arguments, num_warps=values["num_warps"], enable_fp_fusion=True)
