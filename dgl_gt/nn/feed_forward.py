"""The feed-forward network of a layer."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from dgl_gt.torch_internals import has_hooks

from .dropout import FeatureDropout, RowSequential
from .recomputed import is_activation, is_linear, is_norm, linear_of_activation, linear_of_norm, may_recompute


def make_activation(activation: str | nn.Module) -> nn.Module:
    """Return the activation of a name, "relu" or "gelu", or the module itself."""
    return activation if isinstance(activation, nn.Module) else {"relu": nn.ReLU, "gelu": nn.GELU}[activation]()


class SwiGLU(nn.Module):
    r"""Gated product of two projections, :math:`\mathrm{SiLU}(W_1 x) * W_2 x` (Shazeer, arXiv:2002.05202).

    Parameters
    ----------
    in_features, out_features : int
        Widths of the rows and of the result.
    """

    def __init__(self, in_features: int, out_features: int):
        super().__init__()
        self.proj = nn.Linear(in_features, 2 * out_features)

    def forward(self, x: Tensor) -> Tensor:
        """Return (..., out_features) for (..., in_features)."""
        gate, value = self.proj(x).chunk(2, -1)
        return functional.silu(gate) * value


class FeedForward(RowSequential):
    """Two projections with an activation between them, see :func:`feed_forward`."""

    def forward(self, h: Tensor, seeded=None, norm: nn.Module | None = None) -> Tensor:
        """Run the network on ``norm(h)``, or on ``h``."""
        norm = nn.Identity() if norm is None else norm
        if seeded is None or not (may_recompute() and is_norm(norm) and self._is_recomputable()):
            return super().forward(norm(h), seeded)
        parts: Any = self
        first, activation, dropout, second, last = parts
        inner = linear_of_norm(h, norm, first.weight, first.bias)
        drop = dropout.mask(seeded, len(h))
        return last(linear_of_activation(inner, activation, drop, second.weight, second.bias), seeded)

    def _is_recomputable(self) -> bool:
        """Whether the parts are as :func:`feed_forward` has made them, with an activation that backward knows."""
        if len(self) != 5 or not all(type(self[place]) is FeatureDropout for place in (2, 4)) or has_hooks(self[2]):
            return False
        return is_linear(self[0]) and is_activation(self[1]) and is_linear(self[3])


def feed_forward(width: int, hidden: int, activation: str | nn.Module, dropout: float) -> FeedForward:
    """Return a network of two projections with an activation between them: a module, "relu", "gelu" or "swiglu".

    With "swiglu" the inner width is two thirds of ``hidden``, so that the network has as many weights.
    """
    if activation == "swiglu":
        inner = max(1, 2 * hidden // 3)
        first: list[nn.Module] = [SwiGLU(width, inner)]
    else:
        inner = hidden
        first = [nn.Linear(width, hidden), make_activation(activation)]
    return FeedForward(*first, FeatureDropout(dropout), nn.Linear(inner, width), FeatureDropout(dropout))


def make_encoder(kind: str, in_dim: int, hidden: int, activation: str, dropout: float) -> RowSequential:
    """Return the projection in front of the layers."""
    match kind:
        case "activated":
            parts = [nn.Linear(in_dim, hidden), FeatureDropout(dropout), _activation(activation, hidden)]
        case "linear":
            parts = [nn.Linear(in_dim, hidden), FeatureDropout(dropout)]
        case "mlp":
            inner = [nn.Linear(in_dim, hidden), _activation(activation, hidden), FeatureDropout(dropout)]
            parts = [*inner, nn.Linear(hidden, hidden), FeatureDropout(dropout)]
        case _:
            parts = []
    return RowSequential(*parts)


def make_output(kind: str, width: int, out: int, activation: str) -> nn.Module:
    """Return the projection behind the layers."""
    if kind == "linear":
        return nn.Linear(width, out)
    return nn.Sequential(nn.Linear(width, width), _activation(activation, width), nn.Linear(width, out))


def _activation(activation: str, width: int) -> nn.Module:
    return SwiGLU(width, width) if activation == "swiglu" else make_activation(activation)
