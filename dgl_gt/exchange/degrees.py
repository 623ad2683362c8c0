"""In- and out-degrees in the whole graph, summed over ranks, as each rank sees its own edges alone."""

from __future__ import annotations

import torch

from dgl_gt.comm.group import Comm

from .shard import Shard


def degrees(shard: Shard, comm: Comm) -> torch.Tensor:
    """Return each held row's in- and out-degree in the whole graph, int64, (held, 2); every rank calls it.

    Each edge lies on one rank, so the counts of all ranks that hold a node add up to its degrees.
    """
    edges, rows = shard.edges[0], shard.num_held if shard.cut == "vertex" else shard.num_owned
    counts = torch.zeros(shard.num_held, 2, dtype=torch.int64, device=shard.node_ids.device)
    counts[:rows, 0] = shard.indptr[: rows + 1].diff()
    counts[:, 1] = torch.bincount(shard.indices[:edges], minlength=shard.num_held)
    if comm.world_size == 1:
        return counts
    plan, (owned, copies) = shard.send_plan(), counts.split([shard.num_owned, shard.num_held - shard.num_owned])
    owned.index_add_(0, plan.send_rows, comm.start(copies, plan.recv_counts, plan.send_counts).wait())
    copies.copy_(comm.start(owned[plan.send_rows], plan.send_counts, plan.recv_counts).wait())
    return counts
