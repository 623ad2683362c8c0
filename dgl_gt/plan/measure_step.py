"""Measure where the time of a real training step goes, on ranks that run it together."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from dgl_gt.exchange.sharded_graph import ShardedGraph
from dgl_gt.ops.dispatch import EDGES
from dgl_gt.torch_internals import OperationMode

from .layer_tracker import LayerTracker
from .recorder import RANGE_BEGIN, RANGE_END, kind_of

_STEPS = 3
_TERM_OF = {"product": "products_s", "edges": "attention_s", "rows": "rows_s"}


@dataclass(frozen=True)
class MeasuredStep:
    """What a training step took.

    Attributes
    ----------
    seconds : float
        Median time of a step (s).
    layers : dict of str to dict
        Seconds of each layer, see :class:`dgl_gt.plan.layer_tracker.LayerTracker`, on average over ranks:
        ``products_s``, ``rows_s``, ``attention_s``, ``exchange_s`` with the wait for other ranks, ``gradients_s``, and
        ``other_s`` between operations (s). They come from extra steps, which timing each operation makes slower.
    sent_bytes : int
        Bytes that all ranks together send in the exchanges of a step.
    """

    seconds: float
    layers: dict[str, dict[str, float]]
    sent_bytes: int


class StepTimer(OperationMode):
    """Inside the block, adds up the seconds of this rank by layer and by kind of work.

    Attributes
    ----------
    layers : dict of str to dict
        See :class:`MeasuredStep`.
    """

    def __init__(self, sg: ShardedGraph):
        super().__init__()
        self.layers: dict[str, dict[str, float]] = {}
        self._comm, self._device, self._tracker = sg.comm, sg.device, LayerTracker()
        self._ranges: list[bool] = []  # ranges of the profiler that are open, and whether they are passes over edges
        self._waits_for: str | None = None  # a collective that may still run on a GPU

    def __enter__(self):
        self._tracker.__enter__()
        self._ended, self._exchange_s = self._now(), self._comm.exchange_s
        return super().__enter__()

    def __exit__(self, *error):
        try:
            self._add_gap()
        finally:
            self._tracker.__exit__()
            super().__exit__(*error)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "c10d":  # its time is in the gap before the next operation
            self._waits_for = "gradients_s" if "allreduce" in function.name() else "exchange_s"
            return function(*args, **(kwargs or {}))
        self._add_gap()
        result = function(*args, **(kwargs or {}))
        if function is RANGE_BEGIN:
            self._ranges.append(args[0] == EDGES)
        elif function is RANGE_END:
            self._ranges.pop()
        ended = self._now()
        self._add("attention_s" if any(self._ranges) else _TERM_OF[kind_of(function)], ended - self._ended)
        self._ended = ended
        return result

    def _add_gap(self) -> None:
        """Add the time since the last operation."""
        now = self._now()
        gap, exchanged = now - self._ended, self._comm.exchange_s - self._exchange_s
        exchanged = min(exchanged, gap)
        self._add("exchange_s", exchanged)
        rest = self._waits_for or ("attention_s" if any(self._ranges) else "other_s")
        self._add(rest, gap - exchanged)
        self._ended, self._exchange_s, self._waits_for = now, self._comm.exchange_s, None

    def _add(self, term: str, seconds: float) -> None:
        of_layer = self.layers.setdefault(self._tracker.layer, {})
        of_layer[term] = of_layer.get(term, 0.0) + seconds

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()


def measure_step(make_step: Callable[[ShardedGraph], Callable[[], object]], sg: ShardedGraph) -> MeasuredStep:
    """Run a training step a few times and measure it; every rank calls it, and all get the same result.

    Parameters
    ----------
    make_step : callable
        See :func:`dgl_gt.plan.report_costs`.
    sg : ShardedGraph
    """
    comm = sg.comm
    with comm.together():
        step, seconds = make_step(sg), []
        step()
        before = comm.sent_bytes
        for _ in range(_STEPS):
            comm.all_reduce(torch.zeros(1))
            started = time.perf_counter()
            step()
            if sg.device.type == "cuda":
                torch.cuda.synchronize(sg.device)
            seconds.append(time.perf_counter() - started)
        sent, found = (comm.sent_bytes - before) // _STEPS, []
        for _ in range(_STEPS):
            with StepTimer(sg) as timer:  # a new one for each step, which may make modules of its own
                step()
            found.append(timer.layers)
    of_ranks = comm.gather_objects([seconds, sent, found])
    slowest = [max(of_step) for of_step in zip(*(seconds for seconds, _, _ in of_ranks))]
    sent_bytes = sum(sent for _, sent, _ in of_ranks)
    return MeasuredStep(
        statistics.median(slowest), _mean([step for *_, found in of_ranks for step in found]), sent_bytes
    )


def _mean(found: list[dict]) -> dict[str, dict[str, float]]:
    """The mean seconds of layers and kinds, of the steps of all ranks; a layer that is missing in one took no time."""
    terms = (*_TERM_OF.values(), "exchange_s", "gradients_s", "other_s")
    return {
        layer: {term: sum(step.get(layer, {}).get(term, 0.0) for step in found) / len(found) for term in terms}
        for layer in dict.fromkeys(layer for step in found for layer in step)
    }
