"""``mesh``: heads are split within a host, and nodes between hosts, whose rows are fetched as with ``halo_kv``."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import torch

from dgl_gt.comm.group import Comm
from dgl_gt.ops.attention import attend_rows
from dgl_gt.ops.head_minor import in_wire_order
from dgl_gt.ops.split_attention import TwoPieceAttention, split
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.figures.strategies import StrategyRules
from dgl_gt.structure import CSC

from .merged_parts import MergedParts
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

        Each rank attends along both pieces with its share of the heads.
        """
        hosts = MergedParts(self.shard.reader, [*range(0, self.comm.world_size + 1, self.per_host)])
        host, device = self._host.start // self.per_host, self.shard.node_ids.device
        with torch.device("cpu"):  # whatever torch's default device is
            arrays, (owned, held) = hosts.structure(host), hosts.rows(host)
            indptr, indices, edge_ids = (arrays[name] for name in ("indptr", "indices", "edge_ids"))
            pieces = split(indptr, indices, edge_ids, indices >= owned, [(0, owned), (owned, held)])
            counts = [self._per_rank(arrays[name].diff().tolist()) for name in ("send_ptr", "recv_ptr")]
        return [each.to(device) for each in pieces], SendPlan(arrays["send_rows"].to(device), *counts)

    def _per_rank(self, counts: list[int]) -> list[int]:
        """Counts of hosts as counts of ranks, (P,): a host's count belongs to its rank with the same heads as this one."""
        found = [0] * self.comm.world_size
        found[self._member :: self.per_host] = counts
        return found
