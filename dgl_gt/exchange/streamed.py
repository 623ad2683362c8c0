"""More graph than memory: a rank's rows in pieces, of which a model runs one at a time, and files for the rows between layers."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterable
from itertools import pairwise

import torch
from torch import Tensor

from dgl_gt.comm.group import Comm
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.figures.strategies import StrategyRules
from dgl_gt.partition.system.units import format_bytes
from dgl_gt.structure import CSC

from .local import Local
from .shard import Shard


class SpilledRows:
    """Rows in a file that has no name: it goes with this object, or when the process ends in whatever way."""

    def __init__(self, directory: str, shape: tuple[int, ...], dtype: torch.dtype):
        size = max(1, torch.Size(shape).numel() * dtype.itemsize)
        try:
            with tempfile.TemporaryFile(dir=directory) as file:
                os.posix_fallocate(file.fileno(), 0, size)  # else a full disk would end the process in a write
                self._map = mmap.mmap(file.fileno(), size)
        except OSError as error:
            raise InputError(
                f"spill is {directory}, where {format_bytes(size)} cannot be stored ({error.strerror}); choose a directory on a disk with "
                "room"
            ) from error
        has_rows = torch.Size(shape).numel() > 0
        self.rows = (
            torch.frombuffer(self._map, dtype=dtype).view(shape) if has_rows else torch.empty(shape, dtype=dtype)
        )

    def release(self) -> None:
        """Let the system take the memory of the rows; the file keeps them."""
        self._map.madvise(mmap.MADV_DONTNEED)


class Piece(Local):
    """The view of a piece: destinations are its rows, sources these and then the others that its edges read."""

    holds_all = False

    def __init__(self, csc: CSC, node_ids: Tensor, degrees: Tensor):
        super().__init__(csc, node_ids)
        self._degrees = degrees

    def in_degrees(self) -> Tensor:
        return self._degrees[: self.num_dst, 0]

    def out_degrees(self) -> Tensor:
        return self._degrees[:, 1]

    def sum_over_ranks(self, values: Tensor) -> Tensor:
        raise _sums_over_nodes()

    def stack_over_ranks(self, values: Tensor) -> Tensor:
        raise _sums_over_nodes()


def _sums_over_nodes() -> InputError:
    return InputError(
        "spill is given, and a layer sums over all nodes, as batch norm does; choose norm layer, or leave spill out"
    )


class Stream:
    """The pieces of one rank's part of an edge cut, between ``ends``, and how they get rows of others.

    Attributes
    ----------
    rows : list of slice
        The owned rows of each piece.
    edges : list of slice
        Its edges.
    """

    def __init__(self, shard: Shard, comm: Comm, ends: list[int], directory: str):
        self._shard, self._comm, self._directory = shard, comm, directory
        self.rows = [slice(begin, end) for begin, end in pairwise(ends)]
        self.edges = [slice(int(shard.indptr[each.start]), int(shard.indptr[each.stop])) for each in self.rows]
        self._others: dict[int, Tensor] = {}
        self._pieces: dict[int, Piece] = {}
        self._free: list[SpilledRows] = []

    def checked(self, rows: Tensor, of_edges: Iterable[Tensor | None]) -> Tensor:
        """Return rows of owned nodes, which need a gradient if they do on any rank; ``ValueError`` if tensors do not fit."""
        for each in of_edges:
            self._shard.check(rows, each)
        return self._comm.agree_on_grad(rows)

    @torch.inference_mode(False)
    def piece(self, number: int) -> Piece:
        """Return the view of a piece."""
        if number not in self._pieces:
            shard, rows, edges = self._shard, self.rows[number], self.edges[number]
            indices, count = shard.indices[edges], rows.stop - rows.start
            is_other = (indices < rows.start) | (indices >= rows.stop)
            others = indices[is_other].unique()
            indices = torch.where(is_other, count + torch.searchsorted(others, indices), indices - rows.start)
            indptr = shard.indptr[rows.start : rows.stop + 1] - edges.start
            keys = shard.edge_ids[edges]
            csc = CSC.build(indptr, indices.to(shard.indices.dtype), count + len(others), global_edge_ids=keys)
            self._others[number] = others.long()
            node_ids, degrees = (
                torch.cat([each[rows], each[others.long()]]) for each in (shard.node_ids, shard.degrees)
            )
            self._pieces[number] = Piece(csc, node_ids, degrees)
        return self._pieces[number]

    @torch.inference_mode(False)
    def take(self, width: int, dtype: torch.dtype) -> SpilledRows:
        """Return space for rows of owned and halo nodes, which may hold anything."""
        shape = self._shard.num_held, width
        self._free = [each for each in self._free if each.rows.shape == shape and each.rows.dtype == dtype]
        return self._free.pop() if self._free else SpilledRows(self._directory, shape, dtype)

    def give_back(self, space: SpilledRows) -> None:
        """Take space back for later rows."""
        self._free.append(space)

    def fetch(self, space: SpilledRows) -> None:
        """Fill the rows of the halo from their owners; a collective."""
        owned = self._shard.num_owned
        if self._comm.world_size > 1:
            plan = self._shard.send_plan()
            sent = space.rows[plan.send_rows]
            space.rows[owned:] = self._comm.start(sent, plan.send_counts, plan.recv_counts).wait()

    def send_home(self, space: SpilledRows) -> None:
        """Add gradients of the halo to those of their owners' rows; a collective."""
        owned = self._shard.num_owned
        if self._comm.world_size > 1:
            plan = self._shard.send_plan()
            arrived = self._comm.start(space.rows[owned:], plan.recv_counts, plan.send_counts).wait()
            space.rows[:owned].index_add_(0, plan.send_rows, arrived)

    def sources(self, space: SpilledRows, number: int) -> Tensor:
        """Return the rows of a piece's sources, (N_src, C)."""
        return torch.cat([space.rows[self.rows[number]], space.rows[self._others[number]]])

    def add(self, space: SpilledRows, number: int, gradient: Tensor) -> None:
        """Add gradients of a piece's sources."""
        rows = self.rows[number]
        count = rows.stop - rows.start
        space.rows[rows] += gradient[:count]
        space.rows.index_add_(0, self._others[number], gradient[count:])


def make_stream(shard: Shard, comm: Comm, rules: StrategyRules, ends: list[int], directory: str) -> Stream:
    """Make the stream of a shard; :class:`InputError` where layers cannot run part by part."""
    why = ""
    if shard.schema is not None or shard.has_mirrors:
        why = "the shards have several types" if shard.schema is not None else "the shards are a vertex cut"
    elif shard.depth > 1:
        why = f"depth is {shard.depth}"
    elif rules.name not in ("local", "halo_h"):
        why = f"strategy is {rules.name}"
    elif shard.node_ids.device.type != "cpu":
        why = f"the device is {shard.node_ids.device}"
    if why:
        raise InputError(
            f"spill is {directory}, and {why}; layers run part by part on an edge cut with one type of nodes, on a CPU, with the "
            "strategy halo and the depth 1"
        )
    SpilledRows(directory, (1,), torch.uint8)  # so that a directory that cannot be written is told now
    return Stream(shard, comm, ends, directory)
