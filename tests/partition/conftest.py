import pytest

from partition.sources import text_blocks


@pytest.fixture
def small_blocks(monkeypatch):
    """Cut text into blocks of a few bytes, so that tiny files have many."""
    monkeypatch.setattr(text_blocks, "_BLOCK_BYTES", 7)
