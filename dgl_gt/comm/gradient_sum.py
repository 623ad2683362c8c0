"""The sum of parameter gradients over ranks: after the backward pass, or in buckets while it still runs.

Buckets cannot deadlock with the exchanges of the backward pass. They travel in a process group of their own, so no
exchange waits for a bucket, and no bucket for an exchange. Within that group, every rank starts the buckets in one
order: bucket i starts when all its gradients are there and bucket i - 1 has started, or else after the backward pass.
So a rank that computes some gradient late, or not at all, delays the others at the end of the step, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from dgl_gt.partition.errors import InputError

BUCKET_BYTES = 1 << 20  # a bucket this large is full; a single one is summed after the backward pass


def sum_after_backward(comm, parameters: list[torch.nn.Parameter]) -> None:
    """Sum gradients in one flat all-reduce per dtype; a parameter without a gradient counts as zero."""
    by_dtype: dict[torch.dtype, list[torch.nn.Parameter]] = {}
    _complete(parameters)
    for parameter in parameters:
        by_dtype.setdefault(parameter.dtype, []).append(parameter)
    if comm.world_size == 1:
        return
    for of_dtype in by_dtype.values():
        flat = _flat(of_dtype)
        comm.sum_in_place(flat)
        _write_back(of_dtype, flat)


@contextmanager
def sum_during_backward(comm, parameters: list[torch.nn.Parameter]) -> Iterator[None]:
    """Inside the block, gradients start to travel as soon as they are computed; at its end they are summed.

    The result is that of :func:`sum_after_backward` at the end of the block, whatever is called inside it. If a
    gradient changes on any rank after it has started to travel, as in a second backward pass or by clipping, then all
    are summed again. On GPUs, gradients travel after the block: collectives of two groups can block each other with
    nccl.
    """
    buckets = _buckets(parameters)
    is_plain = comm.world_size == 1 or len(buckets) < 2 or any(each.device.type != "cpu" for each in parameters)
    under_way = None if is_plain else _UnderWay(comm, buckets)
    hooks = [] if is_plain else [each.register_post_accumulate_grad_hook(under_way.arrived) for each in parameters]
    try:
        yield
    except BaseException:
        comm.transport.close_beside()  # ranks may have started different numbers of sums; later ones must not pair with them
        raise
    finally:
        for hook in hooks:
            hook.remove()
    comm.enter("the gradient sum")
    try:
        if under_way is None:
            sum_after_backward(comm, parameters)
        else:
            under_way.finish()
    finally:
        comm.leave()


class _UnderWay:
    """The buckets of one step, of which the first ones have started."""

    def __init__(self, comm, buckets: list[list[torch.nn.Parameter]]):
        comm.transport.open_beside()
        self._comm, self._buckets = comm, buckets
        self._missing = [{id(parameter) for parameter in bucket} for bucket in buckets]
        self._bucket_of = {key: number for number, keys in enumerate(self._missing) for key in keys}
        self._started: list[tuple[torch.Tensor, Callable[[], None]]] = []
        self._sent: list[torch.Tensor] = []  # what buckets held when they started to travel

    def arrived(self, parameter: torch.nn.Parameter) -> None:
        """Note that a gradient has been computed, and start the buckets that are complete, but not the last one."""
        self._missing[self._bucket_of[id(parameter)]].discard(id(parameter))
        while len(self._started) < len(self._buckets) - 1 and not self._missing[len(self._started)]:
            self._start()

    def finish(self) -> None:
        """Start the other buckets, and wait for all. The last one also says whether a gradient has changed since."""
        # torch does not count changes through ``.data`` or of ``GradScaler.unscale_``, so this compares all bits
        has_changed = not all(torch.equal(_bits(_flat(each)), sent) for each, sent in zip(self._buckets, self._sent))
        while len(self._started) < len(self._buckets):
            self._start(has_changed)
        for _, wait in self._started:
            wait()
        *earlier, (last, _) = self._started
        if last[-1] != 0:
            for bucket in self._buckets[:-1]:
                sum_after_backward(self._comm, bucket)
        else:
            for bucket, (flat, _) in zip(self._buckets, earlier):
                _write_back(bucket, flat)
        _write_back(self._buckets[-1], last[:-1])

    def _start(self, has_changed: bool = False) -> None:
        bucket = self._buckets[len(self._started)]
        flat = _flat(bucket)
        if len(self._started) == len(self._buckets) - 1:
            flat = torch.cat([flat, flat.new_full((1,), float(has_changed))])
        else:
            self._sent.append(_bits(flat.clone()))
        self._started.append((flat, self._comm.start_sum(flat)))


def _buckets(parameters: list[torch.nn.Parameter]) -> list[list[torch.nn.Parameter]]:
    """Parameters of one dtype each, the last ones first, because backward computes their gradients first."""
    buckets: list[list[torch.nn.Parameter]] = []
    size_bytes = 0
    for parameter in reversed(parameters):
        if not buckets or size_bytes >= BUCKET_BYTES or parameter.dtype != buckets[-1][0].dtype:
            buckets.append([])
            size_bytes = 0
        buckets[-1].append(parameter)
        size_bytes += parameter.nbytes
    return buckets


def _complete(parameters: list[torch.nn.Parameter]) -> None:
    """Give zeros to parameters without a gradient; refuse sparse ones."""
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        if parameter.grad.layout is not torch.strided:
            raise InputError(
                f"the gradient of a parameter {tuple(parameter.shape)} is {parameter.grad.layout}; only dense gradients can be "
                "summed: make its embedding with sparse=False"
            )


def _flat(parameters: list[torch.nn.Parameter]) -> torch.Tensor:
    _complete(parameters)
    return torch.cat([parameter.grad.reshape(-1) for parameter in parameters])


def _bits(flat: torch.Tensor) -> torch.Tensor:
    return flat.view(torch.uint8)


def _write_back(parameters: list[torch.nn.Parameter], flat: torch.Tensor) -> None:
    for parameter, total in zip(parameters, flat.split([parameter.numel() for parameter in parameters])):
        parameter.grad.copy_(total.view_as(parameter))
