"""Records what one training step does: each operation, exchange and tensor, in order, with its size."""

from __future__ import annotations

import gc
import weakref
from functools import cache

import torch
from torch.utils.flop_counter import flop_registry

from dgl_gt.exchange.sharded_graph import ShardedGraph
from dgl_gt.ops.checks import unpack
from dgl_gt.ops.dispatch import ADDITIVE_PASS, EDGES
from dgl_gt.torch_internals import OperationMode, profiler_range_operations, schema_of, storage_key

from .layer_tracker import LayerTracker
from .live_tensors import storage_bytes, tensors_in
from .trace import Event

_OVERWRITE = {torch.ops.aten.copy_, torch.ops.aten.fill_, torch.ops.aten.zero_}  # their first argument is not read
_ATTENTION = "dgl_gt::sparse_attention"  # and the name of its backward pass begins with it
_COPY = torch.ops.aten.clone.default
RANGE_BEGIN, RANGE_END = profiler_range_operations()


class Recorder(OperationMode):
    """Inside the block, records a step on a made-up part.

    Attributes
    ----------
    events : list of Event
    sizes : list of tuple of int
        The sizes of each event.
    """

    def __init__(self, sg: ShardedGraph):
        super().__init__()
        self.events: list[Event] = []
        self.sizes: list[tuple[int, ...]] = []
        self._sg, self._ranks, self._tracker = sg, sg.comm, LayerTracker()
        self._alive: dict[int, weakref.ref] = {}
        self._found: dict[int, weakref.ref] = {}  # storages that were there before the step
        self._passes_edges = False  # whether a pass over edges runs; on some parts it copies rows, which must not count
        self._frees = False  # whether the last event is of tensors that are freed

    @property
    def kept_bytes(self) -> int:
        """Bytes of the tensors that were there before the step: those of the shard, and those that the step used."""
        of_shard = {storage_key(x) for x in tensors_in(self._sg)}
        storages = [(key, storage) for key, found in self._found.items() if (storage := found()) is not None]
        return storage_bytes(self._sg) + sum(storage.nbytes() for key, storage in storages if key not in of_shard)

    def __enter__(self):
        self._collects_garbage = gc.isenabled()
        gc.disable()  # so that two recordings of one step free their tensors at the same places
        self._ranks.transport.listener = self.add
        self._tracker.__enter__()
        return super().__enter__()

    def __exit__(self, *error):
        self._ranks.transport.listener, self._alive = None, None
        self._tracker.__exit__()
        if self._collects_garbage:
            gc.enable()
        return super().__exit__(*error)

    def add(self, kind: str, what: tuple = (), *sizes: int) -> None:
        """Append an event."""
        self._frees = False
        self.events.append(Event(kind, what, "" if kind == "memory" else self._tracker.layer))
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
            operations = flop_registry[packet](*args, **kwargs, out_val=result)
            self.add("product", (name, out.element_size()), operations, *first.shape[-2:], out.shape[-1])
        elif kind == "edges":
            given = {each.name: value for each, value in zip(schema_of(function).arguments, args)} | kwargs
            passes = (
                1 if name == _ATTENTION else given["needs_q"] + given["needs_q" if given["k"] is None else "needs_kv"]
            )
            names = ("q", "k", "v", "indices", "negative_slope")
            self._add_edges(*(given[each] for each in names), passes)
        elif "empty" not in name:  # which writes nothing
            self.add("rows", (name,), _moved_bytes(packet, args, result))

    def _add_edges(self, q, k, v, indices, negative_slope: float | None, passes: int) -> None:
        heads, head_dim = unpack(q, k, v, negative_slope is not None)[2].shape[1:]
        sources = len(q if k is None else k)
        if negative_slope is not None:
            passes *= ADDITIVE_PASS
        self.add("edges", (heads, head_dim, q.element_size(), passes), len(indices), len(q), sources)

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


class OperationCounter(OperationMode):
    """Inside the block, counts operations as :class:`Recorder` does, all of the kind ``rows``.

    Attributes
    ----------
    operations, bytes : int
        Number of operations, and what they read and write (bytes).
    """

    def __init__(self):
        super().__init__()
        self.operations = self.bytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if function.namespace == "aten" and not _is_view(function) and "empty" not in function.name():
            self.operations += 1
            self.bytes += _moved_bytes(function.overloadpacket, args, result)
        return result


class Reads(OperationMode):
    """Inside the block, notes the storages of the tensors that operations get.

    Attributes
    ----------
    storages : set of int
    """

    def __init__(self):
        super().__init__()
        self.storages: set[int] = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.storages |= {storage_key(x) for x in _flat(args)}
        return function(*args, **(kwargs or {}))


@cache
def kind_of(function) -> str:
    """The kind of an operation, see :class:`Event`: a product, a pass over edges, or another operation on rows."""
    if function.overloadpacket in flop_registry:
        return "product"
    return "edges" if function.name().startswith(_ATTENTION) else "rows"


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
    if not isinstance(value, (list, tuple)):
        return []
    found = []
    for each in value:
        if isinstance(each, torch.Tensor):
            found.append(each)
        elif isinstance(each, (list, tuple)):
            found += _flat(each)
    return found
