"""The random bits of dropout in Triton; ``dgl_gt/ops/reference.py`` defines them."""

import triton
import triton.language as tl


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
