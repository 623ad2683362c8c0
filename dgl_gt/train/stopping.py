"""Signals that ask a run to stop: the run goes on to the end of its epoch, and leaves a checkpoint."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from dgl_gt.partition.system.signals import SAME_STOP_S, handling_stops

_GRACE_S = 20.0  # schedulers kill what still runs half a minute after SIGTERM


class StopRequest:
    """Inside :meth:`noting`, a first signal is only noted, in ``number``. A second one has its usual effect, if it
    comes more than a second later: signals closer together are one request.

    After Ctrl-C, the run may take as long as its epoch needs. After any other signal it has 20 s. Then it is stopped
    wherever it is, so that the best model is written before a scheduler kills the process.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self._since = 0.0
        self._before: dict = {}
        self._timer: threading.Timer | None = None

    @contextmanager
    def noting(self) -> Iterator[None]:
        """The context in which signals are noted."""
        with handling_stops(self._note) as self._before:
            try:
                yield
            finally:
                self.epoch_ended()

    def note_that_of_another(self, number: int | None) -> None:
        """Note a signal that another rank was given."""
        if self.number is None and number is not None:
            self.number, self._since = number, time.monotonic()

    def epoch_ended(self) -> None:
        """Give what follows, a checkpoint, the time that it takes."""
        if self._timer:
            self._timer.cancel()

    def _note(self, number, frame) -> None:
        if self.number is None:
            self.number, self._since = number, time.monotonic()
            if number != signal.SIGINT:
                self._timer = threading.Timer(_GRACE_S, os.kill, (os.getpid(), number))
                self._timer.daemon = True
                self._timer.start()
        elif time.monotonic() - self._since > SAME_STOP_S:
            self.leave(number, frame)

    def leave(self, number: int, frame=None) -> None:
        """Do what the signal did before, or raise ``SystemExit`` where it would have ended the process."""
        handler = self._before.get(number)
        if callable(handler):
            handler(number, frame)
        raise SystemExit(128 + number)
