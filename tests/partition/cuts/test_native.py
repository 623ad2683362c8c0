"""Calls of the compiled loops: a wrong argument raises, and is never read or written."""

from ctypes import ArgumentError

import numpy as np
import pytest

from dgl_gt.partition.cuts import native
from dgl_gt.partition.cuts.balance import make_balance
from dgl_gt.partition.graph import from_edges, symmetrised

pytestmark = pytest.mark.skipif(
    not native.is_available(), reason="the package was installed without its compiled extension"
)
NODES, EDGES, PARTS = 30, 90, 3


def int64(*shape):
    return np.zeros(shape, np.int64)


def calls():
    """Every function by name, with arguments that it accepts."""
    rng = np.random.default_rng(0)
    graph = from_edges(*rng.integers(0, NODES, (2, EDGES)), NODES)
    balance = make_balance(graph, PARTS, {"nodes": 2.0, "edges": 3.0})
    in_edges = {"indptr": graph.indptr, "sources": graph.indices}
    ends = {"sources": graph.indices, "destinations": graph.destinations()}
    limits = {"weights": balance.weights, "floors": balance.floors(), "capacities": balance.capacities()}
    search = {**in_edges, **limits, "owner": rng.integers(0, PARTS, NODES).astype(np.int32), "seed": 1}
    lists = dict(zip(("indptr", "neighbours", "edges"), native.list_by_node(graph.indptr, graph.indices)))
    edge_owner = rng.integers(0, PARTS, EDGES).astype(np.int32)
    copies, sizes = native.count_copies(**ends, owner=edge_owner, num_nodes=NODES, parts=PARTS)
    degrees, listed = np.diff(lists["indptr"]), np.arange(EDGES, dtype=np.int32)
    state = {"degrees": degrees, "copies": copies, "sizes": sizes, "owner": edge_owner}
    dealt = {"parts": PARTS, "capacity": EDGES}
    undirected = symmetrised(graph)
    weighted = {
        "indptr": undirected.indptr.astype(np.int64),
        "neighbours": undirected.indices.astype(np.int32),
        "edge_weights": np.ones(undirected.nnz, np.int64),
    }
    groups = {"node_weights": np.ones(NODES, np.int64), "groups": np.zeros(NODES, np.int32)}
    return {
        "refine": {**search, "sweeps": 2, "temperature": 0.5},
        "refine_multilevel": {**search, "groups": int64(NODES)},
        "count_copies": {**ends, "owner": edge_owner, "num_nodes": NODES, "parts": PARTS},
        "place_by_hdrf": {"listed": listed, **ends, **state, "balance": 1.0, "capacity": EDGES},
        "list_by_node": {"in_indptr": graph.indptr, "sources": graph.indices},
        "expand_neighbours": {
            **lists,
            **dealt,
            "start": np.arange(NODES),
            "owner": np.full(EDGES, -1, np.int32),
            "joined": int64(NODES),
        },
        "level_copies": {**lists, **dealt, "listed": np.arange(NODES), "rounds": 2, "owner": edge_owner},
        "choose_masters": {"copies": copies, "parts": PARTS},
        "find_clusters": {**weighted, **groups, "heaviest": 9, "sweeps": 2, "seed": 0},
        "choose_clusters": {
            **{name: weighted[name] for name in ("indptr", "neighbours")},
            **{name: np.arange(NODES, dtype=np.int32) // 3 for name in ("of_neighbour", "own")},
            "asks": np.ones(NODES, bool),
            "node_weights": np.ones(NODES, np.int64),
            "names": int64(NODES // 3),
            "room": int64(NODES // 3),
            "salt": 1,
        },
        "contract": {**weighted, "cluster": np.arange(NODES, dtype=np.int32) // 3},
    }


ARRAYS = [
    (function, name)
    for function, arguments in (calls() if native.is_available() else {}).items()
    for name, value in arguments.items()
    if isinstance(value, np.ndarray)
]


FUNCTIONS = sorted(name.removesuffix("_some") for name in native._SIGNATURES)  # as the library calls refine


@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_right_arguments_are_taken(function):
    """Every function of the library has a case here."""
    getattr(native, function)(**calls()[function])


@pytest.mark.parametrize(("function", "name"), ARRAYS)
def test_a_wrong_dtype_raises(function, name):
    arguments = calls()[function]
    for dtype in (np.int64, np.int32, np.uint64, np.float64, np.int16):
        if dtype != arguments[name].dtype:
            with pytest.raises(ArgumentError):
                getattr(native, function)(**{**arguments, name: arguments[name].astype(dtype)})


@pytest.mark.parametrize(("function", "name"), ARRAYS)
def test_an_array_that_is_not_contiguous_raises(function, name):
    arguments = calls()[function]
    scattered = np.repeat(arguments[name], 2, axis=0)[::2]
    assert (scattered == arguments[name]).all() and not scattered.flags.c_contiguous
    with pytest.raises(ArgumentError):
        getattr(native, function)(**{**arguments, name: scattered})


# What says itself how many nodes, edges or parts there are; all other shapes follow.
FREE = {("list_by_node", "in_indptr"), ("level_copies", "indptr"), ("choose_masters", "copies")}
FREE |= {
    ("choose_clusters", "of_neighbour"),
    ("place_by_hdrf", "listed"),
    ("level_copies", "listed"),
    ("place_by_hdrf", "sizes"),
}


@pytest.mark.parametrize(("function", "name"), [each for each in ARRAYS if each not in FREE])
def test_a_wrong_shape_raises(function, name):
    arguments = calls()[function]
    right = arguments[name]
    for wrong in (right[:-1], np.concatenate([right, right]), right[None], right[:0]):
        with pytest.raises((ArgumentError, ValueError, IndexError)):
            getattr(native, function)(**{**arguments, name: np.ascontiguousarray(wrong)})


WRITTEN = {
    "refine": ["owner"],
    "refine_multilevel": ["owner"],
    "place_by_hdrf": ["degrees", "copies", "sizes", "owner"],
    "expand_neighbours": ["owner", "joined"],
    "level_copies": ["owner"],
}


@pytest.mark.parametrize(("function", "name"), [(function, name) for function in WRITTEN for name in WRITTEN[function]])
def test_an_array_that_is_written_must_be_writeable(function, name):
    arguments = calls()[function]
    arguments[name].flags.writeable = False
    with pytest.raises(ArgumentError):
        getattr(native, function)(**arguments)


def kind(argument):
    return (argument.dtype, argument.ndim) if isinstance(argument, np.ndarray) else "number"


@pytest.mark.parametrize("function", FUNCTIONS)
def test_arguments_that_change_places_raise(monkeypatch, function):
    """In the library's own functions, whose arguments have no names: any two of different kinds."""
    seen, library, arguments = [], native._loaded(), calls()[function]

    class Recorder:
        def __getattr__(self, name):
            return lambda *arguments: seen.append((getattr(library, name), arguments))

    monkeypatch.setattr(native, "_library", Recorder)
    getattr(native, function)(**arguments)
    ((call, given),) = seen
    pairs = [(i, j) for i in range(len(given)) for j in range(i) if kind(given[i]) != kind(given[j])]
    assert len(pairs) >= len(given) - 1
    for i, j in pairs:
        swapped = list(given)
        swapped[i], swapped[j] = given[j], given[i]
        with pytest.raises(ArgumentError):
            call(*swapped)


def test_arguments_that_could_change_places_are_given_by_name():
    with pytest.raises(TypeError, match="positional"):
        native.refine(*calls()["refine"].values())
