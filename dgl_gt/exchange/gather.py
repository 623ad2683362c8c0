"""``gather``: nodes are split; each layer, every rank gathers the keys and values of all nodes."""

from __future__ import annotations

from functools import cached_property

import torch

from dgl_gt.comm.transfer import AllGather, Begin
from dgl_gt.ops.head_minor import in_wire_order
from dgl_gt.ops.split_attention import TwoPieceAttention

from .shard_view import ShardView


class Gather(ShardView):
    """All-gather of K and V (Lin, Madduri, Kandemir, arXiv 2604.16715), whatever the quality of the cut.

    Every rank receives 2C numbers for each row of all other ranks, and sends its own rows to each of them. It holds
    2C N numbers, and as many again for gradients. Attention over the edges from owned rows is computed while rows
    travel.
    """

    def attend(self, h, project, *, bias=None, edge=None, dropout=None, negative_slope=None) -> torch.Tensor:
        h = self.check_inputs(h, bias, edge)
        both = TwoPieceAttention(self.pieces, dropout, negative_slope)
        q, kv = project(h, "q"), project(h, "kv")
        travelling, restored = in_wire_order(kv, negative_slope is not None or edge is not None)
        gathering = AllGather(self.comm, self.counts)
        finish = self.comm.finisher((Begin.apply(travelling, gathering), gathering), self.overlap)
        first = both.attend_first(q, kv, bias, edge)
        return both.attend_second(first, q, restored(finish()), bias, edge)[0]

    @cached_property
    @torch.inference_mode(False)
    def pieces(self):
        """Edges from owned rows, and edges from all other rows, with sources numbered in rank order."""
        begin, end = self.ptr[self.comm.rank : self.comm.rank + 2]
        is_remote = self.shard.indices[: self.shard.edges[0]] >= self.num_owned
        sources = self.sources_in_rank_order().to(self.shard.indices.dtype)
        return self.split_owned(sources, is_remote, [(begin, end), (0, self.ptr[-1])])
