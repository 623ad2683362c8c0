"""``local``: this process holds every row that it needs, so nothing travels."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from dgl_gt.ops.attention import attend_rows
from dgl_gt.partition.schema import Schema
from dgl_gt.structure import CSC

from .relations import Relations, RowGroups, degrees_by_relation, relations_of, rows_by_relation
from .view import View, project_own


def leading_rows(x: Tensor, rows: int) -> Tensor:
    """Return the first ``rows`` rows of ``x``: the destinations of a block, or all nodes of a graph."""
    # A slice of all rows would still cost a zero-filled copy of the gradient in backward.
    return x if x.shape[0] == rows else x[:rows]


def add_ends(csc: CSC, of_dst: Tensor, of_src: Tensor) -> Tensor:
    """Return for each edge its destination's row plus its source's, (E, W), in the order of edge ids."""
    degrees = csc.indptr.diff()
    sums = of_dst.repeat_interleave(degrees, 0, output_size=csc.num_edges) + of_src.index_select(0, csc.indices)
    return sums if csc.edge_ids is None else torch.empty_like(sums).index_copy(0, csc.edge_ids, sums)


def check_weights(weights: Tensor, edges: int) -> None:
    """Raise ``ValueError`` unless there is one weight for each edge of this process."""
    if weights.shape != (edges,):
        raise ValueError(
            f"edge_weight has shape {tuple(weights.shape)}; allowed: ({edges},), one number for each edge, in the order of "
            "edge ids, or of sg.edata"
        )


class Local(View):
    """Attention on a graph or block that one process holds, given its in-edges and where needed the user's node ids.

    In a block the first ``num_dst`` sources are the destinations, as DGL's samplers arrange them.
    """

    holds_all = True

    def __init__(self, csc: CSC, node_ids: Tensor | None = None, schema: Schema | None = None):
        self.csc, self.node_ids, self.schema = csc, node_ids, schema
        self.num_owned = self.num_dst = csc.num_dst

    def input_rows(self, x: Tensor) -> Tensor:
        if x.shape[0] != self.csc.num_src:
            raise ValueError(
                f"the features have {x.shape[0]} rows, but the graph has {self.csc.num_src} source nodes; pass one row "
                "for each source node (for a block, those of block.srcdata, with the destinations first)"
            )
        return x

    def in_degrees(self) -> Tensor:
        return self.csc.indptr.diff()

    def out_degrees(self) -> Tensor:
        """Return the out-degrees of the sources; in a block, of the edges of the block alone, as DGL counts them."""
        return self.csc.rev_indptr.diff()

    def add_ends(self, of_dst: Tensor, of_src: Tensor) -> Tensor:
        return add_ends(self.csc, of_dst, of_src)

    def sum_of_weighted_rows(self, rows: Tensor, weights: Tensor) -> Tensor:
        check_weights(weights, self.csc.num_edges)
        return sum_of_weighted_rows(self.csc, weights, self.input_rows(rows))

    def attend(self, h, project, *, bias=None, edge=None, dropout=None, negative_slope=None) -> Tensor:
        h = self.input_rows(h)
        if self.csc.num_dst == self.csc.num_src:
            rows = project_own(project, h, edge)
        else:
            rows = project(leading_rows(h, self.csc.num_dst), "q"), project(h, "kv")
        return attend_rows(self.csc, *rows, bias=bias, edge=edge, dropout=dropout, negative_slope=negative_slope)

    @cached_property
    def relations(self) -> Relations:
        schema, csc = self.checked_schema, self.csc
        edge_ids = csc.global_edge_ids if csc.global_edge_ids is not None else csc.edge_ids
        assert edge_ids is not None
        return relations_of(csc, schema, edge_ids, [(0, csc.num_src)])

    @cached_property
    def edges_by_relation(self) -> RowGroups:
        ids = self.csc.global_edge_ids  # or else the rows are in the order of these ids
        ids = torch.arange(self.csc.num_edges, device=self.csc.device) if ids is None else ids
        return rows_by_relation(self.checked_schema, ids)

    def in_degrees_by_relation(self) -> Tensor:
        return degrees_by_relation(self.csc, self.relations.relation, len(self.checked_schema.edges))

    def attend_relations(self, h, project, *, bias=None, edge=None, dropout=None) -> Tensor:
        to, h = self.relations, self.input_rows(h)
        q, kv = project(leading_rows(h, self.num_dst), self.types, "q"), project(h, to.sources[0], "kv")
        return attend_rows(to.pieces[0], q, kv, bias=bias, edge=edge, dropout=dropout)

    def sum_relations(self, h, project, *, mean) -> Tensor:
        to, h = self.relations, self.input_rows(h)
        weights = mean_weights(self.csc, to.relation, self.in_degrees_by_relation()) if mean else None
        return sum_of_sources(to.pieces[0], project(h, to.sources[0], "v"), weights)


def mean_weights(csc: CSC, relation: Tensor, degrees: Tensor) -> Tensor:
    """Return for each edge, by position, one over its destination's in-degree in its relation, (E,)."""
    rows = torch.repeat_interleave(torch.arange(csc.num_dst, device=csc.device), csc.indptr.diff())
    return 1 / degrees[rows, relation].clamp(min=1).to(torch.get_default_dtype())  # 0 from ranks that a trace makes up


def sum_of_sources(csc: CSC, rows: Tensor, weights: Tensor | None) -> Tensor:
    """Return each destination's sum of its sources' rows, times the weights of the edges by position, (N_dst, W)."""
    by_position = rows.new_ones(csc.num_edges) if weights is None else weights.to(rows.dtype)
    return _weighted_sums(csc, by_position, rows)


def sum_of_weighted_rows(csc: CSC, weights: Tensor, rows: Tensor) -> Tensor:
    """Return each destination's sum of its sources' rows times the weights of the edges, (N_dst, W).

    ``weights`` (E,), in the order of edge ids, may have any sign. Differentiable in both; it stores nothing as large as
    E x W.
    """
    weights = weights.to(rows.dtype)
    return _weighted_sums(csc, weights if csc.edge_ids is None else weights[csc.edge_ids], rows)


def _weighted_sums(csc: CSC, by_position: Tensor, rows: Tensor) -> Tensor:
    indices, begins = csc.indices.long(), csc.indptr[:-1].long()
    if not csc.num_edges:  # embedding_bag takes none
        none = rows.index_select(0, indices) * by_position.unsqueeze(1)
        return rows.new_zeros(csc.num_dst, rows.shape[1]).index_add(0, indices, none)
    return embedding_bag(indices, rows, begins, mode="sum", per_sample_weights=by_position)
