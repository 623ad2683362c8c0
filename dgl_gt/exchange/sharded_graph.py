"""ShardedGraph: one rank's part of a graph, and how it reaches the others."""

from __future__ import annotations

from functools import cached_property

import torch

from partition.console import counted
from partition.cost import CHOICES
from partition.errors import InputError
from partition.manifest import read_manifest, verify
from partition.step_time import Speeds

from ..comm import Comm
from ..shard import Shard, read_shard
from ..transfer import kept_exchanges
from .deep import blocks
from .gather import Gather
from .halo import Halo, pull
from .heads import Heads
from .local import Local
from .mirror import Mirror
from .ring import Ring


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
    depth : int
        Layers between exchanges, see :meth:`blocks`.
    """

    def __init__(self, shard: Shard, comm: Comm, strategy):
        self._shard = shard
        self.comm = comm
        self.strategy = strategy
        self.depth = shard.depth
        self.ndata = shard.node_data
        self.edata = shard.edge_data
        self.node_ids = shard.node_ids[: shard.num_owned]
        self.edge_ids = shard.edge_ids[: shard.edges[0]]
        self.manifest = shard.manifest

    def __repr__(self):
        shard, whole = self._shard, self.manifest
        return (
            f"ShardedGraph(part {shard.part} of {whole['parts']}: {shard.num_owned} owned and "
            f"{shard.num_held - shard.num_owned} held besides, of {whole['nodes']} nodes, "
            f"{shard.edges[0]} of {whole['edges']} edges, strategy={self.strategy.name!r}, depth={self.depth})"
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

        if self._shard.cut == "vertex":
            raise InputError(
                "a vertex cut has no block: in-edges of one node lie on several ranks; partition with --cut edge"
            )
        return to_block(self._shard.csc())

    @cached_property
    def srcdata(self) -> dict[str, torch.Tensor]:
        """Node data of all held rows, owned and of ``depth`` hops, (N_held, ...); read from disk at first use."""
        return self._shard.held_node_data(self.depth)

    def blocks(self, layers: int, from_held: bool = False) -> list:
        """What each of so many layers sees, for a model that takes a list of blocks.

        With a depth of 1 that is the strategy at each. With a halo of r hops ranks exchange before every r-th layer
        only, which computes halo rows as well as its own, as many as the layers until the next exchange need.

        Parameters
        ----------
        layers : int
        from_held : bool
            The first layer is given the rows of :attr:`srcdata`, made of features that the shards hold, instead of
            owned rows: that spares the first exchange of a deep halo. Same on all ranks.
        """
        if self.depth == 1:
            return [self.strategy] * layers
        return blocks(self.strategy, layers, from_held)

    def kept_exchanges(self):
        """For ``torch.utils.checkpoint.checkpoint(layer, ..., use_reentrant=False, context_fn=sg.kept_exchanges)``:
        what the layer's exchanges brought is kept, where they would be repeated when backward computes it again."""
        return kept_exchanges(self.comm)

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


def load(
    directory,
    strategy: str | None = None,
    depth: int = 1,
    group=None,
    device=None,
    *,
    overlap: bool = True,
    speeds: Speeds = Speeds(),
) -> ShardedGraph:
    """Load this rank's part of a shard directory; every rank of the group calls it, with the same arguments.

    Parameters
    ----------
    directory : path
        Made by ``dgl-gt partition``.
    strategy : str, optional
        How attention crosses ranks: ``halo`` (sends h or K,V, as :func:`partition.step_time.halo_sends` says;
        ``halo_h`` and ``halo_kv`` insist), ``gather``, ``heads`` or ``ring`` on an edge cut, ``mirror`` on a vertex
        cut, ``local`` on one part. By default ``halo`` or ``mirror``. All give the same numbers.
    depth : int
        Layers between exchanges, for ``halo`` on shards with as many hops of halo.
    group : torch.distributed.ProcessGroup, optional
        As many ranks as there are parts; by default all ranks. One part needs no torch.distributed.
    device : torch.device or str, optional
        By default the group's: the current GPU with nccl, else the CPU.
    overlap : bool
        Whether to compute while rows travel.
    speeds : Speeds
        Of ranks and links, for what ``halo`` sends.

    Raises
    ------
    InputError
        Damaged shards, a number of ranks other than the number of parts, a strategy that does not fit, or ranks that
        disagree; on every rank if on any.
    """
    comm = Comm(group)
    with comm.together():
        return _load(directory, strategy, depth, comm, device, overlap, speeds)


def _load(directory, strategy, depth: int, comm: Comm, device, overlap: bool, speeds: Speeds) -> ShardedGraph:
    shard = error = None
    try:
        manifest = read_manifest(directory)
        strategy = check_choice(directory, manifest, strategy, depth)
        if (parts := manifest["parts"]) != comm.world_size:
            raise InputError(
                f"{directory} has {counted(parts, 'part')}, but the number of ranks is {comm.world_size}; start "
                f"{parts} (torchrun --nproc-per-node {parts}, then torch.distributed.init_process_group), or partition "
                "again"
            )
        shard = read_shard(directory, comm.rank, depth)
        if strategy == "heads":  # which reads the structure of all
            verify(directory, manifest, range(manifest["parts"]))
    except InputError as caught:
        error = caught
    comm.raise_together(error)
    comm.check_agreement(
        {
            "shards": manifest["checksum"],
            "strategy": strategy,
            "depth": depth,
            "overlap": overlap,
            "speeds": vars(speeds),
        }
    )
    shard = shard.to(comm.device if device is None else device)
    graph = ShardedGraph(shard, comm, _make(strategy, shard, comm, overlap, speeds))
    comm.reset_counters()
    return graph


def _make(strategy: str, shard: Shard, comm: Comm, overlap: bool, speeds: Speeds):
    match strategy:
        case "local":
            return Local(shard.csc(), shard.node_ids)
        case "gather":
            return Gather(shard, comm, overlap)
        case "heads":
            return Heads(shard, comm, overlap)
        case "ring":
            return Ring(shard, comm, overlap)
        case "mirror":
            return Mirror(shard, comm, overlap)
        case _:
            chooses = strategy == "halo" and shard.depth == 1 and comm.world_size > 1
            return Halo(shard, comm, overlap, None if chooses else {"halo": "halo_h"}.get(strategy, strategy), speeds)


def check_choice(directory, manifest: dict, strategy: str | None, depth: int) -> str:
    """The strategy's name, where None is given the cut's; raise ``InputError`` unless these shards can have it."""
    parts, cut, stored = manifest["parts"], manifest["cut"], manifest["halo_depth"]
    strategy = strategy or ("mirror" if cut == "vertex" else "halo")
    if strategy == "auto":
        raise InputError(
            "strategy auto depends on the model: use `dgl-gt train --strategy auto`, or choose with "
            "dgl_gt.selector.choose and load what it chose, see docs/selector.md"
        )
    if strategy not in CHOICES:
        raise InputError(
            f"strategy is {strategy!r}; it must be one of {', '.join(CHOICES)}, or auto with `dgl-gt train`"
        )
    if (strategy == "mirror") != (cut == "vertex"):
        fitting = "mirror" if cut == "vertex" else "halo, gather, heads or ring"
        raise InputError(
            f"strategy {strategy} does not run on {directory}, which holds {_a(cut)} cut; use {fitting}, or partition "
            f"with --cut {'vertex' if cut == 'edge' else 'edge'}"
        )
    if strategy == "local" and parts > 1:
        raise InputError(f"strategy local runs on one part, and {directory} has {parts}; use halo, or partition again")
    if not isinstance(depth, int) or depth < 1:
        raise InputError(f"depth is {depth!r}; it must be an integer of at least 1")
    if depth > 1 and strategy not in ("halo", "halo_h"):
        raise InputError(f"depth is {depth} with strategy {strategy}; beyond 1 it is for halo alone")
    if depth > max(stored, 1):
        raise InputError(
            f"depth is {depth}, but {directory} stores {counted(stored, 'hop')} of halo; use at most {stored}, or "
            f"partition with --halo-depth {depth}"
        )
    return strategy


def _a(cut: str) -> str:
    return "an edge" if cut == "edge" else "a vertex"
