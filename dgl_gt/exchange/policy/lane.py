"""One direction of one exchange of a training step, from step to step: what was sent, and what arrived."""

from __future__ import annotations

import torch

from dgl_gt.comm.transfer import Transfer
from dgl_gt.ops.quantise import pack_rows, packed_bytes, unpack_rows
from dgl_gt.partition.errors import InputError

from .clock import Clock
from .policy import ADAPTIVE, Mode


class Lane:
    """Rows on their way between ranks under a policy, always between the same ranks and in the same order.

    Each rank knows the modes of all pairs, so all ranks agree on what is sent in a step. In a stale mode of
    fewer than 32 bits, the sender keeps a copy of what the receiver has and sends the difference, which the receiver
    adds. With an adaptive period, it keeps a copy to measure how much rows change. With ``has_feedback``, the rounding
    error is kept and added to what is sent next (error feedback, Seide et al. 2014).

    Parameters
    ----------
    comm : Comm
    modes : list of list of Mode, (P, P)
        The mode from each rank to each other rank.
    send_counts, recv_counts : list of int, (P,)
        Rows to and from each rank.
    clock : Clock
        What says which steps send rows of an adaptive staleness.
    """

    def __init__(
        self, comm, modes: list[list[Mode]], send_counts, recv_counts, clock: Clock, *, has_feedback: bool = False
    ):
        self._comm, self._clock, self._has_feedback = comm, clock, has_feedback
        self._counts = list(send_counts), list(recv_counts)
        self._sent_modes = modes[comm.rank]
        self._received_modes = [row[comm.rank] for row in modes]
        self._periods = {mode.every for i, row in enumerate(modes) for j, mode in enumerate(row) if i != j}
        self._uses, self._pending, self._shape = 0, [], None
        self._there = self._here = self._error = self._result = None

    def start(self, rows: torch.Tensor, keys: torch.Tensor, seed: int, received: torch.Tensor) -> None:
        """Start to send rows, (sum(send_counts), ...), as far as they are due; :meth:`wait` fills ``received``."""
        self._finish(self._pending)  # what was sent in an earlier step
        self._begin_with(rows)
        flat = rows.detach().flatten(1)
        self._pending, self._due, self._result = [], [], received
        for every in sorted(self._periods):  # an exchange for each period: all ranks take part in it
            if self._uses == 0 or (self._clock.is_due if every == ADAPTIVE else self._uses % every == 0):
                transfer = Transfer(self._comm, self._bytes(0, every), self._bytes(1, every), is_taped=False)
                begun = (every, transfer.start(self._packed(flat, keys, seed, every)))
                (self._due if every == 1 or self._uses == 0 else self._pending).append(begun)
        self._uses += 1

    def wait(self) -> None:
        """Wait for the rows that this step uses."""
        self._finish(self._due, self._result.flatten(1))
        if self._here is not None:
            for mode, at in zip(self._received_modes, _slices(self._counts[1])):
                if mode.is_stale:
                    self._result[at] = self._here[at].view(self._result[at].shape)
        self._due = self._result = None

    def drain(self) -> None:
        """Wait for what is still under way."""
        self._finish(self._pending)

    def _begin_with(self, rows) -> None:
        """Start anew where this is the first step, or where rows have another shape than before."""
        shape = rows.shape[1:], rows.dtype
        if shape == self._shape:
            return
        if rows.dtype == torch.float64 and any(mode.bits < 32 for mode in self._sent_modes + self._received_modes):
            raise InputError(
                "the policy sends rows in 16 bits or less, but the model computes in float64; use policy 'exact' or "
                "'stale=K', or train in float32"
            )
        self._shape, self._uses = shape, 0
        columns = rows.shape[1:].numel()
        self._columns, self._itemsize, self._here = columns, rows.element_size(), None
        if any(mode.is_stale for mode in self._received_modes):
            self._here = rows.new_zeros(sum(self._counts[1]), columns)
        if any(mode.every == ADAPTIVE or (mode.bits < 32 and mode.is_stale) for mode in self._sent_modes):
            self._there = rows.new_zeros(sum(self._counts[0]), columns)
        if self._has_feedback and any(mode.bits < 16 for mode in self._sent_modes):
            self._error = rows.new_zeros(sum(self._counts[0]), columns)

    def _bytes(self, side: int, every: int) -> list[int]:
        """The bytes to (side 0) or from (1) each rank in the exchange of a period."""
        modes = (self._sent_modes, self._received_modes)[side]
        return [
            count * self._row_bytes(mode) if mode.every == every and rank != self._comm.rank else 0
            for rank, (mode, count) in enumerate(zip(modes, self._counts[side]))
        ]

    def _row_bytes(self, mode: Mode) -> int:
        return self._columns * self._itemsize if mode.bits == 32 else packed_bytes(self._columns, mode.bits)

    def _packed(self, rows, keys, seed: int, every: int) -> torch.Tensor:
        """What is sent in the exchange of a period, uint8."""
        pieces = []
        for rank, at in enumerate(_slices(self._counts[0])):
            mode = self._sent_modes[rank]
            if mode.every != every or rank == self._comm.rank:
                continue
            if every == ADAPTIVE and self._uses:
                self._clock.note_change(_relative_change(rows[at], self._there[at]))
            if mode.bits == 32:
                if every == ADAPTIVE:
                    self._there[at] = rows[at]
                pieces.append(rows[at].contiguous().view(torch.uint8).flatten())
                continue
            values = rows[at]
            if self._error is not None:
                values = values + self._error[at]
            base = self._there[at] if mode.is_stale else None
            packed = pack_rows(values if base is None else values - base, mode.bits, keys[at], seed)
            pieces.append(packed.flatten())
            if base is not None or self._error is not None:
                restored = unpack_rows(packed, mode.bits, rows.shape[1], rows.dtype)
                if base is not None:
                    restored = base.add_(restored)
                if self._error is not None:
                    torch.sub(values, restored, out=self._error[at])
        return torch.cat(pieces) if pieces else rows.new_empty(0, dtype=torch.uint8)

    def _finish(self, begun: list, result: torch.Tensor | None = None) -> None:
        """Wait for exchanges, and take the rows that arrived: those of this step alone into ``result``."""
        while begun:
            every, transfer = begun.pop(0)
            content, offset = transfer.wait(), 0
            for rank, (at, size) in enumerate(zip(_slices(self._counts[1]), self._bytes(1, every))):
                mode = self._received_modes[rank]
                if mode.every != every or rank == self._comm.rank:
                    continue
                piece, offset = content[offset : offset + size], offset + size
                _take(piece.clone(), mode, (result if every == 1 else self._here)[at])  # a copy, for its alignment


def _take(piece: torch.Tensor, mode: Mode, rows: torch.Tensor) -> None:
    """Write the rows that a piece of bytes holds to ``rows``, or add the differences that it holds."""
    if not len(rows):
        return
    if mode.bits == 32:
        rows.copy_(piece.view(rows.dtype).view(rows.shape))
        return
    arrived = unpack_rows(piece.view(len(rows), -1), mode.bits, rows.shape[1], rows.dtype)
    rows.add_(arrived) if mode.is_stale else rows.copy_(arrived)


def _relative_change(rows: torch.Tensor, before: torch.Tensor) -> float:
    """|rows - before| / |rows|; 0 where there are no rows."""
    return float((rows - before).norm() / rows.norm().clamp(min=torch.finfo(rows.dtype).tiny)) if rows.numel() else 0.0


def _slices(counts: list[int]) -> list[slice]:
    begin, found = 0, []
    for count in counts:
        found.append(slice(begin, begin + count))
        begin += count
    return found
