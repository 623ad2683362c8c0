"""Signals that would end this process, kept until it can act on them."""

from __future__ import annotations

from contextlib import contextmanager

from dgl_gt.partition.system.signals import handling_stops


@contextmanager
def received_signals():
    """Give a list; inside the block, signals that would end this process are only added to it."""
    received = []
    with handling_stops(lambda number, _: received.append(number)):
        yield received
