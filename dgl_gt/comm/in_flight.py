"""Tensors that a collective still uses after it is complete, and the wait for them before the interpreter ends."""

from __future__ import annotations

import atexit
import time
import weakref

import torch

_GLANCE_S = 0.001
_LIMIT_S = 10.0  # for a collective that failed, which may last as long as its process group allows


class InFlight:
    """Tensors that were handed to gloo, until its threads have released them.

    gloo wakes the caller first and releases the collective's tensors afterwards, in a thread of its own. To release a
    tensor that Python has seen, that thread takes the interpreter's lock, and a thread that asks for this lock while
    the interpreter shuts down ends the whole process with SIGABRT. So every collective is given aliases, which nobody
    else refers to, and this object waits until all of them are gone: at :meth:`drain`, and before the interpreter ends.
    """

    def __init__(self):
        self._aliases: list[weakref.ref] = []  # the end of the interpreter waits as long as it is not empty

    def aliases(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        """Tensors that share memory with those given, to be handed to one collective and to nobody else."""
        made = [tensor.detach() for tensor in tensors]
        if not self._aliases:
            atexit.register(self.drain)
        self._aliases = [each for each in self._aliases if each() is not None] + [weakref.ref(each) for each in made]
        return made

    def drain(self, limit_s: float = _LIMIT_S) -> None:
        """Wait until no tensor is in use any more, at most so many seconds."""
        deadline = time.monotonic() + limit_s
        while any(each() is not None for each in self._aliases) and time.monotonic() < deadline:
            time.sleep(_GLANCE_S)  # which lets the other threads have the interpreter's lock
        self._aliases = [each for each in self._aliases if each() is not None]
        if not self._aliases:
            atexit.unregister(self.drain)
