"""A process group: collectives, some of which have gradients, counts of bytes, and agreement of ranks."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from contextlib import contextmanager, nullcontext
from functools import partial
from numbers import Real

import torch
import torch.distributed as dist

from dgl_gt.partition.errors import InputError, check_flags, check_one_of
from dgl_gt.torch_internals import graph_is_kept

from .failure import RankError
from .gradient_sum import sum_after_backward, sum_during_backward
from .parameters import ParameterCheck, to_sum
from .step_recorder import Collective, StepRecorder
from .transfer import Begin, Finish, SumOverRanks, Transfer, tracked
from .transport import OPERATIONS, GroupOfRanks, Transport, check_dtype

PUBLIC = [
    *(
        "rank",
        "world_size",
        "device",
        "sent_bytes",
        "received_bytes",
        "exchange_s",
        "reset_counters",
        "close",
        "together",
    ),
    *("broadcast", "exchange", "all_reduce", "all_reduce_sum", "gather_rows", "sum_gradients", "summing_gradients"),
]


class Tape:
    """A context in which exchanges write the rows that they bring to a list, or read them from it, in their order.

    It may be entered more than once.
    """

    def __init__(self, comm: Comm, rows: list, is_replaying: bool):
        self._comm, self._rows, self.is_replaying = comm, rows, is_replaying

    def __enter__(self) -> None:
        self._position = 0
        self._outer, self._comm.tape = self._comm.tape, self

    def __exit__(self, *_) -> None:
        self._comm.tape = self._outer

    def write(self, received: torch.Tensor) -> None:
        """Append the rows that an exchange brought."""
        self._rows.append(received.detach())

    def read(self) -> torch.Tensor:
        """Return the next rows. They stay for another backward pass only where this one keeps its graph."""
        received = self._rows[self._position]
        if not graph_is_kept():
            self._rows[self._position] = None
        self._position += 1
        return received.detach()


class Comm:
    """A process group with counters; one process without a group counts as a group of one rank.

    Parameters
    ----------
    group : torch.distributed.ProcessGroup, optional
        The ranks; by default all ranks, where torch.distributed is initialised.
    timeout_s : float, optional
        Time to wait for the other ranks in one collective before :class:`RankError` is raised (s). By default as long
        as the process group allows. A rank that waits longer than a minute says on stderr for which ranks it waits.
    check_parameters : bool
        Whether ranks compare their parameters now and then, see :func:`dgl_gt.load`.
    transport : Transport, optional
        What carries the collectives, in place of a group.

    Attributes
    ----------
    rank, world_size : int
        Number of this rank, and number of ranks.
    sent_bytes, received_bytes : int
        Payload of the exchanges, forward and backward, since the graph was loaded or :meth:`reset_counters` was called
        (bytes). Rows that stay on this rank are not counted.
    exchange_s : float
        Time spent since then in starting exchanges and in waiting for them, slower ranks included (s).

    Completion lists what training loops need. Other names serve the rest of this package, and may change.
    """

    place = ""  # part of the model that runs now, for messages
    recorder: StepRecorder | None = None  # of the step that is profiled now
    owned_rows: int | None = None  # of this rank, for messages
    parameter_check: ParameterCheck | None = None

    def __init__(
        self,
        group=None,
        timeout_s: float | None = None,
        check_parameters: bool = True,
        *,
        transport: Transport | None = None,
    ):
        check_flags(check_parameters=check_parameters)
        if timeout_s is not None and not (isinstance(timeout_s, Real) and timeout_s > 0):
            raise InputError(f"timeout_s is {timeout_s!r}; it must be a number of seconds above 0, or None")
        if transport is None:
            has_ranks = dist.is_available() and dist.is_initialized()
            transport = GroupOfRanks(group, timeout_s) if has_ranks else Transport()
        self.transport = transport
        self.rank, self.world_size = transport.rank, transport.world_size
        self.parameter_check = ParameterCheck(self) if check_parameters and self.world_size > 1 else None
        self.tape: Tape | None = None
        self.reset_counters()

    def __dir__(self):
        return PUBLIC

    def __enter__(self) -> Comm:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        """Wait until the backend has released all tensors. The interpreter does the same before it ends."""
        self.transport.drain()

    @property
    def device(self) -> torch.device:
        """The device on which this group's collectives run: this rank's GPU with nccl, else the CPU."""
        return self.transport.device

    def reset_counters(self) -> None:
        """Count bytes and seconds from here on."""
        self.sent_bytes = self.received_bytes = 0
        self.exchange_s = 0.0

    def enter(self, place: str) -> None:
        """Note which part of the step runs from here on, until :meth:`leave`."""
        self.place = place
        if self.recorder is not None:
            self.recorder.enter(place)

    def leave(self, output=None) -> None:
        """Note that this part has ended, with this output where it is a module."""
        self.place = ""
        if self.recorder is not None:
            self.recorder.leave(output)

    def count(self, started_s: float, row_bytes: int = 0, send_counts=(0,), recv_counts=(0,)) -> None:
        """Count the time since ``started_s`` (by ``time.perf_counter``) and rows that travel to and from other ranks."""
        self.exchange_s += time.perf_counter() - started_s
        for rank, (sent, received) in enumerate(zip(send_counts, recv_counts)):
            if rank != self.rank:
                self.sent_bytes += row_bytes * sent
                self.received_bytes += row_bytes * received

    def exchange(self, rows: torch.Tensor, send_counts: list[int], recv_counts: list[int]) -> torch.Tensor:
        """Send the first ``send_counts[0]`` rows to rank 0, the next to rank 1, ...; differentiable.

        Returns the rows that arrived, (sum(recv_counts), ...), in rank order; their gradient travels the opposite way.
        The counts, (P,), of both sides must agree. Zeros are allowed.
        """
        return self.finish(self.begin(rows, send_counts, recv_counts))

    def begin(self, rows: torch.Tensor, send_counts: list[int], recv_counts: list[int]):
        """Start an :meth:`exchange`, which runs while this rank computes; :meth:`finish` returns its result.

        In backward the gradient starts to travel at ``finish``, and ``begin`` waits for it: meanwhile autograd computes
        the gradients of everything between the two. The rows must need a gradient on every rank or on none, see
        :meth:`agree_on_grad`.
        """
        transfer = Transfer(self, send_counts, recv_counts)
        return Begin.apply(rows, transfer), transfer

    def agree_on_grad(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the rows, which then need a gradient on every rank if they need one on any; every rank calls it.

        Otherwise, ranks whose rows need no gradient would be missing in the backward pass of their exchange.
        """
        if self.world_size == 1 or not torch.is_grad_enabled():
            return rows
        needed = self.all_reduce(torch.tensor([int(rows.requires_grad)], device="cpu"), "max")
        return tracked(rows) if needed[0] else rows

    def finish(self, begun) -> torch.Tensor:
        """Wait for what :meth:`begin` started, and return it."""
        return Finish.apply(*begun)

    def finisher(self, begun, overlap: bool) -> Callable[[], torch.Tensor]:
        """Return a function that returns the result of :meth:`finish`; without overlap, the exchange finishes now."""
        if overlap:
            return lambda: self.finish(begun)
        rows = self.finish(begun)
        return lambda: rows

    def start(self, rows, send_counts, recv_counts) -> Transfer:
        """Start an exchange without a gradient; its ``wait()`` returns the result."""
        return Transfer(self, send_counts, recv_counts).start(rows)

    def counts_for(self, rank: int, count: int) -> list[int]:
        """Return the counts, (P,), of an exchange of ``count`` rows with one rank alone."""
        return [count if each == rank % self.world_size else 0 for each in range(self.world_size)]

    def all_reduce(self, values: torch.Tensor, op: str = "sum") -> torch.Tensor:
        """Return the sum or maximum (``op="max"``) over ranks, as a new tensor; not differentiable and not counted."""
        check_one_of("op", op, tuple(OPERATIONS))
        # The backend sums the memory in its own order, but strides may differ between ranks: make them equal.
        total = values.detach().to(self.device, copy=True, memory_format=torch.contiguous_format)
        if self.world_size > 1:
            self._reduce(total, op, beside=False)()
        return total.to(values.device)

    def all_reduce_sum(self, values: torch.Tensor) -> torch.Tensor:
        """Return the sum over ranks, as a new tensor; differentiable, unlike :meth:`all_reduce`. Not counted.

        Batch statistics are an example: they are sums over the rows of all ranks. ``values`` (...) have the same shape
        and dtype on every rank; ``ValueError`` says that they are not floating point. Every rank calls it, and if one
        rank computes gradients through the result, every rank must. The gradient of each rank's values is the sum of
        the gradients that the result has on all ranks, which fits a loss that is a sum over ranks.
        """
        if not values.is_floating_point():
            raise ValueError(f"values are {values.dtype}; allowed: floating point; use all_reduce for other numbers")
        return SumOverRanks.apply(values, torch.zeros((), requires_grad=torch.is_grad_enabled()), self)

    def sum_gradients(self, parameters) -> None:
        """Sum parameter gradients over ranks, in one flat all-reduce per dtype.

        Every rank must call it after its backward pass; a parameter without a gradient counts as zero. Those of a
        :class:`dgl_gt.nn.NodeEmbedding` are left out. ``parameters`` are what torch's optimisers take: tensors, named
        parameters or parameter groups. :class:`InputError` says that they are something else, that a gradient is
        sparse, or that the ranks' parameters differ.
        """
        sum_after_backward(self, to_sum(self, parameters))

    def summing_gradients(self, parameters):
        """Return a context in which to call ``loss.backward()``; at its end, gradients are summed over ranks.

        It does what :meth:`sum_gradients` does after the backward pass. But where gradients have more than 1 MiB, they
        travel while backward still computes others; not with nccl. Clip gradients after it. Every rank must enter it.
        """
        return sum_during_backward(self, to_sum(self, parameters))

    def gather_rows(self, rows: torch.Tensor, to: int | None = None) -> list[torch.Tensor] | None:
        """Return every rank's rows, (n_i, ...), on every rank or on rank ``to`` alone; not differentiable, not counted.

        The rows may differ in number but not in width or dtype. No rank stores its rows more than once. With ``to``,
        the other ranks get None and store no rows of others. This uses all-to-all, because gloo's all_gather takes
        equal pieces only.
        """
        if to is not None and to not in range(self.world_size):
            raise ValueError(
                f"to is {to!r}; it must be a rank from 0 to {self.world_size - 1}, or None, which gives the rows to all"
            )
        if self.world_size == 1:
            return [rows]
        lengths = torch.zeros(self.world_size, dtype=torch.int64, device="cpu")
        lengths[self.rank] = len(rows)
        counts, mine, gathered = self.all_reduce(lengths).tolist(), rows.to(self.device).contiguous(), None
        for root in range(self.world_size) if to is None else [to]:
            is_root = root == self.rank
            recv_counts = counts if is_root else [0] * self.world_size
            received = mine.new_empty((sum(recv_counts), *mine.shape[1:]))
            self.all_to_all(received, mine, recv_counts, self.counts_for(root, len(mine)))()
            gathered = received if is_root else gathered
        return None if gathered is None else list(gathered.to(rows.device).split(counts))

    def gather_counted(self, rows: torch.Tensor, counts: list[int]) -> torch.Tensor:
        """Return every rank's rows on every rank, (sum(counts), W), where all ranks already know the counts.

        It needs a single exchange, but stores a rank's own rows once for each rank; :meth:`gather_rows` does not.
        """
        if self.world_size == 1:
            return rows
        received = rows.new_empty((sum(counts), rows.shape[1]))
        started = self._started_exchange(counts)
        self._wait(self.transport.all_gather(received, rows, counts), started)
        return received

    def broadcast(self, values: torch.Tensor) -> torch.Tensor:
        """Return rank 0's tensor on every rank; its shape and dtype are the same on all. Not counted."""
        return self.all_reduce(values if self.rank == 0 else torch.zeros_like(values))

    def broadcast_object(self, value):
        """Return rank 0's ``value`` on every rank; it must be one that JSON can represent."""
        return json.loads(self._gather_text(json.dumps(value) if self.rank == 0 else "")[0])

    def gather_objects(self, value) -> list:
        """Return every rank's ``value`` on every rank, in rank order; JSON must be able to represent them."""
        return [json.loads(text) for text in self._gather_text(json.dumps(value))]

    def kept_exchanges(self) -> tuple[Tape, Tape]:
        """Return the contexts for ``torch.utils.checkpoint.checkpoint(context_fn=...)`` under which exchanges run once.

        The rows that a layer's exchanges bring are kept. When backward computes the layer again, they are not fetched
        again, even if there are several backward passes.
        """
        rows: list = []
        return Tape(self, rows, is_replaying=False), Tape(self, rows, is_replaying=True)

    @contextmanager
    def raising_together(self):
        """A context: if ranks raise ``InputError`` in it, all raise one at its end, their own or that of the first."""
        error = None
        try:
            yield
        except InputError as caught:
            error = caught
        for rank, message in enumerate(self._gather_text(str(error or ""))):
            if message:
                raise error or InputError(f"rank {rank}: {message}")

    def check_agreement(self, settings: dict) -> None:
        """Raise ``InputError`` on every rank unless all ranks have the same settings, JSON values by name."""
        first, *others = self.gather_objects(settings)
        for rank, other in enumerate(others, 1):
            for name in sorted({*first, *other}):
                if first.get(name) != other.get(name):
                    raise InputError(
                        f"{name} is {first.get(name)!r} on rank 0 but {other.get(name)!r} on rank {rank}; "
                        "start every rank with the same settings and shards"
                    )

    @contextmanager
    def together(self):
        """A context: if a rank raises inside it, the others raise at their next exchange, within seconds, and say why.

        They raise :class:`RankError`; if that rank raised an ``InputError``, theirs is one, too. With nccl, a rank
        that waits on the GPU cannot be interrupted: the launcher ends it.
        """
        try:
            yield
        except (RankError, SystemExit):  # a rank that is told to end does not wait: its connections end with it
            raise
        except BaseException as error:
            self.transport.report(error)
            raise

    def _gather_text(self, text: str) -> list[str]:
        return self.transport.gather_text(text, str(Collective("exchange of texts", self.place)))

    def all_to_all(self, received, sent, recv_counts, send_counts) -> Callable[[], None]:
        """Start to exchange rows, without a gradient or a count; return a function that waits for the end.

        Both tensors are contiguous, ``received`` (sum(recv_counts), ...) and ``sent`` (sum(send_counts), ...).
        """
        check_dtype(received.dtype)
        started = self._started_exchange(recv_counts)
        return partial(self._wait, self.transport.all_to_all(received, sent, recv_counts, send_counts), started)

    def sum_in_place(self, total: torch.Tensor) -> None:
        """Sum a tensor over ranks, in place."""
        self._reduce(total, "sum", beside=False)()

    def start_sum(self, total: torch.Tensor) -> Callable[[], None]:
        """Start to sum a tensor over ranks, in place, beside exchanges; return a function that waits for the end.

        Ranks start these sums in one order, and wait for them in this order at one place of the program.
        """
        return self._reduce(total, "sum", beside=True)

    def _reduce(self, total: torch.Tensor, op: str, beside: bool) -> Callable[[], None]:
        """Start to reduce in place. What runs beside all else is noted where it is waited for."""
        check_dtype(total.dtype)
        begin = partial(self._started, f"all-reduce of {total.numel():,} numbers", range(self.world_size))
        started = None if beside else begin()
        wait = self.transport.all_reduce(total, op, beside)
        return lambda: self._wait(wait, started or begin())

    def _started_exchange(self, recv_counts: list[int]) -> Collective:
        senders = [rank for rank, count in enumerate(recv_counts) if count and rank != self.rank]
        return self._started("exchange of rows", senders)

    def _started(self, kind: str, senders: Iterable[int]) -> Collective:
        """Return the collective that starts now and needs these ranks."""
        if self.recorder is None:
            return Collective(kind, self.place)
        return self.recorder.start(kind, self.place, list(senders))

    def _wait(self, wait, started: Collective) -> None:
        """Wait for a collective, or raise the error that stopped another rank."""
        with nullcontext() if self.recorder is None else self.recorder.waiting(started):
            wait(str(started))
