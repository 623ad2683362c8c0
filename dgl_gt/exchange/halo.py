"""``halo``: nodes are split; each layer pulls the rows of its halo from their owners, and no others."""

from __future__ import annotations

import torch

from ..comm import Comm
from ..ops.attention import sparse_attention
from ..shard import Shard


class Halo:
    """Send h (C wide), project K and V of owned and halo rows on arrival.

    One exchange a layer and direction. Received forward: C x halo rows; backward: C x rows sent.

    Parameters
    ----------
    shard : Shard
    comm : Comm
        A group of as many ranks as there are parts; this rank holds part ``comm.rank``.
    """

    def __init__(self, shard: Shard, comm: Comm):
        self._shard, self._comm = shard, comm
        self.num_owned = shard.num_owned

    def attend(self, h, project, *, bias=None, dropout=None) -> torch.Tensor:
        """See :meth:`dgl_gt.exchange.strategy.Strategy.attend`."""
        dropout_p, seed = dropout or (0.0, None)
        kv = project(pull(self._shard, self._comm, h), "kv")
        q = project(h, "q")
        return sparse_attention(self._shard.csc, q, kv, bias=bias, dropout_p=dropout_p, seed=seed)


def pull(shard: Shard, comm: Comm, x: torch.Tensor) -> torch.Tensor:
    """Owned rows in, held rows out: (owned, ...) -> (held, ...). Gradients of halo rows are summed at their owners."""
    shard.check_rows(x)
    if comm.world_size == 1:
        return x
    halo = comm.exchange(x.index_select(0, shard.send_rows), shard.send_counts, shard.recv_counts)
    return torch.cat([x, halo])
