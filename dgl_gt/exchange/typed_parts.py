"""A typed graph relation by relation, with rows numbered within their type, for convolutions that know one relation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from dgl_gt.comm.group import Comm
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.schema import Schema
from dgl_gt.structure import CSC

from .halo import DeepHalo
from .local import Local
from .relations import RowGroups, numbers_of, rows_by_type
from .shard import SendPlan, Shard, begin_pull, sum_over_copies
from .shard_view import ShardView
from .view import View


@dataclass(frozen=True, eq=False)
class RelationPart:
    """The edges of one relation on this process.

    Attributes
    ----------
    edge_index : Tensor, int64, (2, E)
        Rows of the sources, of all that are held of their type, and of the destinations, which are owned.
    keys : Tensor, int64, (E,)
        What is the same of an edge on any rank: its number in the whole graph.
    num_src, num_dst : int
    out_degrees : Tensor, int64, (num_src,)
        Of the sources in the whole graph, in this relation.
    """

    edge_index: Tensor
    keys: Tensor
    num_src: int
    num_dst: int
    out_degrees: Tensor

    @cached_property
    @torch.inference_mode(False)
    def csc(self) -> CSC:
        """The edges as this package's layers take them."""
        src, dst = self.edge_index
        order = torch.argsort(dst, stable=True)
        indptr = torch.cat([dst.new_zeros(1), torch.bincount(dst, minlength=self.num_dst).cumsum(0)])
        return CSC.build(indptr, src[order], self.num_src, order, self.keys[order])

    @cached_property
    @torch.inference_mode(False)
    def block(self):
        """The edges as a DGL block. Needs DGL."""
        from dgl_gt.dgl_part import relation_block

        return relation_block(self.edge_index, self.num_src, self.num_dst, self.out_degrees)


class TypedParts:
    """The relations of a view, and how the rows of one type travel."""

    def __init__(self, view: View, csc: CSC, held_ids: Tensor | None, shard: Shard | None, comm: Comm | None):
        self.schema: Schema = view.checked_schema
        self.owned: RowGroups = view.owned_types
        self._csc, self._shard, self._comm = csc, shard, comm
        ids = torch.arange(csc.num_src, device=csc.device) if held_ids is None else held_ids
        self._type_of_row = numbers_of(self.schema.node_ptr, ids)
        self._held = rows_by_type(self.schema, ids)  # of each type the owned rows come first
        begins = torch.as_tensor(self._held.ptr[:-1], device=ids.device)[self._type_of_row]
        place = torch.empty_like(ids)
        place[self._held.rows] = torch.arange(len(ids), device=ids.device)
        self._place = place - begins
        self._relations: dict[int, RelationPart] = {}
        self._plans: dict[int, SendPlan] = {}

    @cached_property
    def _edges(self) -> tuple[Tensor, Tensor]:
        """The union's number of each edge, by position, and its destination's row."""
        csc, rows = self._csc, torch.arange(self._csc.num_dst, device=self._csc.device)
        ids = csc.edge_ids if csc.global_edge_ids is None else csc.global_edge_ids
        assert ids is not None
        return ids, torch.repeat_interleave(rows, csc.indptr.diff())

    @torch.inference_mode(False)
    def relation(self, number: int) -> RelationPart:
        """Return the edges of a relation, in the order of their data; a collective at its first call."""
        if number not in self._relations:
            ids, rows = self._edges
            begin, end = map(int, self.schema.edge_ptr[number : number + 2])
            position = torch.nonzero((ids >= begin) & (ids < end))[:, 0]
            if self._csc.edge_ids is not None:
                position = position[torch.argsort(self._csc.edge_ids[position])]
            sources = self._csc.indices[position].long()
            source, destination = map(int, self.schema.ends[number])
            degrees = torch.bincount(sources, minlength=len(self._place))
            if self._shard is not None and self._comm is not None:
                degrees = sum_over_copies(self._shard, self._comm, degrees)
            self._relations[number] = RelationPart(
                torch.stack([self._place[sources], self._place[rows[position]]]),
                ids[position],
                self._held.counts[source],
                self.owned.counts[destination],
                degrees[self._held.group(source)],
            )
        return self._relations[number]

    def pull(self, number: int, rows: Tensor) -> Tensor:
        """Return the held rows of a type from its owned rows, (owned, ...) -> (held, ...); differentiable, a collective."""
        wanted = self.owned.counts[number]
        if len(rows) != wanted:
            name = self.schema.node_types[number]
            raise ValueError(f"{name!r} has {len(rows)} rows, but this process has {wanted} nodes of that type")
        if self._comm is None:
            return rows
        rows = self._comm.agree_on_grad(rows)
        return torch.cat([rows, begin_pull(self._comm, self._plan(number), rows, overlap=False)()])

    @torch.inference_mode(False)
    def _plan(self, number: int) -> SendPlan:
        """The part of the plan of all types that sends the rows of one."""
        if number not in self._plans:
            assert self._shard is not None
            plan = self._shard.send_plan()
            sent = self._type_of_row[plan.send_rows] == number
            arriving = self._type_of_row[self._shard.num_owned :] == number
            counts = [
                [int(part.sum()) for part in of_peers.split(sizes)]
                for of_peers, sizes in ((sent, plan.send_counts), (arriving, plan.recv_counts))
            ]
            self._plans[number] = SendPlan(self._place[plan.send_rows[sent]], *counts)
        return self._plans[number]


_kept: WeakKeyDictionary[View, TypedParts] = WeakKeyDictionary()


@torch.inference_mode(False)
def typed_parts(view: View) -> TypedParts:
    """Return the relations of a view, made at its first use; :class:`InputError` for a vertex cut."""
    if view not in _kept:
        if isinstance(view, Local):
            _kept[view] = TypedParts(view, view.csc, view.node_ids, None, None)
        elif not isinstance(view, ShardView) or isinstance(view, DeepHalo):
            raise InputError(f"graph is a {type(view).__name__}; pass the ShardedGraph itself, or a typed graph")
        elif view.shard.has_mirrors:
            raise InputError(
                "convolutions of DGL and PyG need all in-edges of a node on one rank, and a vertex cut has them on several; "
                "partition with --cut edge"
            )
        else:
            shard = view.shard
            _kept[view] = TypedParts(view, shard.csc(), shard.node_ids[: shard.num_held], shard, view.comm)
    return _kept[view]
