"""Attention among all nodes of small graphs, a batch of which is one tensor, as DGL's dense modules compute it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def is_dense(name: str, arguments: tuple, named: dict) -> bool:
    """Return whether a call of a module is DGL's dense one, with features and no graph.

    ``arguments`` and ``named`` are those of the call, and ``name`` is DGL's name for the features. A tensor of whole
    numbers is an ``edge_index``, not features.
    """
    first = arguments[0] if arguments else None
    return name in named or isinstance(first, Tensor) and first.is_floating_point()


def check_batch(feat, width: int) -> None:
    """Raise ``ValueError`` unless the features of a dense call are one tensor, (batch, nodes, width)."""
    shape = tuple(feat.shape) if isinstance(feat, Tensor) else type(feat).__name__
    if not isinstance(feat, Tensor) or feat.ndim != 3 or feat.shape[2] != width:
        raise ValueError(
            f"without a graph, the features are {shape}; allowed: a tensor (batch, nodes, {width}) for attention among all "
            "nodes. For attention along edges, pass the graph first and then the features"
        )


def attend_all(
    qkv: Tensor, bias: Tensor | None, mask: Tensor | None, multiplies: bool = False, dropout_p: float = 0.0
) -> Tensor:
    """Attend from every node of a graph to every node of it.

    ``qkv`` is (B, N, 3, H, D). ``bias`` (B, N, N, H), for a query and a key, is added to the scores or multiplies them.
    ``mask`` (B, N, N) is true where a query may not see a key. Returns (B, N, H, D); as with DGL's module, a query that
    may see no key gets NaN. Raises ``ValueError`` if a shape does not fit.
    """
    batch, nodes, _, heads, width = qkv.shape
    q, k, v = (rows.transpose(1, 2) for rows in qkv.unbind(2))
    scores = (q * width**-0.5) @ k.transpose(2, 3)
    if bias is not None:
        bias = _broadcast("attn_bias", bias, (batch, nodes, nodes, heads)).permute(0, 3, 1, 2)
        scores = scores * bias if multiplies else scores + bias
    if mask is not None:
        scores = scores.masked_fill(
            _broadcast("attn_mask", mask, (batch, nodes, nodes)).bool().unsqueeze(1), -torch.inf
        )
    # Heads lie beside the batch, as in DGL's module, so that a seed of torch's generator gives the same dropout mask.
    weights = functional.dropout(functional.softmax(scores, 3), dropout_p)
    return (weights @ v).transpose(1, 2)


def _broadcast(name: str, given: Tensor, shape: tuple[int, ...]) -> Tensor:
    try:
        return given.broadcast_to(shape)
    except RuntimeError as error:
        raise ValueError(
            f"{name} has shape {tuple(given.shape)}; allowed: {shape}, or a shape that broadcasts to it; reshape it"
        ) from error
