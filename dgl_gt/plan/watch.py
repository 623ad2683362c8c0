"""What watches a real step: how long it takes, which tensors are alive at once, and in which layer of a model it is."""

from __future__ import annotations

import statistics
import time
import weakref
from collections import Counter
from collections.abc import Callable

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

from dgl_gt.comm.group import Comm
from dgl_gt.exchange.sharded_graph import ShardedGraph
from dgl_gt.torch_internals import OperationMode, is_in_backward, storage_key, tree_leaves

TIMED_STEPS = 3


def synchronise(device: torch.device) -> None:
    """Wait for the work of a GPU so far."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def elapsed(comm: Comm, device: torch.device, function: Callable[[], object], runs: int = 1) -> float:
    """Seconds of some runs of a function on this rank and device; all ranks begin at the same time."""
    comm.all_reduce(torch.zeros(1))
    synchronise(device)
    started = time.perf_counter()
    for _ in range(runs):
        function()
    synchronise(device)
    return time.perf_counter() - started


def time_steps(sg: ShardedGraph, step: Callable[[], object]) -> tuple[float, int]:
    """Median seconds of a step on its slowest rank, and the bytes that all ranks send in it; every rank calls it."""
    comm, before = sg.comm, sg.comm.sent_bytes
    seconds = [elapsed(comm, sg.device, step) for _ in range(TIMED_STEPS)]
    sent = torch.tensor([(comm.sent_bytes - before) // TIMED_STEPS])
    slowest = comm.all_reduce(torch.tensor(seconds, dtype=torch.float64), "max").tolist()
    return statistics.median(slowest), int(comm.all_reduce(sent)[0])


# ---- tensors ----


class LiveTensors(OperationMode):
    """Inside the block, counts the bytes of tensors that are made and not yet freed, and their peak."""

    def __init__(self):
        super().__init__()
        self.live_bytes = self.peak_bytes = 0
        self._known = weakref.WeakSet()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        before = {storage_key(x) for x in _tensors((args, kwargs))}
        result = function(*args, **(kwargs or {}))
        for x in _tensors(result):
            storage = x.untyped_storage()
            if storage_key(x) not in before and storage not in self._known:
                self._known.add(storage)
                self.live_bytes += storage.nbytes()
                self.peak_bytes = max(self.peak_bytes, self.live_bytes)
                weakref.finalize(storage, self._freed, storage.nbytes())
        return result

    def _freed(self, freed_bytes: int) -> None:
        self.live_bytes -= freed_bytes


def _tensors(values) -> list[torch.Tensor]:
    """The tensors in arguments or in a result."""
    return [x for x in tree_leaves(values) if isinstance(x, torch.Tensor)]


def tensors_in(*roots) -> list[torch.Tensor]:
    """All tensors in these objects, and in their dicts, lists and objects of this package."""
    remaining, seen, found = list(roots), set(), []
    while remaining:
        each = remaining.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, torch.Tensor):
            found.append(each)
        elif isinstance(each, dict):
            remaining += each.values()
        elif isinstance(each, (list, tuple)):
            remaining += each
        elif type(each).__module__.startswith("dgl_gt.") and hasattr(each, "__dict__"):
            remaining += vars(each).values()
    return found


def storage_bytes(*roots) -> int:
    """Bytes of :func:`tensors_in` these objects; each storage counts once."""
    storages: dict[int, int] = {}
    for x in tensors_in(*roots):
        address = x.untyped_storage().data_ptr()
        # not the bytes of the storage: one that is mapped from disk may extend beyond the tensor
        storages[address] = max(storages.get(address, 0), x.nbytes)
    return sum(storages.values())


def step_peak_bytes(sg: ShardedGraph, model: torch.nn.Module, feat: torch.Tensor, step) -> int:
    """Peak bytes of the tensors that are alive on this rank in a training step; ``step()`` must not be the first one.

    Structure, degrees, node and edge data, features, parameters, gradients and AdamW's moments count. On a GPU the
    figure is that of torch's allocator.
    """
    if sg.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(sg.device)
        step()
        return torch.cuda.max_memory_allocated(sg.device)
    with LiveTensors() as live:
        step()
    kept_bytes = 3 * sum(parameter.nbytes for parameter in model.parameters())  # the step itself makes the gradients
    return live.peak_bytes + kept_bytes + storage_bytes(sg, feat)


# ---- layers ----


class LayerTracker:
    """Inside the block, follows the calls of modules, and the gradients of what they return.

    ``layer`` is ``MODULE`` or ``MODULE/CHILD``: the class of the module that the step calls, with a number, and the name
    of a child that such a module calls in turn; empty outside of modules. What deeper modules do belongs to the child. In
    the backward pass a layer begins with the gradient of its result, and ends when all of its arguments have theirs; a
    layer that is computed again is still that layer.
    """

    def __init__(self) -> None:
        self._called: list[str | None] = []  # forward: layers by depth of the calls, None below a layer
        self._gradients: list[str] = []  # backward: layers that have begun
        self._names: dict[torch.nn.Module, str] = {}
        self._numbers: Counter[str] = Counter()
        self._hooks: list[RemovableHandle] = []

    @property
    def layer(self) -> str:
        if is_in_backward():
            return max(reversed(self._gradients), key=lambda name: "/" in name, default="")
        self._gradients.clear()
        return next((name for name in reversed(self._called) if name is not None), "")

    def __enter__(self):
        self._hooks += [
            register_module_forward_pre_hook(self._begin),
            register_module_forward_hook(self._end, always_call=True),
        ]
        return self

    def __exit__(self, *_):
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _begin(self, module, args) -> None:
        name = None
        if not is_in_backward() and len(self._called) < 2:
            name = self._name(module)
            self._watch([x for x in _tensors(args) if x.requires_grad], name, self._stop)
        self._called.append(name)

    def _end(self, module, args, result) -> None:
        name = self._called.pop()
        if name is not None:
            unchanged = set(map(id, _tensors(args)))  # a module that returns what it gets has no backward pass
            self._watch([x for x in _tensors(result) if x.requires_grad and id(x) not in unchanged], name, self._start)

    def _name(self, module: torch.nn.Module) -> str:
        if module not in self._names:
            kind = type(module).__name__
            if not self._called:
                self._numbers[kind] += 1
                self._names[module] = f"{kind} {self._numbers[kind]}"
                for child, each in module.named_modules(prefix=self._names[module] + "/"):
                    self._names.setdefault(each, child.replace("/.", "/"))
            else:
                self._names[module] = f"{self._called[0]}/{kind}"
        return self._names[module]

    def _watch(self, tensors: list[torch.Tensor], name: str, function: Callable[[str, int], None]) -> None:
        """Call ``function(name, missing)`` when each gradient of the tensors arrives; ``missing`` counts those to come."""
        missing = len(tensors)

        def arrived(_):
            nonlocal missing
            missing -= 1
            function(name, missing)

        self._hooks += [x.register_hook(arrived) for x in tensors]

    def _start(self, name: str, missing: int) -> None:
        if name not in self._gradients:
            self._gradients.append(name)

    def _stop(self, name: str, missing: int) -> None:
        if not missing and name in self._gradients:
            self._gradients.remove(name)
