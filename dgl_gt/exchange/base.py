"""What the strategies that run on a shard have in common."""

from __future__ import annotations

from itertools import pairwise

import torch

from dgl_gt.comm.group import Comm
from dgl_gt.comm.transfer import kept_exchanges, recorded

from .shard import Shard


class OnRanks:
    """A strategy's shard and ranks.

    Parameters
    ----------
    shard : Shard
    comm : Comm
        A group of as many ranks as there are parts; this rank holds part ``comm.rank``.
    overlap : bool
        Whether to compute while rows travel, where the strategy can.
    """

    def __init__(self, shard: Shard, comm: Comm, overlap: bool = True):
        self.shard, self.comm, self.overlap = shard, comm, overlap
        self.num_owned = shard.num_owned
        self.ptr = shard.manifest["ptr"]

    @property
    def node_ids(self) -> torch.Tensor:
        """The user's ids of the rows that ``attend`` takes."""
        return self.shard.node_ids[: self.num_owned]

    def input_rows(self, x: torch.Tensor) -> torch.Tensor:
        """The rows themselves, one for each owned node."""
        self.shard.check_rows(x)
        return x

    def source_rows(self, h: torch.Tensor) -> torch.Tensor:
        """The rows that ``attend`` takes, made of those that a layer was given: here the same."""
        return h

    def agreed(self, seeds: torch.Tensor) -> torch.Tensor:
        """Rank 0's seeds."""
        return of_rank_0(self.comm, seeds)

    def kept_exchanges(self):
        """Contexts for a checkpoint, see :func:`dgl_gt.comm.group.kept_exchanges`."""
        return kept_exchanges(self.comm)

    @property
    def counts(self) -> list[int]:
        """Owned rows of each rank."""
        return [end - begin for begin, end in pairwise(self.ptr)]

    def places(self) -> torch.Tensor:
        """Place of each held row among the rows of all ranks in rank order, int64 (held,); a collective."""
        mail, begin = self.shard.mail(), self.ptr[self.comm.rank]
        owned = torch.arange(begin, begin + self.num_owned, device=mail.send_rows.device)
        copies = self.comm.start(owned[mail.send_rows], mail.send_counts, mail.recv_counts).wait()
        return torch.cat([owned, copies])

    def checked(self, h: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """``h``, recorded by autograd on every rank alike; raise ``ValueError`` unless there is a row for each owned
        node, and of bias for each edge of the part."""
        self.shard.check_rows(h)
        self.shard.check_bias(bias)
        return recorded(h) if self.comm.world_size > 1 else h


def of_rank_0(comm: Comm, values: torch.Tensor) -> torch.Tensor:
    """Rank 0's values, on every rank."""
    return comm.all_reduce(values if comm.rank == 0 else torch.zeros_like(values))
