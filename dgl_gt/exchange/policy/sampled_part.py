"""A part with a random sample of its copied rows, for one training step.

The method is BNS-GCN's (Wan et al. 2022, arXiv 2203.10983): a copy takes part in a step with probability q. Edges from
or to other copies are left out, and log(1/q) is added to the score of an edge for each copy among its ends. So the sums
of weights over edges, before they are normalised, are right on average.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from dgl_gt.exchange.load import make_view
from dgl_gt.exchange.shard import Shard
from dgl_gt.exchange.shard_view import ShardView
from dgl_gt.exchange.sharded_graph import ShardedGraph
from dgl_gt.ops.reference import random_lanes

_LEVELS = 2**16  # of a random lane


@torch.inference_mode(False)
def sampled_part(view: ShardView, share: float, seed: int) -> ShardedGraph:
    """Return a rank's part with the copies of a sample; a collective.

    A node is in the sample of all ranks, or of none: the seed and the user's id of the node decide.

    Parameters
    ----------
    view : ShardView
        Of ``halo_h`` or ``halo_kv`` with a halo of one hop, or of ``mirror``.
    share : float
        Probability q with which a copy takes part, above 0 and at most 1.
    seed : int
        Seed of the step, the same on every rank.
    """
    shard, comm = view.shard, view.comm
    send_rows = shard.send_plan().send_rows
    is_held = is_drawn(shard.node_ids[: shard.num_held], share, seed)
    is_held[: shard.num_owned] = True
    is_sent = is_drawn(shard.node_ids[send_rows], share, seed)
    sample = replace(
        shard,
        **_edges_between(shard, is_held),
        rows=[shard.num_owned, int(is_held.sum())],
        node_ids=shard.node_ids[: shard.num_held][is_held],
        degrees=shard.degrees[: shard.num_held][is_held],
        send_rows=send_rows[is_sent],
        send_ptr=_kept_ptr(shard.send_ptr, is_sent),
        recv_ptr=_kept_ptr(shard.recv_ptr, is_held[shard.num_owned :]),
    )
    if shard.has_mirrors:  # a mirror may have in-edges in the part, and none in the sample
        plan, has_edges = sample.send_plan(), sample.indptr[shard.num_owned :].diff() > 0
        sample = replace(sample, returning=comm.start(has_edges, plan.recv_counts, plan.send_counts).wait())

    def make(on: Shard) -> ShardView:
        made = make_view(view.rules, on, comm, view.overlap)
        made.score_offset = math.log(_LEVELS / round(share * _LEVELS))
        return made

    return ShardedGraph(sample, comm, view.rules, make)


def is_drawn(ids: torch.Tensor, share: float, seed: int) -> torch.Tensor:
    """Whether each node, or each edge, of these ids is in a sample, bool."""
    return random_lanes(ids, 1, seed)[:, 0] < round(share * _LEVELS)


def _edges_between(shard: Shard, is_held: torch.Tensor) -> dict:
    """The fields of a shard that describe its edges, with those alone that are between rows that are held."""
    is_row = is_held[: len(shard.indptr) - 1]  # in an edge cut, owned rows alone have in-edges
    is_kept = is_held[shard.indices[: shard.edges[0]].long()] & torch.repeat_interleave(is_row, shard.indptr.diff())
    kept, number = some_edges(shard, is_kept), is_held.cumsum(0) - 1
    of_row = kept["indptr"].diff()[is_row]
    return kept | {
        "indptr": torch.cat([shard.indptr.new_zeros(1), of_row.cumsum(0)]),
        "indices": number[kept["indices"].long()].to(shard.indices.dtype),
    }


def some_edges(shard: Shard, is_kept: torch.Tensor) -> dict:
    """The fields of a shard that describe its edges, with some of them alone; ``is_kept`` is bool, (E,)."""
    before = torch.cat([shard.indptr.new_zeros(1), is_kept.cumsum(0)])
    return {
        "edges": [int(before[-1])],
        "indptr": before[shard.indptr],
        "indices": shard.indices[: len(is_kept)][is_kept],
        "edge_ids": shard.edge_ids[: len(is_kept)][is_kept],
        "edge_data": {name: value[is_kept] for name, value in shard.edge_data.items()},
    }


def _kept_ptr(ptr: torch.Tensor, is_kept: torch.Tensor) -> torch.Tensor:
    """Pointers to ranges of rows, (1, P + 1), once some of the rows are left out."""
    before = torch.cat([ptr.new_zeros(1), is_kept.to(ptr.device).cumsum(0)])
    return before[ptr]
