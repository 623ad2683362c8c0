"""``halo``: nodes are split; each layer pulls the rows of its halo from their owners, and no others."""

from __future__ import annotations

from functools import cached_property

import torch

from dgl_gt.comm.group import Comm
from dgl_gt.ops.attention import sparse_attention
from dgl_gt.ops.split_attention import Joint, split
from partition.predict.model import Model
from partition.predict.step_time import Speeds, halo_sends
from partition.shards.counts import read_figures

from .base import OnRanks
from .shard import Mail, Shard


class Halo(OnRanks):
    """Send h (C wide) and project K and V of the halo on arrival, or project first and send those (2C).

    One exchange a layer and direction. While rows travel, edges from owned rows are attended. In backward the halo's
    gradients are computed first, and travel home while those of the other edges are computed.

    Parameters
    ----------
    shard, comm, overlap
        See :class:`OnRanks`.
    sends : {"halo_h", "halo_kv"}, optional
        By default what :func:`partition.predict.step_time.halo_sends` says, for the width at hand.
    speeds : Speeds
        Of the ranks and their links, for that.
    """

    def __init__(self, shard: Shard, comm: Comm, overlap: bool = True, sends: str | None = None, speeds=Speeds()):
        super().__init__(shard, comm, overlap)
        self._sends, self._speeds, self._by_width = sends, speeds, {}
        self.name = sends or "halo"

    def attend(self, h, project, *, bias=None, dropout=None) -> torch.Tensor:
        """See :meth:`dgl_gt.exchange.protocol.Strategy.attend`."""
        h = self.checked(h, bias)
        if self.comm.world_size == 1:
            p, seed = dropout or (0.0, None)
            return sparse_attention(self.shard.csc(), project(h, "qkv"), bias=bias, dropout_p=p, seed=seed)
        joint = Joint(self._pieces, dropout)
        if self._choose(h) == "halo_kv":
            kv = project(h, "kv")
            begun = begin(self.comm, self.shard.mail(), kv, self.overlap)
            q = project(h, "q")
        else:
            begun, kv = begin(self.comm, self.shard.mail(), h, self.overlap), None
            q = project(h, "qkv")
        first = joint.first(q, kv, bias)
        halo = begun()
        return joint.rest(first, q, halo if kv is not None else project(halo, "kv"), bias)[0]

    @cached_property
    @torch.inference_mode(False)
    def _pieces(self):
        """Edges from owned rows, and edges from the halo."""
        shard, owned = self.shard, self.num_owned
        edges = shard.edges[0]
        indices = shard.indices[:edges]
        ranges = [(0, owned), (owned, shard.num_held)]
        return split(shard.indptr[: owned + 1], indices, shard.edge_ids[:edges], indices >= owned, ranges)

    def _choose(self, h: torch.Tensor) -> str:
        key = h.shape[1], h.element_size()
        if key not in self._by_width:
            model = Model(hidden=key[0], heads=1, itemsize=key[1])
            self._by_width[key] = self._sends or halo_sends(read_figures(self.shard.manifest), model, self._speeds)
            self.name = self._by_width[key]
        return self._by_width[key]


def begin(comm: Comm, mail: Mail, x: torch.Tensor, overlap: bool):
    """Start to send owned rows to where copies are held; return a function that gives the copies, (recv, ...)."""
    begun = comm.begin(x.index_select(0, mail.send_rows), mail.send_counts, mail.recv_counts)
    if overlap:
        return lambda: mail.arranged(comm.finish(begun))
    copies = mail.arranged(comm.finish(begun))
    return lambda: copies


def pull(shard: Shard, comm: Comm, x: torch.Tensor, hops: int = 1) -> torch.Tensor:
    """Owned rows in, held rows out: (owned, ...) -> (held, ...). Gradients of copies are summed at their owners."""
    shard.check_rows(x)
    if comm.world_size == 1:
        return x
    return torch.cat([x, begin(comm, shard.mail(hops), x, overlap=False)()])
