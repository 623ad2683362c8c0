"""``gather``: nodes are split; each layer, every rank gathers the keys and values of all nodes."""

from __future__ import annotations

from functools import cached_property

import torch

from dgl_gt.ops.head_minor import in_wire_order
from dgl_gt.ops.split_attention import TwoPieceAttention, split

from .shard_view import ShardView


class Gather(ShardView):
    """All-gather of K and V (Lin, Madduri, Kandemir, arXiv 2604.16715), whatever the quality of the cut.

    Every rank receives 2C numbers for each row of all other ranks, and sends its own rows to each of them. It holds
    2C N numbers, and as many again for gradients. Attention over the edges from owned rows is computed while rows
    travel.
    """

    def attend(self, h, project, *, bias=None, dropout=None, negative_slope=None) -> torch.Tensor:
        """See :meth:`dgl_gt.exchange.view.View.attend`."""
        h = self.check_inputs(h, bias)
        both = TwoPieceAttention(self._pieces, dropout, negative_slope)
        q, kv = project(h, "q"), project(h, "kv")
        travelling, restored = in_wire_order(kv, negative_slope is not None)
        finish = self.comm.finisher(self.comm.begin_gather(travelling, self.counts), self.overlap)
        first = both.attend_first(q, kv, bias)
        return both.attend_second(first, q, restored(finish()), bias)[0]

    @cached_property
    @torch.inference_mode(False)
    def _pieces(self):
        """Edges from owned rows, and edges from all other rows, with sources numbered in rank order."""
        shard, owned = self.shard, self.num_owned
        edges = shard.edges[0]
        indices = shard.indices[:edges]
        is_remote = indices >= owned
        begin = self.ptr[self.comm.rank]
        sources = shard.rank_order.to(indices.dtype)[indices.long()]
        ranges = [(begin, begin + owned), (0, self.ptr[-1])]
        return split(shard.indptr[: owned + 1], sources, shard.edge_ids[:edges], is_remote, ranges)
