"""``ring``: nodes are split; blocks of keys and values travel around all ranks, one block at a time."""

from __future__ import annotations

from functools import cached_property, partial

import torch

from dgl_gt.ops.head_minor import in_wire_order
from dgl_gt.ops.merge import merge_into
from dgl_gt.ops.reference import accumulation_dtype
from dgl_gt.ops.split_attention import backward, forward, prepare, split

from .shard_view import ShardView


class Ring(ShardView):
    """Ring Attention (Liu, Zaharia and Abbeel, arXiv 2310.01889): each rank attends to one block after the other.

    Blocks of K and V travel from rank i to rank i + 1 while ranks attend to the current block. In backward they travel
    around again, and their gradients follow one step later. ``ring`` moves as much as ``gather`` forward, and twice as
    much backward. It holds two blocks forward and six backward: two of K and V, and four of gradients (the current
    block's, one arriving, one leaving, and this rank's own).
    """

    def attend(self, h, project, *, bias=None, dropout=None, negative_slope=None) -> torch.Tensor:
        """See :meth:`dgl_gt.exchange.view.View.attend`."""
        h = self.check_inputs(h, bias)
        rows = project(h, "q"), project(h, "kv")
        q, kv, settings = prepare(self.blocks[self.comm.rank], *rows, bias, dropout, negative_slope)
        return _Ring.apply(q, kv, bias, self, settings)

    def send_to_next(self, rows: torch.Tensor, owner: int, additive: bool):
        """Send rows of one owner's block to the next rank; return a function that returns the previous rank's rows.

        They travel in the background, or, without overlap, when that function is called.
        """
        rank, ranks, counts = self.comm.rank, self.comm.world_size, self.counts
        rows, restored = in_wire_order(rows, additive)
        arriving = counts[(owner - 1) % ranks]
        start = partial(
            self.comm.start,
            rows,
            self.comm.counts_for(rank + 1, counts[owner]),
            self.comm.counts_for(rank - 1, arriving),
        )
        if not self.overlap:
            return lambda: restored(start().wait())
        transfer = start()
        return lambda: restored(transfer.wait())

    def owners(self) -> list[int]:
        """Return the rank that owns the block which is here, for each step."""
        return [(self.comm.rank - step) % self.comm.world_size for step in range(self.comm.world_size)]

    @cached_property
    @torch.inference_mode(False)
    def blocks(self):
        """Edges from each rank's rows, a CSC for each rank."""
        shard = self.shard
        edges, ptr = shard.edges[0], torch.tensor(self.ptr, device=shard.indices.device)
        sources = shard.rank_order[shard.indices[:edges].long()]
        owner = torch.searchsorted(ptr[1:], sources, right=True)
        local = (sources - ptr[owner]).to(shard.indices.dtype)
        ranges = [(0, count) for count in self.counts]
        return split(shard.indptr[: self.num_owned + 1], local, shard.edge_ids[:edges], owner, ranges)


class _Ring(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, kv, bias, ring, settings):
        out, lse, block = None, None, kv
        for owner in ring.owners():
            arrived = ring.send_to_next(block, owner, settings.is_additive) if owner != ring.owners()[-1] else None
            part, part_lse = forward(ring.blocks[owner], settings, *settings.unpack(q, block), bias)
            if out is None:
                out, lse = part.to(accumulation_dtype(part.dtype)), part_lse
            else:
                merge_into(out, lse, part, part_lse)
            block = arrived and arrived()
        out = out.to(q.dtype)
        ctx.save_for_backward(q, kv, bias, out, lse)
        ctx.ring, ctx.settings = ring, settings
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_out):
        (q, kv, bias, out, lse), ring, settings = ctx.saved_tensors, ctx.ring, ctx.settings
        final = grad_out, torch.zeros_like(lse), out, lse
        grad_bias = torch.zeros_like(bias) if ctx.needs_input_grad[2] else None
        total_q, own_grad, arrived, block = None, None, None, kv
        for owner in ring.owners():
            next_block = ring.send_to_next(block, owner, settings.is_additive) if owner != ring.owners()[-1] else None
            piece = ring.blocks[owner]
            total_q = _plus(total_q, _grad_q(piece, settings, final, q, block, bias, grad_bias))
            grad_block = _grad_block(piece, settings, final, q, block, bias)
            if own_grad is None:
                own_grad = grad_block  # stays here until the other ranks' shares arrive
            else:
                arrived = ring.send_to_next(_plus(grad_block, arrived and arrived()), owner, settings.is_additive)
            block = next_block and next_block()
        return total_q, _plus(own_grad, arrived and arrived()), grad_bias, None, None


def _plus(total, more):
    return total if more is None else more if total is None else total.add_(more)


# These two run one after the other, so that the second can use the memory of the first.


def _grad_q(piece, settings, final, q, block, bias, grad_bias) -> torch.Tensor:
    """Return a block's share of the gradient of q, and write its share of that of bias in place."""
    grad = settings.empty_like(q)
    backward(piece, settings, *final, *settings.unpack(q, block), bias, (grad, None, None, grad_bias))
    return grad


def _grad_block(piece, settings, final, q, block, bias) -> torch.Tensor:
    """Return this rank's share of the gradient of a block of keys and values."""
    grad = settings.empty_like(block)
    backward(piece, settings, *final, *settings.unpack(q, block), bias, (*settings.unpack(None, grad), None))
    return grad
