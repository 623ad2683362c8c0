"""The generator keeps its promises: sizes, degrees, splits, repeatability, and how much neighbours tell."""

import numpy as np
import pytest
import scipy.sparse

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.sources.load import load_graph
from dgl_gt.partition.sources.sample import communities


@pytest.fixture(scope="module")
def graph():
    return communities(nodes=8000, seed=3)


def accuracy(graph, columns):
    """Return the test accuracy of a ridge regression on one-hot labels, which is close to that of a small MLP."""
    label, train, test = (graph.node_data[key] for key in ("label", "train_mask", "test_mask"))
    columns = np.column_stack([columns, np.ones(len(label))])
    wanted = np.eye(label.max() + 1)[label[train]]
    weights = np.linalg.solve(columns[train].T @ columns[train] + np.eye(columns.shape[1]), columns[train].T @ wanted)
    return (np.argmax(columns[test] @ weights, axis=1) == label[test]).mean()


def neighbour_mean(graph):
    n = graph.num_nodes
    adjacency = scipy.sparse.csr_array((np.ones(graph.num_edges), graph.indices, graph.indptr), shape=(n, n))
    return (adjacency @ graph.node_data["feat"]) / np.maximum(graph.in_degrees(), 1)[:, None]


def test_neighbourhood_tells_what_features_do_not(graph):
    feat = graph.node_data["feat"]
    alone = accuracy(graph, feat)
    with_neighbours = accuracy(graph, np.column_stack([feat, neighbour_mean(graph)]))
    assert 0.45 < alone < 0.62
    assert with_neighbours > 0.85
    assert with_neighbours > alone + 0.3


def test_shapes_and_types(graph):
    n = graph.num_nodes
    assert n == 8000
    assert graph.node_data["feat"].shape == (n, 64) and graph.node_data["feat"].dtype == np.float32
    assert graph.node_data["label"].dtype == np.int64 and set(graph.node_data["label"]) == set(range(10))
    masks = np.array([graph.node_data[key] for key in ("train_mask", "val_mask", "test_mask")])
    assert masks.dtype == bool and (masks.sum(axis=0) == 1).all()
    assert masks.sum(axis=1).tolist() == [4000, 2000, 2000]


def test_edges_are_symmetric_distinct_and_without_loops(graph):
    src, dst = graph.indices.astype(np.int64), graph.destinations().astype(np.int64)
    there = np.sort(src * graph.num_nodes + dst)
    assert (src != dst).all()
    assert (there[1:] != there[:-1]).all()
    assert np.array_equal(there, np.sort(dst * graph.num_nodes + src))


def test_reverse_of_edge_e_is_half_further(graph):
    src, dst = np.empty((2, graph.num_edges), np.int64)
    src[graph.edge_ids], dst[graph.edge_ids] = graph.indices, graph.destinations()
    half = graph.num_edges // 2
    assert np.array_equal(src[:half], dst[half:]) and np.array_equal(dst[:half], src[half:])


def test_degrees_have_the_mean_asked_for_and_a_heavy_tail(graph):
    degrees = graph.in_degrees()
    assert abs(degrees.mean() - 20) < 0.2
    assert degrees.max() > 15 * degrees.mean()
    assert np.median(degrees) < 0.8 * degrees.mean()


def test_most_edges_stay_inside_a_class(graph):
    label = graph.node_data["label"]
    same = (label[graph.indices] == label[graph.destinations()]).mean()
    assert 0.6 < same < 0.8


def test_ids_say_nothing_about_communities(graph):
    label = graph.node_data["label"]
    assert (label[1:] == label[:-1]).mean() < 0.2


def test_same_arguments_same_graph():
    one, two, other = communities(500, seed=1), communities(500, seed=1), communities(500, seed=2)
    assert np.array_equal(one.indices, two.indices) and np.array_equal(one.indptr, two.indptr)
    for key in one.node_data:
        assert np.array_equal(one.node_data[key], two.node_data[key])
    assert not np.array_equal(one.node_data["feat"], other.node_data["feat"])


@pytest.mark.parametrize("classes, features, signal", [(2, 8, 0.7), (5, 5, 0.6), (40, 64, 0.5)])
def test_signal_is_the_accuracy_of_the_nearest_class_mean(classes, features, signal):
    graph = communities(20_000, degree=2, classes=classes, features=features, signal=signal)
    feat, label, train, test = (graph.node_data[key] for key in ("feat", "label", "train_mask", "test_mask"))
    means = np.array([feat[train & (label == c)].mean(axis=0) for c in range(classes)])
    guess = np.argmax(feat[test] @ means.T - (means**2).sum(axis=1) / 2, axis=1)
    assert abs((guess == label[test]).mean() - signal) < 0.03


@pytest.mark.parametrize(
    "arguments",
    [
        {"nodes": 10, "degree": 2.5, "classes": 2},
        {"nodes": 10, "degree": 0.01, "classes": 2},
        {"nodes": 50, "degree": 12.5},
        {"nodes": 300, "classes": 60, "features": 3},
        {"nodes": 200, "features": 1, "signal": 0.999},
    ],
)
def test_edges_of_the_ranges(arguments):
    graph = communities(**arguments)
    assert graph.num_nodes == arguments["nodes"]
    assert graph.num_edges <= 1.3 * graph.num_nodes * arguments.get("degree", 20) + 10
    assert np.isfinite(graph.node_data["feat"]).all()


def test_hardly_any_edges():
    for seed in range(30):
        assert communities(10, degree=0.2, classes=2, seed=seed).num_edges in range(0, 16, 2)


@pytest.mark.parametrize(
    "arguments, word",
    [
        ({"nodes": 9}, "nodes is 9"),
        ({"nodes": 100, "degree": 26}, "degree=26"),
        ({"degree": 0}, "degree=0"),
        ({"degree": float("nan")}, "degree=nan"),
        ({"classes": 1}, "classes is 1"),
        ({"nodes": 100, "classes": 21}, "classes=21"),
        ({"features": 0}, "features is 0"),
        ({"signal": 0.1}, "signal=0.1"),
        ({"signal": 1.0}, "signal=1.0"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_arguments_out_of_range(arguments, word):
    with pytest.raises(InputError, match=word):
        communities(**arguments)


@pytest.mark.parametrize("option", ["nodes", "classes", "features"])
def test_a_number_of_hundreds_of_digits_is_refused(option):
    with pytest.raises(InputError, match=f"{option} is 999.*999; it must be a whole number from"):
        load_graph(f"sample:communities?{option}={'9' * 400}")
