"""``halo``: nodes are split; each layer fetches the rows of its halo from their owners, and no others.

With a halo of several hops, whole layers are replicated on halo rows, and ranks exchange before every r-th layer.
"""

from __future__ import annotations

from functools import cached_property

import torch

from dgl_gt.comm.transfer import tracked
from dgl_gt.ops.attention import attend_rows
from dgl_gt.ops.head_minor import in_wire_order
from dgl_gt.ops.split_attention import TwoPieceAttention

from .local import add_ends, leading_rows, mean_weights, sum_of_sources, sum_of_weighted_rows
from .relations import Relations, degrees_by_relation
from .shard import begin_pull, pull
from .shard_view import ShardView
from .view import View, project_own


class Halo(ShardView):
    """Attention on an edge cut, in one of two forms.

    ``halo_h`` sends h, which is C wide, and projects K and V of the halo on arrival. ``halo_kv`` projects first, and
    sends K and V, which are 2C wide. There is one exchange per layer and direction. While rows travel, attention over the
    edges from owned rows is computed. Backward computes the gradients of the halo first, and they travel home while the
    gradients of the other edges are computed.
    """

    def attend(self, h, project, *, bias=None, edge=None, dropout=None, negative_slope=None) -> torch.Tensor:
        h = self.check_inputs(h, bias, edge)
        if self.comm.world_size == 1:
            options = {"bias": bias, "edge": edge, "dropout": dropout, "negative_slope": negative_slope}
            return attend_rows(self.shard.csc(), *project_own(project, h, edge), **options)
        both = TwoPieceAttention(self.pieces, dropout, negative_slope, self.score_offset)
        if self.rules.moves_keys:
            kv = project(h, "kv")
            travelling, restored = in_wire_order(kv, negative_slope is not None or edge is not None)
            finish = self.begin_pull(travelling)
            q = project(h, "q")
        else:
            finish = self.begin_pull(h)
            q, kv = project_own(project, h, edge)
        first = both.attend_first(q, kv, bias, edge)
        halo = finish()
        halo_kv = restored(halo) if self.rules.moves_keys else project(halo, "kv")
        return both.attend_second(first, q, halo_kv, bias, edge)[0]

    @cached_property
    def relations(self) -> Relations:
        owned = self.num_owned
        return self.relations_of(self.shard.csc(), [(0, owned), (owned, self.shard.num_held)])

    def in_degrees_by_relation(self) -> torch.Tensor:
        return degrees_by_relation(self.shard.csc(), self.relations.relation, len(self.checked_schema.edges))

    def attend_relations(self, h, project, *, bias=None, edge=None, dropout=None) -> torch.Tensor:
        to, h = self.relations, self.check_inputs(h, bias, edge)
        finish = self.begin_pull(h)
        both = TwoPieceAttention(to.pieces, dropout)
        q, kv = project(h, self.types, "q"), project(h, to.sources[0], "kv")
        first = both.attend_first(q, kv, bias, edge)
        return both.attend_second(first, q, project(finish(), to.sources[1], "kv"), bias, edge)[0]

    def sum_relations(self, h, project, *, mean) -> torch.Tensor:
        to, h = self.relations, self.check_inputs(h)
        finish = self.begin_pull(h)
        weights = mean_weights(self.shard.csc(), to.relation, self.in_degrees_by_relation()) if mean else None
        of_pieces = [None if weights is None else weights[each.edge_ids] for each in to.pieces]
        sums = sum_of_sources(to.pieces[0], project(h, to.sources[0], "v"), of_pieces[0])
        return sums + sum_of_sources(to.pieces[1], project(finish(), to.sources[1], "v"), of_pieces[1])


class DeepHalo(ShardView):
    """The view of one layer: destinations are the owned rows and ``inner`` hops of halo, sources one hop more.

    Later layers still need those destinations. With ``pulls``, the layer is given owned rows alone and first fetches
    copies of h; otherwise it is given all sources.
    """

    def __init__(self, halo: Halo, inner: int, pulls: bool):
        shard = halo.shard
        super().__init__(shard, halo.comm, halo.rules)
        self.inner, self.pulls = inner, pulls
        self.num_dst = shard.rows[inner]
        self.node_ids = shard.node_ids[: shard.rows[inner + 1]]

    def input_rows(self, x: torch.Tensor) -> torch.Tensor:
        if self.pulls:
            return super().input_rows(x)
        x = leading_rows(x, len(self.node_ids))
        self.shard.check(x, rows=len(self.node_ids))
        return x

    def source_rows(self, h: torch.Tensor) -> torch.Tensor:
        return pull(self.shard, self.comm, tracked(h), self.inner + 1) if self.pulls else self.input_rows(h)

    def add_ends(self, of_dst: torch.Tensor, of_src: torch.Tensor) -> torch.Tensor:
        csc = self.shard.csc()  # of the part's own edges, whose ends are both here
        return add_ends(csc, leading_rows(of_dst, csc.num_dst), leading_rows(of_src, csc.num_src))

    def attend(self, h, project, *, bias=None, edge=None, dropout=None, negative_slope=None) -> torch.Tensor:
        """See :meth:`dgl_gt.exchange.view.View.attend`; here ``h`` has the rows of all sources.

        ``bias`` and ``edge`` have the rows of the part's own edges; those of replicated edges are fetched from their
        owners.
        """
        self.shard.check(h, bias, len(self.node_ids), edge)
        bias, edge = (None if x is None else self._of_all_edges(x) for x in (bias, edge))
        q, kv = project(leading_rows(h, self.num_dst), "q"), project(h, "kv")
        csc = self.shard.csc(self.inner)
        return attend_rows(csc, q, kv, bias=bias, edge=edge, dropout=dropout, negative_slope=negative_slope)

    @cached_property
    def relations(self) -> Relations:
        return self.relations_of(self.shard.csc(self.inner), [(0, len(self.node_ids))])

    def in_degrees_by_relation(self) -> torch.Tensor:
        csc = self.shard.csc(self.inner)
        return degrees_by_relation(csc, self.relations.relation, len(self.checked_schema.edges))

    def attend_relations(self, h, project, *, bias=None, edge=None, dropout=None) -> torch.Tensor:
        self.shard.check(h, bias, len(self.node_ids), edge)
        (bias, edge), to = (None if x is None else self._of_all_edges(x) for x in (bias, edge)), self.relations
        q, kv = project(leading_rows(h, self.num_dst), self.types, "q"), project(h, to.sources[0], "kv")
        return attend_rows(to.pieces[0], q, kv, bias=bias, edge=edge, dropout=dropout)

    def sum_relations(self, h, project, *, mean) -> torch.Tensor:
        self.shard.check(h, None, len(self.node_ids))
        to = self.relations
        weights = mean_weights(self.shard.csc(self.inner), to.relation, self.in_degrees_by_relation()) if mean else None
        return sum_of_sources(to.pieces[0], project(h, to.sources[0], "v"), weights)

    def sum_of_weighted_rows(self, rows: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        self.check_weights(weights)
        return sum_of_weighted_rows(self.shard.csc(self.inner), self._of_all_edges(weights), rows)

    def _of_all_edges(self, values: torch.Tensor) -> torch.Tensor:
        """The values of the part's own edges, and those of replicated edges, which their owners send."""
        if not self.inner or self.comm.world_size == 1:
            return values
        values = self.comm.agree_on_grad(values)
        plan = self.shard.edge_send_plan(self.inner)
        return torch.cat([values, begin_pull(self.comm, plan, values, overlap=False)()])


def deep_views(halo: Halo, layers: int, takes_held_rows: bool) -> list[View]:
    """Return a view for each layer, with ``depth`` layers between exchanges.

    With ``takes_held_rows`` the first layer is given held rows, which saves the first exchange. A layer that is alone
    after an exchange reads one hop: there ``halo`` itself attends while the rows travel.
    """
    shard = halo.shard
    views: list[View] = []
    for start in range(0, layers, shard.depth):
        group = min(shard.depth, layers - start)
        pulls = not (takes_held_rows and start == 0)
        if group == 1 and pulls:
            views.append(halo)
        else:
            views += [DeepHalo(halo, inner, pulls and inner == group - 1) for inner in reversed(range(group))]
    return views
