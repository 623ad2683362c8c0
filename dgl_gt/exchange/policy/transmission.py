"""What a policy does to the exchanges of a strategy, in training steps. Everything else that ranks exchange is exact.

A lane is one direction of one exchange: when rows are sent, what was sent before, and what arrived.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch

from dgl_gt.comm.transfer import Transfer
from dgl_gt.ops.quantise import pack_rows, packed_bytes, unpack_rows
from dgl_gt.ops.reference import splitmix64
from dgl_gt.partition.errors import InputError

from .policy import ADAPTIVE, DIRECTIONS, MIN_COLUMNS, Mode, Policy

MAX_STEPS = 64
_CHANGE = 0.5  # relative change of rows below which k is doubled
_SPIKE = 1.25  # ratio of the loss to its recent mean above which k is halved
_MEMORY = 0.9  # weight of the mean so far in the running mean of the loss


class Clock:
    """Says which steps send rows of an adaptive staleness; all ranks have the same.

    After a transmission, k is doubled if on every rank and in every exchange the rows differ from those that were sent
    before by less than half of their own norm, ``|h - h_stale| < 0.5 |h|``. It is halved where the loss jumps. This
    follows the adaptive period of DIGEST (Chai et al. 2022, arXiv 2206.00057), with the change of rows instead of a
    schedule.

    ``every`` is the number of steps from one transmission to the next, k, from 1 to 64.
    """

    def __init__(self):
        self.every, self._left = 1, 0
        self._change = self._mean_loss = None

    @property
    def is_due(self) -> bool:
        """Whether the step that runs, or comes next, sends rows."""
        return self._left == 0

    def note_change(self, change: float) -> None:
        """Note how much the rows of an exchange differ from those that were sent before, |h - h_stale| / |h|."""
        self._change = change if self._change is None else max(self._change, change)

    def end_step(self, largest) -> None:
        """Count a step; ``largest`` returns the largest value of all ranks, a collective, in steps that sent rows."""
        if self.is_due:
            change = largest(-1.0 if self._change is None else self._change)
            if 0 <= change < _CHANGE:
                self.every = min(2 * self.every, MAX_STEPS)
            self._left, self._change = self.every, None
        self._left -= 1

    def note_loss(self, loss: float) -> None:
        """Halve k, and send rows in the next step, where the loss is well above its recent mean."""
        if self._mean_loss is None or not math.isfinite(self._mean_loss):
            self._mean_loss = loss
        if loss - self._mean_loss > (_SPIKE - 1) * abs(self._mean_loss):
            self.every, self._left = max(1, self.every // 2), 0
        self._mean_loss = _MEMORY * self._mean_loss + (1 - _MEMORY) * loss


class Lane:
    """One direction of one exchange of a training step, always between the same ranks and in the same order.

    ``modes``, (P, P), are those from each rank to each other, so all ranks agree on what is sent in a step. Counts, (P,),
    are rows to and from each rank. In a stale mode of fewer than 32 bits, the sender keeps a copy of what the receiver
    has and sends the difference, which the receiver adds. With an adaptive period, it keeps a copy to measure how much
    rows change. With ``has_feedback``, the rounding error is kept and added to what is sent next (error feedback, Seide
    et al. 2014).
    """

    _shape: tuple[torch.Size, torch.dtype] | None  # of a row, and the type
    _there: torch.Tensor  # what the receivers have, where that is needed
    _here: torch.Tensor  # rows that are used in several steps
    _error: torch.Tensor
    _result: torch.Tensor  # of the step that runs
    _due: list

    def __init__(self, comm, modes: list[list[Mode]], send_counts, recv_counts, clock: Clock, has_feedback=False):
        self._comm, self._clock, self._has_feedback = comm, clock, has_feedback
        self._counts = list(send_counts), list(recv_counts)
        self._modes = modes[comm.rank], [row[comm.rank] for row in modes]  # of what is sent, and of what is received
        self._periods = {mode.every for i, row in enumerate(modes) for j, mode in enumerate(row) if i != j}
        self._pending: list = []
        self._uses, self._shape = 0, None

    def start(self, rows: torch.Tensor, keys: torch.Tensor, seed: int, received: torch.Tensor) -> None:
        """Start to send rows, (sum(send_counts), ...), as far as they are due; :meth:`wait` fills ``received``."""
        self._finish(self._pending)  # what was sent in an earlier step
        self._begin_with(rows)
        flat = rows.detach().flatten(1)
        self._due, self._result = [], received
        for every in sorted(self._periods):  # an exchange for each period: all ranks take part in it
            if self._uses == 0 or (self._clock.is_due if every == ADAPTIVE else self._uses % every == 0):
                transfer = Transfer(self._comm, self._bytes(0, every), self._bytes(1, every), is_taped=False)
                begun = (every, transfer.start(self._packed(flat, keys, seed, every)))
                (self._due if every == 1 or self._uses == 0 else self._pending).append(begun)
        self._uses += 1

    def wait(self) -> None:
        """Wait for the rows that this step uses."""
        self._finish(self._due, self._result.flatten(1))
        for mode, at in zip(self._modes[1], _slices(self._counts[1])):
            if mode.is_stale:
                self._result[at] = self._here[at].view(self._result[at].shape)
        del self._due, self._result

    def drain(self) -> None:
        """Wait for what is still under way."""
        self._finish(self._pending)

    def _begin_with(self, rows) -> None:
        """Start anew where this is the first step, or where rows have another shape than before."""
        shape = rows.shape[1:], rows.dtype
        if shape == self._shape:
            return
        if rows.dtype == torch.float64 and any(mode.bits < 32 for mode in self._modes[0] + self._modes[1]):
            raise InputError(
                "the policy sends rows in 16 bits or less, but the model computes in float64; use policy 'exact' or "
                "'stale=K', or train in float32"
            )
        self._shape, self._uses = shape, 0
        self._columns, self._itemsize = rows.shape[1:].numel(), rows.element_size()

        def kept(side: int, is_needed) -> torch.Tensor:
            is_kept = any(map(is_needed, self._modes[side]))
            return rows.new_zeros(sum(self._counts[side]) if is_kept else 0, self._columns)

        self._here = kept(1, lambda mode: mode.is_stale)
        self._there = kept(0, lambda mode: mode.every == ADAPTIVE or (mode.bits < 32 and mode.is_stale))
        self._error = kept(0, lambda mode: self._has_feedback and mode.bits < 16)

    def _bytes(self, side: int, every: int) -> list[int]:
        """The bytes to (side 0) or from (1) each rank in the exchange of a period."""
        return [
            count * self._row_bytes(mode) if mode.every == every and rank != self._comm.rank else 0
            for rank, (mode, count) in enumerate(zip(self._modes[side], self._counts[side]))
        ]

    def _row_bytes(self, mode: Mode) -> int:
        return self._columns * self._itemsize if mode.bits == 32 else packed_bytes(self._columns, mode.bits)

    def _packed(self, rows, keys, seed: int, every: int) -> torch.Tensor:
        """What is sent in the exchange of a period, uint8."""
        pieces = []
        for mode, at in self._peers(0, every):
            if every == ADAPTIVE and self._uses:
                self._clock.note_change(_relative_change(rows[at], self._there[at]))
            if mode.bits == 32:
                if every == ADAPTIVE:
                    self._there[at] = rows[at]
                pieces.append(rows[at].contiguous().view(torch.uint8).flatten())
                continue
            keeps_error = len(self._error) > 0
            values = rows[at] + self._error[at] if keeps_error else rows[at]
            packed = pack_rows(values - self._there[at] if mode.is_stale else values, mode.bits, keys[at], seed)
            pieces.append(packed.flatten())
            if mode.is_stale or keeps_error:
                restored = unpack_rows(packed, mode.bits, rows.shape[1], rows.dtype)
                if mode.is_stale:
                    restored = self._there[at].add_(restored)
                if keeps_error:
                    torch.sub(values, restored, out=self._error[at])
        return torch.cat(pieces) if pieces else rows.new_empty(0, dtype=torch.uint8)

    def _finish(self, begun: list, result: torch.Tensor | None = None) -> None:
        """Wait for exchanges, and take the rows that arrived: those of this step alone into ``result``."""
        while begun:
            every, transfer = begun.pop(0)
            content, offset = transfer.wait(), 0
            for mode, at in self._peers(1, every):
                begin, offset = offset, offset + (at.stop - at.start) * self._row_bytes(mode)
                rows = self._here if result is None or every != 1 else result
                _take(content[begin:offset].clone(), mode, rows[at])  # a copy, for its alignment

    def _peers(self, side: int, every: int) -> Iterator[tuple[Mode, slice]]:
        """The mode and the rows of each rank that takes part in the exchange of a period."""
        for rank, (mode, at) in enumerate(zip(self._modes[side], _slices(self._counts[side]))):
            if mode.every == every and rank != self._comm.rank:
                yield mode, at


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


class Transmission:
    """The exchanges of one strategy under a policy, on one rank; every rank has one.

    Inside :meth:`step`, exchanges are counted in the order in which the forward pass begins them, and each keeps what
    it needs from step to step. Outside, as in evaluations, :attr:`is_active` is false and strategies exchange exactly.

    ``exchanges`` holds for each exchange of a step, by (number, direction): its layer, the columns of a row, the size of
    a number (bytes), and the number of rows to each rank. ``saved_bytes`` are those that this rank has saved so far,
    compared with exact exchanges.
    """

    def __init__(self, policy: Policy, comm, seed: int):
        self._policy, self.comm, self._seed = policy, comm, seed
        self._lanes: dict[tuple[int, str], Lane | None] = {}
        self.clock, self._is_adaptive = Clock(), any(rule.mode.every == ADAPTIVE for rule in policy.rules)
        self._step: int | None = None
        self._exchange, self._layer = 0, -1
        self.exchanges: dict[tuple[int, str], tuple] = {}
        self.saved_bytes = 0

    @property
    def is_active(self) -> bool:
        """Whether a training step runs."""
        return self._step is not None

    @contextmanager
    def step(self, step: int) -> Iterator[None]:
        """A context in which exchanges follow the policy; ``step`` is the number of the training step."""
        self._step, self._exchange, self._layer = step, 0, -1
        try:
            yield
        finally:
            self._step = None
        if self._is_adaptive:
            self.clock.end_step(lambda value: float(self.comm.all_reduce(torch.tensor([value]), "max")[0]))

    def close(self) -> None:
        """Wait for what is still under way; a collective."""
        for _, lane in sorted(self._lanes.items()):
            if lane is not None:
                lane.drain()

    def forget(self) -> None:
        """Begin anew, as in the first step: what arrived so far is not used again. Every rank calls it."""
        self.close()
        self._lanes.clear()
        self.clock = Clock()

    def transfer(self, send_counts, recv_counts, keys: torch.Tensor | None, *, begins_layer: bool) -> PolicyTransfer:
        """Return the next exchange of the step. ``keys`` (sum(send_counts),) are the ids of rows, where they have some."""
        self._layer += begins_layer
        exchange, self._exchange = self._exchange, self._exchange + 1
        return PolicyTransfer(self, exchange, self._layer, (send_counts, recv_counts), keys, self._step)

    def lane(self, exchange: int, layer: int, direction: str, counts, rows: torch.Tensor) -> Lane | None:
        """Return the lane of an exchange of such rows in a direction; None where it is exact."""
        key, columns = (exchange, direction), rows.shape[1:].numel()
        if key not in self._lanes:
            ranks = range(self.comm.world_size)
            modes = [[self._policy.mode(layer, direction, i, j) for j in ranks] for i in ranks]
            is_exact = columns < MIN_COLUMNS or all(modes[i][j].is_exact for i in ranks for j in ranks if i != j)
            send_counts, recv_counts = counts
            has_feedback = direction == "gradients"
            lane = None if is_exact else Lane(self.comm, modes, send_counts, recv_counts, self.clock, has_feedback)
            self._lanes[key] = lane
            self.exchanges[key] = layer, columns, rows.element_size(), list(counts[0])
        return self._lanes[key]

    def seed(self, step: int, exchange: int, direction: str) -> int:
        """Return the seed of the random bits of a transmission, the same on every rank."""
        seed = self._seed
        for number in (step, exchange, DIRECTIONS.index(direction)):
            seed = splitmix64(seed ^ number)
        return seed


class PolicyTransfer:
    """An exchange of a step: rows forward and their gradients backward, as :class:`dgl_gt.comm.transfer.Transfer`."""

    def __init__(self, transmission: Transmission, exchange: int, layer: int, counts, keys, step: int):
        self._transmission, self._exchange, self._layer = transmission, exchange, layer
        self._counts, self._keys, self._step = counts, keys, step
        self._end: Callable[[], torch.Tensor]

    def start(self, rows: torch.Tensor, back: bool = False) -> PolicyTransfer:
        """Start to send what is due of the rows, or of their gradients the opposite way."""
        owner, comm = self._transmission, self._transmission.comm
        counts = send_counts, recv_counts = self._counts[::-1] if back else self._counts
        direction = DIRECTIONS[back]
        lane = owner.lane(self._exchange, self._layer, direction, counts, rows)
        if lane is None:
            self._end = Transfer(comm, *self._counts).start(rows, back).wait
            return self
        others = sum(count for rank, count in enumerate(send_counts) if rank != comm.rank)
        if self._keys is None or back:  # such rows, gradients of copies for instance, have no ids
            keys = torch.arange(len(rows), device=rows.device) + (comm.rank << 40)
        else:
            keys = self._keys
        received = rows.new_empty((sum(recv_counts), *rows.shape[1:]))
        with _counted(comm) as before:
            lane.start(rows, keys, owner.seed(self._step, self._exchange, direction), received)
            owner.saved_bytes += others * rows.shape[1:].numel() * rows.element_size() - (comm.sent_bytes - before)
        if not back and comm.tape is not None:
            comm.tape.write(received)
        self._end = partial(_finish, comm, lane, received)
        return self

    def wait(self) -> torch.Tensor:
        """Wait for the rows that this step uses, and return them."""
        end = self._end
        del self._end  # it holds the rows
        return end()


def _finish(comm, lane: Lane, received: torch.Tensor) -> torch.Tensor:
    with _counted(comm):
        lane.wait()
    return received


@contextmanager
def _counted(comm) -> Iterator[int]:
    """Count the time in the block as time of exchanging, once; gives the bytes that were sent before it."""
    started, exchange_s = time.perf_counter(), comm.exchange_s
    yield comm.sent_bytes
    comm.exchange_s = exchange_s + time.perf_counter() - started
