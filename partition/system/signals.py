"""Signals that ask a process to end, and what takes their place for a while."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SAME_STOP_S = 1.0  # signals within this time are one request: shells and `timeout` signal a process and its group


@contextmanager
def handling_stops(handler: Callable) -> Iterator[dict]:
    """Call ``handler(number, frame)`` for signals that ask to end; gives the handlers that it replaces.

    Signals that this process ignores stay ignored, as SIGHUP does under nohup. Outside of the main thread nothing
    changes, because signals interrupt no other thread.
    """
    previous = {}
    if threading.current_thread() is threading.main_thread():
        not_ignored = [each for each in STOPPING if signal.getsignal(each) is not signal.SIG_IGN]
        previous = {each: signal.signal(each, handler) for each in not_ignored}
    try:
        yield previous
    finally:
        for each, before in previous.items():
            signal.signal(each, before)


@contextmanager
def received_signals():
    """Give a list; inside the block, signals that would end this process are only added to it."""
    received = []
    with handling_stops(lambda number, _: received.append(number)):
        yield received
