"""One part of a cut in memory: tensors, and how its rows travel to other ranks and copies arrive."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

import torch

from dgl_gt.comm.group import Comm
from dgl_gt.partition.schema import Schema
from dgl_gt.partition.shards.counts import read_schema
from dgl_gt.partition.shards.files import ShardReader, verify
from dgl_gt.partition.shards.manifest import read_manifest
from dgl_gt.structure import CSC


class Reader(Protocol):
    """What a shard is read from: :class:`dgl_gt.partition.shards.files.ShardReader`, or what stands in for it."""

    manifest: dict
    parts: int
    is_vertex_cut: bool

    def rows(self, part: int, depth: int = 1) -> list[int]: ...
    def structure(self, part: int, *names: str, depth: int = 1) -> dict[str, torch.Tensor]: ...
    def data(self, part: int, kind: str, *names: str, rows: int) -> dict[str, torch.Tensor]: ...
    def links(self) -> dict[str, torch.Tensor]: ...


@dataclass(frozen=True)
class SendPlan:
    """Which rows travel between ranks to fill the copies, and how many to and from each rank, (P,)."""

    send_rows: torch.Tensor  # int64: owned rows that peers hold copies of, grouped by peer
    send_counts: list[int]
    recv_counts: list[int]
    order: torch.Tensor | None = None  # int64: position of each copy among the rows that arrive, unless it is the same

    def in_held_order(self, received: torch.Tensor) -> torch.Tensor:
        """Return the rows that arrived, in the order of the copies."""
        return received if self.order is None else received.index_select(0, self.order)


@dataclass(frozen=True)
class Shard:
    """One part: owned rows first, then copies (halo or mirrors), hop by hop and grouped by owner; see docs/format.md.

    Tensors that a shard or a view makes once and keeps are made outside of inference mode, whatever the caller's
    mode is: a tensor that is made inside can never take part in training.
    """

    has_mirrors: bool  # whether copies have in-edges in the part, too, as in a vertex cut
    part: int
    depth: int  # hops of halo, as many as the caller asked for; 1 in a vertex cut, for its mirrors
    rows: list[int]  # number of owned rows, then of rows with the copies of 1, 2, ... hops
    edges: list[int]  # number of in-edges of the first rows[k] rows, for each hop k; in a vertex cut, of all rows
    indptr: torch.Tensor  # in-edges of the first rows[depth - 1] rows; in a vertex cut, of all held rows
    indices: torch.Tensor
    node_ids: torch.Tensor  # int64 (held,): the user's
    edge_ids: torch.Tensor  # int64 (edges[-1],): the user's
    send_rows: torch.Tensor  # int64: owned rows that peers hold copies of, hop by hop, in the receiver's order
    send_ptr: torch.Tensor  # int64 (depth, P + 1): ranges of each peer's rows in send_rows
    recv_ptr: torch.Tensor  # the same among the copies
    returning: torch.Tensor | None  # bool, as send_rows: whether that mirror has in-edges
    node_data: dict[str, torch.Tensor]  # (N_owned, ...)
    edge_data: dict[str, torch.Tensor]  # (edges[0], ...)
    reader: Reader  # of the whole partition
    degrees: (
        torch.Tensor
    )  # int64 (rows[-1], 2): in- and out-degree in the whole graph; empty until ranks tell each other
    rank_order: (
        torch.Tensor
    )  # int64 (rows[1],): number of each row among the owned rows of all ranks; empty if not asked
    _cache: dict = field(default_factory=dict, init=False, compare=False, repr=False)  # each copy has its own

    @property
    def manifest(self) -> dict:
        return self.reader.manifest

    @cached_property
    def schema(self) -> Schema | None:
        """The types of nodes and edges, where there are several."""
        return read_schema(self.manifest)

    @property
    def num_owned(self) -> int:
        return self.rows[0]

    @property
    def num_held(self) -> int:
        """Number of owned rows and copies of one hop."""
        return self.rows[1]

    @torch.inference_mode(False)
    def csc(self, inner: int = 0) -> CSC:
        """Return the in-edges of the owned rows and ``inner`` hops of halo; in a vertex cut, all edges of the part.

        Their sources are those rows and one hop more. The rows of a bias are the part's edges in this order.
        """
        if inner not in self._cache:
            rows = self.rows[1] if self.has_mirrors else self.rows[inner]
            indices, keys = (x[: self.edges[inner]] for x in (self.indices, self.edge_ids))
            indptr = self.indptr[: rows + 1]
            self._cache[inner] = CSC.build(indptr, indices, self.rows[inner + 1], global_edge_ids=keys)
        return self._cache[inner]

    @torch.inference_mode(False)
    def send_plan(self, hops: int = 1) -> SendPlan:
        """Return the plan that fills the copies of the first ``hops`` hops."""
        key = "send plan", hops
        if key not in self._cache:
            sent, received = (ptr[:hops].diff(dim=1) for ptr in (self.send_ptr, self.recv_ptr))
            send_rows, order = self.send_rows, None
            if hops > 1:
                send_rows = send_rows[_by_peer(self.send_ptr[:hops])]
                order = torch.argsort(_by_peer(self.recv_ptr[:hops]))
            send_rows = send_rows[: int(sent.sum())]
            device = self.node_ids.device
            self._cache[key] = SendPlan(
                send_rows.to(device),
                sent.sum(0).tolist(),
                received.sum(0).tolist(),
                None if order is None else order.to(device),
            )
        return self._cache[key]

    @torch.inference_mode(False)
    def edge_send_plan(self, inner: int) -> SendPlan:
        """Return the plan that brings data of the in-edges of ``inner`` hops of halo from their owners.

        The in-edges of a row have the same order on every rank that holds the row.
        """
        key = "edge send plan", inner
        if key not in self._cache:
            plan, indptr = self.send_plan(inner), self.indptr
            degrees = indptr[self.num_owned : self.rows[inner] + 1].diff()  # of the copies, in their order
            arriving = degrees if plan.order is None else torch.empty_like(degrees).index_copy_(0, plan.order, degrees)
            starts = arriving.cumsum(0) - arriving
            order = None if plan.order is None else _ranges(starts[plan.order], degrees)
            sent = indptr[plan.send_rows + 1] - indptr[plan.send_rows]
            self._cache[key] = SendPlan(
                _ranges(indptr[plan.send_rows], sent),
                [int(part.sum()) for part in sent.split(plan.send_counts)],
                [int(part.sum()) for part in arriving.split(plan.recv_counts)],
                order,
            )
        return self._cache[key]

    @torch.inference_mode(False)
    def held_node_data(self, hops: int = 1) -> dict[str, torch.Tensor]:
        """Return the node data of owned rows and of the copies of ``hops`` hops, read from disk."""
        with torch.device("cpu"):
            data = self.reader.data(self.part, "node_data", rows=self.rows[hops])
        return {key: value.to(self.node_ids.device) for key, value in data.items()}

    def check(self, x: torch.Tensor, bias: torch.Tensor | None = None, rows: int | None = None, edge=None) -> None:
        """Raise ``ValueError`` unless ``bias`` and ``edge`` have a row for each edge of this part, and ``x`` for each node.

        With ``rows``, there must be as many of ``x``, for owned nodes and copies.
        """
        wanted = self.num_owned if rows is None else rows
        if len(x) != wanted:
            of = "owned node, as in sg.ndata" if rows is None else "owned and halo node, as source_rows returns them"
            raise ValueError(f"features have {len(x)} rows, but {wanted} are read; pass one row for each {of}")
        for name, values in (("bias", bias), ("edge", edge)):
            if values is not None and len(values) != self.edges[0]:
                raise ValueError(
                    f"{name} has {len(values)} rows, but this rank has {self.edges[0]} edges; see sg.edata"
                )

    def to(self, device) -> Shard:
        """Return this shard with its tensors on a device."""
        names = ("indptr", "indices", "node_ids", "edge_ids", "degrees", "rank_order")
        return replace(
            self,
            **{key: getattr(self, key).to(device) for key in names},
            node_data={key: value.to(device) for key, value in self.node_data.items()},
            edge_data={key: value.to(device) for key, value in self.edge_data.items()},
        )


def _ranges(starts: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Return ``starts[0], starts[0] + 1, ...``, ``lengths[0]`` numbers, then the numbers of the next start."""
    offsets = starts - (lengths.cumsum(0) - lengths)
    total = int(lengths.sum())
    return torch.repeat_interleave(offsets, lengths) + torch.arange(total, device=starts.device)


def _by_peer(ptr: torch.Tensor) -> torch.Tensor:
    """Return the positions that sort hop-major rows by peer first, from their pointers (hops, P + 1)."""
    begins, ends = ptr[:, :-1].T.flatten(), ptr[:, 1:].T.flatten()
    return _ranges(begins, ends - begins)


def read_shard(directory, part: int, depth: int = 1, manifest: dict | None = None) -> Shard:
    """Read one part with ``depth`` hops of halo (1 of a vertex cut), after checking its checksums.

    Give the ``manifest`` if it is read already. Raises ``InputError`` if this is not a shard directory, it has another
    format version, or a file of this part is damaged.
    """
    manifest = manifest or read_manifest(directory)
    verify(directory, manifest, [part])
    return make_shard(ShardReader(directory, manifest, "pt"), part, depth)


def make_shard(reader: Reader, part: int, depth: int = 1) -> Shard:
    """Return one part with ``depth`` hops of halo, from what a reader gives."""
    with torch.device("cpu"):  # whatever torch's default device is
        rows = reader.rows(part, depth)
        arrays = reader.structure(part, depth=depth)
        edges = arrays["indptr"][rows[1:] if reader.is_vertex_cut else rows[:-1]].tolist()
        node_data = reader.data(part, "node_data", rows=rows[0])
        edge_data = reader.data(part, "edge_data", rows=edges[0])
    # the pointers of all hops, one hop after another (depth * P + 1,), as a line per hop (depth, P + 1)
    pointers = {key: arrays[key].unfold(0, reader.parts + 1, reader.parts) for key in ("send_ptr", "recv_ptr")}
    return Shard(
        has_mirrors=reader.is_vertex_cut,
        part=part,
        depth=depth,
        rows=rows,
        edges=edges,
        **{key: arrays[key] for key in ("indptr", "indices", "node_ids", "edge_ids", "send_rows")},
        **pointers,
        returning=arrays.get("send_returns"),
        node_data=node_data,
        edge_data=edge_data,
        reader=reader,
        degrees=arrays["node_ids"].new_empty(0, 2),
        rank_order=arrays["node_ids"].new_empty(0),
    )


def sum_over_copies(shard: Shard, comm: Comm, counts: torch.Tensor) -> torch.Tensor:
    """Return whole numbers of the rows of one hop, summed over all ranks that hold the row, (held, ...); a collective."""
    plan = shard.send_plan()
    owned, copies = counts.split([shard.num_owned, shard.num_held - shard.num_owned])
    owned = owned.index_add(0, plan.send_rows, comm.start(copies, plan.recv_counts, plan.send_counts).wait())
    return torch.cat([owned, comm.start(owned[plan.send_rows], plan.send_counts, plan.recv_counts).wait()])


def begin_pull(comm: Comm, plan: SendPlan, x: torch.Tensor, overlap: bool):
    """Start to send owned rows to the ranks that hold copies; return a function that returns copies, (recv, ...)."""
    begun = comm.begin(x.index_select(0, plan.send_rows), plan.send_counts, plan.recv_counts)
    finish = comm.finisher(begun, overlap)
    return lambda: plan.in_held_order(finish())


def pull(shard: Shard, comm: Comm, x: torch.Tensor, hops: int = 1) -> torch.Tensor:
    """Return held rows from owned rows: (owned, ...) -> (held, ...). Gradients of copies are summed at their owners."""
    shard.check(x)
    if comm.world_size == 1:
        return x
    return torch.cat([x, begin_pull(comm, shard.send_plan(hops), x, overlap=False)()])
