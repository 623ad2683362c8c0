"""Shards on disk -> this rank's ShardedGraph."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from dgl_gt.comm.group import Comm
from dgl_gt.partition.errors import InputError, check_flags, check_one_of
from dgl_gt.partition.figures.figures import dealt_parts
from dgl_gt.partition.figures.strategies import HALO, MIRROR, StrategyRules, strategy_for
from dgl_gt.partition.shards.counts import read_figures
from dgl_gt.partition.shards.files import verify
from dgl_gt.partition.shards.manifest import read_manifest
from dgl_gt.partition.system.allocator import keep_for_reuse, keep_small_blocks
from dgl_gt.partition.system.units import format_count

from .gather import Gather
from .halo import Halo
from .local import Local
from .merged_parts import MergedParts, merged_parts
from .mesh import Mesh
from .mirror import Mirror
from .ring import Ring
from .shard import Shard, make_shard, read_shard
from .sharded_graph import ShardedGraph, checked_device
from .streamed import SPILL_DTYPES, make_stream
from .view import View

_CLASSES = {
    "halo_h": Halo,
    "halo_kv": Halo,
    "gather": Gather,
    "ring": Ring,
    "mirror": Mirror,
}


def load(
    directory,
    strategy: str | None = None,
    depth: int = 1,
    group=None,
    device=None,
    *,
    overlap: bool = True,
    timeout_s: float | None = None,
    check_parameters: bool = True,
    keep_freed_memory: bool = True,
    spill: str | None = None,
    spill_dtype: str = "fp32",
    parts_per_rank: Sequence[int] | None = None,
) -> ShardedGraph:
    """Load this rank's part of a shard directory; every rank of the group calls it, with the same arguments.

    Where there are more parts than ranks, a rank takes several that are neighbours in the order of parts as one part:
    shards for eight ranks also run on one, two or three. This takes shards with one type of nodes. A vertex cut then becomes
    an edge cut: each edge goes to the rank that owns its destination.

    Parameters
    ----------
    directory : path
        Directory that ``dgl-gt partition`` made.
    strategy : str, optional
        How rows travel between ranks: ``halo``, ``gather``, ``heads``, ``ring`` or ``mesh=M`` on an edge cut, ``mirror``
        on a vertex cut, ``local`` on one part. The default is ``halo`` or ``mirror``. All give the same numbers.
        ``mesh=M`` takes the M ranks of a host to be neighbours in rank order. ``halo`` has two forms: ``halo_h`` sends
        h and projects keys and values on arrival, and ``halo_kv`` sends keys and values, twice the bytes. ``halo``
        means ``halo_h``; ``dgl-gt train --strategy auto`` and :func:`dgl_gt.plan.choose` choose between the two.
        ``sg.strategy.name`` says which strategy runs.
    depth : int
        Number of layers between exchanges, for ``halo`` on shards that hold as many hops of halo.
    group : torch.distributed.ProcessGroup or Comm, optional
        A group of at most as many ranks as there are parts; by default all ranks. One part needs no torch.distributed. The ``comm``
        of another graph makes both count together; then its timeout and checks hold.
    device : torch.device or str, optional
        Device of the tensors; by default that of the group: the current GPU with nccl, else the CPU.
    overlap : bool
        Whether to compute while rows travel.
    timeout_s : float, optional
        Time that a rank waits for the others in one exchange before it raises :class:`dgl_gt.RankError`,
        which names the ranks for which it waits (s). It also becomes the timeout of the group. By default a rank waits
        as long as the group allows. A rank that waits longer than a minute says on stderr for which ranks it waits.
    check_parameters : bool
        Whether ranks compare their parameters now and then, so that a loop without ``sg.comm.sum_gradients``, or other
        initial weights on one rank, end with :class:`InputError` and not with models that drift apart. They do so in
        some calls of ``sum_gradients``, of ``sg.pull`` and of this package's layers and models in training.
        Parameters of :class:`dgl_gt.nn.NodeEmbedding` are left out.
    keep_freed_memory : bool
        Whether glibc, on a CPU, keeps freed memory of this process for the next tensor, which takes a third off a training
        step; the process then takes twice the memory or more. With ``spill`` it keeps small blocks. An allocator that is preloaded takes less, see
        docs/cli.md. Settings of malloc in the environment win.
    spill : path, optional
        Directory for the rows between layers, with which the models of this package run one part after the other, so that
        a rank holds the working set of one part; see docs/spilling.md.
    spill_dtype : {"fp32", "bf16"}
        How float32 rows are kept in files. With ``bf16``, files are a fifth to a third smaller, and layers read rounded rows.
    parts_per_rank : sequence of int, optional
        How many parts each rank takes, for ranks that differ in speed; by default so that their loads are nearly equal.

    Returns
    -------
    ShardedGraph
        The part of this rank, with its tensors on ``device``.

    Raises
    ------
    InputError
        The shards are damaged, there are more ranks than parts, the strategy does not fit, or the ranks'
        arguments differ. If any rank raises it, every rank does.
    RankError
        Another rank has stopped, or does not answer in time. From then on every exchange may raise it.
    """
    with torch.inference_mode(False):  # training needs its tensors, too
        comm = group if isinstance(group, Comm) else Comm(group, timeout_s, check_parameters)
        with comm.together():
            check_flags(overlap=overlap, keep_freed_memory=keep_freed_memory)
            check_one_of("spill_dtype", spill_dtype, SPILL_DTYPES)
            if spill is None and spill_dtype != "fp32":
                raise InputError(
                    f"spill_dtype (--spill-dtype) is {spill_dtype!r}, and no rows are kept in files; give spill (--spill), too"
                )
            spilling = None if spill is None else (str(spill), spill_dtype)
            sg = _load(directory, strategy, depth, comm, device, overlap, spilling, parts_per_rank)
    if sg.stream is not None:
        keep_small_blocks(-1)
    elif keep_freed_memory and sg.device.type == "cpu":
        keep_for_reuse()
    return sg


def read_parts(
    directory, comm: Comm, parts_per_rank: Sequence[int] | None = None, spills: bool = False
) -> tuple[dict, MergedParts | None]:
    """The manifest of a shard directory whose parts are those of the ranks, and what joins them; a collective.

    Where there are more parts than ranks, the manifest is that of the joined parts; so it is where a vertex cut ``spills``.
    """
    with comm.raising_together():
        manifest = read_manifest(directory)
        if (parts := manifest["parts"]) < comm.world_size:
            raise InputError(
                f"{directory} has {format_count(parts, 'part')}, but the number of ranks is {comm.world_size}; start at most "
                f"{parts} (torchrun --nproc-per-node {parts}, then torch.distributed.init_process_group), or partition "
                "again"
            )
        dealt = dealt_parts(np.array(manifest["shares"]), [1] * comm.world_size)
        if parts_per_rank is not None:
            dealt = _checked_dealing(parts_per_rank, parts, comm.world_size)
        joins = parts > comm.world_size or (spills and manifest["cut"] == "vertex" and not manifest["schema"])
        merged = merged_parts(directory, manifest, dealt) if joins else None
    comm.check_agreement({"shards": manifest["checksum"], "parts_per_rank": dealt, "spill": spills})
    if merged is None:
        return manifest, None
    with comm.raising_together(), torch.device("cpu"):  # whatever torch's default device is
        counts = merged.counts(comm.rank)
    merged.describe(comm.gather_objects(counts))
    return merged.manifest, merged


def _checked_dealing(parts_per_rank, parts: int, ranks: int) -> list[int]:
    is_list = isinstance(parts_per_rank, (list, tuple)) and all(
        isinstance(each, int) and not isinstance(each, bool) for each in parts_per_rank
    )
    if not is_list or len(parts_per_rank) != ranks or min(parts_per_rank) < 1 or sum(parts_per_rank) != parts:
        raise InputError(
            f"parts_per_rank (--parts-per-rank) is {reprlib.repr(parts_per_rank)}; it must be a number of at least 1 for each of "
            f"{format_count(ranks, 'rank')}, and these must add up to the {format_count(parts, 'part')} of the shards"
        )
    return list(parts_per_rank)


def _load(
    directory, strategy, depth: int, comm: Comm, device, overlap: bool, spilling: tuple[str, str] | None, parts_per_rank
) -> ShardedGraph:
    spill, spill_dtype = spilling or (None, "fp32")
    manifest, merged = read_parts(directory, comm, parts_per_rank, spill is not None)
    with comm.raising_together():
        if merged and merged.was_vertex_cut and strategy == MIRROR.name:
            raise InputError(
                f"strategy is {strategy}, and {directory} is a vertex cut whose parts share ranks, or run with spill, as an edge cut; "
                "leave strategy out, or start a rank for each part without spill"
            )
        if merged and isinstance(depth, int) and depth > 1:
            stored = read_manifest(directory)["parts"]
            more_ranks = "" if merged.was_vertex_cut else f", or start {stored} ranks"
            raise InputError(
                f"depth is {depth}, and the number of ranks is {comm.world_size}, which share the {stored} parts of {directory} and "
                f"exchange before every layer; use depth 1{more_ranks}"
            )
        rules = strategy_for(read_figures(manifest), strategy, depth, directory)
        device = comm.device if device is None else checked_device(device)
        shard = make_shard(merged, comm.rank) if merged else read_shard(directory, comm.rank, depth, manifest)
        if rules.shares_heads and not merged:  # it reads other parts, which are not verified so far
            verify(directory, manifest, [part for part in range(comm.world_size) if part != comm.rank])
    checks = comm.parameter_check is not None
    settings = {"strategy": rules.name, "depth": depth, "overlap": overlap, "check_parameters": checks}
    comm.check_agreement(settings | {"spill_dtype": spill_dtype})
    shard = complete(shard.to(device), comm, rules.in_rank_order)
    # A rank alone that runs piece by piece does not need the edges of all pieces in one structure, which Local makes.
    of_view = HALO if rules.on_one_part and spill is not None else rules
    sg = ShardedGraph(shard, comm, rules, lambda on: make_view(of_view, on, comm, overlap))
    if shard.schema is not None:
        sg.view.in_degrees_by_relation()  # in a vertex cut they are exchanged once
    if spill is not None:
        with comm.raising_together():
            ends = merged.ends(comm.rank) if merged else [0, shard.num_owned]
            sg.stream = make_stream(shard, comm, rules, ends, spill, SPILL_DTYPES[spill_dtype])
    comm.reset_counters()
    comm.owned_rows = shard.num_owned
    return sg


def complete(shard: Shard, comm: Comm, has_rank_order: bool = False) -> Shard:
    """Return the shard with what ranks only know together: degrees, and where wanted its ``rank_order``; a collective.

    Each edge lies on one rank, so the counts of all ranks that hold a node add up to its degrees.
    """
    plan, rows = shard.send_plan(), shard.num_held if shard.has_mirrors else shard.num_owned
    degrees = torch.zeros(shard.num_held, 2, dtype=torch.int64, device=shard.node_ids.device)
    degrees[:rows, 0] = shard.indptr[: rows + 1].diff()
    degrees[:, 1] = torch.bincount(shard.indices[: shard.edges[0]], minlength=shard.num_held)
    owned, copies = degrees.split([shard.num_owned, shard.num_held - shard.num_owned])
    owned.index_add_(0, plan.send_rows, comm.start(copies, plan.recv_counts, plan.send_counts).wait())
    send_plan = shard.send_plan(shard.depth)
    copies = comm.start(owned[send_plan.send_rows], send_plan.send_counts, send_plan.recv_counts).wait()
    degrees = torch.cat([owned, send_plan.in_held_order(copies)])
    if not has_rank_order:
        return replace(shard, degrees=degrees)
    begin, end = shard.manifest["ptr"][shard.part : shard.part + 2]
    own = torch.arange(begin, end, device=shard.node_ids.device)
    order = torch.cat([own, comm.start(own[plan.send_rows], plan.send_counts, plan.recv_counts).wait()])
    return replace(shard, degrees=degrees, rank_order=order)


def make_view(rules: StrategyRules, shard: Shard, comm: Comm, overlap: bool) -> View:
    """Return the view of a shard with a strategy."""
    if rules.on_one_part:
        return Local(shard.csc(), shard.node_ids, shard.schema)
    kind = Mesh if rules.shares_heads else _CLASSES[rules.name]
    return kind(shard, comm, rules, overlap)
