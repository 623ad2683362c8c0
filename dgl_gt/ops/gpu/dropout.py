"""Keyed dropout in Triton: its random bits and its kernel; ``dgl_gt/ops/reference.py`` and ``dropout.py`` define them."""

import torch
import triton
import triton.language as tl

_GROUPS = 256  # of four elements, which share 64 random bits


@triton.jit(do_not_specialize=["num_rows", "seed_high", "seed_low", "threshold"])
def _drop(
    x, out, ids, num_rows, columns, seed_high, seed_low, threshold, scale, BLOCK_R: tl.constexpr, BLOCK_G: tl.constexpr
):  # fmt: skip
    rows = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    groups = tl.program_id(1) * BLOCK_G + tl.arange(0, BLOCK_G)
    keys = rows
    if ids is not None:
        keys = tl.load(ids + rows, mask=rows < num_rows, other=0)
    bits = random_bits(seed_high, seed_low, keys[:, None] * 65536 + (groups[None, :] + 1))
    drawn = (bits[:, :, None] >> (tl.arange(0, 4) * 16).to(tl.uint64)[None, None, :]).to(tl.int32) & 0xFFFF
    drawn = tl.reshape(drawn, (BLOCK_R, BLOCK_G * 4))
    column = tl.program_id(1) * (BLOCK_G * 4) + tl.arange(0, BLOCK_G * 4)
    inside = (rows < num_rows)[:, None] & (column < columns)[None, :]
    at = rows[:, None] * columns + column[None, :]
    values = tl.load(x + at, mask=inside, other=0.0)
    kept = tl.where(drawn >= threshold, values.to(tl.float32) * scale, 0.0)
    tl.store(out + at, kept.to(values.dtype), mask=inside)


def drop(x, seed, ids, threshold, scale):
    """Return keyed dropout of x, as ``dgl_gt.ops.cpu.drop`` does, for float32, bfloat16 and float16."""
    x, out = x.contiguous(), torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel():
        ids = None if ids is None else ids.contiguous()
        block = min(_GROUPS, triton.next_power_of_2(triton.cdiv(x.shape[1], 4)))
        blocks = triton.cdiv(len(x), _GROUPS // block), triton.cdiv(x.shape[1], 4 * block)
        sizes = dict(BLOCK_R=_GROUPS // block, BLOCK_G=block)
        with torch.cuda.device_of(x):  # does nothing on the CPU, where Triton's interpreter runs
            _drop[blocks](x, out, ids, len(x), x.shape[1], *halves(seed), threshold, scale, **sizes)
    return out


def halves(seed):
    """Return a seed's upper and lower 32 bits, in two's complement.

    A kernel takes these as 32-bit arguments whatever the seed is; the type of one argument would depend on its value.
    """
    return seed >> 32, (seed + 2**31) % 2**32 - 2**31


@triton.jit
def _mix64(bits):
    """Return the finaliser of SplitMix64 (G. Steele, D. Lea, C. Flood, OOPSLA 2014)."""
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB
    return bits ^ (bits >> 31)


@triton.jit
def random_bits(seed_high, seed_low, counter):
    """Return 64 random bits, uint64, for a seed in halves and an int64 counter."""
    seed = (seed_high.to(tl.int64) << 32) | (seed_low.to(tl.int64) & 0xFFFFFFFF)
    return _mix64(_mix64(seed.to(tl.uint64)) + counter.to(tl.uint64) * 0x9E3779B97F4A7C15)
