"""Rows on their way between ranks, forward and backward; the one place that moves them, and counts their bytes.

``comm`` is the :class:`dgl_gt.comm.group.Comm` whose group they travel in, and which holds the counters.
"""

from __future__ import annotations

import time

import torch


class Transfer:
    """One exchange under way: forward, and its gradient backward."""

    def __init__(self, comm, send_counts: list[int], recv_counts: list[int]):
        self._comm, self._counts = comm, (send_counts, recv_counts)
        self._work = self._sent = self._received = None

    def start(self, rows: torch.Tensor, back: bool = False, out: torch.Tensor | None = None) -> Transfer:
        """Send rows as the counts say, or their gradients the opposite way."""
        comm, (send_counts, recv_counts) = self._comm, reversed(self._counts) if back else self._counts
        tape = None if back else comm._tape
        if tape is not None and tape.is_full:
            self._received = tape.read() if out is None else out.copy_(tape.read())
            return self
        started = time.perf_counter()
        self._sent = rows.contiguous()
        self._received = rows.new_empty((sum(recv_counts), *rows.shape[1:])) if out is None else out
        if comm.world_size == 1:
            self._received.copy_(rows)
        else:
            self._work = comm._all_to_all(self._received, self._sent, recv_counts, send_counts)
        row_bytes = rows.element_size() * rows.shape[1:].numel()
        comm.sent_bytes += row_bytes * (sum(send_counts) - send_counts[comm.rank])
        comm.received_bytes += row_bytes * (sum(recv_counts) - recv_counts[comm.rank])
        comm.exchange_s += time.perf_counter() - started
        if tape is not None:
            tape.write(self._received)
        return self

    def wait(self) -> torch.Tensor:
        """What arrived."""
        started = time.perf_counter()
        if self._work is not None:
            self._comm._wait(self._work)
        received = self._received
        self._work = self._sent = self._received = None
        self._comm.exchange_s += time.perf_counter() - started
        return received


class Gathering:
    """Rows of all ranks on their way to all, by one exchange with each: no rank stores its rows more than once."""

    def __init__(self, comm, counts: list[int]):
        self._comm, self._counts = comm, counts
        self._back, self._result, self._transfers = False, None, None

    def start(self, rows: torch.Tensor, back: bool = False) -> Gathering:
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
                transfer = comm.start(pieces[to], comm.only(to, counts[to]), comm.only(source, own), back=True)
            else:
                send_counts, recv_counts = comm.only(to, own), comm.only(source, counts[source])
                transfer = comm.start(pieces[rank], send_counts, recv_counts, out=pieces[source])
            self._transfers.append(transfer)
        return self

    def wait(self) -> torch.Tensor:
        """Rows of all ranks; or the sum of what arrived and this rank's own."""
        for transfer in self._transfers:
            received = transfer.wait()
            if self._back:
                self._result.add_(received)
        result, self._result, self._transfers = self._result, None, None
        return result


class Begin(torch.autograd.Function):
    """The token that it returns ties the two ends of a transfer together in the graph."""

    @staticmethod
    def forward(ctx, rows, transfer):
        ctx.transfer = transfer.start(rows)
        return rows.new_empty(0)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, _):
        return ctx.transfer.wait(), None


class Finish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, token, transfer):
        ctx.transfer = transfer
        return transfer.wait()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        ctx.transfer.start(grad, back=True)
        return grad.new_empty(0), None


def recorded(rows: torch.Tensor) -> torch.Tensor:
    """Rows that autograd records wherever it is on, so that no rank is missing from the backward pass of an exchange.

    For what needs a gradient on every rank in nearly all cases; :meth:`dgl_gt.comm.group.Comm.agree_on_grad` asks the others.
    """
    if rows.requires_grad or not torch.is_grad_enabled() or not rows.is_floating_point():
        return rows
    return rows.detach().requires_grad_()


class Tape:
    """What exchanges brought while a layer ran, for the times when it is computed again."""

    def __init__(self):
        self._received: list[torch.Tensor] = []
        self._position = 0
        self.is_full = False

    def write(self, received: torch.Tensor) -> None:
        self._received.append(received.detach())

    def rewind(self) -> None:
        """Read from the start, and write no more."""
        self.is_full, self._position = True, 0

    def read(self) -> torch.Tensor:
        """The next rows. They stay for another backward pass only where this one keeps its graph."""
        received = self._received[self._position]
        if not _graph_is_kept():
            self._received[self._position] = None
        self._position += 1
        return received.detach()


def _graph_is_kept() -> bool:
    """Whether the backward pass that runs was called with ``retain_graph=True``.

    torch has no public way to ask. Where a version lacks this one, rows stay until the layer's graph is freed.
    """
    ask = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)
    return ask is None or ask()


class Recorded:
    """A context, which may be entered more than once: inside, exchanges are recorded on a tape, or read from it."""

    def __init__(self, comm, tape: Tape, reads: bool):
        self._comm, self._tape, self._reads = comm, tape, reads

    def __enter__(self) -> None:
        if self._reads:
            self._tape.rewind()
        self._outer, self._comm._tape = self._comm._tape, self._tape

    def __exit__(self, *_) -> None:
        self._comm._tape = self._outer


def kept_exchanges(comm) -> tuple[Recorded, Recorded]:
    """Contexts for ``torch.utils.checkpoint.checkpoint(context_fn=...)``: what a layer's exchanges brought is kept, and
    not fetched again when the layer is computed again in backward, in each backward pass where there are several."""
    tape = Tape()
    return Recorded(comm, tape, reads=False), Recorded(comm, tape, reads=True)
