"""Signals that would end this process, kept until it can act on them."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager

from partition.console import STOPPING


@contextmanager
def received_signals():
    """Give a list; inside the block, signals that would end this process are only added to it."""
    received, previous = [], {}
    if threading.current_thread() is threading.main_thread():  # no other thread is interrupted by a signal
        caught = [each for each in STOPPING if signal.getsignal(each) is not signal.SIG_IGN]
        previous = {each: signal.signal(each, lambda number, _: received.append(number)) for each in caught}
    try:
        yield received
    finally:
        for each, handler in previous.items():
            signal.signal(each, handler)
