"""Trace a training step: record it on a few small parts, and find how each size depends on the counts of the part."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dgl_gt.exchange.sharded_graph import ShardedGraph
from partition.errors import InputError

from .recorder import Recorder
from .stand_in import stand_in
from .step_trace import Event, StepTrace, counts_of_parts, counts_that_matter

_TOLERANCE = 1e-6  # relative, of a size
_TOLERANCE_OF_MIRROR = 0.1  # no count tells edges into mirrors from edges out of them; their sum is exact


def trace_step(
    make_step: Callable[[ShardedGraph], Callable[[], object]],
    strategy: str,
    depth: int,
    parts: int,
    node_data: dict,
    edge_data: dict,
    overlap: bool = True,
) -> StepTrace:
    """Trace a training step of any model with one strategy.

    The step runs twice on each of a few small parts, with made-up data, and the second run is recorded. What a step
    keeps between its runs, such as the state of an optimiser, is thus there. The sizes must depend linearly on the
    counts of a part: a step that computes on all pairs of nodes, for example, is refused.

    Parameters
    ----------
    make_step : callable
        Called as ``make_step(sg)`` with a ShardedGraph; returns a function without arguments that takes one training
        step on it.
    strategy, depth, overlap
        See :func:`dgl_gt.load`.
    parts : int
        Number of ranks P.
    node_data, edge_data : dict of str to (dtype, shape)
        Columns of the data, see :func:`dgl_gt.trace.stand_in.stand_in`.

    Raises
    ------
    InputError
        The operations of the step, or their sizes, depend on the data.
    """
    names = counts_that_matter(strategy, depth)
    counts, sizes, kept, events = [], [], [], None
    for seed in range(len(names) + 1):
        sg, figures = stand_in(strategy, depth, parts, seed, node_data, edge_data, overlap)
        step = make_step(sg)
        if not callable(step):
            raise InputError(f"make_step returned {step!r}; it must return a function that takes one training step")
        step()
        with Recorder(sg) as recorder:
            step()
        _check_same(events, recorder.events)
        events = recorder.events
        counts.append(counts_of_parts(figures, names)[0])
        sizes.append([size for of_event in recorder.sizes for size in of_event])
        kept.append(recorder.kept_bytes)
    counts, sizes, kept = np.array(counts), np.array(sizes, float), np.array(kept, float)
    event_of = np.repeat(np.arange(len(events)), [len(each) for each in recorder.sizes])
    solution = np.linalg.lstsq(counts, np.column_stack([sizes, kept]), rcond=None)[0]
    tolerance = _TOLERANCE_OF_MIRROR if strategy == "mirror" else _TOLERANCE
    _check_linear(counts, solution[:, :-1], sizes, [events[number] for number in event_of], tolerance)
    return StepTrace(names, tuple(events), event_of, solution[:, :-1], solution[:, -1])


def _check_same(before: list[Event] | None, now: list[Event]) -> None:
    """Raise :class:`InputError` unless two recordings have the same events."""
    if before is None or before == now:
        return
    first = next(
        (number for number, pair in enumerate(zip(before, now)) if pair[0] != pair[1]), min(len(before), len(now)) - 1
    )
    names = [each.what[0] for each in now[: first + 1] if each.kind in ("product", "rows")] or ["its first operation"]
    raise InputError(
        f"a training step does other operations on one part than on another, from about {names[-1]} on, so it cannot "
        "be traced; make the operations independent of the data and of the number of rows, or measure real steps"
    )


def _check_linear(counts, solution, sizes, events: list[Event], tolerance: float) -> None:
    """Raise :class:`InputError` where a size does not depend linearly on the counts of a part."""
    errors = np.abs(counts @ solution - sizes).max(axis=0) / np.maximum(np.abs(sizes).max(axis=0), 1)
    wrong = [event for event, error in zip(events, errors) if error > tolerance]
    if wrong:
        event = next((each for each in wrong if each.kind in ("product", "rows")), wrong[0])
        name = event.what[0] if event.kind in ("product", "rows") else event.kind
        raise InputError(
            f"the size of {name} in a training step does not grow linearly with the rows and edges of a part, so the "
            "step cannot be traced; an operation on all pairs of rows, or on rows that the data select, is such a "
            "case. Measure real steps instead"
        )
