"""What all sources share: names, options, files at large."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from source_checks import edges, refused, written

from partition import files
from partition.graph import from_edges
from partition.sources import load_graph


def test_sample_by_name():
    name = "sample:communities?nodes=200&degree=4&classes=3&features=8&signal=0.7&seed=1"
    graph = load_graph(name)
    assert graph.name == name and graph.num_nodes == 200 and graph.node_data["feat"].shape == (200, 8)
    assert graph.node_data["label"].max() == 2


@pytest.mark.parametrize(
    "source, words",
    [
        ("sample:houses", ["'houses'", "sample:communities"]),
        ("sample:communities?node=5", ["'node'", "nodes, degree"]),
        ("sample:communities?nodes=many", ["nodes='many'", "whole number"]),
        ("sample:communities?degree=", ["degree=''", "number"]),
        ("sample:communities?nodes=100&nodes=200", ["'nodes'", "twice"]),
        ("sample:communities?nodes=3", ["nodes=3", "at least 10"]),
        ("cora", ["'cora'", ".npz", "dgl:cora"]),
        ("", ["allowed are"]),
        ("absent.npz", ["absent.npz", "no such file"]),
        ("absent.csv.gz", ["absent.csv.gz", "no such file"]),
        ("absent.graph", ["no such file"]),
        ("graph.pickle", ["graph.pickle", "allowed are", ".npz"]),
        ("graph.npz.gz", ["allowed are"]),
        ("http://example.org/graph", ["allowed are"]),
        (b"g.npz", ["bytes"]),
        (None, ["NoneType"]),
        (42, ["int"]),
    ],
)
def test_names_refused(source, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused(source, *words)


@pytest.mark.parametrize("suffix", [".npz", ".csv", ".graph", ".bin"])
def test_directory_and_forbidden_file(tmp_path, suffix):
    (tmp_path / f"d{suffix}").mkdir()
    refused(tmp_path / f"d{suffix}", "is a directory")
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    forbidden = written(tmp_path / f"f{suffix}", "0 1\n")
    forbidden.chmod(0)
    refused(forbidden, "no permission")


def test_home_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    written(tmp_path / "g.csv", "0,1\n")
    assert load_graph("~/g.csv").num_nodes == 2


@pytest.mark.parametrize(
    "options, word",
    [
        ({"num_nodes": 0}, "num_nodes is 0"),
        ({"num_nodes": 3}, "2 nodes, not 3; leave num_nodes out"),
        ({"num_nodes": 2.0}, "num_nodes is 2.0"),
        ({"random_features": 0}, "random_features is 0"),
        ({"random_features": True}, "random_features is True"),
        ({"random_features": 4, "seed": -1}, "seed is -1"),
    ],
)
def test_options_refused(options, word):
    refused(from_edges([0], [1]), word, **options)


def test_random_features():
    graph = from_edges([0, 1], [1, 2], name="g")
    feat = load_graph(graph, random_features=5, seed=1).node_data["feat"]
    assert feat.shape == (3, 5) and feat.dtype == np.float32
    assert np.array_equal(feat, load_graph(graph, random_features=5, seed=1).node_data["feat"])
    assert not np.array_equal(feat, load_graph(graph, random_features=5, seed=2).node_data["feat"])
    assert "feat" not in graph.node_data
    refused(load_graph(graph, random_features=5), "features already", random_features=5)


def test_graph_passes_through_and_edges_are_added(tmp_path):
    graph = from_edges([1, 0, 2, 1], [0, 1, 0, 0], 3)
    assert load_graph(graph) is graph
    both = load_graph(graph, undirected=True)
    assert edges(both) == [(1, 0), (0, 1), (2, 0), (1, 0), (0, 2)]
    assert edges(load_graph(graph, undirected=True, self_loops=True)) == edges(both) + [(0, 0), (1, 1), (2, 2)]
    assert edges(graph) == [(1, 0), (0, 1), (2, 0), (1, 0)]


def test_nothing_heavy_is_imported():
    code = "import sys, partition.sources; print({'torch', 'dgl', 'ogb', 'networkx', 'pandas'} & set(sys.modules))"
    root = Path(files.__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    assert done.stdout.strip() == "set()", done.stderr
