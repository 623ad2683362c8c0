"""The graphs of training steps: a rank's part, or what a transmission policy leaves of it.

``sampled=Q`` is the method of BNS-GCN (Wan et al. 2022, arXiv 2203.10983): a copy takes part in a step with probability
q. Edges from or to other copies are left out, and log(1/q) is added to the score of an edge for each copy among its
ends. So the sums of weights over edges, before they are normalised, are right on average. ``alone`` is that of
CoFree-GNN (Cao et al. 2023, arXiv 2308.03209), with its DropEdge-K: a part of a vertex cut is a graph of its own, and a
step takes one of a few samples of its edges, which are drawn once.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from dgl_gt.comm.group import Comm
from dgl_gt.exchange.load import complete, make_view
from dgl_gt.exchange.mirror import Mirror
from dgl_gt.exchange.shard import Shard
from dgl_gt.exchange.shard_view import ShardView
from dgl_gt.exchange.sharded_graph import ShardedGraph
from dgl_gt.exchange.view import project_own
from dgl_gt.ops.attention import attend_rows
from dgl_gt.ops.dropout import dropout_seed
from dgl_gt.ops.reference import random_lanes
from dgl_gt.partition.figures.strategies import MIRROR

from .policy import EDGE_SAMPLES, Policy
from .transmission import Transmission

_OF_SAMPLE, _OF_EDGES = -2, -3  # in place of a layer, in the seeds of a step's sample and of samples of edges
_LEVELS = 2**16  # of a random lane


class TrainingGraphs:
    """The graph of each training step; inside its block, exchanges in training steps follow the policy.

    The nodes of ``base`` are those of every step: the owned nodes, or all held nodes where ranks exchange no rows.
    ``weights``, float32 (N,), is the weight of each in a sum over all ranks; None where each node is on one rank alone.
    ``is_exact`` says whether training steps are those without a policy.
    """

    def __init__(self, sg: ShardedGraph, policy: Policy, seed: int):
        self.base, self.weights, self._masked = sg, None, []
        self.policy, self._sg, self._seed = policy, sg, seed
        self._transmission: Transmission | None = None
        self.is_exact = policy.is_exact or sg.comm.world_size == 1
        self._is_sampled = not self.is_exact and policy.sampled_share < 1
        if not self.is_exact and policy.exchanges_nothing:
            self.base, self.weights = isolated_part(sg.view), shares_of_nodes(sg.view)
            if policy.edge_share < 1:
                seeds = (dropout_seed(seed, number, _OF_EDGES) for number in range(EDGE_SAMPLES))
                self._masked = [with_some_edges(self.base, policy.edge_share, each) for each in seeds]

    def __enter__(self) -> TrainingGraphs:
        if not (self.is_exact or self._is_sampled or self.policy.exchanges_nothing):
            self._transmission = _view_of(self._sg).follow(self.policy, self._seed)
        return self

    def __exit__(self, kind, *_) -> None:
        if self._transmission is not None:
            _view_of(self._sg).exchange_exactly()
            if kind is None:
                self._transmission.close()

    def of_step(self, step: int) -> ShardedGraph:
        """Return the graph of a training step: the base, or one with a sample of its edges; a collective."""
        if not self._masked and not self._is_sampled:
            return self.base
        of_step = dropout_seed(self._seed, step, _OF_SAMPLE)
        if self._masked:
            return self._masked[of_step % len(self._masked)]
        sample = sampled_part(self.base.view, self.policy.sampled_share, of_step)
        _view_of(sample).follow(self.policy.without_sampling(), self._seed)
        return sample

    def after_step(self, loss: float) -> None:
        """Take notice of the loss of a step, which is the same on every rank."""
        if self._transmission is not None:
            self._transmission.clock.note_loss(loss)

    def forget_exchanges(self) -> None:
        """Use no row again that arrived in an earlier step; every rank calls it after a step that was skipped."""
        self._sg.view.forget_exchanges()

    def exact_bytes(self, step_bytes: list[int], evaluation_bytes: list[int]) -> int:
        """Return what all ranks would have sent in an exact step, from what this one sent in steps and evaluations."""
        if self._transmission is None:  # an exact step sends backward what it, or an evaluation, sends forward
            exact: float = 2 * max(evaluation_bytes)
        else:
            exact = (sum(step_bytes) + self._transmission.saved_bytes) / len(step_bytes)
        return round(float(self._sg.comm.all_reduce(torch.tensor([exact], dtype=torch.float64))[0]))


def _view_of(graph: ShardedGraph) -> ShardView:
    assert isinstance(graph.view, ShardView)
    return graph.view


@torch.inference_mode(False)
def sampled_part(view: ShardView, share: float, seed: int) -> ShardedGraph:
    """Return a rank's part with the copies of a sample; a collective.

    The view is of ``halo_h`` or ``halo_kv`` with a halo of one hop, or of ``mirror``. A copy takes part with probability
    ``share``. A node is in the sample of all ranks, or of none: the seed, which is that of the step on every rank, and
    the user's id of the node decide.
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
        sample = replace(sample, returning=_returning(sample, comm))

    def make(on: Shard) -> ShardView:
        made = make_view(view.rules, on, comm, view.overlap)
        assert isinstance(made, ShardView)
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
        "edge_data": {name: value[_of_column(shard, name, is_kept)] for name, value in shard.edge_data.items()},
    }


def _of_column(shard: Shard, name: str, is_kept: torch.Tensor) -> torch.Tensor:
    """Which rows of a column of edge data are kept; on a typed graph it may be that of one relation."""
    if shard.schema is None or "/" not in name:
        return is_kept
    ids = shard.schema.rows_of("edge", name)
    of_edge = shard.edge_ids[: len(is_kept)]
    return is_kept[(of_edge >= ids.start) & (of_edge < ids.stop)]


@torch.inference_mode(False)
def with_edges(sg: ShardedGraph, is_kept: torch.Tensor) -> ShardedGraph:
    """Return a rank's part with some of its edges, bool (E,), and the degrees that they give; a collective.

    The halo has one hop, and the strategy does not share heads: then ranks read the structure of other parts.
    """
    assert sg.depth == 1 and not sg.strategy.shares_heads
    shard, comm = replace(sg._shard, **some_edges(sg._shard, is_kept)), sg.comm
    if shard.has_mirrors:
        shard = replace(shard, returning=_returning(shard, comm))
    return ShardedGraph(complete(shard, comm, sg.strategy.in_rank_order), comm, sg.strategy, sg._make_view)


def _returning(shard: Shard, comm: Comm) -> torch.Tensor:
    """Whether the mirrors of each row that is sent have in-edges there, bool; a collective."""
    plan, has_edges = shard.send_plan(), shard.indptr[shard.num_owned :].diff() > 0
    return comm.start(has_edges, plan.recv_counts, plan.send_counts).wait()


def _kept_ptr(ptr: torch.Tensor, is_kept: torch.Tensor) -> torch.Tensor:
    """Pointers to ranges of rows, (1, P + 1), once some of the rows are left out."""
    before = torch.cat([ptr.new_zeros(1), is_kept.to(ptr.device).cumsum(0)])
    return before[ptr]


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

    def attend(self, h, project, *, bias=None, edge=None, dropout=None, negative_slope=None) -> torch.Tensor:
        """See :meth:`dgl_gt.exchange.view.View.attend`; here ``h`` has a row for each master and mirror."""
        h = self.check_inputs(h, bias, edge)
        options = {"bias": bias, "edge": edge, "dropout": dropout, "negative_slope": negative_slope}
        return attend_rows(self.shard.csc(), *project_own(project, h, edge), **options)


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
    shard, masters = _view_of(part).shard, part.view.num_owned
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
