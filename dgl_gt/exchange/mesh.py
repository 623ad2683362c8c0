"""``mesh``: heads are split within a host, and nodes between hosts, whose rows are fetched as with ``halo_kv``."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from itertools import pairwise

import torch

from dgl_gt.comm.group import Comm
from dgl_gt.ops.attention import attend_rows
from dgl_gt.ops.head_minor import in_wire_order
from dgl_gt.ops.split_attention import TwoPieceAttention, split
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.figures.strategies import StrategyRules
from dgl_gt.structure import CSC

from .shard import SendPlan, Shard, begin_pull
from .shard_view import ShardView
from .view import project_own


class Mesh(ShardView):
    """P ranks on G hosts, P = G x M. The M ranks of a host are neighbours; each has H / M heads of all rows there.

    An all-to-all within the host turns rows with all heads into rows of the host with a share of the heads. Rank m of a
    host then fetches keys and values of the host's halo, for its own heads, from rank m of other hosts, and sends results
    home within the host. A row that several parts of a host need comes once.

    ``heads`` is one host of P ranks, whatever the machines: DeepSpeed-Ulysses (Jacobs et al., arXiv 2309.14509), on graphs
    TorchGT (Zhang et al., arXiv 2407.14106). A rank receives about 4C N / P^2 numbers from each other rank, whatever the
    cut; a bias adds E H / P numbers in all. There is nothing to compute while rows travel.
    """

    def __init__(self, shard: Shard, comm: Comm, rules: StrategyRules, overlap: bool = True):
        super().__init__(shard, comm, rules, overlap)
        self.per_host = per_host = rules.ranks_per_host or comm.world_size
        host, self._member = divmod(comm.rank, per_host)
        self._host = range(host * per_host, (host + 1) * per_host)

    def attend(self, h, project, *, bias=None, edge=None, dropout=None, negative_slope=None) -> torch.Tensor:
        h = self.check_inputs(h, bias, edge)
        (q, kv), additive = project_own(project, h, edge), negative_slope is not None
        heads = q.shape[-2]
        if heads % self.per_host:
            raise InputError(
                f"heads is {heads}, which {self.per_host} ranks cannot share evenly; choose a multiple of {self.per_host}, or the "
                "strategy halo"
            )
        q = self._spread(q, self.counts)
        kv = None if kv is None else self._spread(kv, self.counts)
        edges = [part["edges"] for part in self.shard.manifest["per_part"]]
        if bias is not None:
            bias = self._spread(self.comm.agree_on_grad(bias), edges)
        if edge is not None:  # all heads share the features, so every rank of the host needs all of them
            edge = self._exchanged(self.comm.agree_on_grad(edge).repeat(self.per_host, 1), len(edge), edges)
        pieces, plan = self._host_pieces
        offset = self._member * (heads // self.per_host)
        pieces = [replace(each, head_offset=offset) for each in pieces]
        if self.per_host == self.comm.world_size:
            options = {"bias": bias, "edge": edge, "dropout": dropout, "negative_slope": negative_slope}
            return self._home(attend_rows(pieces[0], q, kv, **options))
        both = TwoPieceAttention(pieces, dropout, negative_slope)
        sent = kv if kv is not None else q[..., :-1] if additive else q[:, 1:]
        travelling, restored = in_wire_order(sent, additive or edge is not None)
        finish = begin_pull(self.comm, plan, travelling, self.overlap)
        first = both.attend_first(q, kv, bias, edge)
        return self._home(both.attend_second(first, q, restored(finish()), bias, edge)[0])

    def _home(self, out: torch.Tensor) -> torch.Tensor:
        """Exchange results of this rank's heads, for all rows of the host, for all heads of this rank's rows."""
        mine = self.comm.exchange(out, self._of_host(self.counts), self._of_host([self.num_owned] * len(self.counts)))
        return mine.view(self.per_host, self.num_owned, *mine.shape[1:]).transpose(0, 1).flatten(1, 2)

    def _of_host(self, counts: list[int]) -> list[int]:
        """The counts of ranks of this host, and 0 for others."""
        return [count if rank in self._host else 0 for rank, count in enumerate(counts)]

    def _spread(self, rows: torch.Tensor, counts: list[int]) -> torch.Tensor:
        """Exchange this rank's rows of all heads, (n_i, ..., H[, D]), for all rows of the host of this rank's heads."""
        shares = torch.cat(rows.chunk(self.per_host, max(1, rows.dim() - 2)))
        return self._exchanged(shares, len(rows), counts)

    def _exchanged(self, shares: torch.Tensor, rows: int, counts: list[int]) -> torch.Tensor:
        """Exchange as many rows for each rank of the host for those that each of them has for this one, (n_i, ...)."""
        return self.comm.exchange(shares, self._of_host([rows] * len(counts)), self._of_host(counts))

    @cached_property
    @torch.inference_mode(False)
    def _host_pieces(self) -> tuple[list[CSC], SendPlan]:
        """In-edges of the host's rows, from its rows and from those of other hosts, and which rows other hosts need.

        They come from the structure of its parts; rows of all ranks are numbered in rank order. Each rank attends along
        both pieces with its share of the heads.
        """
        reader, ptr, host = self.shard.reader, self.ptr, self._host
        with torch.device("cpu"):  # whatever torch's default device is
            nodes = [reader.structure(part, "node_ids")["node_ids"] for part in range(reader.parts)]
            parts = [reader.structure(part) for part in host]
            number = torch.empty(ptr[-1], dtype=torch.int64)
            for node_ids, (begin, end) in zip(nodes, pairwise(ptr)):
                number[node_ids[: end - begin]] = torch.arange(begin, end)
            first, last = ptr[host.start], ptr[host.stop]
            sources = torch.cat([number[nodes[part]][each["indices"].long()] for part, each in zip(host, parts)])
            is_remote = (sources < first) | (sources >= last)
            halo = sources[is_remote].unique()
            indices = torch.where(is_remote, last - first + torch.searchsorted(halo, sources), sources - first)
            degrees = torch.cat([each["indptr"].diff() for each in parts])
            indptr = torch.cat([degrees.new_zeros(1), degrees.cumsum(0)])
            edge_ids = torch.cat([each["edge_ids"] for each in parts])
            ranges = [(0, last - first), (last - first, last - first + len(halo))]
            pieces = split(indptr, indices.to(parts[0]["indices"].dtype), edge_ids, is_remote, ranges)
            sent = [self._needed_by(other, parts) for other in range(0, reader.parts, self.per_host)]
            bounds = torch.tensor([ptr[each] for each in range(0, reader.parts + 1, self.per_host)])
            received = torch.searchsorted(halo, bounds).diff().tolist()
        device = self.shard.node_ids.device
        counts = self._per_rank([len(each) for each in sent]), self._per_rank(received)
        return [each.to(device) for each in pieces], SendPlan(torch.cat(sent).to(device), *counts)

    def _per_rank(self, counts: list[int]) -> list[int]:
        """Counts of hosts as counts of ranks, (P,): a host's count belongs to its rank with the same heads as this one."""
        found = [0] * self.comm.world_size
        found[self._member :: self.per_host] = counts
        return found

    def _needed_by(self, other: int, parts: list[dict]) -> torch.Tensor:
        """The rows of this host, counted from its first, that another host needs; ``other`` is that host's first rank."""
        if other == self._host.start:
            return torch.empty(0, dtype=torch.int64)
        found, base = [], self.ptr[self._host.start]
        for part, each in zip(self._host, parts):
            begin, end = each["send_ptr"][other], each["send_ptr"][other + self.per_host]
            found.append(self.ptr[part] - base + each["send_rows"][begin:end].long())
        return torch.cat(found).unique()
