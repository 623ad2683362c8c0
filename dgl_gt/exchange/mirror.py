"""``mirror``: edges are split; masters send rows to mirrors, and mirrors' partial results come home and merge."""

from __future__ import annotations

from functools import cached_property

import torch

from dgl_gt.ops.attention import sparse_attention
from dgl_gt.ops.merge import merge_rows
from dgl_gt.ops.split_attention import Joint, split
from dgl_gt.structure import CSC

from .base import OnRanks
from .halo import begin
from .shard import Mail


class Mirror(OnRanks):
    """Attention on a vertex cut: C to each mirror, and C + H back from each with in-edges.

    Edges between owned rows are attended while rows travel to mirrors, and edges from mirrors to owned rows while
    partial results travel home.
    """

    name = "mirror"

    def attend(self, h, project, *, bias=None, dropout=None) -> torch.Tensor:
        """See :meth:`dgl_gt.exchange.protocol.Strategy.attend`."""
        h = self.checked(h, bias)
        begun = begin(self.comm, self.shard.mail(), h, self.overlap)
        joint = Joint(self._to_owned, dropout)
        q, kv = project(h, "q"), project(h, "kv")
        first = joint.first(q, kv, bias)
        mirrors = begun()
        mirror_kv = project(mirrors, "kv")
        to_mirrors, positions, slots = self._to_mirrors
        p, seed = dropout or (0.0, None)
        part, part_lse = sparse_attention(
            to_mirrors,
            project(mirrors.index_select(0, slots), "q"),
            torch.cat([kv, mirror_kv]),
            bias=None if bias is None else bias.index_select(0, positions),
            dropout_p=p,
            seed=seed,
            return_lse=True,
        )
        home = self._home
        parts = [self.comm.begin(x, home.send_counts, home.recv_counts) for x in (part, part_lse)]
        if not self.overlap:
            parts = [self.comm.finish(each) for each in parts]
        out, lse = joint.rest(first, q, mirror_kv, bias)
        if self.overlap:
            parts = [self.comm.finish(each) for each in parts]
        return merge_rows(out, lse, *parts, home.order, home.recv_counts)

    @cached_property
    @torch.inference_mode(False)
    def _to_owned(self) -> list[CSC]:
        """Edges into owned rows, from owned rows and from mirrors."""
        shard, owned = self.shard, self.num_owned
        edges = int(shard.indptr[owned])
        indices = shard.indices[:edges]
        ranges = [(0, owned), (owned, shard.num_held)]
        return split(shard.indptr[: owned + 1], indices, shard.edge_ids[:edges], indices >= owned, ranges)

    @cached_property
    @torch.inference_mode(False)
    def _to_mirrors(self):
        """Edges into mirrors that have any, from all held rows; their positions; and those mirrors' slots."""
        shard, owned = self.shard, self.num_owned
        begin = int(shard.indptr[owned])
        degrees = shard.indptr[owned:].diff()
        slots = torch.nonzero(degrees)[:, 0]
        counts = degrees[slots]
        ends = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        keys = shard.edge_ids[begin:]
        csc = CSC.build(ends, shard.indices[begin:], shard.num_held, global_edge_ids=keys)
        positions = torch.arange(begin, shard.edges[0], device=keys.device)
        return csc, positions, slots

    @cached_property
    @torch.inference_mode(False)
    def _home(self) -> Mail:
        """Partial results on their way to masters: ``order`` is the owned row that each is for."""
        shard, mail = self.shard, self.shard.mail()
        slots = self._to_mirrors[2].cpu()
        send_counts = torch.searchsorted(slots, shard.recv_ptr[0]).diff().tolist()
        returning = shard.returning
        recv_counts = [int(each.sum()) for each in returning.split(mail.send_counts)]
        rows = mail.send_rows[returning.to(mail.send_rows.device)]
        return Mail(slots, send_counts, recv_counts, rows)
