"""Traces in the user's cache: read where the step is the same, and made again where anything differs."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from dgl_gt.partition import from_edges, make_edge_cut
from dgl_gt.partition.figures.strategies import HALO
from dgl_gt.partition.shards.layout import Layout
from dgl_gt.plan import kept_traces, planned_step, tracing
from dgl_gt.train import read_config

CONFIG = read_config(hidden=8, layers=1, heads=2)


@pytest.fixture(scope="module")
def figures():
    edges = np.random.default_rng(0).integers(0, 40, (2, 200))
    graph = from_edges(*edges, 40, {"feat": np.ones((40, 4), np.float32), "train_mask": np.arange(40) < 20})
    return Layout(graph, make_edge_cut(graph, 2), 1).figures


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """An empty cache, and what is recorded while it is used."""
    monkeypatch.setenv("DGL_GT_CACHE", str(tmp_path / "cache"))
    found, record = [], tracing.record_trace
    monkeypatch.setattr(tracing, "record_trace", lambda *given, **more: found.append(1) or record(*given, **more))
    return found


def trace(figures, config=CONFIG, streams=False):
    """As in a process of its own."""
    planned_step._shared_traces.cache_clear()
    tracer = planned_step.tracer_of(config, 4, 3)
    return tracer.streamed(figures.with_pieces) if streams else tracer.of(figures, HALO, 1)


def files(tmp_path):
    return list((tmp_path / "cache" / "traces").iterdir())


@pytest.mark.parametrize("streams", [False, True])
def test_a_trace_comes_back(figures, recorded, streams):
    made, read = trace(figures, streams=streams), trace(figures, streams=streams)
    assert len(recorded) == 1 and type(made) is type(read)
    for name, value in vars(made).items():
        np.testing.assert_equal(getattr(read, name), value, err_msg=name)
    of_pieces = figures.with_pieces if streams else figures
    assert made.peak_bytes(of_pieces).tolist() == read.peak_bytes(of_pieces).tolist()


def test_another_step_is_traced(figures, recorded, monkeypatch):
    trace(figures)
    trace(figures, CONFIG.changed(hidden=16))
    with torch.autocast("cpu", torch.bfloat16):
        trace(figures)
    monkeypatch.setattr(torch, "__version__", "0.0")
    trace(figures)
    monkeypatch.setattr(kept_traces, "_code", lambda: "changed")
    trace(figures)
    assert len(recorded) == 5


def test_a_damaged_file_is_made_again(figures, recorded, tmp_path):
    trace(figures)
    (file,) = files(tmp_path)
    for damage in (lambda data: data[:50], lambda data: b"", lambda data: b"x" * len(data)):
        file.write_bytes(damage(file.read_bytes()))
        trace(figures)
    trace(figures)
    assert len(recorded) == 4 and files(tmp_path) == [file]


def test_few_are_kept(figures, recorded, tmp_path, monkeypatch):
    monkeypatch.setattr(kept_traces, "_MOST_KEPT", 2)
    for hidden in (8, 16, 24):
        trace(figures, CONFIG.changed(hidden=hidden))
        for age, file in enumerate(sorted(files(tmp_path), key=os.path.getmtime, reverse=True)):
            os.utime(file, (1e9 - age, 1e9 - age))
    assert len(files(tmp_path)) == 2
    trace(figures, CONFIG.changed(hidden=24))
    assert len(recorded) == 3


def test_without_a_cache(figures, recorded, monkeypatch):
    monkeypatch.setenv("DGL_GT_CACHE", "/proc/none")
    trace(figures)
    trace(figures)
    assert len(recorded) == 2 and not Path("/proc/none").exists()
