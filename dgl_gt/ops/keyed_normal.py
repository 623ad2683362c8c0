"""Random numbers keyed by (seed, row id, column): the same for a row wherever it is drawn."""

import math

import torch

from .reference import GOLDEN, mix64

MAX_COLUMNS = 2**16
_ROWS = 2**14  # rows that are drawn at once, so that memory is taken for these alone


def keyed_normal(ids, columns, seed, dtype):
    """Return normal numbers of mean 0 and variance 1, (rows, columns), for row ids, (rows,) int64.

    ``bits = mix64(mix64(seed) + golden * (id * 65536 + column + 1))`` with SplitMix64's finaliser and constants (Steele,
    Lea and Flood, OOPSLA 2014); its lower 52 bits are a number in (0, 1), of which the result is the normal quantile.
    There are at most ``MAX_COLUMNS`` columns.
    """
    key = mix64(torch.as_tensor(seed, dtype=torch.int64, device=ids.device))
    counters, result = torch.arange(columns, device=ids.device) + 1, []
    for some in ids.split(_ROWS):
        bits = mix64(key + (some.unsqueeze(-1) * 2**16 + counters) * GOLDEN)
        uniform = ((bits & (2**52 - 1)).double() + 0.5) / 2**52
        result.append((torch.erfinv(2 * uniform - 1) * math.sqrt(2)).to(dtype))
    return torch.cat(result)
