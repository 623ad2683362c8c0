"""Differentiable collectives over a process group; the one place that moves bytes between ranks, and counts them."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from partition.errors import InputError


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
        Payload of :meth:`exchange`, forward and backward, since the start; rows kept on this rank are not counted.
    exchange_s : float
        Wall seconds inside :meth:`exchange`, waiting for slower ranks included.
    """

    def __init__(self, group=None):
        self._active = dist.is_available() and dist.is_initialized()
        self._group = group
        self.rank = dist.get_rank(group) if self._active else 0
        self.world_size = dist.get_world_size(group) if self._active else 1
        self.sent_bytes = self.received_bytes = 0
        self.exchange_s = 0.0

    @property
    def device(self) -> torch.device:
        """Where tensors of this group's collectives live: this rank's GPU with nccl, else the CPU."""
        if self._active and dist.get_backend(self._group) == "nccl":
            return torch.device("cuda", torch.cuda.current_device())
        return torch.device("cpu")

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
        return _Exchange.apply(rows, self, send_counts, recv_counts)

    def _all_to_all(self, rows, send_counts, recv_counts) -> torch.Tensor:
        received = rows.new_empty((sum(recv_counts), *rows.shape[1:]))
        if self.world_size == 1:
            return received.copy_(rows)
        if rows.is_cuda:
            torch.cuda.synchronize()  # else the time of queued computation would count as exchange
        started = time.perf_counter()
        dist.all_to_all_single(received, rows.contiguous(), recv_counts, send_counts, group=self._group)
        if rows.is_cuda:
            torch.cuda.synchronize()
        self.exchange_s += time.perf_counter() - started
        row_bytes = rows[:1].numel() * rows.element_size() if len(rows) else received[:1].numel() * rows.element_size()
        self.sent_bytes += row_bytes * (sum(send_counts) - send_counts[self.rank])
        self.received_bytes += row_bytes * (sum(recv_counts) - recv_counts[self.rank])
        return received

    def all_reduce(self, values: torch.Tensor, op: str = "sum") -> torch.Tensor:
        """Sum or maximum (``op="max"``) over ranks, as a new tensor; not differentiable and not counted."""
        operations = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}
        if op not in operations:
            raise ValueError(f"op is {op!r}; allowed: {', '.join(operations)}")
        total = values.detach().to(self.device, copy=True)
        if self.world_size > 1:
            dist.all_reduce(total, operations[op], group=self._group)
        return total.to(values.device)

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
            dist.all_reduce(flat, group=self._group)
            for parameter, total in zip(group, flat.split([parameter.numel() for parameter in group])):
                parameter.grad.copy_(total.view_as(parameter))

    def gather_rows(self, rows: torch.Tensor) -> list[torch.Tensor]:
        """Every rank's rows, (n_i, ...), on every rank; not differentiable and not counted.

        The rows may differ in number but not in width or dtype. gloo's all_gather takes equal pieces only, hence
        all-to-all.
        """
        if self.world_size == 1:
            return [rows]
        counts = torch.zeros(self.world_size, dtype=torch.int64)
        counts[self.rank] = len(rows)
        counts = self.all_reduce(counts).tolist()
        copies = rows.to(self.device).repeat(self.world_size, *[1] * (rows.dim() - 1))
        received = copies.new_empty((sum(counts), *rows.shape[1:]))
        dist.all_to_all_single(received, copies, counts, [len(rows)] * self.world_size, group=self._group)
        return list(received.to(rows.device).split(counts))

    def raise_together(self, error: InputError | None) -> None:
        """Raise on every rank where any rank has an error, with the message of the first such rank; else return."""
        if self.world_size == 1:
            if error:
                raise error
            return
        text = torch.tensor(list(str(error).encode()) if error else [], dtype=torch.uint8)
        messages = [bytes(message.tolist()).decode() for message in self.gather_rows(text)]
        for rank, message in enumerate(messages):
            if message:
                raise error or InputError(f"rank {rank}: {message}")


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, comm, send_counts, recv_counts):
        ctx.comm, ctx.send_counts, ctx.recv_counts = comm, send_counts, recv_counts
        return comm._all_to_all(rows, send_counts, recv_counts)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        return ctx.comm._all_to_all(grad, ctx.recv_counts, ctx.send_counts), None, None, None
