"""What the strategies that run on a shard have in common."""

from __future__ import annotations

from itertools import pairwise

import torch

from dgl_gt.comm.group import Comm
from dgl_gt.comm.tape import kept_exchanges
from dgl_gt.comm.transfer import tracked

from .local import add_ends
from .protocol import Strategy
from .pull import pull
from .shard import Shard


class ShardStrategy(Strategy):
    """Base class of the strategies that run on a shard, which is part ``comm.rank`` of as many as there are ranks.

    ``overlap`` says whether to compute while rows travel, where the strategy can.
    """

    def __init__(self, shard: Shard, comm: Comm, overlap: bool = True):
        self.shard, self.comm, self.overlap = shard, comm, overlap
        self.num_owned = self.num_dst = shard.num_owned
        self.node_ids = shard.node_ids[: shard.num_owned]
        self.ptr = shard.manifest["ptr"]

    def input_rows(self, x: torch.Tensor) -> torch.Tensor:
        """Return the rows themselves, one for each owned node."""
        self.shard.check_rows(x)
        return x

    def in_degrees(self) -> torch.Tensor:
        """Return the in-degrees in the whole graph of the rows of the result."""
        return self.shard.degrees[: self.num_dst, 0]

    def out_degrees(self) -> torch.Tensor:
        """Return the out-degrees in the whole graph of the rows that attend takes."""
        return self.shard.degrees[: len(self.node_ids), 1]

    def add_ends(self, of_dst: torch.Tensor, of_src: torch.Tensor) -> torch.Tensor:
        """Return the sums for the edges of this part; rows of the ends that other ranks own are fetched."""
        if self.shard.cut == "vertex":
            of_dst, of_src = self._held(torch.cat([of_dst, of_src], 1)).chunk(2, 1)
        else:
            of_src = self._held(of_src)
        return add_ends(self.shard.csc(), of_dst, of_src)

    def _held(self, rows: torch.Tensor) -> torch.Tensor:
        return pull(self.shard, self.comm, tracked(rows))

    def sum_over_ranks(self, values: torch.Tensor) -> torch.Tensor:
        """Return the sum of all ranks' values; see :meth:`dgl_gt.comm.group.Comm.all_reduce_sum`."""
        return self.comm.all_reduce_sum(values) if self.comm.world_size > 1 else values

    def stack_over_ranks(self, values: torch.Tensor) -> torch.Tensor:
        """Return every rank's values one after the other, by one sum of which each rank fills its own row."""
        stacked = values.new_zeros((self.comm.world_size, *values.shape))
        stacked[self.comm.rank] = values.detach()
        return self.comm.all_reduce(stacked) if self.comm.world_size > 1 else stacked

    def broadcast(self, seeds: torch.Tensor) -> torch.Tensor:
        """Return rank 0's seeds."""
        return self.comm.broadcast(seeds)

    def kept_exchanges(self):
        """Return contexts for a checkpoint, see :func:`dgl_gt.comm.tape.kept_exchanges`."""
        return kept_exchanges(self.comm)

    @property
    def counts(self) -> list[int]:
        """Number of owned rows of each rank."""
        return [end - begin for begin, end in pairwise(self.ptr)]

    def check_inputs(self, h: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Return ``h``, tracked by autograd on every rank; raise ``ValueError`` if it or the bias does not fit.

        There must be a row of ``h`` for each owned node, and a row of the bias for each edge of the part.
        """
        self.shard.check_rows(h)
        self.shard.check_bias(bias)
        return tracked(h) if self.comm.world_size > 1 else h
