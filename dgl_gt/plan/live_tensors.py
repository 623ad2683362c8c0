"""Counts the bytes of tensors that are alive at once."""

from __future__ import annotations

import weakref

import torch

from dgl_gt.torch_internals import OperationMode, storage_key, tree_leaves


class LiveTensors(OperationMode):
    """Inside the block, counts the bytes of tensors that are made and not yet freed.

    Attributes
    ----------
    peak_bytes : int
        Largest number of bytes at any time; tensors that were made before the block do not count.
    """

    def __init__(self):
        super().__init__()
        self.live_bytes = self.peak_bytes = 0
        self._known = weakref.WeakSet()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        before = {storage_key(x) for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        result = function(*args, **(kwargs or {}))
        for x in tree_leaves(result):
            if isinstance(x, torch.Tensor) and storage_key(x) not in before:
                storage = x.untyped_storage()
                if storage not in self._known:
                    self._known.add(storage)
                    self.live_bytes += storage.nbytes()
                    self.peak_bytes = max(self.peak_bytes, self.live_bytes)
                    weakref.finalize(storage, self._freed, storage.nbytes())
        return result

    def _freed(self, freed_bytes: int) -> None:
        self.live_bytes -= freed_bytes


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


def step_peak_bytes(sg, model, feat: torch.Tensor, step) -> int:
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
