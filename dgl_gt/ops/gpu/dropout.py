"""Keyed dropout in Triton: its random bits and its kernel; ``dgl_gt/ops/reference.py`` and ``dropout.py`` define them."""

import torch
import triton
import triton.language as tl

_BLOCK = 1024


@triton.jit(do_not_specialize=["numel", "seed_high", "seed_low", "threshold"])
def _drop(x, out, ids, numel, columns, seed_high, seed_low, threshold, scale, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < numel
    row, column = offsets // columns, offsets % columns
    if ids is not None:
        row = tl.load(ids + row, mask=inside, other=0)
    bits = random_bits(seed_high, seed_low, row * 65536 + (column // 4 + 1))
    lane = (bits >> (column % 4 * 16).to(tl.uint64)).to(tl.int32) & 0xFFFF
    values = tl.load(x + offsets, mask=inside, other=0.0)
    kept = tl.where(lane >= threshold, values.to(tl.float32) * scale, 0.0)
    tl.store(out + offsets, kept.to(values.dtype), mask=inside)


def drop(x, seed, ids, threshold, scale):
    """Return keyed dropout of x, as ``dgl_gt.ops.cpu.drop`` does, for float32, bfloat16 and float16."""
    x, out = x.contiguous(), torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel():
        ids = None if ids is None else ids.contiguous()
        with torch.cuda.device_of(x):  # does nothing on the CPU, where Triton's interpreter runs
            blocks = (triton.cdiv(x.numel(), _BLOCK),)
            _drop[blocks](x, out, ids, x.numel(), x.shape[1], *halves(seed), threshold, scale, BLOCK=_BLOCK)
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
