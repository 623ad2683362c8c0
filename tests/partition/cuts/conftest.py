"""What tests of cuts are given: an empty folder, fewer child processes, and small graphs treated as large ones."""

import pytest

from dgl_gt.partition import memory_bound, pipeline
from dgl_gt.partition.sources import numpy_file
from dgl_gt.partition.system import mapped_arrays

pytest.register_assert_rewrite("streamed_cases")  # its checks then say which values differ


@pytest.fixture
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def nothing_is_small(monkeypatch):
    """Without the slice of a stream, methods need more memory in the same order on small graphs as on large ones."""
    monkeypatch.setattr(memory_bound, "_SLICE_BYTES", 0)
    monkeypatch.setattr(pipeline, "peak_memory_bytes", lambda: 0)  # reading them takes nothing


@pytest.fixture
def streaming(monkeypatch):
    """Choose streaming whatever the bound, and map even the smallest arrays."""
    monkeypatch.setattr(pipeline, "choose_method", lambda *_: "streaming")
    monkeypatch.setattr(pipeline, "check_memory_bound", lambda *_: None)
    monkeypatch.setattr(mapped_arrays, "SMALLEST_BYTES", 1)
    monkeypatch.setattr(numpy_file, "SMALLEST_BYTES", 1)
