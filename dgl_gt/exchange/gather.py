"""``gather``: nodes are split; each layer, every rank gathers the keys and values of all nodes."""

from __future__ import annotations

from functools import cached_property

import torch

from dgl_gt.ops.split_attention import Joint, split

from .base import OnRanks


class Gather(OnRanks):
    """All-gather of K and V (Lin, Madduri, Kandemir, arXiv 2604.16715), whatever the cut.

    Every rank receives 2C a row of all others, sends its own to each, and holds 2C N, and as much again for gradients.
    Edges from owned rows are attended meanwhile.
    """

    name = "gather"

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self._places = self.places()

    def attend(self, h, project, *, bias=None, dropout=None) -> torch.Tensor:
        """See :meth:`dgl_gt.exchange.protocol.Strategy.attend`."""
        h = self.checked(h, bias)
        joint = Joint(self._pieces, dropout)
        q, kv = project(h, "q"), project(h, "kv")
        begun = self.comm.begin_gather(kv, self.counts)
        everything = None if self.overlap else self.comm.finish(begun)
        first = joint.first(q, kv, bias)
        return joint.rest(first, q, self.comm.finish(begun) if self.overlap else everything, bias)[0]

    @cached_property
    @torch.inference_mode(False)
    def _pieces(self):
        """Edges from owned rows, and edges from all others, by their places among all rows."""
        shard, owned = self.shard, self.num_owned
        edges = shard.edges[0]
        indices = shard.indices[:edges]
        is_remote = indices >= owned
        begin = self.ptr[self.comm.rank]
        places = self._places.to(indices.dtype)[indices.long()]
        ranges = [(begin, begin + owned), (0, self.ptr[-1])]
        return split(shard.indptr[: owned + 1], places, shard.edge_ids[:edges], is_remote, ranges)
