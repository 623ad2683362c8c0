"""Rows that exchanges brought while a layer ran, kept for the passes in backward that compute the layer again."""

from __future__ import annotations

import torch

from dgl_gt.torch_internals import graph_is_kept


class Tape:
    """The rows that the exchanges of one layer brought, in the order of the exchanges."""

    def __init__(self):
        self._received: list[torch.Tensor] = []
        self._position = 0
        self.is_replaying = False

    def write(self, received: torch.Tensor) -> None:
        """Append the rows that an exchange brought."""
        self._received.append(received.detach())

    def rewind(self) -> None:
        """From here on, read from the start and write no more."""
        self.is_replaying, self._position = True, 0

    def read(self) -> torch.Tensor:
        """Return the next rows. They stay for another backward pass only where this one keeps its graph."""
        received = self._received[self._position]
        if not graph_is_kept():
            self._received[self._position] = None
        self._position += 1
        return received.detach()


class TapeContext:
    """A context, which may be entered more than once: inside, exchanges write to a tape, or read from it."""

    def __init__(self, comm, tape: Tape, replay: bool):
        self._comm, self._tape, self._replay = comm, tape, replay

    def __enter__(self) -> None:
        if self._replay:
            self._tape.rewind()
        self._outer, self._comm.tape = self._comm.tape, self._tape

    def __exit__(self, *_) -> None:
        self._comm.tape = self._outer


def kept_exchanges(comm) -> tuple[TapeContext, TapeContext]:
    """Return the contexts for ``torch.utils.checkpoint.checkpoint(context_fn=...)`` under which exchanges run once.

    The rows that a layer's exchanges bring are kept. When backward computes the layer again, they are not fetched
    again, even if there are several backward passes. The contexts set ``comm.tape``.
    """
    tape = Tape()
    return TapeContext(comm, tape, replay=False), TapeContext(comm, tape, replay=True)
