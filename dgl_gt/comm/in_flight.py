"""Tensors that a collective still uses after it is complete. The process waits for their release before it ends."""

from __future__ import annotations

import atexit
import time
import weakref

import torch

_POLL_S = 0.001
_LIMIT_S = 10.0  # a collective that failed may hold its tensors as long as its process group allows


class InFlight:
    """Tensors that gloo was given, until its threads have released them.

    gloo wakes the caller first and releases the tensors of the collective afterwards, in a thread of its own. To
    release a tensor that Python has seen, that thread takes the interpreter's lock. A thread that asks for this lock
    while the interpreter shuts down ends the whole process with SIGABRT. So every collective is given aliases, to which
    nothing else refers, and this object waits until all of them are gone: at :meth:`drain`, and before the interpreter
    ends.
    """

    def __init__(self) -> None:
        self._aliases: list[weakref.ref] = []  # the interpreter waits at its end unless this is empty

    def aliases(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        """Return tensors that share memory with those given; pass them to one collective and to nothing else."""
        made = [tensor.detach() for tensor in tensors]
        if not self._aliases:
            atexit.register(self.drain)
        self._aliases = [each for each in self._aliases if each() is not None] + [weakref.ref(each) for each in made]
        return made

    def drain(self, limit_s: float = _LIMIT_S) -> None:
        """Wait until no tensor is in use any more, at most ``limit_s`` seconds."""
        deadline = time.monotonic() + limit_s
        while any(each() is not None for each in self._aliases) and time.monotonic() < deadline:
            time.sleep(_POLL_S)  # sleeping gives the interpreter's lock to the other threads
        self._aliases = [each for each in self._aliases if each() is not None]
        if not self._aliases:
            atexit.unregister(self.drain)
