"""``ring``: nodes are split; blocks of keys and values travel around all ranks, one block at a time."""

from __future__ import annotations

from functools import cached_property

import torch

from dgl_gt.ops.head_minor import in_wire_order
from dgl_gt.ops.merge import merge_into
from dgl_gt.ops.reference import accumulation_dtype
from dgl_gt.ops.split_attention import backward, empty_gradients, forward, prepare

from .shard_view import ShardView


class Ring(ShardView):
    """Ring Attention (Liu, Zaharia and Abbeel, arXiv 2310.01889): each rank attends to one block after the other.

    Blocks of K and V travel from rank i to rank i + 1 while ranks attend to the current block. In backward they travel
    around again, and their gradients follow one step later. ``ring`` moves as much as ``gather`` forward, and twice as
    much backward. It holds two blocks forward and six backward: two of K and V, and four of gradients (the current
    block's, one arriving, one leaving, and this rank's own).
    """

    def attend(self, h, project, *, bias=None, edge=None, dropout=None, negative_slope=None) -> torch.Tensor:
        h = self.check_inputs(h, bias, edge)
        rows = project(h, "q"), project(h, "kv")
        q, kv, edge, settings = prepare(self.blocks[self.comm.rank], *rows, bias, dropout, negative_slope, edge)
        return _Ring.apply(q, kv, bias, edge, self, settings)

    def send_to_next(self, rows: torch.Tensor, owner: int, plain: bool):
        """Send rows of one owner's block to the next rank; return a function that returns the previous rank's rows.

        They travel in the background, or, without overlap, when that function is called.
        """
        rank, counts = self.comm.rank, self.counts
        rows, restored = in_wire_order(rows, plain)
        send_counts = self.comm.counts_for(rank + 1, counts[owner])
        recv_counts = self.comm.counts_for(rank - 1, counts[(owner - 1) % self.comm.world_size])
        if not self.overlap:
            return lambda: restored(self.comm.start(rows, send_counts, recv_counts).wait())
        transfer = self.comm.start(rows, send_counts, recv_counts)
        return lambda: restored(transfer.wait())

    def owners(self) -> list[int]:
        """Return the rank that owns the block which is here, for each step."""
        return [(self.comm.rank - step) % self.comm.world_size for step in range(self.comm.world_size)]

    @cached_property
    @torch.inference_mode(False)
    def blocks(self):
        """Edges from each rank's rows, a CSC for each rank."""
        sources, ptr = self.sources_in_rank_order(), torch.tensor(self.ptr, device=self.shard.indices.device)
        owner = torch.searchsorted(ptr[1:], sources, right=True)
        local = (sources - ptr[owner]).to(self.shard.indices.dtype)
        return self.split_owned(local, owner, [(0, count) for count in self.counts])


class _Ring(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, kv, bias, edge, ring, settings):
        out, lse, block = None, None, kv
        plain = settings.is_additive or edge is not None
        for owner in ring.owners():
            arrived = ring.send_to_next(block, owner, plain) if owner != ring.owners()[-1] else None
            part, part_lse = forward(ring.blocks[owner], settings, *settings.unpack(q, block), bias, edge)
            if out is None:
                out, lse = part.to(accumulation_dtype(part.dtype)), part_lse
            else:
                merge_into(out, lse, part, part_lse)
            block = arrived and arrived()
        out = out.to(q.dtype)
        ctx.save_for_backward(q, kv, bias, edge, out, lse)
        ctx.ring, ctx.settings = ring, settings
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_out):
        (q, kv, bias, edge, out, lse), ring, settings = ctx.saved_tensors, ctx.ring, ctx.settings
        final = grad_out, torch.zeros_like(lse), out, lse
        of_edges = empty_gradients(ctx, bias, edge, 2)
        total_q, own_grad, arrived, block = None, None, None, kv
        plain = settings.is_additive or edge is not None
        for owner in ring.owners():
            next_block = ring.send_to_next(block, owner, plain) if owner != ring.owners()[-1] else None
            piece = ring.blocks[owner]
            grad_q = settings.empty_like(q)
            rows = *settings.unpack(q, block), bias, edge
            backward(piece, settings, *final, *rows, (grad_q, None, None, *of_edges))
            total_q = _plus(total_q, grad_q)
            del grad_q  # before the gradient of the block takes memory
            grad_block = settings.empty_like(block)
            written = *settings.unpack(None, grad_block), None, None
            backward(piece, settings, *final, *rows, written)
            if own_grad is None:
                own_grad = grad_block  # stays here until the other ranks' shares arrive
            else:
                arrived = ring.send_to_next(_plus(grad_block, arrived and arrived()), owner, plain)
            block = next_block and next_block()
        return total_q, _plus(own_grad, arrived and arrived()), *of_edges, None, None


def _plus(total, more):
    return total if more is None else more if total is None else total.add_(more)
