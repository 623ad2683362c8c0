"""Attention over a graph's edges in pieces, one piece at a time, with the softmax of them all.

Forward, the pieces' results merge. Backward needs no result of a piece: a weight is ``exp(score - lse)`` with the
``lse`` of all edges (FlashAttention, Dao et al. 2022, arXiv 2205.14135), so each piece gives its share of the gradients
from the final ``out`` and ``lse`` alone, whenever its keys and values are at hand.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from dgl_gt.structure import CSC

from . import cpu
from .attention import _autocast, _backend, _check_dropout, _kernel_at_hand, _unpacked, bias_dtypes
from .merge import merge_into
from .reference import accumulation_dtype, reference_attention


@dataclass(frozen=True)
class Call:
    """What the pieces of one call of attention have in common.

    Attributes
    ----------
    scale : float
    dropout_p : float
    seed : Tensor () int64, or None
    """

    scale: float
    dropout_p: float = 0.0
    seed: torch.Tensor | None = None

    @classmethod
    def make(cls, csc: CSC, q, kv, bias=None, dropout=None) -> Call:
        """Check what pieces are called with, as ``sparse_attention`` does, and make the call.

        Parameters
        ----------
        csc : CSC
            Any piece.
        q : Tensor, (N_dst, H, D), or (N, 3, H, D) with ``kv`` None
        kv : Tensor, (N_src, 2, H, D), of any piece
        bias : Tensor, (rows, H), optional
        dropout : (float, int or Tensor), optional
        """
        q, k, v = _unpacked(q, kv, None)
        p, seed = dropout or (0.0, None)
        num_heads, head_dim = q.shape[1:]
        if k.shape[1:] != q.shape[1:] or k.dtype != q.dtype or k.device != q.device:
            raise ValueError(
                f"keys have shape {tuple(k.shape)} and dtype {k.dtype} on {k.device}; allowed: heads as in q, "
                f"{(num_heads, head_dim)}, {q.dtype} on {q.device}"
            )
        if bias is not None and (
            bias.dim() != 2
            or bias.shape[1] != num_heads
            or bias.dtype not in (q.dtype, accumulation_dtype(q.dtype))
            or bias.device != q.device
        ):
            raise ValueError(
                f"bias has shape {tuple(bias.shape)} and dtype {bias.dtype} on {bias.device}; allowed: (E, {num_heads})"
                f", {bias_dtypes(q.dtype)} on {q.device}"
            )
        _check_dropout(csc, num_heads, p, seed)
        seed = None if p == 0 else torch.as_tensor(seed, dtype=torch.int64, device="cpu")
        return cls(1 / math.sqrt(head_dim), float(p), seed)


@torch.inference_mode(False)  # strategies keep the pieces, for training too
def split(indptr, indices, keys, piece_of, ranges: list[tuple[int, int]]) -> list[CSC]:
    """In-edges in pieces, each over all destinations.

    Parameters
    ----------
    indptr, indices, keys : Tensor, int64 (N_dst + 1,), (E,), int64 (E,)
        As ``indptr``, ``indices`` and ``global_edge_ids`` of a CSC.
    piece_of : Tensor, (E,) integer
        Piece of each position.
    ranges : list of (int, int)
        Of each piece, the range of source rows that its edges have; they count from its begin.

    Returns
    -------
    list of CSC
        Their ``edge_ids`` are the positions, so that all read one bias: each has fewer edges than that has rows.
    """
    num_dst = len(indptr) - 1
    row = torch.repeat_interleave(torch.arange(num_dst, device=indptr.device), indptr.diff())
    pieces = []
    for number, (begin, end) in enumerate(ranges):
        positions = torch.nonzero(piece_of == number)[:, 0]
        counts = torch.bincount(row[positions], minlength=num_dst)
        ends = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        piece = CSC.build(ends, indices[positions] - begin, end - begin, global_edge_ids=keys[positions])
        pieces.append(replace(piece, edge_ids=positions))
    return pieces


def forward(csc: CSC, call: Call, q, k, v, bias=None):
    """``out`` and ``lse`` of one piece; no gradient. Arguments as ``sparse_attention``'s, bias of all pieces."""
    if _kernel_at_hand(q.device.type, q.dtype):
        return _backend(q.device.type).forward(csc, q, k, v, bias, call.scale, call.dropout_p, call.seed)
    with torch.no_grad():
        return reference_attention(csc, q, k, v, bias, call.scale, call.dropout_p, call.seed)


def backward(csc: CSC, call: Call, grad_out, grad_lse, out, lse, q, k, v, bias, grads) -> None:
    """Write one piece's share of the gradients, from the final ``out`` and ``lse`` and their gradients.

    Parameters
    ----------
    grads : tuple of Tensor or None
        Where those of q, k, v and bias go, as of ``dgl_gt.ops.cpu.backward``; rows of bias of other pieces are kept.
    """
    if _kernel_at_hand(q.device.type, q.dtype):
        rest = (call.scale, call.dropout_p, call.seed, grads)
        _backend(q.device.type).backward(csc, grad_out, grad_lse, out, lse, q, k, v, bias, *rest)
        return
    with torch.enable_grad():
        inputs = [None if x is None else x.detach().requires_grad_() for x in (q, k, v, bias)]
        part, part_lse = reference_attention(csc, *inputs, call.scale, call.dropout_p, call.seed)
    # through the merge: d lse / d lse_p is the piece's weight w, and out = sum_p w_p out_p
    weight = torch.exp(part_lse - torch.where(lse == -torch.inf, 0.0, lse)).detach()
    grad_part_lse = weight * ((grad_out * (part.detach() - out)).sum(-1) + grad_lse)
    wanted = [(x, grad) for x, grad in zip(inputs, grads) if grad is not None]
    upstream = ((weight.unsqueeze(-1) * grad_out).to(part.dtype), grad_part_lse)
    made = torch.autograd.grad((part, part_lse), [x for x, _ in wanted], upstream, allow_unused=True)
    for (_, grad), value in zip(wanted, made):
        if grad is grads[3]:
            grad[csc.edge_ids] = value[csc.edge_ids]
        else:
            grad.copy_(value)


def empty_like(x):
    """Room for the gradient of ``x``."""
    on_cpu = _backend(x.device.type) is cpu
    return cpu.empty(x.shape, x.dtype) if on_cpu else torch.empty(x.shape, dtype=x.dtype, device=x.device)


class Joint:
    """Attention in two pieces, the second of which may wait for its keys and values.

    ``first`` gives what ``rest`` needs besides; the result is ``rest``'s. In backward the second piece's gradients come
    first, so that they can travel while the first piece's are computed.

    Parameters
    ----------
    pieces : pair of CSC
        From :func:`split`.
    dropout : (float, int or Tensor), optional
    """

    def __init__(self, pieces: list[CSC], dropout=None):
        self.pieces, self._dropout = pieces, dropout
        self.call = self.handed = None

    def first(self, q, kv=None, bias=None):
        """Attend the first piece: q (N_dst, H, D) and kv (N_src, 2, H, D), or q, k and v packed, (N, 3, H, D)."""
        q, kv = _autocast(q, kv)
        self.call = Call.make(self.pieces[0], q, kv, bias, self._dropout)
        return _First.apply(q, kv, bias, self)

    def rest(self, begun, q, kv, bias=None):
        """Attend the second, kv (N_src, 2, H, D), and join: ``out`` (N_dst, H, D) and ``lse`` (N_dst, H)."""
        q, kv = _autocast(q, kv)
        return _Rest.apply(q.detach(), kv, bias, *begun, self)


class _First(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, kv, bias, joint):
        ctx.save_for_backward(q, kv, bias)
        ctx.joint = joint
        out, lse = forward(joint.pieces[0], joint.call, *_unpacked(q, kv, None), bias)
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_out, _):
        (q, kv, bias), joint = ctx.saved_tensors, ctx.joint
        final, joint.handed = joint.handed, None
        out, lse, grad_lse, grad_q = final
        grads = [None if x is None else empty_like(x) for x in (q, kv)]
        grad_bias = torch.zeros_like(bias) if ctx.needs_input_grad[2] else None
        written = (*_unpacked(*grads, None), grad_bias)
        rows = _unpacked(q, kv, None)
        backward(joint.pieces[0], joint.call, grad_out, grad_lse, out, lse, *rows, bias, written)
        written[0].add_(grad_q)
        return *grads, grad_bias, None


class _Rest(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, kv, bias, out, lse, joint):
        part = forward(joint.pieces[1], joint.call, _queries(q), *kv.unbind(1), bias)
        merge_into(out, lse, *part)
        ctx.mark_dirty(out)
        ctx.save_for_backward(q, kv, bias, out, lse)
        ctx.joint = joint
        return out, lse.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_out, grad_lse):
        (q, kv, bias, out, lse), joint = ctx.saved_tensors, ctx.joint
        q, grad_q, grad_kv = _queries(q), empty_like(_queries(q)), empty_like(kv)
        grad_bias = torch.zeros_like(bias) if ctx.needs_input_grad[2] else None
        written = (grad_q, *grad_kv.unbind(1), grad_bias)
        backward(joint.pieces[1], joint.call, grad_out, grad_lse, out, lse, q, *kv.unbind(1), bias, written)
        joint.handed = out, lse, grad_lse, grad_q  # for the first piece; grad_out goes there as the gradient of its out
        return None, grad_kv, grad_bias, grad_out, None, None


def _queries(q):
    return q[:, 0] if q.dim() == 4 else q
