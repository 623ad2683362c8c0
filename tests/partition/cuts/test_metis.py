"""Errors of METIS, and the graph that it is given."""

import os
import signal
import subprocess

import numpy as np
import pytest
import scipy.sparse

from dgl_gt.partition.cuts import metis
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.system import child_process


@pytest.fixture
def adjacency():
    """Share a graph of a thousand undirected edges."""
    with metis._shared_arrays({"xadj": np.arange(3), "adjncy": np.zeros(2000)}) as files:
        yield files


@pytest.mark.parametrize(
    ("code", "said", "kills", "kind", "message"),
    [
        (-9, "", 4, InputError, "on 1,000 undirected edges, for which it needs about 232.4 KiB; "),
        (1, "RuntimeError: metis: insufficient memory", 5, InputError, "METIS ran out of memory on 1,000 undirected"),
        (-9, "", 5, InputError, "METIS was ended by signal 9 (SIGKILL); nothing is written"),
        (1, "Fatal Python error\nKeyboardInterrupt\n", 5, InputError, "METIS was ended by signal 2 (SIGINT); nothing"),
        (metis._NO_ROOM, "", 5, InputError, "no space left; free space, or set TMPDIR"),
        (-2, "Traceback (most recent call last):\nKeyboardInterrupt", 5, InputError, "ended by signal 2 (SIGINT)"),
        (1, "AssertionError", 5, RuntimeError, "METIS ended with exit code 1: AssertionError"),
    ],
)
def test_an_early_end_is_explained(monkeypatch, adjacency, code, said, kills, kind, message):
    monkeypatch.setattr(child_process, "memory_kills", lambda: 5)
    error = metis._failure(code, said, adjacency, kills)
    assert type(error) is kind and message in str(error) and "\n" not in str(error)


def test_where_kills_are_not_counted_memory_is_a_guess(monkeypatch, adjacency):
    monkeypatch.setattr(child_process, "memory_kills", lambda: None)
    text = str(metis._failure(-9, "", adjacency, None))
    assert "ended by signal 9 (SIGKILL), which the system sends when memory runs out" in text


def test_a_killed_child_is_no_bug(monkeypatch):
    """Here a real METIS process is ended by a signal."""
    start = subprocess.Popen

    def start_and_end(*args, **options):
        process = start(*args, **options)
        os.kill(process.pid, signal.SIGTERM)
        return process

    monkeypatch.setattr(metis.subprocess, "Popen", start_and_end)
    with pytest.raises(InputError, match=r"METIS was ended by signal 15 \(SIGTERM\)"):
        metis.k_way(scipy.sparse.csr_array(np.array([[0, 1], [1, 0]], bool)), 2, np.ones(2))


def test_a_signal_without_a_name():
    assert (
        child_process.signal_text(-40) == "ended by signal 40"
        and child_process.signal_text(-11) == "ended by signal 11 (SIGSEGV)"
    )


def test_a_graph_without_lonely_nodes_is_not_copied(monkeypatch):
    weights, ring = np.ones(6, np.int64), np.arange(6)
    xadj, adjncy = 2 * np.arange(7), np.stack([ring - 1, ring + 1], axis=1).ravel() % 6
    seen = []
    monkeypatch.setattr(metis, "_run_metis", lambda *given, **_: seen.append(given) or np.zeros(6, np.int64))
    job = {"parts": 2, "objective": "cut", "tolerance": 1.03, "seed": 0, "shares": None}
    metis._k_way({"xadj": xadj, "adjncy": adjncy, "weights": weights}, job)
    ((*graph, _, own),) = seen
    assert graph[0] is xadj and graph[1] is adjncy and own is weights


def test_shares_of_many_parts_reach_the_child():
    """The job with them is longer than Linux lets an argument be, 128 KiB."""
    nodes = 7000
    ring = np.sort(np.stack([np.arange(-1, nodes - 1), np.arange(1, nodes + 1)], axis=1) % nodes, axis=1)
    ends = np.arange(0, 2 * nodes + 1, 2)
    undirected = scipy.sparse.csr_array((np.ones(2 * nodes, bool), ring.ravel(), ends), shape=(nodes, nodes))
    part = metis.k_way(undirected, nodes, np.ones(nodes), shares=np.full(nodes, 1 / nodes))
    assert part.shape == (nodes,) and part.min() >= 0 and part.max() < nodes
