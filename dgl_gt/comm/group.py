"""A process group: differentiable collectives with counters, and agreement of ranks."""

from __future__ import annotations

import json
from contextlib import contextmanager

import torch
import torch.distributed as dist

from partition.errors import InputError

from .failure import RankError, Watch
from .in_flight import InFlight
from .sum_over_ranks import sum_over_ranks
from .transfer import Begin, Finish, Gathering, Tape, Transfer, recorded

# What gloo and nccl carry.
_DTYPES = (
    *(torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32),
    *(torch.float64, torch.complex64, torch.complex128),
)


def device_type(backends: str) -> str:
    """Where collectives run, "cuda" or "cpu", of a process group with such backends.

    Parameters
    ----------
    backends : str
        As ``torch.distributed.get_backend_config`` gives them, such as "cpu:gloo,cuda:nccl". GPUs take part through
        nccl alone: gloo copies their tensors to the CPU and back.
    """
    by_device = dict(each.split(":", 1) for each in backends.split(",") if ":" in each)
    return "cuda" if by_device.get("cuda") == "nccl" or backends == "nccl" else "cpu"


class Comm:
    """A process group with counters; one process without a group is a group of one.

    Parameters
    ----------
    group : torch.distributed.ProcessGroup, optional
        By default all ranks, where torch.distributed is initialised.
    timeout_s : float, optional
        How long a rank waits for the others in one collective before it raises :class:`RankError` (s). By default as
        long as the process group allows. A rank that waits longer than a minute says on stderr for which ranks.

    Attributes
    ----------
    rank, world_size : int
    sent_bytes, received_bytes : int
        Payload of :meth:`exchange` and :meth:`begin`, forward and backward, since the graph was loaded; rows
        kept on this rank are not counted.
    exchange_s : float
        Wall seconds spent starting exchanges and waiting for them, slower ranks included.
    """

    def __init__(self, group=None, timeout_s: float | None = None):
        self._active = dist.is_available() and dist.is_initialized()
        self._group = group
        self.rank = dist.get_rank(group) if self._active else 0
        self.world_size = dist.get_world_size(group) if self._active else 1
        if timeout_s is not None and not timeout_s > 0:
            raise InputError(f"timeout_s is {timeout_s}; it must be a number of seconds above 0, or None")
        backends = dist.get_backend_config(group) if self._active else ""
        self._is_nccl = torch.cuda.is_available() and device_type(backends) == "cuda"
        self._watch = Watch(group, timeout_s) if self.world_size > 1 else None
        self._tape: Tape | None = None
        self._in_flight = InFlight()
        self.reset_counters()

    def __enter__(self) -> Comm:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        """Wait until the backend has let go of all tensors. The end of the interpreter does the same."""
        self._in_flight.drain()

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
        was recorded between the two meanwhile. The rows must need a gradient on every rank or on none, see
        :meth:`agree_on_grad`.
        """
        transfer = Transfer(self, send_counts, recv_counts)
        return Begin.apply(rows, transfer), transfer

    def begin_gather(self, rows: torch.Tensor, counts: list[int]):
        """Start to gather every rank's rows, (n_i, ...), on every rank; :meth:`finish` gives them, (sum(counts), ...).

        Gradients are summed at the rank whose rows they belong to.
        """
        gathering = Gathering(self, counts)
        return Begin.apply(rows, gathering), gathering

    def agree_on_grad(self, rows: torch.Tensor) -> torch.Tensor:
        """The rows, which need a gradient on every rank where they need one on any; every rank calls it.

        Else ranks whose rows need none would be missing from the backward pass of their exchange.
        """
        if self.world_size == 1 or not torch.is_grad_enabled():
            return rows
        _check_dtype(rows.dtype)
        needed = self.all_reduce(torch.tensor([int(rows.requires_grad)], device="cpu"), "max")
        return recorded(rows) if needed[0] else rows

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

    def all_reduce(self, values: torch.Tensor, op: str = "sum") -> torch.Tensor:
        """Sum or maximum (``op="max"``) over ranks, as a new tensor; not differentiable and not counted."""
        operations = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}
        if op not in operations:
            raise ValueError(f"op is {op!r}; allowed: {', '.join(operations)}")
        # The backend sums memory as it lies, whatever its strides, which may differ between ranks.
        total = values.detach().to(self.device, copy=True, memory_format=torch.contiguous_format)
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

    def gather_rows(self, rows: torch.Tensor, to: int | None = None) -> list[torch.Tensor] | None:
        """Every rank's rows, (n_i, ...), on every rank or on rank ``to`` alone; not differentiable and not counted.

        The rows may differ in number but not in width or dtype. No rank stores its rows more than once, and with
        ``to`` the other ranks, which get None, store no other's. gloo's all_gather takes equal pieces only, hence
        all-to-all.
        """
        if self.world_size == 1:
            return [rows]
        _check_dtype(rows.dtype)
        counts = torch.zeros(self.world_size, dtype=torch.int64, device="cpu")
        counts[self.rank] = len(rows)
        counts, mine, gathered = self.all_reduce(counts).tolist(), rows.to(self.device).contiguous(), None
        for root in range(self.world_size) if to is None else [to]:
            is_root = root == self.rank
            recv_counts = counts if is_root else [0] * self.world_size
            received = mine.new_empty((sum(recv_counts), *mine.shape[1:]))
            self._wait(self._all_to_all(received, mine, recv_counts, self.only(root, len(mine))))
            gathered = received if is_root else gathered
        return None if gathered is None else list(gathered.to(rows.device).split(counts))

    def from_first(self, value):
        """Rank 0's ``value``, a plain one as JSON has them, on every rank."""
        if self.world_size == 1:
            return value
        return json.loads(self._gather_text(json.dumps(value) if self.rank == 0 else "")[0])

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
            if self._watch:
                self._watch.announce(error)
            raise

    def _gather_text(self, text: str) -> list[str]:
        rows = torch.tensor(list(text.encode()), dtype=torch.uint8, device="cpu")
        return [bytes(row.tolist()).decode() for row in self.gather_rows(rows)]

    def _all_to_all(self, received: torch.Tensor, sent: torch.Tensor, recv_counts, send_counts):
        """Start an exchange; :meth:`_wait` ends it."""
        aliases = self._given(received, sent)
        return dist.all_to_all_single(*aliases, recv_counts, send_counts, group=self._group, async_op=True)

    def _all_reduce(self, total: torch.Tensor, op=dist.ReduceOp.SUM):
        """Start to sum a tensor in place; :meth:`_wait` ends it."""
        return dist.all_reduce(*self._given(total), op, group=self._group, async_op=True)

    def _given(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        """What a collective is given for such tensors."""
        _check_dtype(tensors[0].dtype)
        self._watch.started()
        return self._in_flight.aliases(*tensors)

    def _wait(self, work) -> None:
        """Wait for a collective, or raise what stopped another rank."""
        if self._is_nccl:  # makes the current stream wait, not this thread
            work.wait()
        else:
            self._watch.wait(work)


def _check_dtype(dtype: torch.dtype) -> None:
    if dtype not in _DTYPES:
        allowed = ", ".join(str(each).removeprefix("torch.") for each in _DTYPES)
        raise ValueError(
            f"ranks cannot exchange tensors of {dtype}; allowed: {allowed}. Convert them before, for example by "
            "x.to(torch.int32)"
        )
