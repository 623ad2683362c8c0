"""``halo`` of several hops: whole layers are replicated on halo rows, and ranks exchange every r layers only."""

from __future__ import annotations

import torch

from dgl_gt.comm.group import Comm
from dgl_gt.comm.transfer import kept_exchanges, recorded
from dgl_gt.ops.attention import sparse_attention

from .base import of_rank_0
from .halo import Halo, begin, pull
from .local import leading_rows
from .shard import Shard


class DeepHalo:
    """What one layer sees: destinations are the owned rows and ``inner`` hops of halo, sources those of one hop more.

    Parameters
    ----------
    shard : Shard
        Of more than ``inner`` hops.
    comm : Comm
    inner : int
        Hops whose rows later layers still need.
    pulls : bool
        Whether the layer is given owned rows alone, and copies of h travel first; else it is given all sources.
    """

    name = "halo_h"

    def __init__(self, shard: Shard, comm: Comm, inner: int, pulls: bool):
        self.shard, self.comm, self.inner, self.pulls = shard, comm, inner, pulls
        self.num_owned = shard.rows[inner]
        self.node_ids = shard.node_ids[: shard.rows[inner + 1]]

    def kept_exchanges(self):
        """Contexts for a checkpoint, see :func:`dgl_gt.comm.group.kept_exchanges`."""
        return kept_exchanges(self.comm)

    def input_rows(self, x: torch.Tensor) -> torch.Tensor:
        """The owned rows, or those of all sources."""
        if self.pulls:
            self.shard.check_rows(x)
            return x
        if len(x) < len(self.node_ids):
            raise ValueError(
                f"got {len(x)} rows, but this layer reads {len(self.node_ids)}, owned and halo: pass those of "
                "sg.srcdata to the first layer, and to each other what the layer before it gave"
            )
        return leading_rows(x, len(self.node_ids))

    def source_rows(self, h: torch.Tensor) -> torch.Tensor:
        """The rows of all sources: with the halo's, where the layer is given owned rows alone."""
        return pull(self.shard, self.comm, recorded(h), self.inner + 1) if self.pulls else self.input_rows(h)

    def agreed(self, seeds: torch.Tensor) -> torch.Tensor:
        """Rank 0's seeds."""
        return of_rank_0(self.comm, seeds)

    def attend(self, h, project, *, bias=None, dropout=None) -> torch.Tensor:
        """See :meth:`dgl_gt.exchange.protocol.Strategy.attend`; ``h`` has the rows of all sources.

        ``bias`` is of the part's own edges; that of replicated edges is brought from where they are owned.
        """
        self.shard.check_bias(bias)
        if len(h) != len(self.node_ids):
            raise ValueError(
                f"got {len(h)} rows, but attention here reads {len(self.node_ids)}, owned and halo: use a "
                "GraphTransformerLayer, or pass what source_rows gives"
            )
        p, seed = dropout or (0.0, None)
        if bias is not None and self.inner and self.comm.world_size > 1:
            bias = self.comm.agree_on_grad(bias)
            bias = torch.cat([bias, begin(self.comm, self.shard.edge_mail(self.inner), bias, overlap=False)()])
        q, kv = project(leading_rows(h, self.num_owned), "q"), project(h, "kv")
        return sparse_attention(self.shard.csc(self.inner), q, kv, bias=bias, dropout_p=p, seed=seed)


def blocks(halo: Halo, layers: int, from_held: bool) -> list:
    """A view for each layer, ``depth`` layers between exchanges; ``from_held``: the first exchange is spared.

    A layer alone behind an exchange reads one hop: there ``halo`` itself attends, while the rows travel.
    """
    shard, comm, views = halo.shard, halo.comm, []
    for start in range(0, layers, shard.depth):
        group = min(shard.depth, layers - start)
        pulls = not (from_held and start == 0)
        if group == 1 and pulls:
            views.append(halo)
        else:
            views += [DeepHalo(shard, comm, inner, pulls and inner == group - 1) for inner in reversed(range(group))]
    return views
