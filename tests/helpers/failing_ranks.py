"""What the tests of ranks that fail share: work for a rank, how it ended, and how long it may take."""

import signal
import time

import torch

from dgl_gt.comm.failure import FailureDetector

PARTS = 3
BOUND_S = 20  # no measure of speed: a rank that is still waiting then would wait for good
LIMIT_S = 90  # then a rank that hangs is killed, instead of the whole run waiting for it


def prepare():
    """Look for ranks that have stopped ten times a second; and do not wait for good."""
    FailureDetector.poll_s = 0.1
    signal.alarm(LIMIT_S)


def swap(comm, rows=None, pause_s=0.0):
    """Exchange a row with each other rank, and say whether what arrived is right."""
    time.sleep(pause_s)
    counts = [1] * comm.world_size
    rows = torch.full((comm.world_size, 2), float(comm.rank)) if rows is None else rows
    received = comm.exchange(rows, counts, counts)
    return received, received[:, 0].tolist() == list(range(comm.world_size))


def outcome(work):
    """Class and message of what ``work()`` raised, or its result; and how long it took."""
    started = time.monotonic()
    try:
        found = "returned", work()
    except Exception as error:
        found = type(error).__name__, str(error)
    return (*found, time.monotonic() - started)
