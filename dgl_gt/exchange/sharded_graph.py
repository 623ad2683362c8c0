"""ShardedGraph: one rank's part of a graph, and how it reaches the others."""

from __future__ import annotations

from functools import cached_property

import torch

from partition.errors import InputError
from partition.manifest import read_manifest

from ..comm import Comm
from ..shard import Shard, read_shard
from .halo import Halo, pull


class ShardedGraph:
    """One rank's part of a partitioned graph; layers take it in place of a ``DGLGraph``. Made by :func:`load`.

    Attributes
    ----------
    ndata : dict of str to Tensor, (N_owned, ...)
        Node data of the owned rows.
    edata : dict of str to Tensor, (E, ...)
        Edge data of this part's edges, in the order in which layers expect ``attn_bias``.
    node_ids : Tensor, int64, (N_owned,)
        The user's ids of the owned rows.
    edge_ids : Tensor, int64, (E,)
        The user's ids of the edges.
    manifest : dict
        The whole partition: ``nodes``, ``edges``, ``parts``, ``source``, ``quality`` and more, see docs/format.md.
    comm : Comm
        The ranks; ``comm.rank`` is this part.
    strategy : Strategy
    """

    def __init__(self, shard: Shard, comm: Comm):
        self._shard = shard
        self.comm = comm
        self.strategy = Halo(shard, comm)
        self.ndata = shard.node_data
        self.edata = shard.edge_data
        self.node_ids = shard.node_ids[: shard.num_owned]
        self.edge_ids = shard.edge_ids
        self.manifest = shard.manifest

    def __repr__(self):
        shard, whole = self._shard, self.manifest
        return (
            f"ShardedGraph(part {shard.part} of {whole['parts']}: {shard.num_owned} owned and "
            f"{shard.num_held - shard.num_owned} halo of {whole['nodes']} nodes, "
            f"{shard.csc.num_edges} of {whole['edges']} edges, strategy='halo')"
        )

    @property
    def device(self) -> torch.device:
        return self.node_ids.device

    @cached_property
    def block(self):
        """This part as a DGL block (sources: held rows, destinations: owned rows), made at first use; needs DGL.

        With :meth:`pull`, DGL convolutions that take blocks and read in-edges alone train full-graph across ranks:
        ``conv(sg.block, sg.pull(h))``.
        """
        from ..dgl_graph import to_block

        return to_block(self._shard.csc)

    def pull(self, x: torch.Tensor) -> torch.Tensor:
        """The differentiable exchange by itself: owned rows in, held rows out, (N_owned, ...) -> (N_held, ...).

        Owned rows come first. The backward pass sums the gradients of halo rows at their owners. Every rank calls it.
        """
        return pull(self._shard, self.comm, x)

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        """Rows of all ranks in the user's node order, (N_owned, ...) -> (N, ...), on every rank; no gradient."""
        self._shard.check_rows(x)
        order = torch.cat(self.comm.gather_rows(self.node_ids))
        rows = torch.cat(self.comm.gather_rows(x.detach()))
        return torch.empty_like(rows).index_copy_(0, order, rows)


def load(directory, group=None, device=None) -> ShardedGraph:
    """Load this rank's part of a shard directory; every rank of the group calls it.

    Parameters
    ----------
    directory : path
        Made by ``dgl-gt partition``.
    group : torch.distributed.ProcessGroup, optional
        As many ranks as there are parts; by default all ranks. One part needs no torch.distributed.
    device : torch.device or str, optional
        By default the group's: the current GPU with nccl, else the CPU.

    Raises
    ------
    InputError
        Damaged shards, or a number of ranks other than the number of parts; on every rank if on any.
    """
    comm = Comm(group)
    shard = error = None
    try:
        parts = read_manifest(directory)["parts"]
        if parts != comm.world_size:
            raise InputError(
                f"{directory} has {parts} parts but there are {comm.world_size} ranks; start {parts} ranks "
                f"(torchrun --nproc-per-node {parts}, then torch.distributed.init_process_group) or partition again"
            )
        shard = read_shard(directory, comm.rank)
    except InputError as caught:
        error = caught
    comm.raise_together(error)
    return ShardedGraph(shard.to(comm.device if device is None else device), comm)
