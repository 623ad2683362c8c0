"""The CUDA kernels of additive scores, LeakyReLU(q_i + k_j) with one number per row and head on either side.

Velickovic et al. 2018, arXiv 1710.10903. An edge reads the values (or the upstream gradients) of one node, and
otherwise only single numbers, so the gradients of q and k are sums of single numbers.
"""

import triton
import triton.language as tl

from . import blocks, passes


@triton.jit
def _leaky(sums, negative_slope):
    """Return LeakyReLU of sums, and its slopes; that at 0 is the negative one, as in torch."""
    slopes = tl.where(sums > 0, 1.0, negative_slope)
    return sums * slopes, slopes


@passes.tuned
@triton.jit(do_not_specialize=passes.VARYING)
def _forward(
    q, q_row, q_head, k, k_row, k_head, v, v_row, v_head, out, out_row, out_head, lse, partial, partial_top,
    partial_total, indptr, indices, dropout_ids, num_rows, num_slots, negative_slope, head_offset, seed_high, seed_low,
    drop_threshold, keep_scale, DROPOUT: tl.constexpr, H: tl.constexpr, D: tl.constexpr, ALIGN: tl.constexpr,
    PIECE: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    row, begin, count, number, pieces, slot = blocks.span(indptr, num_rows, num_slots, PIECE)
    if number >= pieces:
        return
    heads, columns, inside = blocks.columns_of(H, D, BLOCK_H, BLOCK_D)
    query = blocks.load_numbers(q, row + tl.arange(0, 1), (heads < H)[None, :], q_row, q_head, heads)
    slope = blocks.number(negative_slope, lse.dtype.element_ty)
    top, total, sums = blocks.no_edges(lse.dtype.element_ty, BLOCK_H, BLOCK_D)
    for first in range(0, count, BLOCK_E):
        lanes, real, wanted, present = blocks.lanes_of(first, count, heads, inside, H, BLOCK_E)
        src = tl.load(indices + begin + lanes, mask=real, other=0).to(tl.int64)
        values = blocks.load(v, src, present, v_row, v_head, heads, columns, ALIGN)
        keys = blocks.load_numbers(k, src, wanted, k_row, k_head, heads)
        scores, _slopes = _leaky(query + keys, slope)
        top, total, sums = blocks.add_edges(
            top, total, sums, scores, values, wanted, dropout_ids, begin + lanes, real, heads, head_offset, seed_high,
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
    grad, grad_row, grad_head, grad_2, grad_2_row, grad_2_head, partial, partial_2, indptr, indices, order, dropout_ids,
    num_rows, num_slots, negative_slope, head_offset, seed_high, seed_low, drop_threshold, keep_scale,
    DROPOUT: tl.constexpr, H: tl.constexpr, D: tl.constexpr, ALIGN: tl.constexpr, PIECE: tl.constexpr,
    BLOCK_E: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Write the gradients that are sums over the edges of a row; arguments are as in ``attention.py``.

    The gradient of q (or of k) takes one product of rows per edge. The CPU takes one per row, but that needs sums of
    another D numbers: in registers, and in memory for each piece.
    """
    row, begin, count, number, pieces, slot = blocks.span(indptr, num_rows, num_slots, PIECE)
    if number >= pieces:
        return
    heads, columns, inside = blocks.columns_of(H, D, BLOCK_H, BLOCK_D)
    _heads, one_column, exists = blocks.columns_of(H, 1, BLOCK_H, 1)
    one_row = row + tl.arange(0, 1)
    dtype: tl.constexpr = stats.dtype.element_ty
    slope = blocks.number(negative_slope, dtype)
    mine = blocks.load_numbers(own, one_row, (heads < H)[None, :], own_row, own_head, heads)
    mine_2 = blocks.load(own_2, one_row, inside, own_2_row, own_2_head, heads, columns, ALIGN)
    sums = tl.zeros((BLOCK_H,), dtype)
    sums_2 = tl.zeros((BLOCK_H, BLOCK_D), dtype)
    if order is None:
        lse, delta = blocks.load_stats(stats, one_row, (heads < H)[None, :], heads, H)
    for first in range(0, count, BLOCK_E):
        lanes, real, wanted, present = blocks.lanes_of(first, count, heads, inside, H, BLOCK_E)
        ends = tl.load(indices + begin + lanes, mask=real, other=0).to(tl.int64)
        theirs_2 = blocks.load(far_2, ends, present, far_2_row, far_2_head, heads, columns, ALIGN)
        theirs = blocks.load_numbers(far, ends, wanted, far_row, far_head, heads)
        scores, slopes = _leaky(mine + theirs, slope)
        positions = blocks.ids_of(order, begin + lanes, real)
        if order is not None:
            lse, delta = blocks.load_stats(stats, ends, wanted, heads, H)
        kept, grads = blocks.edge_gradients(
            scores, lse, delta, mine_2, theirs_2, wanted, dropout_ids, positions, real, heads, head_offset, seed_high,
            seed_low, drop_threshold, keep_scale, DROPOUT,
        )  # fmt: skip
        sums += tl.sum(grads * slopes, 0)
        if grad_2 is not None:
            sums_2 += tl.sum(kept[:, :, None] * theirs_2, 0)
    blocks.store_sums(
        grad, grad_row, grad_head, partial, row, slot, pieces, sums[:, None], heads, one_column, exists, H, 1, 1
    )
    if grad_2 is not None:
        blocks.store_sums(
            grad_2, grad_2_row, grad_2_head, partial_2, row, slot, pieces, sums_2, heads, columns, inside, H, D, ALIGN
        )
