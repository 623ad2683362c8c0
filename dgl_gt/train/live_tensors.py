"""How many bytes of tensors are alive at once."""

from __future__ import annotations

import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveTensors(TorchDispatchMode):
    """Inside, counts the bytes of tensors that are made and not yet freed.

    Attributes
    ----------
    peak_bytes : int
        The most at any time; tensors made before do not count.
    """

    def __init__(self):
        super().__init__()
        self.live_bytes = self.peak_bytes = 0
        self._known = weakref.WeakSet()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        before = {x.untyped_storage()._cdata for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        result = function(*args, **(kwargs or {}))
        for x in tree_leaves(result):
            if isinstance(x, torch.Tensor) and x.untyped_storage()._cdata not in before:
                storage = x.untyped_storage()
                if storage not in self._known:
                    self._known.add(storage)
                    self.live_bytes += storage.nbytes()
                    self.peak_bytes = max(self.peak_bytes, self.live_bytes)
                    weakref.finalize(storage, self._freed, storage.nbytes())
        return result

    def _freed(self, freed_bytes: int) -> None:
        self.live_bytes -= freed_bytes


def storage_bytes(*roots) -> int:
    """Bytes of all tensors that objects hold, also in dicts, lists and this package's objects; each counts once."""
    found, seen, storages = list(roots), set(), {}
    while found:
        each = found.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, torch.Tensor):
            place = each.untyped_storage().data_ptr()
            storages[place] = max(storages.get(place, 0), each.nbytes)  # what is mapped from disk may go on behind it
        elif isinstance(each, dict):
            found += each.values()
        elif isinstance(each, (list, tuple)):
            found += each
        elif type(each).__module__.startswith("dgl_gt.") and hasattr(each, "__dict__"):
            found += vars(each).values()
    return sum(storages.values())


def step_peak_bytes(sg, model, feat: torch.Tensor, step) -> int:
    """The most bytes of tensors alive on this rank in a training step, ``step()``, which must not be the first.

    Structure, degrees, node and edge data, features, parameters, gradients and AdamW's moments count; on a GPU it is
    what torch's allocator says.
    """
    if sg.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(sg.device)
        step()
        return torch.cuda.max_memory_allocated(sg.device)
    with LiveTensors() as live:
        step()
    kept = 3 * sum(parameter.nbytes for parameter in model.parameters())  # the step itself makes the gradients
    return live.peak_bytes + kept + storage_bytes(sg.strategy, sg._shard, sg._degrees, feat)
