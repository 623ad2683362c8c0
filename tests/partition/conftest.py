import pytest

from dgl_gt.partition.sources import numpy_file, text_table
from dgl_gt.partition.system import mapped_arrays


@pytest.fixture
def small_blocks(monkeypatch):
    """Cut text into blocks of a few bytes, so that tiny files have many."""
    monkeypatch.setattr(text_table, "_BLOCK_BYTES", 7)


@pytest.fixture
def everything_mapped(monkeypatch):
    """Memory-map arrays of every size."""
    monkeypatch.setattr(mapped_arrays, "SMALLEST_BYTES", 1)
    monkeypatch.setattr(numpy_file, "SMALLEST_BYTES", 1)
