"""Attention over a graph's edges in pieces, one piece at a time, normalised as if there were one piece only.

Forward, the results of the pieces are merged. Backward needs no result of a piece: a weight is ``exp(score - lse)``
with the ``lse`` of all edges (FlashAttention, Dao et al. 2022, arXiv 2205.14135). So each piece gives its share of the
gradients from the final ``out`` and ``lse`` alone, as soon as its keys and values are there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from dgl_gt.structure import CSC
from dgl_gt.torch_internals import gradients_of

from . import dispatch
from .checks import checked_numbers, unpack
from .dispatch import ADDITIVE_PASS, edge_range
from .merge import merge_into
from .reference import reference_attention


@dataclass(frozen=True)
class AttentionSettings:
    """The settings that all pieces of one attention share.

    They are the factor of dot products, the probability and the seed of dropout, an int64 tensor () or None, and the
    negative slope of additive scores, or None for dot products.
    """

    scale: float
    dropout_p: float = 0.0
    seed: torch.Tensor | None = None
    negative_slope: float | None = None

    @property
    def is_additive(self) -> bool:
        """Whether scores are additive."""
        return self.negative_slope is not None

    def unpack(self, q, k, v=None):
        """Return q, k and v, see :func:`dgl_gt.ops.checks.unpack`."""
        return unpack(q, k, v, self.is_additive)

    def empty_like(self, rows):
        """Return an uninitialised tensor for the gradient of ``rows``."""
        return dispatch.empty_like(rows, self.is_additive)


def prepare(csc: CSC, q, kv, bias=None, dropout=None, negative_slope=None, edge=None):
    """Cast the rows of a piece for autocast and check them, as ``sparse_attention`` does.

    Returns q, kv, the features of edges and the settings. q is (N_dst, H, D) and kv (N_src, 2, H, D), or q is (N, 3, H,
    D) and kv is None. With a negative slope, they are packed as additive scores need it. The bias (E, H) and the features
    (E, F), with which q is (N_dst, H, D + F), have the edges of all pieces, and ``dropout`` is a pair of probability and
    seed.
    """
    q, kv, edge = dispatch.autocast(q, kv, edge)
    p, seed = dropout or (0.0, None)
    rows = unpack(q, kv, None, negative_slope is not None)
    num_edges = next((len(each) for each in (bias, edge) if each is not None), 0)
    numbers = checked_numbers(csc, rows, bias, num_edges, None, p, seed, negative_slope, edge)
    return q, kv, edge, AttentionSettings(*numbers)


@torch.inference_mode(False)  # strategies keep the pieces, and training needs them, too
def split(indptr, indices, keys, piece_of, ranges: list[tuple[int, int]]) -> list[CSC]:
    """Return in-edges in pieces, each of which has all destinations.

    The first three are ``indptr``, ``indices`` and ``global_edge_ids`` of a CSC, and ``piece_of`` (E,) is the piece of
    each position. A piece has the source rows of its range (first row, end), and counts them from the first. Its
    ``edge_ids`` are the positions in the whole, so that all pieces read one bias, which has more rows than a piece has
    edges.
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


def _announced(csc: CSC, settings: AttentionSettings, q, v, passes: float):
    if settings.is_additive:
        passes *= ADDITIVE_PASS
    heads, head_dim = (v if settings.is_additive else q).shape[1:]  # with features of edges, q has their columns, too
    return edge_range(csc.num_edges, csc.num_dst, csc.num_src, heads, head_dim, v.element_size(), passes)


def forward(csc: CSC, settings: AttentionSettings, q, k, v, bias=None, edge=None):
    """Return ``out`` and ``lse`` of one piece, without a gradient. ``bias`` and ``edge`` have the rows of all pieces."""
    rest = settings.scale, settings.dropout_p, settings.seed, settings.negative_slope
    if dispatch.has_kernel(q.device.type):
        with _announced(csc, settings, q, v, passes=1):
            return dispatch.backend(q.device.type).forward(csc, q, k, v, bias, *rest, edge)
    with torch.no_grad():
        return reference_attention(csc, q, k, v, bias, *rest, edge)


def backward(csc: CSC, settings: AttentionSettings, grad_out, grad_lse, out, lse, q, k, v, bias, edge, grads) -> None:
    """Write one piece's share of the gradients, from the final ``out`` and ``lse`` and their gradients.

    ``grads`` are tensors, or None, for the gradients of q, k, v, bias and edge, as for ``dgl_gt.ops.cpu.backward``. Rows
    of the last two that belong to other pieces are not touched.
    """
    rest = settings.scale, settings.dropout_p, settings.seed
    if dispatch.has_kernel(q.device.type):
        rows = q, k, v, bias
        passes = (grads[0] is not None) + (grads[1] is not None)
        with _announced(csc, settings, q, v, passes):
            dispatch.backend(q.device.type).backward(
                csc, grad_out, grad_lse, out, lse, *rows, *rest, grads, settings.negative_slope, edge
            )
        return
    with torch.enable_grad():
        inputs = [None if x is None else x.detach().requires_grad_() for x in (q, k, v, bias, edge)]
        *leaves, features = inputs
        part, part_lse = reference_attention(csc, *leaves, **vars(settings) | {"edge": features})
    # Through the merge: d lse / d lse_p is the piece's weight w_p, and out = sum_p w_p out_p.
    weight = torch.exp(part_lse - torch.where(lse == -torch.inf, 0.0, lse)).detach()
    grad_part_lse = weight * ((grad_out * (part.detach() - out)).sum(-1) + grad_lse)
    wanted = [(x, grad) for x, grad in zip(inputs, grads) if grad is not None]
    upstream = ((weight.unsqueeze(-1) * grad_out).to(part.dtype), grad_part_lse)
    made = gradients_of((part, part_lse), [x for x, _ in wanted], upstream, allow_unused=True)
    for (_, grad), value in zip(wanted, made):
        if grad is grads[3] or grad is grads[4]:
            grad[csc.edge_ids] = value[csc.edge_ids]
        else:
            grad.copy_(value)


class TwoPieceAttention:
    """Attention in two pieces, the second of which may wait for its keys and values.

    Call :meth:`attend_first`, then :meth:`attend_second` with the result of the first; use one object for one
    attention. In backward the gradients of the second piece come first, so that they can travel while those of the
    first piece are computed. ``pieces`` are two of :func:`split`, ``dropout`` is a pair of probability and seed, and a
    negative slope asks for additive scores. ``score_offset`` is added to all scores of the second piece.
    """

    def __init__(self, pieces: list[CSC], dropout=None, negative_slope=None, score_offset: float = 0.0):
        self.pieces, self._options, self.score_offset = pieces, (dropout, negative_slope), score_offset
        self.settings = None
        self.second_gradients = None  # what the backward pass of the second piece leaves for that of the first

    def attend_first(self, q, kv=None, bias=None, edge=None):
        """Attend the first piece: q and kv, or q with keys and values as well, as :func:`prepare` takes them."""
        q, kv, edge, self.settings = prepare(self.pieces[0], q, kv, bias, *self._options, edge)
        return _First.apply(q, kv, bias, edge, self)

    def attend_second(self, first, q, kv, bias=None, edge=None):
        """Attend the second, with its own kv; return ``out`` (N_dst, H, D) and ``lse`` (N_dst, H) of both."""
        q, kv, edge = dispatch.autocast(q, kv, edge)
        return _Second.apply(q.detach(), kv, bias, edge, *first, self)


def empty_gradients(ctx, bias, edge, first: int):
    """Return tensors of zeros for the gradients of what edges have, or None; ``first`` is the bias's number in ctx."""
    wanted = ctx.needs_input_grad[first : first + 2]
    return tuple(torch.zeros_like(x) if needed else None for x, needed in zip((bias, edge), wanted))


class _First(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, kv, bias, edge, both):
        ctx.save_for_backward(q, kv, bias, edge)
        ctx.both = both
        out, lse = forward(both.pieces[0], both.settings, *both.settings.unpack(q, kv), bias, edge)
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_out, _):
        (q, kv, bias, edge), both = ctx.saved_tensors, ctx.both
        (out, lse, grad_lse, grad_q), both.second_gradients = both.second_gradients, None
        grads = [None if x is None else both.settings.empty_like(x) for x in (q, kv)]
        of_edges = empty_gradients(ctx, bias, edge, 2)
        written = (*both.settings.unpack(*grads), *of_edges)
        rows = both.settings.unpack(q, kv)
        backward(both.pieces[0], both.settings, grad_out, grad_lse, out, lse, *rows, bias, edge, written)
        written[0].add_(grad_q)
        return *grads, *of_edges, None


class _Second(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, kv, bias, edge, out, lse, both):
        part, part_lse = forward(both.pieces[1], both.settings, *_rows(both.settings, q, kv), bias, edge)
        # An offset of the scores changes the weights of a piece as a whole.
        merge_into(out, lse, part, part_lse + both.score_offset)
        ctx.mark_dirty(out)
        ctx.save_for_backward(q, kv, bias, edge, out, lse)
        ctx.both = both
        return out, lse.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_out, grad_lse):
        (q, kv, bias, edge, out, lse), both = ctx.saved_tensors, ctx.both
        rows = _rows(both.settings, q, kv)
        grad_q, grad_kv = both.settings.empty_like(rows[0]), both.settings.empty_like(kv)
        of_edges = empty_gradients(ctx, bias, edge, 2)
        written = (*both.settings.unpack(grad_q, grad_kv), *of_edges)
        lse_of_piece = lse - both.score_offset
        backward(both.pieces[1], both.settings, grad_out, grad_lse, out, lse_of_piece, *rows, bias, edge, written)
        both.second_gradients = out, lse, grad_lse, grad_q  # autograd itself passes grad_out to the first piece
        return None, grad_kv, *of_edges, grad_out, None, None


def _rows(settings: AttentionSettings, q, kv):
    """Return q, k and v of the second piece; ``q`` may be packed with keys and values of the first."""
    _, k, v = settings.unpack(q, kv)
    if not settings.is_additive:
        return q[:, 0] if q.dim() == 4 else q, k, v
    return q[..., -1] if q.dim() == 3 else q, k, v
