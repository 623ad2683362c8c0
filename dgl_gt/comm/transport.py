"""What carries the collectives of a :class:`dgl_gt.Comm`: a process group, or what stands in for one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist

from .failure import FailureDetector
from .in_flight import InFlight

# What gloo and nccl carry.
_DTYPES = (
    *(torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32),
    *(torch.float64, torch.complex64, torch.complex128),
)
OPERATIONS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}
Wait = Callable[[str], None]  # waits for the end of a collective, which messages call by the text


class Transport:
    """Collectives of ranks that have started together; by itself a process alone, whose collectives are never called.

    Collectives return a function that waits for their end. All tensors are contiguous, and lie on ``device``.
    """

    rank: int = 0
    world_size: int = 1

    @property
    def device(self) -> torch.device:
        """Where the tensors lie."""
        return torch.device("cpu")

    def all_to_all(self, received, sent, recv_counts: list[int], send_counts: list[int]) -> Wait:
        """Exchange rows: ``sent`` (sum(send_counts), ...) for ``received`` (sum(recv_counts), ...)."""
        raise NotImplementedError

    def all_gather(self, received, rows, counts: list[int]) -> Wait:
        """Give every rank the rows of all, ``received`` (sum(counts), W)."""
        raise NotImplementedError

    def all_reduce(self, total, op: str = "sum", beside: bool = False) -> Wait:
        """Reduce in place, ``beside`` all else where :meth:`open_beside` was called."""
        raise NotImplementedError

    def gather_text(self, text: str, what: str) -> list[str]:
        """Return every rank's text, in rank order; messages call it ``what``."""
        return [text]

    def open_beside(self) -> None:
        """Let reductions run at the same time as all else; every rank calls it."""

    def close_beside(self) -> None:
        """Start anew with them, after an error; every rank calls it."""

    def report(self, error: BaseException) -> None:
        """Tell the other ranks why this one stops."""

    def drain(self) -> None:
        """Wait until all tensors are released."""


class GroupOfRanks(Transport):
    """A process group of torch.distributed; waiting for a rank that has stopped raises :class:`dgl_gt.RankError`."""

    def __init__(self, group, timeout_s: float | None):
        self._group, self._sums, self._in_flight = group, None, InFlight()
        self.rank, self.world_size = dist.get_rank(group), dist.get_world_size(group)
        self._is_cuda = torch.cuda.is_available() and device_type(dist.get_backend_config(group)) == "cuda"
        self._detector = FailureDetector(group, timeout_s) if self.world_size > 1 else None

    @property
    def device(self) -> torch.device:
        """This rank's GPU with nccl, else the CPU."""
        return torch.device("cuda", torch.cuda.current_device()) if self._is_cuda else torch.device("cpu")

    def all_to_all(self, received, sent, recv_counts, send_counts):
        aliases = self._prepare(received, sent)
        work = dist.all_to_all_single(*aliases, recv_counts, send_counts, group=self._group, async_op=True)
        return partial(self._wait, work)

    def all_gather(self, received, rows, counts):  # gloo's own takes equal pieces only
        ranks = self.world_size
        return self.all_to_all(received, rows.repeat(ranks, 1), counts, [len(rows)] * ranks)

    def all_reduce(self, total, op="sum", beside=False):
        if not beside:
            (alias,) = self._prepare(total)
            work = dist.all_reduce(alias, OPERATIONS[op], group=self._group, async_op=True)
            return partial(self._wait, work)
        work = dist.all_reduce(*self._in_flight.aliases(total), group=self._sums, async_op=True)

        # Other collectives may come first on some ranks; ranks wait for these in one order, at one place of the program.
        # So they count as collectives where they are waited for.
        def wait(what: str) -> None:
            self._detector.collective_started()
            self._wait(work, what)

        return wait

    def gather_text(self, text, what):
        if self.world_size == 1:
            return [text]
        own = torch.tensor(list(text.encode()), dtype=torch.uint8).unsqueeze(1)
        counts = torch.zeros(self.world_size, dtype=torch.int64)
        counts[self.rank] = len(own)
        counts = counts.to(self.device)
        self.all_reduce(counts)(what)
        received = own.new_empty((int(counts.sum()), 1), device=self.device)
        self.all_gather(received, own.to(self.device), counts.tolist())(what)
        return [bytes(each.flatten().tolist()).decode() for each in received.cpu().split(counts.tolist())]

    def open_beside(self):
        if self._sums is None:
            members = dist.get_process_group_ranks(self._group or dist.group.WORLD)
            self._sums = dist.new_group(members, backend="gloo", use_local_synchronization=True)
            self._detector.watch(self._sums)

    def close_beside(self):
        self._sums = None

    def report(self, error):
        if self._detector:
            self._detector.report(error)

    def drain(self):
        self._in_flight.drain()

    def _prepare(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        """Return the tensors that a collective is to be given in place of these."""
        self._detector.collective_started()
        return self._in_flight.aliases(*tensors)

    def _wait(self, work, what: str) -> None:
        if self._is_cuda:  # the current stream waits, not this thread
            work.wait()
        else:
            self._detector.wait(work, what)


def device_type(backends: str) -> str:
    """Return where the collectives of a process group run, "cuda" or "cpu", from its ``get_backend_config``.

    GPUs take part through nccl alone, because gloo copies their tensors to the CPU and back.
    """
    by_device = dict(each.split(":", 1) for each in backends.split(",") if ":" in each)
    return "cuda" if by_device.get("cuda") == "nccl" or backends == "nccl" else "cpu"


def check_dtype(dtype: torch.dtype) -> None:
    """Raise ``ValueError`` unless ranks can exchange tensors of this dtype."""
    if dtype not in _DTYPES:
        allowed = ", ".join(str(each).removeprefix("torch.") for each in _DTYPES)
        raise ValueError(
            f"ranks cannot exchange tensors of {dtype}; allowed: {allowed}. Convert them first, for example with "
            "x.to(torch.int32)"
        )
