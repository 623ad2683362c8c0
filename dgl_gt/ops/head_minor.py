"""Rows whose heads lie side by side ("head-minor"): number d of head h of a row is number d * H + h in memory.

The kernels for the CPU read such rows faster than rows whose heads follow one another. A tensor's strides say which it
is: its shape is (rows, ..., H, D) in both layouts. Results and gradients have the layout of q and of their tensors.
"""

import torch

_HEADS = (4, 8, 16)  # other numbers of heads are no faster in this layout
_WIDEST = 32


def has_head_minor_kernel(num_heads: int, head_dim: int, rows: torch.Tensor) -> bool:
    """Return whether kernels attend to head-minor rows of this dtype and on this device.

    They do on the CPU, for 4, 8 or 16 heads of width at most 32, where the width of a row is a multiple of 16 and sums
    are in float32. Meta tensors stand for those of the CPU.
    """
    fits = num_heads in _HEADS and num_heads * head_dim % 16 == 0 and head_dim <= _WIDEST
    return fits and rows.device.type in ("cpu", "meta") and rows.dtype in (torch.float32, torch.bfloat16, torch.float16)


def is_head_minor(rows: torch.Tensor) -> bool:
    """Return whether rows (rows, ..., H, D) are head-minor; with one head, or heads of width 1, no rows are."""
    if rows.dim() < 3 or min(rows.shape[-2:]) < 2:
        return False
    return rows.stride(-2) == 1 and rows.stride(-1) == rows.shape[-2]


def result_strides(rows: torch.Tensor) -> list[int]:
    """Return the strides of a dense tensor of this shape, in the layout of ``rows`` where kernels read and write it."""
    dims = list(range(rows.dim()))  # the last one is that of neighbours in memory
    if is_head_minor(rows) and has_head_minor_kernel(rows.shape[-2], rows.shape[-1], rows):
        dims[-2:] = dims[-1], dims[-2]
    strides, step = [1] * len(dims), 1
    for dim in reversed(dims):
        strides[dim] = step
        step *= rows.shape[dim]
    return strides


def in_wire_order(rows: torch.Tensor, plain: bool):
    """Return rows (rows, ..., H, D) in the order in which they travel, and a function that restores rows that arrive.

    Rows for dot products travel head-minor, as (rows, ..., D, H), if there is a kernel for such rows; rows that already
    lie so in memory are not copied. The shape, dtype and kind of device decide, because they are the same on all ranks;
    the layout of one rank's rows may differ. ``plain`` says that there is none: scores are additive, or edges have
    features.
    """
    if plain or not has_head_minor_kernel(rows.shape[-2], rows.shape[-1], rows):
        return rows, lambda arrived: arrived
    return rows.transpose(-2, -1), lambda arrived: arrived.transpose(-2, -1)
