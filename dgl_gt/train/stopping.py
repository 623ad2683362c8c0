"""Signals that ask a run to stop: the run goes on to the end of its epoch, and leaves a checkpoint."""

from __future__ import annotations

import os
import signal
import threading
import time

from partition.console import SAME_STOP_S, STOPPING

_GRACE_S = 20.0  # schedulers kill what still runs half a minute after SIGTERM


class StopRequest:
    """Inside this context, a first signal is only noted, in ``number``; a second one has its usual effect.

    After Ctrl-C, the run may take as long as its epoch needs. After any other signal it has 20 s. Then it is stopped
    wherever it is, so that the best model is written before a scheduler kills the process.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self._since, self._before, self._timer = 0.0, {}, None

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():  # no other thread is interrupted by a signal
            caught = [each for each in STOPPING if signal.getsignal(each) is not signal.SIG_IGN]
            self._before = {each: signal.signal(each, self._note) for each in caught}
        return self

    def __exit__(self, *_) -> None:
        self.epoch_ended()
        for each, handler in self._before.items():
            signal.signal(each, handler)

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
