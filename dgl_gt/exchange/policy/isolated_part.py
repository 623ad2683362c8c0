"""A part of a vertex cut as a graph of its own, for training steps that exchange no rows.

The method is that of CoFree-GNN (Cao et al. 2023, arXiv 2308.03209), with its DropEdge-K: a step takes one of a few
samples of the edges, which are drawn once.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from dgl_gt.comm.group import Comm
from dgl_gt.exchange.mirror import Mirror
from dgl_gt.exchange.shard import Shard
from dgl_gt.exchange.shard_view import ShardView
from dgl_gt.exchange.sharded_graph import ShardedGraph
from dgl_gt.ops.attention import attend_rows
from dgl_gt.partition.figures.strategies import MIRROR

from .sampled_part import is_drawn, some_edges


class IsolatedPart(ShardView):
    """Attention of every row of a part, masters and mirrors, to its neighbours by the part's own edges.

    It is not exact: a node on several ranks has a different result on each. Sums over ranks count the masters alone, so
    each node counts once.
    """

    def __init__(self, shard: Shard, comm: Comm, masters: int):
        super().__init__(shard, comm, MIRROR)
        self.num_owned = masters

    def _held(self, rows: torch.Tensor) -> torch.Tensor:
        return rows  # both ends of each edge are here

    def attend(self, h, project, *, bias=None, dropout=None, negative_slope=None) -> torch.Tensor:
        """See :meth:`dgl_gt.exchange.view.View.attend`; here ``h`` has a row for each master and mirror."""
        h = self.check_inputs(h, bias)
        return attend_rows(
            self.shard.csc(), project(h, "qkv"), bias=bias, dropout=dropout, negative_slope=negative_slope
        )


@torch.inference_mode(False)
def isolated_part(mirror: Mirror) -> ShardedGraph:
    """Return a rank's part as a graph whose nodes are the masters and the mirrors, with the degrees in the part."""
    shard = mirror.shard
    rows, edges = shard.num_held, shard.edges[0]
    nothing = torch.zeros(1, mirror.comm.world_size + 1, dtype=torch.int64)
    alone = replace(
        shard,
        has_mirrors=False,
        rows=[rows, rows],
        edges=[edges, edges],
        send_rows=shard.send_rows[:0],
        send_ptr=nothing,
        recv_ptr=nothing,
        returning=None,
        node_data=shard.held_node_data(),
        degrees=_degrees(shard),
    )
    return ShardedGraph(alone, mirror.comm, MIRROR, lambda on: IsolatedPart(on, mirror.comm, shard.num_owned))


@torch.inference_mode(False)
def with_some_edges(part: ShardedGraph, share: float, seed: int) -> ShardedGraph:
    """Return an isolated part with a share of its edges; the seed and the user's id of an edge decide which."""
    shard, masters = part.view.shard, part.view.num_owned
    kept = some_edges(shard, is_drawn(shard.edge_ids[: shard.edges[0]], share, seed))
    some = replace(shard, **kept | {"edges": kept["edges"] * 2})
    some = replace(some, degrees=_degrees(some))
    return ShardedGraph(some, part.comm, MIRROR, lambda on: IsolatedPart(on, part.comm, masters))


def _degrees(shard: Shard) -> torch.Tensor:
    """In- and out-degree of each held row by the edges of the part, int64, (N_held, 2)."""
    rows, edges = shard.num_held, shard.edges[0]
    return torch.stack([shard.indptr[: rows + 1].diff(), torch.bincount(shard.indices[:edges], minlength=rows)], 1)


def shares_of_nodes(mirror: Mirror) -> torch.Tensor:
    """Return for each master and mirror of a part the share of its in-edges that lie here, float32, (N_held,).

    The shares of a node on all ranks add up to 1. A node without in-edges counts at its master alone.
    """
    shard = mirror.shard
    here, everywhere = shard.indptr[: shard.num_held + 1].diff(), shard.degrees[: shard.num_held, 0]
    shares = here.float() / everywhere.clamp(min=1)
    shares[: shard.num_owned][everywhere[: shard.num_owned] == 0] = 1.0
    return shares
