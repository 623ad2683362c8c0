"""Typed graphs in memory: rows by node type, and edges whose sources are pairs of a relation and a row.

A typed layer projects a source row with the weights of each relation that reads it. So its keys and values are rows of
pairs (relation, source), and with edges that name these pairs, attention over all in-edges of a node is one softmax
across relations, in one call of a kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from dgl_gt.ops.split_attention import split
from dgl_gt.partition.schema import Schema
from dgl_gt.structure import CSC


@dataclass(frozen=True, eq=False)
class RowGroups:
    """Numbers of rows, in groups: those of each node type, or the sources of each relation.

    ``rows`` is int64, (S,), and group g is ``rows[ptr[g]:ptr[g + 1]]``.
    """

    rows: Tensor
    ptr: tuple[int, ...]

    @property
    def counts(self) -> list[int]:
        """Rows of each group."""
        return [end - begin for begin, end in zip(self.ptr, self.ptr[1:])]

    def joined(self, of_groups: Sequence[Tensor]) -> Tensor:
        """Return rows in their order from those of each group, where each row is in one group."""
        rows = torch.cat(list(of_groups))
        return rows if self._is_sorted else rows.new_empty(rows.shape).index_copy(0, self.rows, rows)

    @cached_property
    def _is_sorted(self) -> bool:
        return torch.equal(self.rows, torch.arange(len(self.rows), device=self.rows.device))

    def group(self, number: int) -> Tensor:
        """The rows of a group."""
        return self.rows[self.ptr[number] : self.ptr[number + 1]]

    def span(self, number: int) -> Tensor | slice:
        """The rows of a group, as a slice where all groups lie one after the other."""
        return slice(self.ptr[number], self.ptr[number + 1]) if self._is_sorted else self.group(number)

    @cached_property
    @torch.inference_mode(False)
    def of_row(self) -> Tensor:
        """The number of the group of each row, int64, where each row is in one group."""
        numbers = torch.repeat_interleave(
            torch.arange(len(self.ptr) - 1, device=self.rows.device), torch.tensor(self.counts, device=self.rows.device)
        )
        return torch.empty_like(numbers).index_copy_(0, self.rows, numbers)


class TypedProject(Protocol):
    """A typed layer's own projection, which a view calls on the rows that it decides to project.

    ``project(h, types, "q")`` returns ``(rows, H, D)`` in the order of ``h``, whose rows ``types`` groups by node type.
    ``project(h, sources, "kv")`` returns keys and values packed, ``(S, 2, H, D)``, a row for each source of each relation;
    ``project(h, sources, "v")`` returns ``(S, W)``. Row i of a result depends on one row of ``h`` alone.
    """

    def __call__(self, h: Tensor, groups: RowGroups, which: str) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class Relations:
    """The edges to some rows, whose sources are pairs of a relation and a row.

    Attributes
    ----------
    pieces : list of CSC
        The edges from the rows of each range, such as owned rows and copies. Bias rows and dropout keys are those of the
        edges.
    sources : list of RowGroups
        For each piece, the rows of its range that the edges of each relation read.
    relation : Tensor, int64, (E,)
        The relation of each edge, by position.
    """

    pieces: list[CSC]
    sources: list[RowGroups]
    relation: Tensor


@torch.inference_mode(False)
def rows_by_type(schema: Schema, node_ids: Tensor) -> RowGroups:
    """Group rows by node type, from the union's ids of their nodes."""
    of_row = numbers_of(schema.node_ptr, node_ids)
    return RowGroups(torch.argsort(of_row, stable=True), _pointers(of_row, len(schema.nodes)))


@torch.inference_mode(False)
def rows_by_relation(schema: Schema, edge_ids: Tensor) -> RowGroups:
    """Group rows of edges by relation, from the union's ids of the edges."""
    of_row = numbers_of(schema.edge_ptr, edge_ids)
    return RowGroups(torch.argsort(of_row, stable=True), _pointers(of_row, len(schema.edges)))


def _pointers(of_row: Tensor, groups: int) -> tuple[int, ...]:
    counts = torch.bincount(of_row, minlength=groups)
    return 0, *counts.cumsum(0).tolist()


@torch.inference_mode(False)
def relations_of(csc: CSC, schema: Schema, edge_ids: Tensor, ranges: Sequence[tuple[int, int]]) -> Relations:
    """Return the relations of the edges of a CSC.

    ``edge_ids`` are the union's ids of the edges by position, which say their relations. ``ranges`` (first row, end) divide
    the rows that are sources.
    """
    relation, indices = numbers_of(schema.edge_ptr, edge_ids), csc.indices.long()
    stacked, piece_of = torch.empty_like(indices), torch.zeros_like(indices)
    sources, ends, begin_of_piece = [], [], 0
    for number, (begin, end) in enumerate(ranges):
        inside = (indices >= begin) & (indices < end)
        width = max(end - begin, 1)
        pairs, pair_of_edge = torch.unique(relation[inside] * width + indices[inside] - begin, return_inverse=True)
        sources.append(RowGroups(pairs % width, _pointers(pairs // width, len(schema.edges))))
        stacked[inside], piece_of[inside] = pair_of_edge + begin_of_piece, number
        ends.append((begin_of_piece, begin_of_piece + len(pairs)))
        begin_of_piece += len(pairs)
    keys = csc.global_edge_ids if csc.global_edge_ids is not None else csc.edge_ids
    if len(ranges) == 1:
        pieces = [CSC.build(csc.indptr, stacked, begin_of_piece, csc.edge_ids, keys)]
    else:
        assert csc.edge_ids is None  # a part's edges are in the order of its rows
        pieces = split(csc.indptr, stacked, keys, piece_of, ends)
    return Relations(pieces, sources, relation)


def numbers_of(ptr, ids: Tensor) -> Tensor:
    """Return the number of each id's range, int64, from where the ranges begin and end."""
    ends = torch.as_tensor(ptr[1:], device=ids.device)
    return torch.searchsorted(ends, ids.contiguous(), right=True)


@torch.inference_mode(False)
def degrees_by_relation(csc: CSC, relation: Tensor, relations: int) -> Tensor:
    """Return how many in-edges of each relation each row has on this rank, int64, (rows, relations)."""
    rows = torch.repeat_interleave(torch.arange(csc.num_dst, device=csc.device), csc.indptr.diff())
    counts = torch.bincount(rows * relations + relation, minlength=csc.num_dst * relations)
    return counts.view(csc.num_dst, relations)


def union_csc(schema: Schema, ends: Sequence[tuple[Tensor, Tensor]], device=None) -> CSC:
    """Return the in-edges of all nodes of a typed graph from the sources and destinations of each relation."""
    offsets = schema.node_ptr[schema.ends]
    shifted = [(src.long() + int(at[0]), dst.long() + int(at[1])) for (src, dst), at in zip(ends, offsets)]
    empty = torch.zeros(0, dtype=torch.int64, device=device)
    src, dst = (torch.cat([empty, *(pair[side] for pair in shifted)]).to(device) for side in (0, 1))
    edge_ids = torch.argsort(dst, stable=True)
    nodes = int(schema.node_ptr[-1])
    indptr = torch.cat([empty.new_zeros(1), torch.bincount(dst, minlength=nodes).cumsum(0)])
    return CSC.build(indptr, src[edge_ids].to(torch.int32 if nodes < 2**31 else torch.int64), nodes, edge_ids)
