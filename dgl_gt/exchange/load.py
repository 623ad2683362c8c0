"""Shards on disk -> this rank's ShardedGraph."""

from __future__ import annotations

import os
from dataclasses import replace

import torch

from dgl_gt.comm.group import Comm
from partition.errors import InputError, check_flags, whole_number
from partition.predict.strategies import check_choice
from partition.shards.counts import read_figures
from partition.shards.manifest import read_manifest, verify
from partition.system.units import counted

from .gather import Gather
from .halo import Halo
from .heads import Heads
from .local import Local
from .mesh import Mesh
from .mirror import Mirror
from .protocol import Strategy
from .ring import Ring
from .shard import Shard, read_shard
from .sharded_graph import ShardedGraph, checked_device

WITH_RANK_ORDER = ("gather", "ring")  # strategies that read the rows of all ranks in one order


@torch.inference_mode(False)  # training needs its tensors, too
def load(
    directory,
    strategy: str | None = None,
    depth: int = 1,
    group=None,
    device=None,
    *,
    overlap: bool = True,
    timeout_s: float | None = None,
    ranks_per_host: int | None = None,
) -> ShardedGraph:
    """Load this rank's part of a shard directory; every rank of the group calls it, with the same arguments.

    Parameters
    ----------
    directory : path
        Directory that ``dgl-gt partition`` made.
    strategy : str, optional
        How attention crosses ranks: ``halo``, ``gather``, ``heads``, ``ring`` or ``mesh`` on an edge cut, ``mirror`` on a
        vertex cut, ``local`` on one part. The default is ``halo`` or ``mirror``. All give the same numbers. ``halo`` has two
        forms: ``halo_h`` sends h and projects keys and values on arrival, and ``halo_kv`` sends keys and values, twice
        the bytes. ``halo`` means ``halo_h``; the selector and ``dgl-gt train``, which know the model and the links,
        choose between the two. ``sg.strategy.name`` says which strategy runs.
    depth : int
        Number of layers between exchanges, for ``halo`` on shards that hold as many hops of halo.
    group : torch.distributed.ProcessGroup, optional
        A group of as many ranks as there are parts; by default all ranks. One part needs no torch.distributed.
    device : torch.device or str, optional
        Device of the tensors; by default that of the group: the current GPU with nccl, else the CPU.
    overlap : bool
        Whether to compute while rows travel.
    timeout_s : float, optional
        Time that a rank waits for the others in one exchange before it raises :class:`dgl_gt.comm.failure.RankError`,
        which names the ranks for which it waits (s). It also becomes the timeout of the group. By default a rank waits
        as long as the group allows. A rank that waits longer than a minute says on stderr for which ranks it waits.
    ranks_per_host : int, optional
        For ``mesh``: ranks on each host, which are neighbours in rank order. By default it is ``LOCAL_WORLD_SIZE`` of the
        environment, which torchrun sets.

    Raises
    ------
    InputError
        The shards are damaged, the number of ranks is not the number of parts, the strategy does not fit, or the ranks'
        arguments differ. If any rank raises it, every rank does.
    RankError
        Another rank has stopped, or does not answer in time. From then on every exchange may raise it.
    """
    comm = Comm(group, timeout_s)
    with comm.together():
        return _load(directory, strategy, depth, comm, device, overlap, ranks_per_host)


def _load(directory, strategy, depth: int, comm: Comm, device, overlap: bool, ranks_per_host) -> ShardedGraph:
    shard = error = None
    try:
        check_flags(overlap=overlap)
        manifest = read_manifest(directory)
        strategy = check_choice(read_figures(manifest), strategy, depth, directory)
        if (parts := manifest["parts"]) != comm.world_size:
            raise InputError(
                f"{directory} has {counted(parts, 'part')}, but the number of ranks is {comm.world_size}; start "
                f"{parts} (torchrun --nproc-per-node {parts}, then torch.distributed.init_process_group), or partition "
                "again"
            )
        device = comm.device if device is None else checked_device(device)
        shard = read_shard(directory, comm.rank, depth)
        ranks_per_host = _on_each_host(strategy, ranks_per_host)
        if strategy in (
            "heads",
            "mesh",
        ):  # they read the structure of other parts, of which only this rank's is verified so far
            verify(directory, manifest, [part for part in range(parts) if part != comm.rank])
    except InputError as caught:
        error = caught
    comm.raise_together(error)
    options = {"strategy": strategy, "depth": depth, "overlap": overlap, "ranks_per_host": ranks_per_host}
    comm.check_agreement({"shards": manifest["checksum"], **options})
    shard = complete(shard.to(device), comm, strategy in WITH_RANK_ORDER)
    comm.reset_counters()
    return ShardedGraph(shard, comm, lambda on: make_strategy(strategy, on, comm, overlap, ranks_per_host))


def _on_each_host(strategy: str, ranks_per_host: int | None) -> int:
    """The number of ranks on each host, which ``mesh`` alone reads."""
    if strategy != "mesh":
        if ranks_per_host is not None:
            raise InputError(f"ranks_per_host is for the strategy mesh, and the strategy is {strategy}; leave it out")
        return 1
    if ranks_per_host is None:
        found = os.environ.get("LOCAL_WORLD_SIZE", "")
        if not found.isdecimal():
            raise InputError(
                "the strategy mesh needs the number of ranks on each host; pass ranks_per_host, or start ranks with torchrun"
            )
        ranks_per_host = int(found)
    return whole_number("ranks_per_host", ranks_per_host, 1)


def complete(shard: Shard, comm: Comm, has_rank_order: bool = False) -> Shard:
    """Return the shard with what ranks only know together: degrees, and where wanted its ``rank_order``; a collective.

    Each edge lies on one rank, so the counts of all ranks that hold a node add up to its degrees.
    """
    plan, rows = shard.send_plan(), shard.num_held if shard.cut == "vertex" else shard.num_owned
    degrees = torch.zeros(shard.num_held, 2, dtype=torch.int64, device=shard.node_ids.device)
    degrees[:rows, 0] = shard.indptr[: rows + 1].diff()
    degrees[:, 1] = torch.bincount(shard.indices[: shard.edges[0]], minlength=shard.num_held)
    owned, copies = degrees.split([shard.num_owned, shard.num_held - shard.num_owned])
    owned.index_add_(0, plan.send_rows, comm.start(copies, plan.recv_counts, plan.send_counts).wait())
    deep = shard.send_plan(shard.depth)
    copies = comm.start(owned[deep.send_rows], deep.send_counts, deep.recv_counts).wait()
    degrees = torch.cat([owned, deep.in_held_order(copies)])
    if not has_rank_order:
        return replace(shard, degrees=degrees)
    begin, end = shard.manifest["ptr"][shard.part : shard.part + 2]
    own = torch.arange(begin, end, device=shard.node_ids.device)
    order = torch.cat([own, comm.start(own[plan.send_rows], plan.send_counts, plan.recv_counts).wait()])
    return replace(shard, degrees=degrees, rank_order=order)


def make_strategy(strategy: str, shard: Shard, comm: Comm, overlap: bool, ranks_per_host: int = 1) -> Strategy:
    """Return the strategy of this name on a shard."""
    match strategy:
        case "local":
            return Local(shard.csc(), shard.node_ids)
        case "gather":
            return Gather(shard, comm, overlap)
        case "heads":
            return Heads(shard, comm, overlap)
        case "ring":
            return Ring(shard, comm, overlap)
        case "mesh":
            return Mesh(shard, comm, overlap, ranks_per_host)
        case "mirror":
            return Mirror(shard, comm, overlap)
        case _:
            return Halo(shard, comm, overlap, strategy)
