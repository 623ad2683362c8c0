"""More graph than memory: a rank's rows in pieces, of which a model runs one at a time, and files for the rows between layers."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import pairwise
from typing import IO
from weakref import WeakSet

import torch
from torch import Tensor

from dgl_gt.comm.group import Comm
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.figures.strategies import StrategyRules
from dgl_gt.partition.system.units import format_bytes
from dgl_gt.structure import CSC

from .local import Local
from .shard import Shard

SPILL_DTYPES = {"fp32": None, "bf16": torch.bfloat16}  # of float32 rows in files; None keeps them
_AT_ONCE = 2**14  # rows of others that are copied before the system takes their pages back
_AHEAD_BYTES = 2**21  # that the system is asked to read at a time: it takes a part of larger requests only


class SpilledRows:
    """Rows in a file that has no name: it goes with this object, or when the process ends in whatever way.

    Without a directory they are in memory, for made-up parts. ``rows`` may be ``stored`` in fewer bits than the ``dtype`` with
    which a model computes.
    """

    __slots__ = (
        "__weakref__",
        "_file",
        "_map",
        "dtype",
        "rows",
    )  # no __dict__, in which plan.watch would look for tensors in memory

    def __init__(
        self, directory: str | None, shape: tuple[int, ...], dtype: torch.dtype, stored: torch.dtype | None = None
    ):
        self.dtype, stored = dtype, stored or dtype
        size = max(1, torch.Size(shape).numel() * stored.itemsize)
        try:
            self._file = None if directory is None else tempfile.TemporaryFile(dir=directory)  # noqa: SIM115
            number = -1 if self._file is None else self._file.fileno()
            if self._file is not None:
                os.posix_fallocate(number, 0, size)  # else a full disk would end the process in a write
            self._map = mmap.mmap(number, size)
        except OSError as error:
            raise InputError(
                f"spill is {directory}, where {format_bytes(size)} cannot be stored ({error.strerror}); choose a directory on a disk with "
                "room"
            ) from error
        has_rows = torch.Size(shape).numel() > 0
        self.rows = (
            torch.frombuffer(self._map, dtype=stored).view(shape) if has_rows else torch.empty(shape, dtype=stored)
        )

    def release(self) -> None:
        """Let the system take the memory of the rows; the file keeps them."""
        self._map.madvise(mmap.MADV_DONTNEED)

    def place(self, rows: slice) -> tuple[IO, int, int]:
        """The file, and where in it rows begin and end (bytes)."""
        assert self._file is not None
        width = self.rows.shape[1] * self.rows.itemsize
        return self._file, rows.start * width, rows.stop * width

    def forget(self) -> None:
        """Write all rows to the disk, and let the system forget its own copies, too."""
        assert self._file is not None
        self._map.flush()
        self.release()
        os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


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

    Rows of files are in memory only while they are copied. While a piece computes, a thread has the system read the next
    piece's rows ahead; the system decides when to write.

    Attributes
    ----------
    rows : list of slice
        The owned rows of each piece.
    edges : list of slice
        Its edges.
    directory : str, optional
        Where the files are.
    spill_dtype : torch.dtype, optional
        Of rows in files in place of float32; their gradients stay float32.
    spaces : WeakSet of SpilledRows
        All files that there are.
    read_bytes, written_bytes : int
        Bytes of rows that were copied from files, and to them, so far.
    file_bytes : int
        The most that the files had at once (bytes).
    listener : callable, optional
        Called as that of a transport, see :class:`dgl_gt.plan.trace.Event`.
    """

    read_bytes = written_bytes = file_bytes = 0
    listener: Callable | None = None

    def __init__(
        self,
        shard: Shard,
        comm: Comm,
        ends: list[int],
        directory: str | None,
        spill_dtype: torch.dtype | None = None,
    ):
        self._shard, self._comm, self.directory, self.spill_dtype = shard, comm, directory, spill_dtype
        self.rows = [slice(begin, end) for begin, end in pairwise(ends)]
        self.edges = [slice(int(shard.indptr[each.start]), int(shard.indptr[each.stop])) for each in self.rows]
        self._others: dict[int, Tensor] = {}
        self._pieces: dict[int, Piece] = {}
        self._free: list[SpilledRows] = []
        self._reading = ThreadPoolExecutor(1)
        self.spaces: WeakSet[SpilledRows] = WeakSet()

    @contextmanager
    def running(self):
        """Inside the block, a piece runs; what is made in it depends on the counts of that piece."""
        self._tell("piece")
        yield
        self._tell("piece_end")

    def _copying(self, verb: str) -> AbstractContextManager:
        recorder = self._comm.recorder
        return nullcontext() if recorder is None else recorder.copying(verb)

    def _tell(self, kind: str, *sizes: int) -> None:
        if self.listener:
            self.listener(kind, (), *sizes)

    def _count(self, read_bytes: int = 0, written_bytes: int = 0) -> None:
        self.read_bytes += read_bytes
        self.written_bytes += written_bytes
        self._tell("file", read_bytes, written_bytes)

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
    def take(self, width: int, dtype: torch.dtype, is_gradient: bool = False) -> SpilledRows:
        """Return space for rows of owned and halo nodes, which may hold anything."""
        shape = self._shard.num_held, width
        is_short = self.spill_dtype is not None and dtype == torch.float32 and not is_gradient
        stored = self.spill_dtype if is_short else dtype
        self._free = [each for each in self._free if each.rows.shape == shape and each.rows.dtype == stored]
        if self._free:
            return self._free.pop()
        self.spaces.add(space := SpilledRows(self.directory, shape, dtype, stored))
        self.file_bytes = max(self.file_bytes, sum(each.rows.nbytes for each in self.spaces))
        return space

    def give_back(self, space: SpilledRows) -> None:
        """Take space back for later rows."""
        self._free.append(space)

    def fetch(self, space: SpilledRows) -> None:
        """Fill the rows of the halo from their owners; a collective."""
        owned = self._shard.num_owned
        if self._comm.world_size > 1:
            plan = self._shard.send_plan()
            with self._copying("read"):
                sent = space.rows[plan.send_rows]
                space.release()
            arrived = self._comm.start(sent, plan.send_counts, plan.recv_counts).wait()
            with self._copying("write"):
                space.rows[owned:] = arrived
                space.release()
            self._count(sent.nbytes, arrived.nbytes)

    def send_home(self, space: SpilledRows) -> None:
        """Add gradients of the halo to those of their owners' rows; a collective."""
        owned = self._shard.num_owned
        if self._comm.world_size > 1:
            plan = self._shard.send_plan()
            with self._copying("read"):
                copies = space.rows[owned:].clone()
            arrived = self._comm.start(copies, plan.recv_counts, plan.send_counts).wait()
            with self._copying("write"):
                space.rows[:owned].index_add_(0, plan.send_rows, arrived)
                space.release()
            self._count(copies.nbytes + arrived.nbytes, arrived.nbytes)

    def _read_ahead(self, space: SpilledRows, number: int) -> None:
        """Begin to read the rows of a piece, if there is one."""
        if self.directory is not None and number < len(self.rows):
            self._reading.submit(_read_ahead, *space.place(self.rows[number]))

    def read(self, space: SpilledRows, number: int) -> Tensor:
        """Return the rows of a piece, (rows, C)."""
        with self._copying("read"):
            rows = space.rows[self.rows[number]].to(space.dtype, copy=True)
            space.release()
        self._read_ahead(space, number + 1)
        self._count(rows.numel() * space.rows.itemsize)
        return rows

    def sources(self, space: SpilledRows, number: int) -> Tensor:
        """Return the rows of a piece's sources, (N_src, C)."""
        self.piece(number)  # which finds them
        own, others = self.rows[number], self._others[number]
        count = own.stop - own.start
        rows = torch.empty(count + len(others), space.rows.shape[1], dtype=space.dtype)
        with self._copying("read"):
            rows[:count] = space.rows[own]
            space.release()
            for into, some in zip(rows[count:].split(_AT_ONCE), others.split(_AT_ONCE)):
                if space.rows.dtype == space.dtype:
                    torch.index_select(space.rows, 0, some, out=into)
                else:
                    into.copy_(space.rows[some])
                space.release()  # pages of other rows come along, so that they would soon be the whole file
        self._read_ahead(space, number + 1)
        self._count(rows.numel() * space.rows.itemsize)
        return rows

    def write(self, space: SpilledRows, number: int, rows: Tensor) -> None:
        """Write the rows of a piece."""
        with self._copying("write"):
            space.rows[self.rows[number]] = rows
            space.release()
        self._count(0, rows.numel() * space.rows.itemsize)

    def clear(self, space: SpilledRows) -> None:
        """Set all rows to zero."""
        with self._copying("write"):
            for rows in (*self.rows, slice(self._shard.num_owned, None)):
                space.rows[rows].zero_()
                space.release()
        self._count(0, space.rows.nbytes)

    def add(self, space: SpilledRows, number: int, gradient: Tensor) -> None:
        """Add gradients of a piece's sources."""
        rows = self.rows[number]
        count = rows.stop - rows.start
        with self._copying("write"):
            space.rows[rows] += gradient[:count]
            space.release()
            for each, some in zip(gradient[count:].split(_AT_ONCE), self._others[number].split(_AT_ONCE)):
                space.rows.index_add_(0, some, each)
                space.release()
        self._read_ahead(space, number + 1)
        self._count(gradient.nbytes, gradient.nbytes)


def _read_ahead(file: IO, begin: int, end: int) -> None:
    """Have the system read a range of a file that it does not hold; this waits where the disk is slow."""
    for at in range(begin, end, _AHEAD_BYTES):
        os.posix_fadvise(file.fileno(), at, min(_AHEAD_BYTES, end - at), os.POSIX_FADV_WILLNEED)


def make_stream(
    shard: Shard,
    comm: Comm,
    rules: StrategyRules,
    ends: list[int],
    directory: str,
    spill_dtype: torch.dtype | None = None,
) -> Stream:
    """Make the stream of a shard; :class:`InputError` where layers cannot run part by part."""
    why = ""
    if shard.schema is not None:
        why = "the shards have several types"
    elif shard.depth > 1:
        why = f"depth is {shard.depth}"
    elif rules.name not in ("local", "halo_h"):
        why = f"strategy is {rules.name}"
    elif shard.node_ids.device.type != "cpu":
        why = f"the device is {shard.node_ids.device}"
    if why:
        raise InputError(
            f"spill is {directory}, and {why}; layers run part by part on shards with one type of nodes, on a CPU, with the "
            "strategy halo and the depth 1"
        )
    SpilledRows(directory, (1,), torch.uint8)  # so that a directory that cannot be written is told now
    return Stream(shard, comm, ends, directory, spill_dtype)
