"""How much memory a process and its children need, for the benchmarks that ask."""

from __future__ import annotations

import weakref
from pathlib import Path

import psutil
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def memory_bytes(pid: int) -> int:
    """Proportional set size of a process and all its children, in bytes; those that end meanwhile count nothing."""
    total = 0
    try:
        processes = [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    except psutil.NoSuchProcess:
        return 0
    for process in processes:
        try:
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue
        total += sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total


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
