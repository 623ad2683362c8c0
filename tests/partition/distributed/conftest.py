import os

import pytest

from dgl_gt.partition.cuts import native
from dgl_gt.partition.distributed.job import Sizes


@pytest.fixture(autouse=True)
def needs_native():
    if not native.is_available():
        pytest.skip("the compiled extension is not installed")


@pytest.fixture
def small_tasks(monkeypatch):
    """Divide small graphs among many tasks, and cluster them before METIS; their files need not outlive a power failure."""
    sizes = Sizes(chunk_edges=300, range_ends=600, coarse_ends=100, group_edges=10)
    monkeypatch.setattr(Sizes, "within", classmethod(lambda cls, *given: sizes))
    monkeypatch.setattr(os, "fsync", lambda number: None)
