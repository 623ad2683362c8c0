"""Dropout of features keyed by (seed, row id, column): the same mask wherever and whenever a row is computed."""

import torch

from . import cpu, dispatch
from .checks import DTYPES, check_probability, check_seed, check_seed_value
from .dispatch import differentiable, operator
from .reference import column_keep, splitmix64

_STEPS = 2**16  # a probability is rounded to a multiple of 1 / _STEPS


def dropout_seed(run_seed: int, step: int, layer: int, *site: int) -> int:
    """Return the seed of a layer's attention dropout in a training step, or, with a ``site``, of a feature dropout.

    The state starts at 0. Each integer in turn, modulo 2**64, is added to the state, and the next output of SplitMix64
    (Steele, Lea and Flood, *Fast splittable pseudorandom number generators*, OOPSLA 2014) is the new state. The seed is
    the upper 63 bits of the last state, in [0, 2**63). It depends on the arguments alone, so every rank derives the same
    seed.
    """
    state = 0
    for word in (run_seed, step, layer, *site):
        state = splitmix64(state + word)
    return state % 2**64 >> 1


def keyed_dropout(x, p, seed, ids=None):
    """Drop elements of x, as ``torch.nn.functional.dropout`` does, with a mask that (seed, row id, column) decides.

    ``bits = mix64(mix64(seed) + golden * (id * 65536 + column // 4 + 1))`` with SplitMix64's finaliser and constants
    (Steele, Lea and Flood, OOPSLA 2014). Column c owns 16 of these bits, from bit ``16 * (c % 4)`` on, and is kept
    where they are at least ``t = min(round(65536 p), 65535)``. The elements kept are multiplied by
    ``65536 / (65536 - t)``. No mask is stored for backward. x is (rows, C) with C at most 262144, ``ids`` (rows,) int64
    are by default the row numbers, and the seed is an int, or a tensor () int64 on the CPU.
    """
    dispatch.refuse_forward_mode("keyed_dropout", x)
    check_probability("p", p)
    if x.dim() != 2 or x.shape[1] > 4 * _STEPS:
        raise ValueError(f"x has shape {tuple(x.shape)}; allowed: (rows, C) with C at most {4 * _STEPS}")
    if x.dtype not in DTYPES:
        raise ValueError(f"x has dtype {x.dtype}; allowed: {', '.join(map(str, DTYPES))}")
    check_seed(seed)
    if ids is not None and (ids.shape != x.shape[:1] or ids.dtype != torch.int64 or ids.device != x.device):
        raise ValueError(
            f"ids has shape {tuple(ids.shape)} and dtype {ids.dtype} on {ids.device}; allowed: "
            f"({len(x)},), one for each row, torch.int64 on {x.device}"
        )
    if not isinstance(seed, torch.Tensor):
        seed = torch.tensor(seed, device="cpu")
    return _drop_rows(x, float(p), seed, ids)


@operator("keyed_dropout(Tensor x, float p, Tensor seed, Tensor? ids) -> Tensor")
def _drop(x, p, seed, ids):
    check_seed_value(seed)
    threshold = min(round(p * _STEPS), _STEPS - 1)
    scale = _STEPS / (_STEPS - threshold)
    backend = dispatch.backend(x.device.type)
    if backend is cpu or (backend is not None and x.dtype != torch.float64):
        return backend.drop(x, int(seed), ids, threshold, scale)
    ids = torch.arange(len(x), device=x.device) if ids is None else ids
    return torch.where(column_keep(ids, x.shape[1], threshold, seed), x * scale, 0.0).contiguous()


@torch.library.register_fake(_drop)
def _drop_fake(x, p, seed, ids):
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _save(ctx, inputs, output):
    _, ctx.p, seed, ids = inputs
    ctx.save_for_backward(seed, ids)


def _differentiate(ctx, grad):
    return _drop_rows(grad, ctx.p, *ctx.saved_tensors), None, None, None


_drop_rows = differentiable(_drop, _differentiate, _save)
