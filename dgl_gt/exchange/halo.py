"""``halo``: nodes are split; each layer fetches the rows of its halo from their owners, and no others."""

from __future__ import annotations

from functools import cached_property

import torch

from dgl_gt.ops.attention import attend_rows
from dgl_gt.ops.head_minor import in_wire_order
from dgl_gt.ops.split_attention import TwoPieceAttention, split

from .shard_view import ShardView


class Halo(ShardView):
    """Attention on an edge cut, in one of two forms.

    ``halo_h`` sends h, which is C wide, and projects K and V of the halo on arrival. ``halo_kv`` projects first, and
    sends K and V, which are 2C wide. There is one exchange per layer and direction. While rows travel, attention
    over the edges from owned rows is computed. Backward computes the gradients of the halo first, and they travel home while the gradients
    of the other edges are computed.
    """

    def attend(self, h, project, *, bias=None, dropout=None, negative_slope=None) -> torch.Tensor:
        """See :meth:`dgl_gt.exchange.view.View.attend`."""
        h = self.check_inputs(h, bias)
        if self.comm.world_size == 1:
            rows = project(h, "qkv")
            return attend_rows(self.shard.csc(), rows, bias=bias, dropout=dropout, negative_slope=negative_slope)
        both = TwoPieceAttention(self._pieces, dropout, negative_slope, self.score_offset)
        if self.rules.moves_keys:
            kv = project(h, "kv")
            travelling, restored = in_wire_order(kv, negative_slope is not None)
            finish = self.begin_pull(travelling)
            q = project(h, "q")
        else:
            finish, kv = self.begin_pull(h), None
            q = project(h, "qkv")
        first = both.attend_first(q, kv, bias)
        halo = finish()
        return both.attend_second(first, q, project(halo, "kv") if kv is None else restored(halo), bias)[0]

    @cached_property
    @torch.inference_mode(False)
    def _pieces(self):
        """Edges from owned rows, and edges from the halo."""
        shard, owned = self.shard, self.num_owned
        edges = shard.edges[0]
        indices = shard.indices[:edges]
        ranges = [(0, owned), (owned, shard.num_held)]
        return split(shard.indptr[: owned + 1], indices, shard.edge_ids[:edges], indices >= owned, ranges)
