"""Rows that travel between ranks, forward and backward, and sums over ranks with a gradient.

``comm`` is the :class:`dgl_gt.comm.group.Comm` whose ranks exchange the rows, and which holds the counters.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch


class Transfer:
    """One exchange that is under way: forward, and its gradient backward."""

    def __init__(self, comm, send_counts: list[int], recv_counts: list[int], *, is_taped: bool = True):
        self._comm, self._counts, self._place = comm, (send_counts, recv_counts), comm.place
        self._is_taped = is_taped
        self._end: Callable[[], None] | None = None
        self._sent: torch.Tensor | None = None
        self._received: torch.Tensor  # from start to wait

    def start(self, rows: torch.Tensor, back: bool = False, out: torch.Tensor | None = None) -> Transfer:
        """Start to send rows as the counts say, or their gradients the opposite way."""
        comm, (send_counts, recv_counts) = self._comm, reversed(self._counts) if back else self._counts
        tape = comm.tape if self._is_taped and not back else None
        if tape is not None and tape.is_replaying:
            self._received = tape.read() if out is None else out.copy_(tape.read())
            return self
        started = time.perf_counter()
        self._sent = rows.contiguous()
        self._received = rows.new_empty((sum(recv_counts), *rows.shape[1:])) if out is None else out
        if comm.world_size == 1:
            self._received.copy_(rows)
        else:
            now = comm.place
            comm.place = f"{self._place}, backward" if back and self._place else now
            self._end = comm.all_to_all(self._received, self._sent, recv_counts, send_counts)
            comm.place = now
        row_bytes = rows.element_size() * rows.shape[1:].numel()
        comm.count(started, row_bytes, send_counts, recv_counts)
        if tape is not None:
            tape.write(self._received)
        return self

    def wait(self) -> torch.Tensor:
        """Wait for the end, and return the rows that arrived."""
        started = time.perf_counter()
        if self._end is not None:
            self._end()
        received = self._received
        self._end = self._sent = None
        del self._received
        self._comm.count(started)
        return received


class AllGather:
    """A gathering of all ranks' rows on every rank, by one exchange with each: no rank stores its rows more than once."""

    def __init__(self, comm, counts: list[int]):
        self._comm, self._counts = comm, counts
        self._back = False
        self._result: torch.Tensor  # from start to wait
        self._transfers: list[Transfer] = []

    def start(self, rows: torch.Tensor, back: bool = False) -> AllGather:
        """Send this rank's rows to all, or the gradients of all rows to where they belong."""
        comm, counts = self._comm, self._counts
        rank, own = comm.rank, counts[comm.rank]
        self._back, self._transfers = back, []
        if back:
            pieces = rows.contiguous().split(counts)
            self._result = pieces[rank].clone()
        else:
            self._result = rows.new_empty((sum(counts), *rows.shape[1:]))
            pieces = self._result.split(counts)
            pieces[rank].copy_(rows)
        for step in range(1, comm.world_size):
            to, source = (rank + step) % comm.world_size, (rank - step) % comm.world_size
            if back:
                transfer = Transfer(comm, comm.counts_for(source, own), comm.counts_for(to, counts[to]))
                transfer.start(pieces[to], back=True)
            else:
                transfer = Transfer(comm, comm.counts_for(to, own), comm.counts_for(source, counts[source]))
                transfer.start(pieces[rank], out=pieces[source])
            self._transfers.append(transfer)
        return self

    def wait(self) -> torch.Tensor:
        """Wait, and return the rows of all ranks; backward, the sum of this rank's gradients and those that arrived."""
        for transfer in self._transfers:
            received = transfer.wait()
            if self._back:
                self._result.add_(received)
        result, self._transfers = self._result, []
        del self._result
        return result


class Begin(torch.autograd.Function):
    """Start a transfer. The token that it returns connects the start and the end of a transfer in autograd's graph."""

    @staticmethod
    def forward(ctx, rows, transfer):
        ctx.transfer = transfer.start(rows)
        return rows.new_empty(0)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, _):
        return ctx.transfer.wait(), None


class Finish(torch.autograd.Function):
    """End a transfer and return its rows."""

    @staticmethod
    def forward(ctx, token, transfer):
        ctx.transfer = transfer
        return transfer.wait()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        ctx.transfer.start(grad, back=True)
        return grad.new_empty(0), None


class SumOverRanks(torch.autograd.Function):
    """The sum over ranks. Every rank gets it, so the gradient of a value is the sum of the gradients on all ranks.

    The token needs a gradient wherever autograd is on. So the backward pass, which is a collective, also runs on a rank
    whose own values need no gradient.
    """

    @staticmethod
    def forward(ctx, values, token, comm):
        ctx.comm = comm
        return comm.all_reduce(values)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        return ctx.comm.all_reduce(grad), None, None


def tracked(rows: torch.Tensor) -> torch.Tensor:
    """Return rows that autograd tracks wherever it is on, so that no rank is missing in an exchange's backward pass.

    For rows that nearly always need a gradient on every rank; where they may not,
    :meth:`dgl_gt.comm.group.Comm.agree_on_grad` asks the other ranks.
    """
    if rows.requires_grad or not torch.is_grad_enabled() or not rows.is_floating_point():
        return rows
    return rows.detach().requires_grad_()
