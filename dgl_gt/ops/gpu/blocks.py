"""What the kernels for results and for gradients share on the device.

One program processes a row, or a piece of a row with many edges, and several heads side by side, so that the keys (or
values) of a node are one contiguous read. It takes BLOCK_E edges at a time with an online softmax (Milakov, Gimelshein,
arXiv 1805.02867). ``passes.py`` makes the arguments, launches the kernels and merges the pieces.
"""

import triton
import triton.language as tl

from .dropout import random_bits


@triton.jit
def _row_of(indptr, position, num_rows):
    """Return the row that has this position; each step reads the beginnings of 32 rows at once."""
    low = position * 0
    high = low + num_rows
    while high - low > 1:
        step = (high - low + 31) // 32
        rows = low + tl.arange(0, 32) * step
        begins = tl.load(indptr + rows, mask=rows < high, other=position + 1)
        below = tl.sum((begins <= position).to(tl.int32), 0)
        high = tl.minimum(high, low + below * step)
        low += (below - 1) * step
    return low


@triton.jit
def span(indptr, num_rows, num_slots, PIECE: tl.constexpr):
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
def columns_of(H: tl.constexpr, D: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr):
    """Return the numbers of this program's heads (BLOCK_H,), those of the heads' elements, and which of these exist.

    The elements of all heads stand in one dimension (BLOCK_H * BLOCK_D,): the compiler spreads it over the threads, so
    that they read a row together. Of (edges, heads, elements) it spreads edges and elements, and moves blocks between
    threads afterwards.
    """
    first = (tl.program_id(1) * BLOCK_H).to(tl.int64)
    columns = tl.arange(0, BLOCK_H * BLOCK_D)
    exist = (first + columns // BLOCK_D < H) & (columns % BLOCK_D < D)
    return first + tl.arange(0, BLOCK_H), columns, exist[None, :]


@triton.jit
def lanes_of(first, end, heads, inside, H: tl.constexpr, BLOCK_E: tl.constexpr):
    """Return BLOCK_E numbers from first on, and masks of those below end: alone, by head, and by column."""
    lanes = first + tl.arange(0, BLOCK_E)
    real = lanes < end
    return lanes, real, real[:, None] & (heads < H)[None, :], real[:, None] & inside


@triton.jit
def number(value, dtype: tl.constexpr):
    """Return a factor of scores or weights; for float64 sums, ``value`` is a tensor that holds it."""
    if dtype == tl.float64:  # Triton would pass a number in float32, so a tensor holds it
        value = tl.load(value)
    return value


@triton.jit
def _widened(elements):
    """Return elements in the dtype of sums, which ``reference.accumulation_dtype`` defines."""
    if elements.dtype != tl.float64:
        elements = elements.to(tl.float32)
    return elements


@triton.jit
def _at(array, rows, row_stride, head_stride, heads, columns, ALIGN: tl.constexpr):
    """Return pointers (rows, BLOCK_H * BLOCK_D)."""
    # Strides come divided by ALIGN: the product tells the compiler that reads of this many elements are aligned.
    WIDTH: tl.constexpr = columns.shape[0] // heads.shape[0]
    head = tl.program_id(1).to(tl.int64) * heads.shape[0] + columns // WIDTH
    starts = rows[:, None] * row_stride + head[None, :] * head_stride
    return array + (starts * ALIGN + columns[None, :] % WIDTH)


@triton.jit
def load(array, rows, mask, row_stride, head_stride, heads, columns, ALIGN: tl.constexpr):
    """Load heads of rows in the dtype of sums, (rows, BLOCK_H, BLOCK_D)."""
    at = _at(array, rows, row_stride, head_stride, heads, columns, ALIGN)
    elements = _widened(tl.load(at, mask=mask, other=0.0))
    return tl.reshape(elements, (rows.shape[0], heads.shape[0], columns.shape[0] // heads.shape[0]))


@triton.jit
def load_features(edge, edges, real, edge_row, BLOCK_D: tl.constexpr, D: tl.constexpr, F: tl.constexpr):
    """Load features of edges, which all heads share, behind D zeros, (edges, 1, BLOCK_D): they follow the keys."""
    columns = tl.arange(0, BLOCK_D)
    at = edge + (edges[:, None] * edge_row + (columns - D)[None, :])
    mask = real[:, None] & ((columns >= D) & (columns < D + F))[None, :]
    return _widened(tl.load(at, mask=mask, other=0.0))[:, None, :]


@triton.jit
def store_features(
    edge, edges, grads, kept, query, upstream, real, edge_row, BLOCK_D: tl.constexpr, D: tl.constexpr, F: tl.constexpr,
    ADDS: tl.constexpr,
):  # fmt: skip
    """Store the sums over heads that are gradients of features of edges, or add them to what is there."""
    values = tl.sum(grads[:, :, None] * query + kept[:, :, None] * upstream, 1)
    columns = tl.arange(0, BLOCK_D)
    at = edge + (edges[:, None] * edge_row + (columns - D)[None, :])
    mask = real[:, None] & ((columns >= D) & (columns < D + F))[None, :]
    if ADDS:
        values += tl.load(at, mask=mask, other=0.0)
    tl.store(at, values, mask=mask)


@triton.jit
def load_numbers(array, rows, mask, row_stride, head_stride, heads):
    """Load one number per head of rows in the dtype of sums, (rows, BLOCK_H)."""
    at = array + (rows[:, None] * row_stride + heads[None, :] * head_stride)
    return _widened(tl.load(at, mask=mask, other=0.0))


@triton.jit
def store_numbers(array, rows, numbers, mask, row_stride, head_stride, heads):
    """Store one number per head of rows, (rows, BLOCK_H)."""
    at = array + (rows[:, None] * row_stride + heads[None, :] * head_stride)
    tl.store(at, numbers.to(array.dtype.element_ty), mask=mask)


@triton.jit
def store(array, row, values, mask, row_stride, head_stride, heads, columns, ALIGN: tl.constexpr):
    """Store (BLOCK_H, BLOCK_D) as heads of one row."""
    at = _at(array, row + tl.arange(0, 1), row_stride, head_stride, heads, columns, ALIGN)
    tl.store(at, tl.reshape(values, (1, columns.shape[0])).to(array.dtype.element_ty), mask=mask)


@triton.jit
def store_sums(
    target, target_row, target_head, partial, row, slot, pieces, sums, heads, columns, inside, H: tl.constexpr,
    D: tl.constexpr, ALIGN: tl.constexpr,
):  # fmt: skip
    """Store the sums of a whole row in the target, and those of a piece in its slot."""
    if pieces > 1:
        store(partial, slot, sums, inside, H * D // ALIGN, D // ALIGN, heads, columns, ALIGN)
    else:
        store(target, row, sums, inside, target_row, target_head, heads, columns, ALIGN)


@triton.jit
def ids_of(ids, positions, real):
    """Return the ids of positions; None means the positions themselves."""
    if ids is not None:
        positions = tl.load(ids + positions, mask=real, other=0)
    return positions


@triton.jit
def kinds_of(kind, edges, real):
    """Return the rows of the bias that belong to edges; None means their ids."""
    if kind is not None:
        edges = tl.load(kind + edges, mask=real, other=0).to(tl.int64)
    return edges


@triton.jit
def _dropped(
    weights, dropout_ids, positions, real, heads, head_offset, seed_high, seed_low, drop_threshold, keep_scale,
    DROPOUT: tl.constexpr,
):  # fmt: skip
    """Return weights (edges, heads) after dropout; reference.py defines the bits."""
    if DROPOUT:
        ids = ids_of(dropout_ids, positions, real)
        bits = random_bits(seed_high, seed_low, ids[:, None] * 65536 + (heads[None, :] + head_offset + 1)) >> 40
        weights *= tl.where(bits.to(tl.int32) >= drop_threshold, number(keep_scale, weights.dtype), 0.0)
    return weights


@triton.jit
def rise(top, scores):
    """Return per head the new top score, the factor by which earlier sums shrink, and the weights of the scores."""
    higher = tl.maximum(top, tl.max(scores, 0))
    base = tl.where(higher == float("-inf"), 0.0, higher)  # all edges so far are masked; -inf - -inf is NaN
    return higher, tl.exp(top - base), tl.exp(scores - base[None, :])


@triton.jit
def without_removed(wanted, bias, rows):
    """Return a mask (edges, heads) without the edges that the bias removes, and zeros for what these have in rows."""
    wanted = wanted & (bias != float("-inf"))
    return wanted, tl.where(wanted[:, :, None], rows, 0.0)


@triton.jit
def add_edges(
    top, total, sums, scores, values, wanted, dropout_ids, positions, real, heads, head_offset, seed_high, seed_low,
    drop_threshold, keep_scale, DROPOUT: tl.constexpr,
):  # fmt: skip
    """Return the top score, the sum of weights, and the sums of weighted values after adding a block of edges."""
    top, shrink, weights = rise(top, tl.where(wanted, scores, float("-inf")))
    total = total * shrink + tl.sum(weights, 0)
    kept = _dropped(
        weights, dropout_ids, positions, real, heads, head_offset, seed_high, seed_low, drop_threshold, keep_scale,
        DROPOUT,
    )  # fmt: skip
    return top, total, sums * shrink[:, None] + tl.sum(kept[:, :, None] * values, 0)


@triton.jit
def edge_gradients(
    scores, lse, delta, mine, theirs, wanted, dropout_ids, positions, real, heads, head_offset, seed_high, seed_low,
    drop_threshold, keep_scale, DROPOUT: tl.constexpr,
):  # fmt: skip
    """Return kept weights of a block of edges, whose gradients are mine . theirs, and the gradients of its scores."""
    weights = tl.exp(tl.where(wanted, scores - lse, float("-inf")))
    kept = _dropped(
        weights, dropout_ids, positions, real, heads, head_offset, seed_high, seed_low, drop_threshold, keep_scale,
        DROPOUT,
    )  # fmt: skip
    return kept, tl.where(wanted, kept * tl.sum(mine * theirs, 2) - weights * delta, 0.0)


@triton.jit
def no_edges(dtype: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr):
    """Return the top score, the sum of weights, and the sums of weighted values of no edge."""
    return tl.full((BLOCK_H,), float("-inf"), dtype), tl.zeros((BLOCK_H,), dtype), tl.zeros((BLOCK_H, BLOCK_D), dtype)


@triton.jit
def result(lse, row, sums, top, total, heads, H: tl.constexpr):
    """Store lse of a row and return its result (BLOCK_H, BLOCK_D)."""
    divisor = tl.where(total == 0, 1.0, total)
    tl.store(lse + row * H + heads, tl.where(total == 0, float("-inf"), top + tl.log(divisor)), mask=heads < H)
    return sums / divisor[:, None]


@triton.jit
def store_results(
    out, out_row, out_head, lse, partial, partial_top, partial_total, row, slot, pieces, sums, top, total, heads, columns,
    inside, H: tl.constexpr, D: tl.constexpr, ALIGN: tl.constexpr,
):  # fmt: skip
    """Store out and lse of a whole row, and in its slot what a piece has."""
    if pieces > 1:
        tl.store(partial_top + slot * H + heads, top, mask=heads < H)
        tl.store(partial_total + slot * H + heads, total, mask=heads < H)
    else:
        sums = result(lse, row, sums, top, total, heads, H)
    store_sums(out, out_row, out_head, partial, row, slot, pieces, sums, heads, columns, inside, H, D, ALIGN)


@triton.jit
def make_stats(stats, row, number, lse, grad_lse, upstream, results, heads, H: tl.constexpr):
    """Return lse of a row and delta = grad_out . out - grad_lse, (1, BLOCK_H) each; the first piece stores them.

    A score's gradient subtracts weight * delta.
    """
    rows, wanted = row + tl.arange(0, 1), (heads < H)[None, :]
    row_lse = load_numbers(lse, rows, wanted, H, 1, heads)
    # Where every edge is masked lse becomes inf: exp(score - inf) is 0.
    row_lse = tl.where(row_lse == float("-inf"), float("inf"), row_lse)
    delta = tl.sum(upstream * results, 2) - load_numbers(grad_lse, rows, wanted, H, 1, heads)
    if number == 0:
        store_numbers(stats, rows, row_lse, wanted, 2 * H, 1, heads)
        store_numbers(stats + H, rows, delta, wanted, 2 * H, 1, heads)
    return row_lse, delta


@triton.jit
def load_stats(stats, rows, mask, heads, H: tl.constexpr):
    """Return lse and delta of rows, (rows, BLOCK_H) each, as ``make_stats`` stores them."""
    lse = load_numbers(stats, rows, mask, 2 * H, 1, heads)
    return lse, load_numbers(stats + H, rows, mask, 2 * H, 1, heads)
