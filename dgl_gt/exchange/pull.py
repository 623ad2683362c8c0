"""Copies of rows: each rank fetches the rows of its halo or mirrors from their owners."""

from __future__ import annotations

import torch

from dgl_gt.comm.group import Comm

from .shard import SendPlan, Shard


def begin_pull(comm: Comm, plan: SendPlan, x: torch.Tensor, overlap: bool, begin=None):
    """Start to send owned rows to the ranks that hold copies; return a function that returns copies, (recv, ...).

    ``begin(rows, plan)`` takes the place of ``Comm.begin`` where it is given.
    """
    rows = x.index_select(0, plan.send_rows)
    begun = begin(rows, plan) if begin else comm.begin(rows, plan.send_counts, plan.recv_counts)
    finish = comm.finisher(begun, overlap)
    return lambda: plan.in_held_order(finish())


def pull(shard: Shard, comm: Comm, x: torch.Tensor, hops: int = 1) -> torch.Tensor:
    """Return held rows from owned rows: (owned, ...) -> (held, ...). Gradients of copies are summed at their owners."""
    shard.check_rows(x)
    if comm.world_size == 1:
        return x
    return torch.cat([x, begin_pull(comm, shard.send_plan(hops), x, overlap=False)()])
