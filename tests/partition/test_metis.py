"""What is said when METIS ends before its time."""

import os
import signal
import subprocess

import numpy as np
import pytest

from partition import child, metis
from partition.errors import InputError


@pytest.fixture
def adjacency():
    """Of a thousand undirected edges."""
    with metis.shared(xadj=np.arange(3), adjncy=np.zeros(2000)) as files:
        yield files


@pytest.mark.parametrize(
    ("code", "said", "kills", "kind", "message"),
    [
        (-9, "", 4, InputError, "on 1,000 undirected edges, for which it needs about 232.4 KiB; "),
        (1, "RuntimeError: metis: insufficient memory", 5, InputError, "METIS ran out of memory on 1,000 undirected"),
        (-9, "", 5, InputError, "METIS was ended by signal 9 (SIGKILL); nothing is written"),
        (metis._NO_ROOM, "", 5, InputError, "no space left; free space, or set TMPDIR"),
        (-2, "Traceback (most recent call last):\nKeyboardInterrupt", 5, InputError, "ended by signal 2 (SIGINT)"),
        (1, "AssertionError", 5, RuntimeError, "METIS ended with exit code 1: AssertionError"),
    ],
)
def test_an_early_end_is_explained(monkeypatch, adjacency, code, said, kills, kind, message):
    monkeypatch.setattr(child, "memory_kills", lambda: 5)
    error = metis._failure(code, said, adjacency, kills)
    assert type(error) is kind and message in str(error) and "\n" not in str(error)


def test_where_kills_are_not_counted_memory_is_a_guess(monkeypatch, adjacency):
    monkeypatch.setattr(child, "memory_kills", lambda: None)
    text = str(metis._failure(-9, "", adjacency, None))
    assert "ended by signal 9 (SIGKILL), which the system sends when memory runs out" in text


def test_a_killed_child_is_no_bug(monkeypatch, adjacency):
    """The real thing, with a METIS process that somebody ends."""
    start = subprocess.Popen

    def start_and_end(*args, **options):
        process = start(*args, **options)
        os.kill(process.pid, signal.SIGTERM)
        return process

    monkeypatch.setattr(metis.subprocess, "Popen", start_and_end)
    with pytest.raises(InputError, match=r"METIS was ended by signal 15 \(SIGTERM\)"):
        metis.k_way(adjacency, 2, np.ones(2))
