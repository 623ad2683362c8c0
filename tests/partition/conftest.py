import pytest

from partition.system import user_files


@pytest.fixture
def small_blocks(monkeypatch):
    """Cut text into blocks of a few bytes, so that tiny files have many."""
    monkeypatch.setattr(user_files, "_BLOCK_BYTES", 7)
