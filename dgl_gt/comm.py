"""A process group: differentiable collectives with counters, agreement of ranks, and what happens when one stops."""

from __future__ import annotations

import json
import time
import zlib
from contextlib import contextmanager, suppress
from datetime import timedelta

import torch
import torch.distributed as dist

from partition.errors import InputError

from .in_flight import InFlight
from .sum_over_ranks import sum_over_ranks
from .transfer import Begin, Finish, Gathering, Tape, Transfer

_POLL = timedelta(seconds=1)  # how often a rank that waits looks whether another has stopped
_GLANCE_S = 0.01
_FAREWELL_S = 10.0  # how long a rank that stops waits for the others to have read why


class RankError(RuntimeError):
    """Another rank has stopped; the message says which, and why."""


class RankInputError(InputError, RankError):
    """Another rank has stopped over bad input."""


class Comm:
    """A process group with counters; one process without a group is a group of one.

    Parameters
    ----------
    group : torch.distributed.ProcessGroup, optional
        By default all ranks, where torch.distributed is initialised.

    Attributes
    ----------
    rank, world_size : int
    sent_bytes, received_bytes : int
        Payload of :meth:`exchange` and :meth:`begin`, forward and backward, since the graph was loaded; rows
        kept on this rank are not counted.
    exchange_s : float
        Wall seconds spent starting exchanges and waiting for them, slower ranks included.
    """

    def __init__(self, group=None):
        self._active = dist.is_available() and dist.is_initialized()
        self._group = group
        self.rank = dist.get_rank(group) if self._active else 0
        self.world_size = dist.get_world_size(group) if self._active else 1
        self._is_nccl = self._active and dist.get_backend(group) == "nccl"
        # where a rank of this group that stops says why
        members = dist.get_process_group_ranks(group or dist.group.WORLD) if self._active else [0]
        self._stopped = f"dgl_gt/stopped/{members[0]}-{len(members)}-{zlib.crc32(repr(members).encode()):x}"
        self._tape: Tape | None = None
        self._in_flight = InFlight()
        self.reset_counters()

    def __enter__(self) -> Comm:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        """Wait until the backend has let go of all tensors. The end of the interpreter does the same."""
        self._in_flight.close()

    @property
    def device(self) -> torch.device:
        """Where tensors of this group's collectives live: this rank's GPU with nccl, else the CPU."""
        return torch.device("cuda", torch.cuda.current_device()) if self._is_nccl else torch.device("cpu")

    def reset_counters(self) -> None:
        """Count bytes and seconds from here."""
        self.sent_bytes = self.received_bytes = 0
        self.exchange_s = 0.0

    def exchange(self, rows: torch.Tensor, send_counts: list[int], recv_counts: list[int]) -> torch.Tensor:
        """Send the first ``send_counts[0]`` rows to rank 0, the next to rank 1, ...; differentiable.

        Parameters
        ----------
        rows : Tensor, (sum(send_counts), ...)
        send_counts, recv_counts : list of int, (P,)
            What this rank sends to and receives from each rank; peers must agree. Zeros are allowed.

        Returns
        -------
        Tensor, (sum(recv_counts), ...)
            In rank order. Its gradient travels the opposite way.
        """
        return self.finish(self.begin(rows, send_counts, recv_counts))

    def begin(self, rows: torch.Tensor, send_counts: list[int], recv_counts: list[int]):
        """Start an :meth:`exchange`, which goes on while this rank computes; :meth:`finish` gives its result.

        In backward the gradient starts to travel at ``finish`` and is waited for at ``begin``: autograd computes what
        was recorded between the two meanwhile.
        """
        transfer = Transfer(self, send_counts, recv_counts)
        return Begin.apply(rows, transfer), transfer

    def begin_gather(self, rows: torch.Tensor, counts: list[int]):
        """Start to gather every rank's rows, (n_i, ...), on every rank; :meth:`finish` gives them, (sum(counts), ...).

        Gradients are summed at the rank whose rows they belong to.
        """
        gathering = Gathering(self, counts)
        return Begin.apply(rows, gathering), gathering

    def finish(self, begun) -> torch.Tensor:
        """Wait for what :meth:`begin` or :meth:`begin_gather` started, and return it."""
        return Finish.apply(*begun)

    def start(self, rows, send_counts, recv_counts, out=None, back: bool = False) -> Transfer:
        """Start an exchange without a gradient, into ``out`` where given; its ``wait()`` gives the result.

        ``back`` tells that a backward pass does so: then it is no part of what is kept.
        """
        if back:
            return Transfer(self, recv_counts, send_counts).start(rows, back=True)
        return Transfer(self, send_counts, recv_counts).start(rows, out=out)

    def only(self, rank: int, count: int) -> list[int]:
        """Counts of an exchange with one rank, (P,)."""
        counts = [0] * self.world_size
        counts[rank % self.world_size] = count
        return counts

    @contextmanager
    def recorded(self, tape: Tape):
        """Inside, exchanges are recorded on a tape, or read from it once it is full; see :func:`kept_exchanges`."""
        self._tape, outer = tape, self._tape
        try:
            yield
        finally:
            self._tape = outer

    def all_reduce(self, values: torch.Tensor, op: str = "sum") -> torch.Tensor:
        """Sum or maximum (``op="max"``) over ranks, as a new tensor; not differentiable and not counted."""
        operations = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}
        if op not in operations:
            raise ValueError(f"op is {op!r}; allowed: {', '.join(operations)}")
        total = values.detach().to(self.device, copy=True)
        if self.world_size > 1:
            self._wait(self._all_reduce(total, operations[op]))
        return total.to(values.device)

    def all_reduce_sum(self, values: torch.Tensor) -> torch.Tensor:
        """Sum over ranks, as a new tensor; differentiable, where :meth:`all_reduce` is not. Not counted.

        Batch statistics, for one, are sums over the rows of all ranks. The gradient of each rank's values is the sum of
        the gradients that the result has on all ranks, in keeping with a loss that is the sum of every rank's share.

        Parameters
        ----------
        values : Tensor, floating point, (...)
            Of the same shape and dtype on every rank. Every rank calls it, and where one rank computes gradients
            through the result, every rank must.

        Raises
        ------
        ValueError
            The values are not floating point.
        """
        return sum_over_ranks(values, self)

    def sum_gradients(self, parameters) -> None:
        """Sum parameter gradients over ranks in one flat all-reduce a dtype.

        Every rank must call it after its backward pass; a parameter without a gradient counts as zero.
        """
        by_dtype: dict[torch.dtype, list[torch.nn.Parameter]] = {}
        for parameter in parameters:
            if parameter.requires_grad:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                by_dtype.setdefault(parameter.dtype, []).append(parameter)
        if self.world_size == 1:
            return
        for group in by_dtype.values():
            flat = torch.cat([parameter.grad.reshape(-1) for parameter in group])
            self._wait(self._all_reduce(flat))
            for parameter, total in zip(group, flat.split([parameter.numel() for parameter in group])):
                parameter.grad.copy_(total.view_as(parameter))

    def gather_rows(self, rows: torch.Tensor) -> list[torch.Tensor]:
        """Every rank's rows, (n_i, ...), on every rank; not differentiable and not counted.

        The rows may differ in number but not in width or dtype. gloo's all_gather takes equal pieces only, hence
        all-to-all.
        """
        if self.world_size == 1:
            return [rows]
        counts = torch.zeros(self.world_size, dtype=torch.int64, device="cpu")
        counts[self.rank] = len(rows)
        counts = self.all_reduce(counts).tolist()
        copies = rows.to(self.device).repeat(self.world_size, *[1] * (rows.dim() - 1))
        received = copies.new_empty((sum(counts), *rows.shape[1:]))
        send_counts = [len(rows)] * self.world_size
        self._wait(self._all_to_all(received, copies, counts, send_counts))
        return list(received.to(rows.device).split(counts))

    def raise_together(self, error: InputError | None) -> None:
        """Raise on every rank where any rank has an error, with the message of the first such rank; else return."""
        if self.world_size == 1:
            if error:
                raise error
            return
        for rank, message in enumerate(self._gather_text(str(error) if error else "")):
            if message:
                raise error or InputError(f"rank {rank}: {message}")

    def check_agreement(self, settings: dict) -> None:
        """Raise ``InputError`` on every rank unless all ranks have the same settings, plain values by name."""
        texts = self._gather_text(json.dumps(settings, sort_keys=True)) if self.world_size > 1 else []
        for rank, text in enumerate(texts):
            first, other = json.loads(texts[0]), json.loads(text)
            for name in sorted({*first, *other}):
                if first.get(name) != other.get(name):
                    raise InputError(
                        f"{name} is {first.get(name)!r} on rank 0 but {other.get(name)!r} on rank {rank}; "
                        "start every rank with the same settings and shards"
                    )

    @contextmanager
    def together(self):
        """Inside, a rank that raises makes the others raise at their next exchange, within seconds, and say why.

        They raise :class:`RankError`, which is an ``InputError`` too where the rank's was one. With nccl a rank that
        waits on the GPU cannot be woken: there the launcher ends it.
        """
        try:
            yield
        except (RankError, SystemExit):  # a rank that was told to end waits for nobody: its connections end with it
            raise
        except BaseException as error:
            self._announce(error)
            raise

    def _gather_text(self, text: str) -> list[str]:
        rows = torch.tensor(list(text.encode()), dtype=torch.uint8, device="cpu")
        return [bytes(row.tolist()).decode() for row in self.gather_rows(rows)]

    def _all_to_all(self, received: torch.Tensor, sent: torch.Tensor, recv_counts, send_counts):
        """Start an exchange; :meth:`_wait` ends it."""
        aliases = self._in_flight.aliases(received, sent)
        return dist.all_to_all_single(*aliases, recv_counts, send_counts, group=self._group, async_op=True)

    def _all_reduce(self, total: torch.Tensor, op=dist.ReduceOp.SUM):
        """Start to sum a tensor in place; :meth:`_wait` ends it."""
        return dist.all_reduce(*self._in_flight.aliases(total), op, group=self._group, async_op=True)

    def _wait(self, work) -> None:
        """Wait for a collective, or raise what stopped another rank."""
        if self._is_nccl:  # makes the current stream wait, not this thread
            work.wait()
            return
        while True:
            has_ended = work.is_completed()
            try:
                work.wait(_POLL)
                return
            except RuntimeError as error:
                self._raise_stopped()
                if has_ended or "Operation timed out" not in str(error):  # which is how waiting for a second ends
                    raise RankError(
                        f"rank {self.rank} lost its connection: another rank has ended, and its own output says why "
                        f"({str(error).splitlines()[0]})"
                    ) from error

    def _store(self):
        return dist.distributed_c10d._get_default_store() if self._active and self.world_size > 1 else None

    def _announce(self, error: BaseException) -> None:
        """Say why this rank stops, and wait until the others have read it: the store may end with this process."""
        kind = "input" if isinstance(error, InputError) else "error"
        text = str(error) if kind == "input" else f"{type(error).__name__}: {error}"
        with suppress(RuntimeError):  # no store any more: then the others' connections break, too
            store = self._store()
            if store is None:
                return
            mine = json.dumps([self.rank, kind, text])
            if store.compare_set(self._stopped, "", mine).decode() != mine:  # another was quicker
                self._take_note(store)
                return
            read = [f"{self._stopped}/read/{rank}" for rank in range(self.world_size) if rank != self.rank]
            deadline = time.monotonic() + _FAREWELL_S
            while not store.check(read) and time.monotonic() < deadline:
                time.sleep(_GLANCE_S)
            for key in [*read, self._stopped]:  # at the last the others leave
                store.delete_key(key)
            time.sleep(20 * _GLANCE_S)  # until they have seen it

    def _take_note(self, store) -> None:
        """Tell the rank that stopped that this one knows, and leave with it: the store may end with this process."""
        store.set(f"{self._stopped}/read/{self.rank}", "")
        deadline = time.monotonic() + _FAREWELL_S
        while store.check([self._stopped]) and time.monotonic() < deadline:
            time.sleep(_GLANCE_S)

    def _raise_stopped(self) -> None:
        found = None
        with suppress(RuntimeError):
            store = self._store()
            if store.check([self._stopped]):
                found = json.loads(store.get(self._stopped))
                self._take_note(store)
        if found:
            rank, kind, text = found
            if kind == "input":
                raise RankInputError(f"rank {rank}: {text}")
            raise RankError(f"rank {rank} stopped: {text}")
