"""Rows in 16, 8 or 4 bits per number, as they travel where a policy allows it.

With 8 and 4 bits, a packed row is its minimum m and its step s = (max - m) / (2^bits - 1), both float32, and then its
codes. The code of a number x is floor((x - m) / s + u) with u from [0, 1), and is restored as m + s * code. So the mean
over u is x itself (stochastic rounding, as in AdaQP, Wan et al. 2023, arXiv 2306.01381). u has 16 bits, those that
keyed dropout draws for (seed, key of the row, column), see :func:`dgl_gt.ops.dropout.keyed_dropout`: the same row is
rounded alike wherever it is. A row with NaN or infinity comes back as NaN.
"""

from __future__ import annotations

import torch

from . import cpu, dispatch
from .reference import random_lanes

_HEADER_BYTES = 8


def packed_bytes(columns: int, bits: int) -> int:
    """Return the bytes of a packed row of ``columns`` numbers."""
    return 2 * columns if bits == 16 else _HEADER_BYTES + -(-columns * bits // 8)


def pack_rows(rows: torch.Tensor, bits: int, keys: torch.Tensor, seed: int) -> torch.Tensor:
    """Return rows, floating point (n, C), as uint8, (n, packed_bytes(C, bits)).

    ``bits`` is 16 (bfloat16, rounded to nearest), 8 or 4, and ``keys``, int64 (n,), with the seed decide how numbers
    are rounded.
    """
    if bits == 16:
        return rows.to(torch.bfloat16).contiguous().view(torch.uint8).view(len(rows), packed_bytes(rows.shape[1], 16))
    packed = torch.empty((len(rows), packed_bytes(rows.shape[1], bits)), dtype=torch.uint8, device=rows.device)
    if dispatch.backend(rows.device.type) is cpu:
        cpu.quantise(rows.float(), bits, keys, seed, packed)
    else:
        _pack(rows.float(), bits, keys, seed, packed)
    return packed


def unpack_rows(packed: torch.Tensor, bits: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    """Return the rows that :func:`pack_rows` packed, (n, columns), in a dtype."""
    if bits == 16:
        return packed.contiguous().view(-1).view(torch.bfloat16).view(len(packed), columns).to(dtype)
    if dispatch.backend(packed.device.type) is cpu:
        return cpu.restore(packed.contiguous(), bits, columns).to(dtype)
    return _restore(packed, bits, columns).to(dtype)


def _pack(rows, bits, keys, seed, packed) -> None:
    """Pack rows with torch operations, which define the packed bytes."""
    if not rows.numel():
        packed.zero_()
        return
    low, high = rows.amin(1, keepdim=True), rows.amax(1, keepdim=True)
    levels = 2**bits - 1
    step = (high - low) / levels + (rows - rows).sum(1, keepdim=True)
    inverse = torch.where(step > 0, 1 / step, 0.0)
    noise = random_lanes(keys, rows.shape[1], seed).float() / 2**16
    scaled = (rows - low) * inverse + noise
    codes = torch.where(scaled < levels, scaled, float(levels)).to(torch.uint8)
    header = torch.cat([low, step], 1).contiguous().view(torch.uint8)
    if bits == 4:
        codes = torch.nn.functional.pad(codes, (0, codes.shape[1] % 2))
        codes = codes[:, ::2] | codes[:, 1::2] << 4
    packed.copy_(torch.cat([header, codes], 1))


def _restore(packed, bits, columns) -> torch.Tensor:
    header = packed[:, :_HEADER_BYTES].contiguous().view(-1).view(torch.float32).view(len(packed), 2)
    codes = packed[:, _HEADER_BYTES:]
    if bits == 4:
        codes = torch.stack([codes & 15, codes >> 4], -1).flatten(1)[:, :columns]
    return header[:, :1] + header[:, 1:] * codes.float()
