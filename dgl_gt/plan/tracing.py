"""Trace a training step: record it on a few small parts, and find how each size depends on the counts of the part."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from functools import cache

import numpy as np
import torch

from dgl_gt.exchange.sharded_graph import ShardedGraph
from dgl_gt.ops.checks import unpack
from dgl_gt.ops.dispatch import ADDITIVE_PASS, EDGES
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.figures.strategies import LOCAL, Count, StrategyRules, counts_of_parts, same_as
from dgl_gt.partition.schema import Schema
from dgl_gt.partition.shards.layout import Layout
from dgl_gt.torch_internals import OperationMode, profiler_range_operations, schema_of, storage_key

from .stand_in import make_layout, stand_in, without_dependent
from .streamed_trace import StreamedTrace
from .trace import Event, Trace
from .watch import LayerTracker, storage_bytes, tensors_in

_TOLERANCE = 1e-6  # relative, of a size
_SPARE = 1  # recordings beyond the number of counts, against which the solution is checked
_FEW_PARTS = 4  # on which a step reads the same masks as on many
_MAX_SEEDS = 300
_NAMES = {"kept": "the tensors that outlive the step", "edges": "a pass over edges", "begin": "an exchange"}
_NAMES |= {"sum": "a sum over ranks", "begin_sum": "a sum over ranks", "memory": "a tensor"}
_OVERWRITE = {torch.ops.aten.copy_, torch.ops.aten.fill_, torch.ops.aten.zero_}  # their first argument is not read
_WITHOUT_LAYER = "memory", "piece", "piece_end"
_ATTENTION = "dgl_gt::sparse_attention"  # and the name of its backward pass begins with it
_COPY = torch.ops.aten.clone.default
RANGE_BEGIN, RANGE_END = profiler_range_operations()


def record_trace(
    make_step: Callable[[ShardedGraph], Callable[[], object]],
    strategy: StrategyRules,
    depth: int,
    parts: int,
    node_data: dict,
    edge_data: dict,
    schema: Schema | None = None,
    overlap: bool = True,
    streams: bool = False,
    spill_dtype: torch.dtype | None = None,
) -> Trace:
    """Trace a training step of any model, as :func:`dgl_gt.plan.report_costs` takes it, with one strategy.

    The step runs twice on each of a few small parts, with made-up data, and the second run is recorded. What a step
    keeps between its runs, such as the state of an optimiser, is thus there. :class:`InputError` says that sizes do not
    depend linearly on the counts of a part, or that ``mesh=M`` has one rank per host, or one host. With ``streams``,
    layers run piece by piece, with rows of files as a :class:`.Stream` with this ``spill_dtype`` keeps them, and the trace
    is a :class:`.StreamedTrace`.
    """
    if same := same_as(strategy, parts):
        raise InputError(f"{strategy} on {parts} ranks is the same as {same}; choose that strategy instead")

    pieces = (parts, spill_dtype) if streams else None
    parts = max(parts, 2) if streams else parts  # a piece reads rows of others, and a rank alone has some, too

    def made_up(seed: int, parts: int = parts) -> Layout:
        return make_layout(strategy, depth, parts, seed, node_data, edge_data, schema)

    with torch.random.fork_rng(devices=[]), _one_thread():  # the user's generator stays where it is
        few = made_up(0, parts if strategy.shares_heads else min(parts, _FEW_PARTS))  # few ranks may not share them
        masks = _masks_that_are_read(make_step, stand_in(few, strategy, depth, overlap, pieces))
        names = (*(LOCAL if parts == 1 else strategy).counts(depth, schema, edge_data), *masks)
        if schema is not None:
            names = without_dependent(made_up, names)
        layouts, counts = _independent_layouts(made_up, names)
        events: list[Event] = []
        of_layouts = []
        for layout in layouts:
            sg = stand_in(layout, strategy, depth, overlap, pieces)
            step = make_step(sg)
            with _uncompiled():
                step()
            with _uncompiled(), Recorder(sg) as recorder:
                step()
            events = events or recorder.events
            _check_same(events, recorder.events)
            of_layouts.append([size for of_event in recorder.sizes for size in of_event] + recorder.kept)
    event_of = np.repeat(np.arange(len(events)), [len(each) for each in recorder.sizes])
    sizes = np.array(of_layouts, float)
    scale = np.maximum(counts.max(axis=0), 1)
    solution = np.linalg.lstsq(counts / scale, sizes, rcond=None)[0] / scale[:, None]
    of_step, kept = np.split(solution, [len(event_of)], axis=1)
    _check_linear(counts, solution, sizes, [events[number] for number in event_of] + [Event("kept")] * kept.shape[1])
    return (StreamedTrace if streams else Trace)(names, tuple(events), event_of, of_step, *kept.T)


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
    with Recorder(sg) as recorder:
        step = make_step(sg)
        if not callable(step):
            raise InputError(f"make_step returned {step!r}; it must return a function that takes one training step")
        step()
    return tuple(Count("selected", mask=name) for name, mask in masks.items() if recorder.reads(mask))


def _independent_layouts(made_up: Callable[[int], Layout], names: tuple[Count, ...]) -> tuple[list[Layout], np.ndarray]:
    """Made-up graphs whose counts, (layouts, names), are linearly independent, and some more to check against."""
    layouts, counts = list[Layout](), np.empty((0, len(names)))
    for seed in range(_MAX_SEEDS):
        layout = made_up(seed)
        more = np.vstack([counts, counts_of_parts(layout.figures, names)[0]])
        rank = np.linalg.matrix_rank(more / np.maximum(more.max(axis=0), 1), tol=1e-3)
        if len(layouts) >= len(names) or rank == len(more):
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
    different = (number for number, (one, other) in enumerate(zip(before, now)) if one != other)
    first = next(different, min(len(before), len(now)) - 1)
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


# ---- the recording ----


class Recorder(OperationMode):
    """Inside the block, records a step on a made-up part, or other work: ``events``, and the ``sizes`` of each event."""

    def __init__(self, sg: ShardedGraph | None = None):
        super().__init__()
        self.events: list[Event] = []
        self.sizes: list[tuple[int, ...]] = []
        self._sg, self._tracker = sg, LayerTracker()
        self._alive: dict[int, weakref.ref] = {}
        self._found: dict[int, weakref.ref] = {}  # storages that were there before the step
        self._passes_edges = False  # whether a pass over edges runs; on some parts it copies rows, which must not count
        self._frees = False  # whether the last event is of tensors that are freed

    @property
    def kept(self) -> list[int]:
        """Bytes of the tensors that were there before the step: those of the shard, and those that the step used.

        Of a step piece by piece, also those of the piece, and of the files.
        """
        sg, stream = self._sg, self._sg.stream
        of_shard = {storage_key(x) for x in tensors_in(sg)}
        of_files = set() if stream is None else {storage_key(each.rows) for each in stream.spaces}
        storages = [(key, storage) for key, found in self._found.items() if (storage := found()) is not None]
        used = sum(storage.nbytes() for key, storage in storages if key not in of_shard | of_files)
        if stream is None:
            return [storage_bytes(sg) + used]
        without = storage_bytes({name: each for name, each in vars(sg).items() if each is not stream})
        return [without + used, storage_bytes(sg) - without, stream.file_bytes]

    def reads(self, x: torch.Tensor) -> bool:
        """Whether an operation has got a tensor that was there before the step."""
        return storage_key(x) in self._found

    def __enter__(self):
        self._collects_garbage = gc.isenabled()
        gc.disable()  # so that two recordings of one step free their tensors at the same places
        self._listen(self.add)
        self._tracker.__enter__()
        return super().__enter__()

    def __exit__(self, *error):
        self._alive = None
        self._listen(None)
        self._tracker.__exit__()
        if self._collects_garbage:
            gc.enable()
        return super().__exit__(*error)

    def _listen(self, listener):
        if self._sg is not None:
            self._sg.comm.transport.listener = listener
            if self._sg.stream is not None:
                self._sg.stream.listener = listener

    def add(self, kind: str, what: tuple = (), *sizes: int) -> None:
        """Append an event."""
        self._frees = False
        self.events.append(Event(kind, what, "" if kind in _WITHOUT_LAYER else self._tracker.layer))
        self.sizes.append(sizes)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if function.namespace == "profiler":
            self._passes_edges = function is RANGE_BEGIN and args[0] == EDGES
            if self._passes_edges:
                self._add_edge_range(args[1])
        elif not _is_view(function) and not (self._passes_edges and function is _COPY):
            self._add_operation(function, args, kwargs or {}, result)
        return result

    def _add_edge_range(self, text: str) -> None:
        """Append a pass over edges that :func:`dgl_gt.ops.dispatch.edge_range` announces."""
        edges, rows, sources, *what, passes = text.split()
        self.add("edges", (*map(int, what), float(passes)), int(edges), int(rows), int(sources))

    def _add_operation(self, function, args, kwargs, result) -> None:
        for x in _flat(args):
            storage = x.untyped_storage()
            key = storage_key(storage)
            if key not in self._alive and (key not in self._found or self._found[key]() is None):
                self._found[key] = weakref.ref(storage)  # dead where DGL made and dropped a storage in the step
        name, kind, is_mutable = _traits(function)
        for x in () if is_mutable else _flat(result):
            self._add_memory(x.untyped_storage())
        packet = function.overloadpacket
        if kind == "product":
            out = _flat(result)[0]
            first = next((x for x in reversed(_flat(args)[:-1]) if x.dim() > 1), out)
            operations = _flop_formulas()[packet](*args, **kwargs, out_val=result)
            self.add("product", (name, out.element_size()), operations, *first.shape[-2:], out.shape[-1])
        elif kind == "edges":
            given = {each.name: value for each, value in zip(schema_of(function).arguments, args)} | kwargs
            q, k, slope, passes = given["q"], given["k"], given["negative_slope"], 1.0
            if name != _ATTENTION:  # backward
                needs_q = given["needs_q"] or given["needs_edge"]
                passes = needs_q + given["needs_q" if k is None else "needs_kv"]
            if slope is not None:
                passes *= ADDITIVE_PASS
            heads, head_dim = unpack(q, k, given["v"], slope is not None)[2].shape[1:]
            head_dim += 0 if given["edge"] is None else given["edge"].shape[1]
            what = heads, head_dim, q.element_size(), passes
            self.add("edges", what, len(given["indices"]), len(q), len(q if k is None else k))
        elif "empty" not in name:  # which writes nothing
            self.add("rows", (name,), _moved_bytes(packet, args, result))

    def _add_memory(self, storage) -> None:
        """Note a storage that an operation has made, and when it is freed."""
        key, size = storage_key(storage), storage.nbytes()
        if key in self._alive:
            return

        def freed(_):
            if self._alive is not None:  # None once the recording has ended
                del self._alive[key]
                self._add_freed(size)

        self._alive[key] = weakref.ref(storage, freed)
        self.add("memory", (), size)

    def _add_freed(self, size: int) -> None:
        """Note bytes that are freed. Those that are freed one after the other are one event.

        Their order is not always the same: autocast, for example, drops its copies of the weights in the order of a
        hash.
        """
        if self._frees:
            self.sizes[-1] = (self.sizes[-1][0] - size,)
        else:
            self.add("memory", (), -size)
            self._frees = True


@cache
def kind_of(function) -> str:
    """The kind of an operation, see :class:`Event`: a product, a pass over edges, or another operation on rows."""
    if function.overloadpacket in _flop_formulas():
        return "product"
    return "edges" if function.name().startswith(_ATTENTION) else "rows"


@cache
def _flop_formulas() -> dict:
    from torch.utils.flop_counter import flop_registry  # which imports Triton where it is installed

    return flop_registry


@cache
def _traits(function) -> tuple[str, str, bool]:
    """The name and the kind of an operation, and whether it writes to its arguments."""
    return function.name(), kind_of(function), schema_of(function).is_mutable


@cache
def _is_view(function) -> bool:
    """Whether an operation returns a view of its argument, and reads no data."""
    return function is torch.ops.aten._unsafe_view.default or any(
        each.alias_info is not None and not each.alias_info.is_write for each in schema_of(function).returns
    )


def _moved_bytes(packet, args, result) -> int:
    """Bytes that an operation reads and writes."""
    read = args[1:] if packet in _OVERWRITE else args
    return sum(x.nbytes for x in _flat((read, result)))


def _flat(value) -> list[torch.Tensor]:
    """The tensors in arguments or in a result."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [x for each in value for x in _flat(each)] if isinstance(value, (list, tuple)) else []
