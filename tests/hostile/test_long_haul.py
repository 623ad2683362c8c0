"""The short form of ``long_haul.py``, which trains for hundreds of epochs on four ranks."""

import os

import pytest
from long_haul import GROWTH, Sight, growth, look_at, train

MIB = 2**20


@pytest.mark.slow
def test_memory_and_open_files_stay_as_they_are(tmp_path):
    sights = train(tmp_path, nodes=1500, ranks=2, epochs=100)
    assert len(sights) == 2
    for seen in sights.values():
        memory, files = growth(seen, 100)
        assert memory < 2 * GROWTH and files <= 0


def test_growth_is_seen():
    seen = [Sight(epoch, 100 * MIB + epoch * MIB, 20 + epoch // 50) for epoch in range(100)]
    memory, files = growth(seen, 100)
    assert memory > 0.4 and files == 1
    flat = [Sight(epoch, 100 * MIB, 20) for epoch in range(100)]
    assert growth(flat, 100) == (0.0, 0)


def test_a_process_is_looked_at_from_outside():
    before = look_at(os.getpid(), 3)
    with open(os.devnull):
        after = look_at(os.getpid(), 4)
    assert after.files == before.files + 1 and after.epoch == 4 and before.memory_bytes > MIB
