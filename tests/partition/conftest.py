import pytest

from partition import files


@pytest.fixture
def small_blocks(monkeypatch):
    """Cut text into blocks of a few bytes, so that tiny files have many."""
    monkeypatch.setattr(files, "_BLOCK_BYTES", 7)
