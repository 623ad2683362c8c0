"""The CUDA kernels of sparse attention, in Triton; imported only where tensors are on a CUDA device.

Scores are dot products, and ``factor`` is their scale. Or they are ADDITIVE, LeakyReLU(q_i + k_j) with one number per
row and head on either side (Velickovic et al. 2018, arXiv 1710.10903), and ``factor`` is the slope below 0. Then an edge
reads the values (or the upstream gradients) of one node, and otherwise only single numbers, and the gradients of q and
k are sums of single numbers.
"""

import triton
import triton.language as tl

from dgl_gt.ops.reference import readable

from . import blocks, passes
from .dropout import drop

__all__ = ["backward", "drop", "forward"]  # what the CPU module has, too


@triton.jit
def _load(
    array, array_row, array_head, array_2, array_2_row, array_2_head, rows, wanted, present, heads, columns,
    ALIGN: tl.constexpr, ADDITIVE: tl.constexpr,
):  # fmt: skip
    """Load one side of scores, heads of rows or one number per row and head, and the heads of rows that go with it."""
    if ADDITIVE:
        second = blocks.load(array_2, rows, present, array_2_row, array_2_head, heads, columns, ALIGN)
        first = blocks.load_numbers(array, rows, wanted, array_row, array_head, heads)
    else:
        first = blocks.load(array, rows, present, array_row, array_head, heads, columns, ALIGN)
        second = blocks.load(array_2, rows, present, array_2_row, array_2_head, heads, columns, ALIGN)
    return first, second


@triton.jit
def _scores(mine, theirs, factor, ADDITIVE: tl.constexpr):
    """Return scores, and the slopes of LeakyReLU; that at 0 is the negative one, as in torch."""
    if ADDITIVE:
        sums = mine + theirs
        slopes = tl.where(sums > 0, 1.0, factor)
        scores = sums * slopes
    else:  # one side is scaled already
        scores = tl.sum(mine * theirs, 2)
        slopes = 1.0
    return scores, slopes


@triton.jit
def _with_features(
    edge, edges, real, edge_row, mine, mine_2, theirs, theirs_2, factor, FAR: tl.constexpr, BLOCK_D: tl.constexpr,
    D: tl.constexpr, F: tl.constexpr,
):  # fmt: skip
    """Return heads of both ends of edges; the features follow those of k and v, which are FAR or not."""
    if F > 0:
        features = blocks.load_features(edge, edges, real, edge_row, BLOCK_D, D, F)
        if FAR:
            theirs += features
            theirs_2 += features
        else:
            mine += features * factor
            mine_2 += features
    return mine, mine_2, theirs, theirs_2


@triton.jit
def _store_gradient(
    grad, grad_row, grad_head, partial, row, slot, pieces, sums, factor, heads, columns, inside, ADDITIVE: tl.constexpr,
    H: tl.constexpr, D: tl.constexpr, ALIGN: tl.constexpr,
):  # fmt: skip
    """Store the gradient of a row of q or k: with additive scores, one number per head."""
    if ADDITIVE:
        _heads, one_column, exists = blocks.columns_of(H, 1, heads.shape[0], 1)
        blocks.store_sums(
            grad, grad_row, grad_head, partial, row, slot, pieces, sums[:, None], heads, one_column, exists, H, 1, 1
        )
    else:
        blocks.store_sums(
            grad, grad_row, grad_head, partial, row, slot, pieces, sums * factor, heads, columns, inside, H, D, ALIGN
        )


@triton.jit(do_not_specialize=passes.VARYING)
def _forward(
    q, q_row, q_head, k, k_row, k_head, v, v_row, v_head, bias, bias_row, bias_head, kind, edge, edge_row, out, out_row,
    out_head, lse, partial, partial_top, partial_total, indptr, indices, edge_ids, dropout_ids, num_rows, num_slots,
    factor, head_offset, seed_high, seed_low, drop_threshold, keep_scale, DROPOUT: tl.constexpr,
    ADDITIVE: tl.constexpr, H: tl.constexpr, D: tl.constexpr, F: tl.constexpr, ALIGN: tl.constexpr, PIECE: tl.constexpr,
    BLOCK_E: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Write results. With F features of edges, rows of q and of results are D + F wide, and those of k and v are D wide."""
    row, begin, count, number, pieces, slot = blocks.span(indptr, num_rows, num_slots, PIECE)
    if number >= pieces:
        return
    heads, columns, inside = blocks.columns_of(H, D + F, BLOCK_H, BLOCK_D)
    _heads, _columns, inside_keys = blocks.columns_of(H, D, BLOCK_H, BLOCK_D)
    if ADDITIVE:
        query = blocks.load_numbers(q, row + tl.arange(0, 1), (heads < H)[None, :], q_row, q_head, heads)
        factor = blocks.number(factor, lse.dtype.element_ty)
    else:
        query = blocks.load(q, row + tl.arange(0, 1), inside, q_row, q_head, heads, columns, ALIGN)
        query *= blocks.number(factor, lse.dtype.element_ty)
    top, total, sums = blocks.no_edges(lse.dtype.element_ty, BLOCK_H, BLOCK_D)
    for first in range(0, count, BLOCK_E):
        lanes, real, wanted, present = blocks.lanes_of(first, count, heads, inside_keys, H, BLOCK_E)
        positions = begin + lanes
        src = tl.load(indices + positions, mask=real, other=0).to(tl.int64)
        keys, values = _load(
            k, k_row, k_head, v, v_row, v_head, src, wanted, present, heads, columns, ALIGN, ADDITIVE
        )  # fmt: skip
        edges = blocks.ids_of(edge_ids, positions, real)
        if F > 0:
            features = blocks.load_features(edge, edges, real, edge_row, BLOCK_D, D, F)
            keys += features
            values += features
        scores, _slopes = _scores(query, keys, factor, ADDITIVE)
        if bias is not None:
            terms = blocks.load_numbers(bias, blocks.kinds_of(kind, edges, real), wanted, bias_row, bias_head, heads)
            scores += terms
            wanted, values = blocks.without_removed(wanted, terms, values)
        top, total, sums = blocks.add_edges(
            top, total, sums, scores, values, wanted, dropout_ids, positions, real, heads, head_offset, seed_high,
            seed_low, drop_threshold, keep_scale, DROPOUT,
        )  # fmt: skip
    blocks.store_results(
        out, out_row, out_head, lse, partial, partial_top, partial_total, row, slot, pieces, sums, top, total, heads,
        columns, inside, H, D + F, ALIGN,
    )  # fmt: skip


@triton.jit(do_not_specialize=passes.VARYING)
def _gradients(
    own, own_row, own_head, far, far_row, far_head, own_2, own_2_row, own_2_head, far_2, far_2_row, far_2_head, stats,
    out, out_row, out_head, lse, grad_lse, bias, bias_row, bias_head, kind, edge, edge_row, grad, grad_row, grad_head,
    grad_2, grad_2_row, grad_2_head, grad_bias, grad_bias_row, grad_bias_head, grad_edge, grad_edge_row, partial,
    partial_2, indptr, indices, order, edge_ids, dropout_ids, num_rows, num_slots, factor, head_offset, seed_high,
    seed_low, drop_threshold, keep_scale, DROPOUT: tl.constexpr, ADDITIVE: tl.constexpr, H: tl.constexpr,
    D: tl.constexpr, F: tl.constexpr, ADDS: tl.constexpr, ALIGN: tl.constexpr, PIECE: tl.constexpr,
    BLOCK_E: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Write the gradients that are sums over the edges of a row; one that is None is not computed.

    Over in-edges own, far, own_2, far_2 are q, k, grad_out, v, and grad is the gradient of q. Over out-edges, whose
    positions are in order, they are k, q, v, grad_out, and grad and grad_2 are the gradients of k and v. In both cases
    own . far gives the scores, and own_2 . far_2 the gradients of the kept weights. The pass over in-edges also writes
    the stats of rows, which the one over out-edges reads.

    With F features of edges, rows of q, results and their gradients are D + F wide, and those of k and v are D wide. The
    pass over in-edges writes the features' gradients of its heads, of which there must be one group, or ADDS them.

    With additive scores, the gradient of q (or of k) takes one product of rows per edge. The CPU takes one per row, but
    that needs sums of another D numbers: in registers, and in memory for each piece.
    """
    row, begin, count, number, pieces, slot = blocks.span(indptr, num_rows, num_slots, PIECE)
    if number >= pieces:
        return
    WIDTH: tl.constexpr = D + F if order is None else D  # of this row; the far end has the other
    heads, columns, inside = blocks.columns_of(H, WIDTH, BLOCK_H, BLOCK_D)
    _heads, _columns, inside_far = blocks.columns_of(H, 2 * D + F - WIDTH, BLOCK_H, BLOCK_D)
    one_row = row + tl.arange(0, 1)
    dtype: tl.constexpr = stats.dtype.element_ty
    factor = blocks.number(factor, dtype)
    if ADDITIVE:
        mine = blocks.load_numbers(own, one_row, (heads < H)[None, :], own_row, own_head, heads)
    else:
        mine = blocks.load(own, one_row, inside, own_row, own_head, heads, columns, ALIGN) * factor
    mine_2 = blocks.load(own_2, one_row, inside, own_2_row, own_2_head, heads, columns, ALIGN)
    sums = tl.zeros((BLOCK_H,) if ADDITIVE else (BLOCK_H, BLOCK_D), dtype)
    sums_2 = tl.zeros((BLOCK_H, BLOCK_D), dtype)
    if order is None:
        results = blocks.load(out, one_row, inside, out_row, out_head, heads, columns, ALIGN)
        row_lse, delta = blocks.make_stats(stats, row, number, lse, grad_lse, mine_2, results, heads, H)
        count = 0 if grad is None and grad_bias is None and grad_edge is None else count
    for first in range(0, count, BLOCK_E):
        lanes, real, wanted, present = blocks.lanes_of(first, count, heads, inside_far, H, BLOCK_E)
        ends = tl.load(indices + begin + lanes, mask=real, other=0).to(tl.int64)
        theirs, theirs_2 = _load(
            far, far_row, far_head, far_2, far_2_row, far_2_head, ends, wanted, present, heads, columns, ALIGN, ADDITIVE
        )  # fmt: skip
        positions = blocks.ids_of(order, begin + lanes, real)
        edges = blocks.ids_of(edge_ids, positions, real)
        keys, values, theirs, theirs_2 = _with_features(
            edge, edges, real, edge_row, mine, mine_2, theirs, theirs_2, factor, order is None, BLOCK_D, D, F
        )
        scores, slopes = _scores(keys, theirs, factor, ADDITIVE)
        if order is not None:
            row_lse, delta = blocks.load_stats(stats, ends, wanted, heads, H)
        if bias is not None:
            terms = blocks.load_numbers(bias, blocks.kinds_of(kind, edges, real), wanted, bias_row, bias_head, heads)
            scores += terms
            wanted, theirs = blocks.without_removed(wanted, terms, theirs)
            wanted, theirs_2 = blocks.without_removed(wanted, terms, theirs_2)
        kept, grads = blocks.edge_gradients(
            scores, row_lse, delta, values, theirs_2, wanted, dropout_ids, positions, real, heads, head_offset, seed_high,
            seed_low, drop_threshold, keep_scale, DROPOUT,
        )  # fmt: skip
        if grad_bias is not None:
            exists = real[:, None] & (heads < H)[None, :]  # those that the bias removes, too
            blocks.store_numbers(grad_bias, edges, grads, exists, grad_bias_row, grad_bias_head, heads)
        if grad_edge is not None:
            blocks.store_features(grad_edge, edges, grads, kept, mine, mine_2, real, grad_edge_row, BLOCK_D, D, F, ADDS)
        sums += tl.sum(grads * slopes if ADDITIVE else grads[:, :, None] * theirs, 0)
        if grad_2 is not None:
            sums_2 += tl.sum(kept[:, :, None] * theirs_2, 0)
    if grad is not None:
        _store_gradient(
            grad, grad_row, grad_head, partial, row, slot, pieces, sums, factor, heads, columns, inside, ADDITIVE, H, WIDTH,
            ALIGN,
        )  # fmt: skip
    if grad_2 is not None:
        blocks.store_sums(
            grad_2, grad_2_row, grad_2_head, partial_2, row, slot, pieces, sums_2, heads, columns, inside, H, D, ALIGN
        )


def forward(csc, q, k, v, bias, scale, dropout_p, seed, negative_slope=None, edge=None, kind=None):
    """Run the forward kernels; arguments and results are those of ``reference_attention``."""
    q, k, setting = _read(q, k, scale, negative_slope)
    edge = None if edge is None else readable(edge)
    return passes.forward(_forward, csc, q, k, readable(v), bias, setting, dropout_p, seed, edge, kind)


def backward(
    csc, grad_out, grad_lse, out, lse, q, k, v, bias, scale, dropout_p, seed, grads, negative_slope=None, edge=None,
    kind=None,
):  # fmt: skip
    """Run the backward kernels; arguments are those of ``cpu.backward``."""
    q, k, setting = _read(q, k, scale, negative_slope)
    grad_out, out, v = (readable(tensor) for tensor in (grad_out, out, v))
    edge = None if edge is None else readable(edge)
    *of_rows, of_bias, of_edge = grads
    of_edges = {"bias": of_bias, "edge": of_edge}
    if of_bias is not None and kind is not None:
        of_edges["bias"] = lse.new_zeros(len(kind), lse.shape[1])
    if of_edge is not None and of_edge.dtype != lse.dtype:  # sums over groups of heads are not rounded
        of_edges["edge"] = lse.new_empty(of_edge.shape)
    rows = grad_out, grad_lse, out, lse, q, k, v, bias
    passes.backward(_gradients, csc, *rows, setting, dropout_p, seed, (*of_rows, *of_edges.values()), edge, kind)
    if of_edges["bias"] is not of_bias:
        of_bias.copy_(passes.sum_by_kind(of_edges["bias"], kind, len(of_bias)))
    if of_edges["edge"] is not of_edge:
        ids = slice(None) if csc.edge_ids is None else csc.edge_ids
        of_edge[ids] = of_edges["edge"][ids].to(of_edge.dtype)


def _read(q, k, scale, negative_slope):
    """Return q and k as the kernels read them, and the factor of their scores and whether these are additive."""
    if negative_slope is not None:  # q and k are single numbers, with any strides
        return q, k, (negative_slope, True)
    return readable(q), readable(k), (scale, False)
