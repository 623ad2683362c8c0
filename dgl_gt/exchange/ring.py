"""``ring``: nodes are split; keys and values go round, one rank's block at a time."""

from __future__ import annotations

from functools import cached_property

import torch

from ..ops.merge import merge_into
from ..ops.pieces import Call, backward, empty_like, forward, split
from ..ops.reference import accumulation_dtype
from .on_ranks import OnRanks


class Ring(OnRanks):
    """Blocks of K and V go from rank i to i + 1 while the block at hand is attended (Ring Attention, Liu, Zaharia and
    Abbeel, arXiv 2310.01889); in backward they go round again, and their gradients a step behind.

    Moves what ``gather`` does forward and twice that backward, and holds two blocks forward and four backward.
    """

    name = "ring"

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self._places = self.places()

    def attend(self, h, project, *, bias=None, dropout=None) -> torch.Tensor:
        """See :meth:`dgl_gt.exchange.strategy.Strategy.attend`."""
        self.check(h, bias)
        q, kv = project(h, "q"), project(h, "kv")
        call = Call.make(self._blocks[0], q, kv, bias, dropout)
        return _Ring.apply(q, kv, bias, self, call)

    def pass_on(self, rows: torch.Tensor, owner: int):
        """Start to send rows of one owner's block to the next rank, and to receive the previous rank's."""
        rank, ranks, counts = self.comm.rank, self.comm.world_size, self.counts
        arriving = counts[(owner - 1) % ranks]
        transfer = self.comm.start(rows, self.comm.only(rank + 1, counts[owner]), self.comm.only(rank - 1, arriving))
        return transfer.wait if self.overlap else _done(transfer.wait())

    def owners(self) -> list[int]:
        """Whose block is here at each step."""
        return [(self.comm.rank - step) % self.comm.world_size for step in range(self.comm.world_size)]

    @cached_property
    def _blocks(self):
        """Edges from each rank's rows."""
        shard = self.shard
        edges, ptr = shard.edges[0], torch.tensor(self.ptr, device=shard.indices.device)
        places = self._places[shard.indices[:edges].long()]
        owner = torch.searchsorted(ptr[1:], places, right=True)
        local = (places - ptr[owner]).to(shard.indices.dtype)
        ranges = [(0, count) for count in self.counts]
        return split(shard.indptr[: self.num_owned + 1], local, shard.edge_ids[:edges], owner, ranges)


def _done(received):
    return lambda: received


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
        grad_lse = torch.zeros_like(lse)
        grad_bias = torch.zeros_like(bias) if ctx.needs_input_grad[2] else None
        total_q, home, arrived, block = None, None, None, kv
        for owner in ring.owners():
            next_block = ring.pass_on(block, owner) if owner != ring.owners()[-1] else None
            grad_q, grad_block = empty_like(q), empty_like(block)
            written = (grad_q, *grad_block.unbind(1), grad_bias)
            rows = (q, *block.unbind(1), bias)
            backward(ring._blocks[owner], call, grad_out, grad_lse, out, lse, *rows, written)
            total_q = grad_q if total_q is None else total_q.add_(grad_q)
            if home is None:
                home = grad_block  # waits here for what the others add to this rank's own block
            else:
                if arrived:
                    grad_block.add_(arrived())
                arrived = ring.pass_on(grad_block, owner)
            block = next_block and next_block()
        return total_q, home.add_(arrived()) if arrived else home, grad_bias, None, None
