"""``mirror``: edges are split; masters send rows to mirrors, and merge the partial results that mirrors send back."""

from __future__ import annotations

from functools import cached_property

import torch

from dgl_gt.ops.attention import attend_rows
from dgl_gt.ops.head_minor import in_wire_order
from dgl_gt.ops.merge import merge_rows
from dgl_gt.ops.split_attention import TwoPieceAttention, split
from dgl_gt.structure import CSC

from .local import mean_weights, sum_of_sources
from .relations import Relations, RowGroups, degrees_by_relation, rows_by_type
from .shard import SendPlan, sum_over_copies
from .shard_view import ShardView


class Mirror(ShardView):
    """Attention on a vertex cut: C numbers go to each mirror, and C + H come back from each mirror with in-edges.

    Attention over edges between owned rows is computed while rows travel to mirrors, and over edges from mirrors to
    owned rows while partial results travel to masters.
    """

    def attend(self, h, project, *, bias=None, edge=None, dropout=None, negative_slope=None) -> torch.Tensor:
        h, plain = self.check_inputs(h, bias, edge), negative_slope is not None or edge is not None
        finish = self.begin_pull(h)
        both = TwoPieceAttention(self.pieces, dropout, negative_slope, self.score_offset)
        q, kv = project(h, "q"), project(h, "kv")
        first = both.attend_first(q, kv, bias, edge)
        mirrors = finish()
        mirror_kv = project(mirrors, "kv")
        of_edges = {"bias": bias, "edge": edge}
        part, part_lse = self._partial_results(project, kv, mirrors, mirror_kv, of_edges, dropout, negative_slope)
        plan = self._return_plan
        part, restored = in_wire_order(part, plain)
        begun = [self.begin(part, plan), self.comm.begin(part_lse, plan.send_counts, plan.recv_counts)]
        finishers = [self.comm.finisher(each, self.overlap) for each in begun]
        out, lse = both.attend_second(first, q, mirror_kv, bias, edge)
        parts, part_lses = (finish() for finish in finishers)
        return merge_rows(out, lse, restored(parts), part_lses, plan.order, plan.recv_counts)

    @cached_property
    def relations(self) -> Relations:
        return self.relations_of(self.shard.csc(), [(0, self.shard.num_held)])

    @cached_property
    def _held_types(self) -> RowGroups:
        return rows_by_type(self.checked_schema, self.shard.node_ids)

    def attend_relations(self, h, project, *, bias=None, edge=None, dropout=None) -> torch.Tensor:
        to, h = self.relations, self._held(self.check_inputs(h, bias, edge))
        q, kv = project(h, self._held_types, "q"), project(h, to.sources[0], "kv")
        out, lse = attend_rows(to.pieces[0], q, kv, bias=bias, edge=edge, dropout=dropout, return_lse=True)
        plan, owned = self._return_plan, self.num_owned
        mirrors = owned + plan.send_rows.to(out.device)
        part, restored = in_wire_order(out, False)
        parts, part_lses = (
            self.comm.exchange(rows.index_select(0, mirrors), plan.send_counts, plan.recv_counts)
            for rows in (part, lse)
        )
        return merge_rows(out[:owned], lse[:owned], restored(parts), part_lses, plan.order, plan.recv_counts)

    def sum_relations(self, h, project, *, mean) -> torch.Tensor:
        to, h = self.relations, self._held(self.check_inputs(h))
        weights = mean_weights(self.shard.csc(), to.relation, self._degrees_by_relation) if mean else None
        return self._returned(sum_of_sources(to.pieces[0], project(h, to.sources[0], "v"), weights))

    def in_degrees_by_relation(self) -> torch.Tensor:
        return self._degrees_by_relation[: self.num_owned]

    @cached_property
    @torch.inference_mode(False)
    def _degrees_by_relation(self) -> torch.Tensor:
        """In-degrees in the whole graph of all held rows, int64, (held, relations); a collective at its first use."""
        degrees = degrees_by_relation(self.shard.csc(), self.relations.relation, len(self.checked_schema.edges))
        return sum_over_copies(self.shard, self.comm, degrees)

    def sum_of_weighted_rows(self, rows, weights) -> torch.Tensor:
        """Return the sums of the owned rows: mirrors add up the edges of their part and send the sums to masters."""
        return self._returned(super().sum_of_weighted_rows(rows, weights))

    def _returned(self, sums: torch.Tensor) -> torch.Tensor:
        """Return the sums of the owned rows, from this rank's sums of all held rows."""
        if self.comm.world_size == 1:
            return sums
        plan, mirrors = self._return_plan, sums[self.num_owned :]
        returned = self.comm.exchange(mirrors.index_select(0, plan.send_rows), plan.send_counts, plan.recv_counts)
        return sums[: self.num_owned].index_add(0, plan.order, returned)

    def _partial_results(self, project, kv, mirrors, mirror_kv, of_edges, dropout, negative_slope):
        """Attend the mirrors that have in-edges on this rank; their ``out`` and ``lse``."""
        to_mirrors, positions, slots = self._to_mirrors
        q = project(mirrors.index_select(0, slots), "q")
        of_edges = {name: None if x is None else x.index_select(0, positions) for name, x in of_edges.items()}
        plain = negative_slope is not None or of_edges["edge"] is not None
        if self.score_offset:
            both = TwoPieceAttention(self._to_mirrors_in_pieces, dropout, negative_slope, self.score_offset)
            part, part_lse = both.attend_second(both.attend_first(q, kv, **of_edges), q, mirror_kv, **of_edges)
            return part, part_lse + self.score_offset
        (own, restored), (others, _) = (in_wire_order(rows, plain) for rows in (kv, mirror_kv))
        joined = restored(torch.cat([own, others]))
        options = {**of_edges, "dropout": dropout, "negative_slope": negative_slope}
        return attend_rows(to_mirrors, q, joined, return_lse=True, **options)

    @cached_property
    @torch.inference_mode(False)
    def _to_mirrors_in_pieces(self) -> list[CSC]:
        """The edges of ``_to_mirrors`` in two pieces: from owned rows, and from mirrors."""
        csc, owned = self._to_mirrors[0], self.num_owned
        ranges = [(0, owned), (owned, self.shard.num_held)]
        return split(csc.indptr, csc.indices, csc.global_edge_ids, csc.indices >= owned, ranges)

    @cached_property
    @torch.inference_mode(False)
    def _to_mirrors(self):
        """In-edges of the mirrors that have any, from all held rows; their positions; the slots of those mirrors."""
        shard, owned = self.shard, self.num_owned
        begin = int(shard.indptr[owned])
        degrees = shard.indptr[owned:].diff()
        slots = torch.nonzero(degrees)[:, 0]
        counts = degrees[slots]
        ends = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        keys = shard.edge_ids[begin:]
        csc = CSC.build(ends, shard.indices[begin:], shard.num_held, global_edge_ids=keys)
        positions = torch.arange(begin, shard.edges[0], device=keys.device)
        return csc, positions, slots

    @cached_property
    @torch.inference_mode(False)
    def _return_plan(self) -> SendPlan:
        """How partial results travel to masters; ``order`` is the owned row to which each belongs."""
        shard, plan = self.shard, self.shard.send_plan()
        slots = self._to_mirrors[2].cpu()
        send_counts = torch.searchsorted(slots, shard.recv_ptr[0]).diff().tolist()
        returning = shard.returning
        recv_counts = [int(each.sum()) for each in returning.split(plan.send_counts)]
        rows = plan.send_rows[returning.to(plan.send_rows.device)]
        return SendPlan(slots, send_counts, recv_counts, rows)
