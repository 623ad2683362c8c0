"""What each method is estimated to need, from the sizes of the source, and what runs take."""

import gzip
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from memory_cases import bound, npz, sizes, sizes_of

from dgl_gt.partition import load_graph, partition, pipeline
from dgl_gt.partition.graph import from_edges
from dgl_gt.partition.memory_bound import METHODS, estimate_needs
from dgl_gt.partition.sources import numpy_file
from dgl_gt.partition.sources.load import open_source
from dgl_gt.partition.system import mapped_arrays

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")
ROOT = Path(__file__).parents[3]
GROWING = ("nodes", "edges", "undirected_edges", "node_bytes", "edge_bytes", "loaded_bytes")


@pytest.mark.parametrize("method", METHODS)
def test_estimates_grow_with_all_that_costs(method):
    for start in (sizes(), sizes(nodes=100, edges=50, undirected_edges=25), sizes(nodes=10**9, edges=10**10)):
        before = estimate_needs(start, method)
        assert min(before.memory_bytes, before.disk_bytes) > 0 and before.seconds > 0
        for key in GROWING:
            after = estimate_needs(replace(start, **{key: 3 * getattr(start, key) + 10**7}), method)
            assert after.memory_bytes >= before.memory_bytes and after.disk_bytes >= before.disk_bytes
            assert after.seconds >= before.seconds
        for pair in (dict(nodes=2 * 10**9, edges=2 * 10**10), dict(loaded_bytes=1 << 40)):
            assert estimate_needs(replace(start, **pair), method).memory_bytes > before.memory_bytes


def test_large_graphs_need_most_by_metis_and_least_by_streaming():
    for start in (sizes(), sizes(nodes=10**8, edges=10**9, undirected_edges=5 * 10**8)):
        metis, expansion, streaming = (estimate_needs(start, method).memory_bytes for method in METHODS)
        assert metis > expansion > streaming


def once(pairs):
    """Return undirected edges, each from the larger to the smaller id."""
    return np.stack([pairs.max(axis=0), pairs.min(axis=0)])


def test_sizes_of_a_source(monkeypatch):
    index = np.array([[3, 2, 2, 5], [1, 2, 0, 5]])
    columns = {"x": np.ones((9, 3), np.float32), "train_mask": np.arange(9) < 4, "edge_data_w": np.ones((4, 2))}
    npz(edge_index=index, num_nodes=9, directed=False, **columns)
    found = sizes_of(open_source("graph.npz"), 2)
    assert (found.nodes, found.edges, found.parts, found.is_graph) == (9, 6, 2, False)
    assert found.undirected_edges in range(2, 5)
    assert (found.node_bytes, found.edge_bytes) == (13, 16)
    assert found.loaded_bytes == index.nbytes + 9 * 13 + 4 * 16
    monkeypatch.setattr(mapped_arrays, "SMALLEST_BYTES", 1)
    monkeypatch.setattr(numpy_file, "SMALLEST_BYTES", 1)
    assert sizes_of(open_source("graph.npz"), 2) == replace(found, loaded_bytes=0)


def test_sizes_of_a_graph_in_memory(awkward_graph):
    graph = awkward_graph(0)
    found = sizes_of(graph, 3)
    assert found.is_graph and (found.nodes, found.edges, found.parts) == (60, 300, 3)
    assert (found.node_bytes, found.edge_bytes) == (5 * 4 + 8 + 3, 4 * 8)
    arrays = (graph.indptr, graph.indices, graph.edge_ids, *graph.node_data.values(), *graph.edge_data.values())
    assert found.loaded_bytes == sum(array.nbytes for array in arrays)
    assert sizes_of(from_edges([], [], 4), 1).edges == 0


def test_what_metis_sees_is_estimated_from_a_sample():
    rng = np.random.default_rng(0)
    pairs = once(rng.integers(0, 10**6, (2, 30_000)))
    npz("both.npz", nodes=10**6, edge_index=np.concatenate([pairs, pairs[::-1]], axis=1))
    npz("one.npz", nodes=10**6, edge_index=pairs)
    npz("half.npz", nodes=10**6, edge_index=np.concatenate([pairs, pairs[::-1, ::2]], axis=1))
    assert sizes_of(open_source("both.npz"), 2).undirected_edges == pytest.approx(30_000, rel=0.02)
    assert sizes_of(open_source("one.npz"), 2).undirected_edges == pytest.approx(30_000, rel=0.02)
    assert sizes_of(open_source("half.npz"), 2).undirected_edges == pytest.approx(30_000, rel=0.1)


@pytest.mark.parametrize("name", ["cora", "email_enron", "tolokers"])
def test_sizes_of_real_graphs(real_graph, name):
    source, graph = open_source(real_graph(name)), load_graph(real_graph(name))
    found, loaded = sizes_of(source, 2), sizes_of(graph, 2)
    assert (found.nodes, found.edges) == (loaded.nodes, loaded.edges) == (graph.num_nodes, graph.num_edges)
    assert found.node_bytes == loaded.node_bytes == sum(value[:1].nbytes for value in graph.node_data.values())
    assert loaded.undirected_edges == pytest.approx(found.undirected_edges, rel=0.05)


@pytest.mark.parametrize("method", METHODS[1:])
def test_disk_of_streaming_and_of_expansion(monkeypatch, method):
    """The directory is fullest with the shards and a stream's edge files, which lie in it until the end."""
    monkeypatch.setattr(pipeline, "choose_method", lambda *_: method)
    monkeypatch.setattr(pipeline, "check_memory_bound", lambda *_: None)
    npz(nodes=2000, edges=60_000, x=np.ones((2000, 8), np.float32))
    fullest = []

    def look(*_):
        fullest.append(sum(path.stat().st_size for path in Path().glob(".out*/**/*") if path.is_file()))

    manifest = partition("graph.npz", 4, "out", memory=1, progress=look)
    shards = sum(each["bytes"] for each in manifest["files"].values())
    buckets = 12 * 60_000 if method == "streaming" else 0
    assert max(fullest) >= buckets + shards / 2
    disk = estimate_needs(sizes_of(open_source("graph.npz"), 4), method).disk_bytes
    assert 0.8 < disk / (shards + buckets) < 1.25


FORCED = """
import sys
from dgl_gt.partition import pipeline
from dgl_gt.cli.main import main
pipeline.choose_method = lambda *_: sys.argv[1]
pipeline.check_memory_bound = lambda *_: None
sys.exit(main(sys.argv[2:]))
"""


def test_estimates_against_runs():
    """Peak memory of whole processes; the graph is so small that the interpreter is half of the smallest peak."""
    nodes, edges, parts = 100_000, 1_000_000, 4
    rng = np.random.default_rng(0)
    src = rng.integers(0, nodes, edges)
    near, far = (src + rng.integers(1, 200, edges)) % nodes, (nodes * rng.random(edges) ** 3).astype(int)
    index = np.stack([src, np.where(rng.random(edges) < 0.8, near, far)])
    npz("big.npz", nodes, edge_index=index, x=rng.random((nodes, 64), dtype=np.float32))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    ratios = {}
    for method in METHODS:
        asked = ["partition", "big.npz", "--parts", str(parts), "--out", method, "--memory", "1GiB", "--json"]
        command = [sys.executable, "-c", FORCED, method, *asked]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        made = json.loads(done.stdout)
        assert made["method"] == method
        ratios[method] = made["peak_memory_bytes"] / bound("big.npz", method, parts)
    assert all(0.5 < ratio <= 1 for ratio in ratios.values()), ratios


PEAK = """
import sys
from dgl_gt.cli.main import main
from dgl_gt.partition.system.memory import peak_memory_bytes
code = main(sys.argv[1:])
print(peak_memory_bytes(), file=sys.stderr)
sys.exit(code)
"""


def peak_within(source, bound_bytes):
    """Partition within a bound in a process of its own; return its peak memory, as the kernel counts it (bytes)."""
    asked = [sys.executable, "-c", PEAK, "partition", source, "--parts", "4", "--out", "out"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*asked, "--memory", f"{bound_bytes}B"], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return int(done.stderr.split()[-1])


@pytest.mark.parametrize("directed", [True, False])
def test_a_bound_holds_for_a_stream_of_several_slices(directed):
    """Random pairs, of which no slice is smaller than another; what a slice needs comes back before the next."""
    npz("pairs.npz", 100_000, 2_000_000 if directed else 1_000_000, directed=directed)
    bound_bytes = bound("pairs.npz", "streaming", 4)
    assert peak_within("pairs.npz", bound_bytes) <= bound_bytes


def test_a_bound_holds_for_text_that_is_streamed():
    """The text is read in several blocks, which takes more memory than the cut."""
    ends = np.random.default_rng(0).integers(0, 50_000, (100_000, 2)).tolist()
    with gzip.open("g.csv.gz", "wt", compresslevel=1) as file:
        file.write("\n".join(f"{u},{v}" for u, v in ends * 15) + "\n")
    found = sizes(nodes=50_000, edges=1_500_000, parts=4, node_bytes=0, edge_bytes=0, loaded_bytes=12_000_000)
    bound_bytes = estimate_needs(found, "streaming").memory_bytes + (16 << 20)
    assert peak_within("g.csv.gz", bound_bytes) <= bound_bytes
