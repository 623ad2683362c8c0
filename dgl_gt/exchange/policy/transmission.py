"""What a policy does to the exchanges of a strategy, in training steps. Everything else that ranks exchange is exact."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch

from dgl_gt.comm.transfer import Transfer
from dgl_gt.ops.reference import splitmix64

from .lane import Clock, Lane
from .policy import ADAPTIVE, DIRECTIONS, MIN_COLUMNS, Policy


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
        self._step, self._exchange, self._layer = None, 0, -1
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
