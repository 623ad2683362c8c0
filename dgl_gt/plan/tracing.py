"""Trace a training step: record it on a few small parts, and find how each size depends on the counts of the part."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import contextmanager, nullcontext

import numpy as np
import torch

from dgl_gt.exchange.sharded_graph import ShardedGraph
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.figures.strategies import LOCAL, Count, StrategyRules, counts_of_parts, same_as
from dgl_gt.partition.shards.layout import Layout
from dgl_gt.torch_internals import storage_key

from .recorder import Reads, Recorder
from .stand_in import make_layout, stand_in
from .trace import Event, Trace

_TOLERANCE = 1e-6  # relative, of a size
_SPARE = 1  # recordings beyond the number of counts, against which the solution is checked
_FEW_PARTS = 4  # on which a step reads the same masks as on many
_MAX_SEEDS = 300
_NAMES = {"kept": "the tensors that outlive the step", "edges": "a pass over edges", "begin": "an exchange"}
_NAMES |= {"sum": "a sum over ranks", "begin_sum": "a sum over ranks", "memory": "a tensor"}


def record_trace(
    make_step: Callable[[ShardedGraph], Callable[[], object]],
    strategy: StrategyRules,
    depth: int,
    parts: int,
    node_data: dict,
    edge_data: dict,
    overlap: bool = True,
) -> Trace:
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
        Columns of the data, see :func:`dgl_gt.plan.stand_in.make_layout`.

    Raises
    ------
    InputError
        The operations of the step, or their sizes, depend on the data; or the strategy is ``mesh=M`` with one rank per
        host, or with one host.
    """
    if same := same_as(strategy, parts):
        raise InputError(f"{strategy} on {parts} ranks is the same as {same}; choose that strategy instead")

    def made_up(seed: int, parts: int = parts) -> Layout:
        return make_layout(strategy, depth, parts, seed, node_data, edge_data)

    with torch.random.fork_rng(devices=[]), _one_thread():  # the user's generator stays where it is
        few = made_up(0, parts if strategy.shares_heads else min(parts, _FEW_PARTS))  # few ranks may not share them
        masks = _masks_that_are_read(make_step, stand_in(few, strategy, depth, overlap))
        names = (*(LOCAL if parts == 1 else strategy).counts(depth), *masks)
        layouts, counts = _independent_layouts(made_up, names)
        events, sizes = None, []
        for layout in layouts:
            sg = stand_in(layout, strategy, depth, overlap)
            step = make_step(sg)
            with _uncompiled():
                step()
            with _uncompiled(), Recorder(sg) as recorder:
                step()
            events = events or recorder.events
            _check_same(events, recorder.events)
            sizes.append([size for of_event in recorder.sizes for size in of_event] + [recorder.kept_bytes])
    event_of, sizes = np.repeat(np.arange(len(events)), [len(each) for each in recorder.sizes]), np.array(sizes, float)
    scale = np.maximum(counts.max(axis=0), 1)
    solution = np.linalg.lstsq(counts / scale, sizes, rcond=None)[0] / scale[:, None]
    _check_linear(counts, solution, sizes, [events[number] for number in event_of] + [Event("kept")])
    return Trace(names, tuple(events), event_of, solution[:, :-1], solution[:, -1])


@contextmanager
def _one_thread():
    """Inside the block, operations run on one thread: made-up parts are so small that more only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _uncompiled():
    """Return a context in which functions that torch.compile has made run eagerly, so that each operation is seen."""
    if "torch._dynamo" not in sys.modules or not hasattr(torch.compiler, "set_stance"):  # not before torch 2.6
        return nullcontext()
    return torch.compiler.set_stance("force_eager")


def _masks_that_are_read(make_step, sg: ShardedGraph) -> tuple[Count, ...]:
    """The counts of those masks among the node data whose values a step uses."""
    masks = {name: x for name, x in sg.ndata.items() if x.dtype == torch.bool and x.dim() == 1}
    with Reads() as reads:
        step = make_step(sg)
        if not callable(step):
            raise InputError(f"make_step returned {step!r}; it must return a function that takes one training step")
        step()
    return tuple(Count("selected", mask=name) for name, mask in masks.items() if storage_key(mask) in reads.storages)


def _independent_layouts(made_up: Callable[[int], Layout], names: tuple[Count, ...]) -> tuple[list[Layout], np.ndarray]:
    """Made-up graphs whose counts, (layouts, names), are linearly independent, and some more to check against."""
    layouts, counts = [], np.empty((0, len(names)))
    for seed in range(_MAX_SEEDS):
        layout = made_up(seed)
        more = np.vstack([counts, counts_of_parts(layout.figures, names)[0]])
        if len(layouts) >= len(names) or np.linalg.matrix_rank(more / np.maximum(more.max(axis=0), 1), tol=1e-3) == len(
            more
        ):
            layouts.append(layout)
            counts = more
        if len(layouts) == len(names) + _SPARE:
            return layouts, counts
    raise InputError(
        f"the step cannot be traced, because made-up parts cannot tell {len(names)} counts apart; let the step read fewer "
        "masks, or time real steps yourself"
    )


def _check_same(before: list[Event], now: list[Event]) -> None:
    """Raise :class:`InputError` unless two recordings have the same events."""
    if before == now:
        return
    first = next(
        (number for number, pair in enumerate(zip(before, now)) if pair[0] != pair[1]), min(len(before), len(now)) - 1
    )
    names = [each.what[0] for each in now[: first + 1] if each.kind in ("product", "rows")] or ["its first operation"]
    raise InputError(
        f"a training step does different operations on different parts, from about {names[-1]} on, so it cannot be "
        "traced; make the operations independent of the data and of the number of rows, or time real steps yourself"
    )


def _check_linear(counts, solution, sizes, events: list[Event]) -> None:
    """Raise :class:`InputError` where a size does not depend linearly on the counts of a part."""
    errors = np.abs(counts @ solution - sizes).max(axis=0) / np.maximum(np.abs(sizes).max(axis=0), 1)
    wrong = [event for event, error in zip(events, errors) if error > _TOLERANCE]
    if wrong:
        event = next((each for each in wrong if each.kind in ("product", "rows")), wrong[0])
        name = event.what[0] if event.kind in ("product", "rows") else _NAMES.get(event.kind, event.kind)
        raise InputError(
            f"the size of {name} in a training step does not grow linearly with the rows and edges of a part, so the "
            "step cannot be traced; an operation on all pairs of rows, or on rows that the data select, is such a "
            "case. Time real steps yourself instead"
        )
