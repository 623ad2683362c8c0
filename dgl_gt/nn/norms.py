"""The norms that a model can have, by name."""

from __future__ import annotations

from torch import Tensor, nn

from .batch_norm import BatchNorm

NORM_MODULES = {"layer": nn.LayerNorm, "rms": nn.RMSNorm, "batch": BatchNorm, "none": nn.Identity}


def normalise(norm: nn.Module, x: Tensor, strategy) -> Tensor:
    """Apply a norm to rows; batch statistics are those of all ranks of the strategy."""
    return norm(x, strategy) if isinstance(norm, BatchNorm) else norm(x)
