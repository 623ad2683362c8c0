"""The CUDA kernels of sparse attention, in Triton; imported only where tensors are on a CUDA device.

The kernels of dot products are here, those of additive scores in ``additive.py``.
"""

import triton
import triton.language as tl

from dgl_gt.ops.reference import readable

from . import additive, blocks, passes


@passes.tuned
@triton.jit(do_not_specialize=passes.VARYING)
def _forward(
    q, q_row, q_head, k, k_row, k_head, v, v_row, v_head, bias, bias_row, bias_head, out, out_row, out_head, lse,
    partial, partial_top, partial_total, indptr, indices, edge_ids, dropout_ids, num_rows, num_slots, scale,
    head_offset, seed_high, seed_low, drop_threshold, keep_scale, DROPOUT: tl.constexpr, H: tl.constexpr,
    D: tl.constexpr, ALIGN: tl.constexpr, PIECE: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
):  # fmt: skip
    row, begin, count, number, pieces, slot = blocks.span(indptr, num_rows, num_slots, PIECE)
    if number >= pieces:
        return
    heads, columns, inside = blocks.columns_of(H, D, BLOCK_H, BLOCK_D)
    query = blocks.load(q, row + tl.arange(0, 1), inside, q_row, q_head, heads, columns, ALIGN)
    query *= blocks.number(scale, lse.dtype.element_ty)
    top, total, sums = blocks.no_edges(lse.dtype.element_ty, BLOCK_H, BLOCK_D)
    for first in range(0, count, BLOCK_E):
        lanes, real, wanted, present = blocks.lanes_of(first, count, heads, inside, H, BLOCK_E)
        positions = begin + lanes
        src = tl.load(indices + positions, mask=real, other=0).to(tl.int64)
        keys = blocks.load(k, src, present, k_row, k_head, heads, columns, ALIGN)
        values = blocks.load(v, src, present, v_row, v_head, heads, columns, ALIGN)
        scores = tl.sum(query * keys, 2)
        if bias is not None:
            edges = blocks.ids_of(edge_ids, positions, real)
            terms = blocks.load_numbers(bias, edges, wanted, bias_row, bias_head, heads)
            scores += terms
            wanted, values = blocks.without_removed(wanted, terms, values)
        top, total, sums = blocks.add_edges(
            top, total, sums, scores, values, wanted, dropout_ids, positions, real, heads, head_offset, seed_high,
            seed_low, drop_threshold, keep_scale, DROPOUT,
        )  # fmt: skip
    blocks.store_results(
        out, out_row, out_head, lse, partial, partial_top, partial_total, row, slot, pieces, sums, top, total, heads,
        columns, inside, H, D, ALIGN,
    )  # fmt: skip


@passes.tuned
@triton.jit(do_not_specialize=passes.VARYING)
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
    row, begin, count, number, pieces, slot = blocks.span(indptr, num_rows, num_slots, PIECE)
    if number >= pieces:
        return
    heads, columns, inside = blocks.columns_of(H, D, BLOCK_H, BLOCK_D)
    one_row = row + tl.arange(0, 1)
    dtype: tl.constexpr = stats.dtype.element_ty
    scale = blocks.number(scale, dtype)
    mine = blocks.load(own, one_row, inside, own_row, own_head, heads, columns, ALIGN) * scale
    mine_2 = blocks.load(own_2, one_row, inside, own_2_row, own_2_head, heads, columns, ALIGN)
    sums = tl.zeros((BLOCK_H, BLOCK_D), dtype)
    sums_2 = tl.zeros((BLOCK_H, BLOCK_D), dtype)
    if order is None:
        lse, delta = blocks.load_stats(stats, one_row, (heads < H)[None, :], heads, H)
    for first in range(0, count, BLOCK_E):
        lanes, real, wanted, present = blocks.lanes_of(first, count, heads, inside, H, BLOCK_E)
        ends = tl.load(indices + begin + lanes, mask=real, other=0).to(tl.int64)
        theirs = blocks.load(far, ends, present, far_row, far_head, heads, columns, ALIGN)
        theirs_2 = blocks.load(far_2, ends, present, far_2_row, far_2_head, heads, columns, ALIGN)
        scores = tl.sum(mine * theirs, 2)
        positions = blocks.ids_of(order, begin + lanes, real)
        if order is not None:
            lse, delta = blocks.load_stats(stats, ends, wanted, heads, H)
        edges = blocks.ids_of(edge_ids, positions, real)
        exists = wanted
        if bias is not None:
            terms = blocks.load_numbers(bias, edges, wanted, bias_row, bias_head, heads)
            scores += terms
            wanted, theirs = blocks.without_removed(wanted, terms, theirs)
            wanted, theirs_2 = blocks.without_removed(wanted, terms, theirs_2)
        kept, grads = blocks.edge_gradients(
            scores, lse, delta, mine_2, theirs_2, wanted, dropout_ids, positions, real, heads, head_offset, seed_high,
            seed_low, drop_threshold, keep_scale, DROPOUT,
        )  # fmt: skip
        if grad_bias is not None:
            at = grad_bias + edges[:, None] * grad_bias_row + heads[None, :] * grad_bias_head
            tl.store(at, grads.to(grad_bias.dtype.element_ty), mask=exists)
        sums += tl.sum(grads[:, :, None] * theirs, 0)
        if grad_2 is not None:
            sums_2 += tl.sum(kept[:, :, None] * theirs_2, 0)
    if grad is not None:
        blocks.store_sums(
            grad, grad_row, grad_head, partial, row, slot, pieces, sums * scale, heads, columns, inside, H, D, ALIGN
        )
    if grad_2 is not None:
        blocks.store_sums(
            grad_2, grad_2_row, grad_2_head, partial_2, row, slot, pieces, sums_2, heads, columns, inside, H, D, ALIGN
        )


def forward(csc, q, k, v, bias, scale, dropout_p, seed, negative_slope=None):
    """Run the forward kernels; arguments and results are those of ``reference_attention``."""
    kernel, setting, q, k = _kernel(_forward, additive._forward, scale, negative_slope, q, k)
    return passes.forward(kernel, csc, q, k, readable(v), bias, setting, dropout_p, seed)


def backward(csc, grad_out, grad_lse, out, lse, q, k, v, bias, scale, dropout_p, seed, grads, negative_slope=None):
    """Run the backward kernels; arguments are those of ``cpu.backward``."""
    kernel, setting, q, k = _kernel(_gradients, additive._gradients, scale, negative_slope, q, k)
    grad_out, out, v = (readable(tensor) for tensor in (grad_out, out, v))
    passes.backward(kernel, csc, grad_out, grad_lse, out, lse, q, k, v, bias, setting, dropout_p, seed, grads)


def _kernel(of_products, of_additive, scale, negative_slope, q, k):
    """Return the kernel for a score, what it is scaled or bent with, and q and k as it reads them."""
    if negative_slope is not None:  # q and k are single numbers, with any strides
        return of_additive, dict(negative_slope=negative_slope), q, k
    return of_products, dict(scale=scale), readable(q), readable(k)
