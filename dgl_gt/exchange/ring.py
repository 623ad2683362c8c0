"""``ring``: nodes are split; keys and values go round, one rank's block at a time."""

from __future__ import annotations

from functools import cached_property, partial

import torch

from dgl_gt.ops.merge import merge_into
from dgl_gt.ops.reference import accumulation_dtype
from dgl_gt.ops.split_attention import Call, backward, empty_like, forward, split

from .base import OnRanks


class Ring(OnRanks):
    """Blocks of K and V go from rank i to i + 1 while the block at hand is attended (Ring Attention, Liu, Zaharia and
    Abbeel, arXiv 2310.01889); in backward they go round again, and their gradients a step behind.

    Moves what ``gather`` does forward and twice that backward, and holds two blocks forward and, its own
    among them, six backward: two of K and V, and of gradients the one at hand, one each way, and its own.
    """

    name = "ring"

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self._places = self.places()

    def attend(self, h, project, *, bias=None, dropout=None) -> torch.Tensor:
        """See :meth:`dgl_gt.exchange.protocol.Strategy.attend`."""
        h = self.checked(h, bias)
        q, kv = project(h, "q"), project(h, "kv")
        call = Call.make(self._blocks[0], q, kv, bias, dropout)
        return _Ring.apply(q, kv, bias, self, call)

    def pass_on(self, rows: torch.Tensor, owner: int):
        """Pass rows of one owner's block on to the next rank, in the background or, without overlap, when the result,
        what the previous rank passes on, is called for."""
        rank, ranks, counts = self.comm.rank, self.comm.world_size, self.counts
        arriving = counts[(owner - 1) % ranks]
        start = partial(
            self.comm.start, rows, self.comm.only(rank + 1, counts[owner]), self.comm.only(rank - 1, arriving)
        )
        return start().wait if self.overlap else lambda: start().wait()

    def owners(self) -> list[int]:
        """Whose block is here at each step."""
        return [(self.comm.rank - step) % self.comm.world_size for step in range(self.comm.world_size)]

    @cached_property
    @torch.inference_mode(False)
    def _blocks(self):
        """Edges from each rank's rows."""
        shard = self.shard
        edges, ptr = shard.edges[0], torch.tensor(self.ptr, device=shard.indices.device)
        places = self._places[shard.indices[:edges].long()]
        owner = torch.searchsorted(ptr[1:], places, right=True)
        local = (places - ptr[owner]).to(shard.indices.dtype)
        ranges = [(0, count) for count in self.counts]
        return split(shard.indptr[: self.num_owned + 1], local, shard.edge_ids[:edges], owner, ranges)


class _Ring(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, kv, bias, ring, call):
        out, lse, block = None, None, kv
        for owner in ring.owners():
            arrived = ring.pass_on(block, owner) if owner != ring.owners()[-1] else None
            part, part_lse = forward(ring._blocks[owner], call, q, *block.unbind(1), bias)
            if out is None:
                out, lse = part.to(accumulation_dtype(part.dtype)), part_lse
            else:
                merge_into(out, lse, part, part_lse)
            block = arrived and arrived()
        out = out.to(q.dtype)
        ctx.save_for_backward(q, kv, bias, out, lse)
        ctx.ring, ctx.call = ring, call
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_out):
        (q, kv, bias, out, lse), ring, call = ctx.saved_tensors, ctx.ring, ctx.call
        final = grad_out, torch.zeros_like(lse), out, lse
        grad_bias = torch.zeros_like(bias) if ctx.needs_input_grad[2] else None
        total_q, home, arrived, block = None, None, None, kv
        for owner in ring.owners():
            next_block = ring.pass_on(block, owner) if owner != ring.owners()[-1] else None
            piece = ring._blocks[owner]
            total_q = _plus(total_q, _grad_q(piece, call, final, q, block, bias, grad_bias))
            grad_block = _grad_block(piece, call, final, q, block, bias)
            if home is None:
                home = grad_block  # waits here for what the others add to this rank's own block
            else:
                arrived = ring.pass_on(_plus(grad_block, arrived and arrived()), owner)
            block = next_block and next_block()
        return total_q, _plus(home, arrived and arrived()), grad_bias, None, None


def _plus(total, more):
    return total if more is None else more if total is None else total.add_(more)


# One at a time, so that the room for the one is free again when the other needs its own.


def _grad_q(piece, call, final, q, block, bias, grad_bias) -> torch.Tensor:
    """A block's share of the gradients of q, and, written in place, of bias."""
    grad = empty_like(q)
    backward(piece, call, *final, q, *block.unbind(1), bias, (grad, None, None, grad_bias))
    return grad


def _grad_block(piece, call, final, q, block, bias) -> torch.Tensor:
    """This rank's share of the gradients of a block of keys and values."""
    grad = empty_like(block)
    backward(piece, call, *final, q, *block.unbind(1), bias, (None, *grad.unbind(1), None))
    return grad
