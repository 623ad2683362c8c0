"""The compiled loops: one Python function for each C function.

ctypes checks the dtype, the number of dimensions and the memory order of every array, and the functions below check
shapes: a wrong argument raises ``ctypes.ArgumentError`` or ``ValueError``. Ids inside the arrays are not checked: they
come from a :class:`dgl_gt.partition.Graph`, which has checked its own, and from the code of this folder.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util

import numpy as np
from numpy.ctypeslib import ndpointer

from dgl_gt.partition.errors import InputError

_MAX_COUNTS_PER_EDGE, _MAX_COUNTS = 16, 2**24


def _array(dtype, ndim: int = 1, *, written: bool = False):
    return ndpointer(dtype, ndim, flags=("C_CONTIGUOUS", "WRITEABLE")[: 1 + written])


_INT, _FLOAT = ctypes.c_int64, ctypes.c_double
_IDS, _IDS_OUT = _array(np.int32), _array(np.int32, written=True)
_COUNTS_OUT = _array(np.int32, 2, written=True)
_LONGS, _LONGS_OUT, _TABLE = _array(np.int64), _array(np.int64, written=True), _array(np.int64, 2)
_COPIES, _COPIES_OUT = _array(np.uint64, 2), _array(np.uint64, 2, written=True)
_SEARCHED = (_INT, _LONGS, _IDS, _INT, _INT, _TABLE, _TABLE, _TABLE, _COUNTS_OUT, _IDS_OUT)
_UNDIRECTED = (_INT, _LONGS, _IDS, _INT, _LONGS)
_BY_NODE = (_INT, _LONGS, _IDS, _IDS)
# In the order of the arguments in C. A function whose arguments change gets another name, so that a library which was built
# before is not called with the wrong ones.
_SIGNATURES = {
    "count_copies": (_INT, _IDS, _IDS, _INT, _IDS, _COPIES_OUT, _LONGS_OUT),
    "place_by_hdrf": (
        *(_INT, _IDS, _IDS, _IDS, _LONGS_OUT, _INT),
        *(_INT, _FLOAT, _LONGS, _COPIES_OUT, _LONGS_OUT, _IDS_OUT),
    ),
    "expand_neighbours": (*_BY_NODE, _LONGS, _INT, _LONGS, _IDS_OUT, _LONGS_OUT),
    "choose_masters": (_INT, _INT, _LONGS, _COPIES, _IDS_OUT),
    "list_by_node": (_INT, _LONGS, _IDS, _LONGS_OUT, _IDS_OUT, _IDS_OUT),
    "level_copies": (*_BY_NODE, _INT, _LONGS, _INT, _LONGS, _INT, _COUNTS_OUT, _IDS_OUT),
    "refine_some": (*_SEARCHED, _INT, _INT, _TABLE, _INT, _FLOAT, _INT),
    "refine_multilevel": (*_SEARCHED, _LONGS, _INT),
    "find_clusters": (*_UNDIRECTED, _LONGS, _IDS, _INT, _INT, _INT, _IDS_OUT),
    "choose_clusters": (
        *(_INT, _LONGS, _IDS, _IDS, _IDS, _array(np.bool_), _LONGS),
        *(_INT, _LONGS, _LONGS, _INT, _IDS_OUT, _IDS_OUT),
    ),
    "contract": (*_UNDIRECTED, _IDS, _INT, _LONGS_OUT, _IDS_OUT, _LONGS_OUT),
}


# ---- edge cuts -------------------------------------------------------------------------------------------------------


def refine(
    indptr,
    sources,
    *,
    weights,
    floors,
    capacities,
    owner,
    sweeps: int,
    temperature: float,
    seed: int,
    prices=None,
    movable: int | None = None,
) -> None:
    """Move nodes between parts for fewer halo rows and within the capacities; ``owner``, int32 (N,), is changed.

    ``weights`` (N, kinds) are the loads of nodes. ``floors`` and ``capacities`` (P, kinds) are the least load that a
    move for fewer halo rows leaves to a part, and the most that a part may have. ``temperature`` is that of the first
    sweep, in halo rows. Without sweeps, overloaded parts still give nodes away. ``prices[i, j]``, int64
    (P, P), is the cost of a halo row that part i holds and part j owns; by default 1. The diagonal is not read. Only
    the first ``movable`` nodes move, by default all.
    """
    arguments = _searched(indptr, sources, weights, floors, capacities, owner)
    if prices is None:
        prices = np.zeros((0, 0), np.int64)
    else:
        _check_shapes(prices=(prices, (len(capacities),) * 2))
        prices = prices * (1 - np.eye(len(capacities), dtype=np.int64))
    movable = len(owner) if movable is None else movable
    _library().dgl_gt_refine_some(*arguments, movable, prices.size, prices, sweeps, temperature, seed)


def refine_multilevel(indptr, sources, *, weights, floors, capacities, owner, groups, seed: int) -> None:
    """Refine clusters of nodes first, then smaller ones, and nodes at last; ``owner`` is changed.

    Only nodes with the same number in ``groups``, int64 (N,), may share a cluster; the rest is as for :func:`refine`.
    """
    _check_shapes(groups=(groups, (len(indptr) - 1,)))
    arguments = _searched(indptr, sources, weights, floors, capacities, owner)
    _library().dgl_gt_refine_multilevel(*arguments, groups, seed)


def _searched(indptr, sources, weights, floors, capacities, owner) -> tuple:
    """The arguments that both searches begin with; among them scratch, int32, (N, P)."""
    num_nodes, (parts, kinds) = len(indptr) - 1, capacities.shape
    _check_shapes(
        sources=(sources, (indptr[-1],)),
        weights=(weights, (num_nodes, kinds)),
        floors=(floors, (parts, kinds)),
        owner=(owner, (num_nodes,)),
    )
    pin_counts = np.empty((num_nodes, parts), np.int32)
    return num_nodes, indptr, sources, parts, kinds, weights, floors, capacities, pin_counts, owner


# ---- clusters --------------------------------------------------------------------------------------------------------


def find_clusters(
    indptr, neighbours, edge_weights, *, node_weights, groups, heaviest: int, sweeps: int, seed: int
) -> np.ndarray:
    """Return the cluster of each node of an undirected graph, int32 (N,), counted from 0.

    ``edge_weights``, int64, are positive; None stands for ones. Only nodes with the same number in
    ``groups``, int32 (N,), share a cluster, and clusters of several nodes weigh at most ``heaviest``, by
    ``node_weights``, int64 (N,).
    """
    num_nodes, label = len(indptr) - 1, np.empty(len(indptr) - 1, np.int32)
    _check_shapes(node_weights=(node_weights, (num_nodes,)), groups=(groups, (num_nodes,)))
    edges = _weighted_edges(indptr, neighbours, edge_weights)
    _library().dgl_gt_find_clusters(num_nodes, *edges, node_weights, groups, heaviest, sweeps, seed, label)
    return label


def choose_clusters(
    indptr, neighbours, *, of_neighbour, own, asks, node_weights, names, room, salt: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return for each node that asks the cluster to join, and the one that most of its edges go to; int32 (N,), or -1.

    Rows are nodes, ``own``, int32 (N,), their clusters, and ``asks``, bool (N,), says which ask. ``neighbours`` are
    places in ``of_neighbour``, int32, which are clusters. Clusters are places in ``names`` and ``room``, int64 (C,):
    one with as much room as the node weighs, ``node_weights``, int64 (N,), and more of its edges than its own is
    joined. Among several, a lot of ``salt``, ``names`` and the row decides.
    """
    shape = (len(indptr) - 1,)
    joined, wished = np.empty(shape, np.int32), np.empty(shape, np.int32)
    _check_shapes(neighbours=(neighbours, (indptr[-1],)), room=(room, names.shape), asks=(asks, shape))
    _check_shapes(own=(own, shape), node_weights=(node_weights, shape))
    rows = shape[0], indptr, neighbours, of_neighbour, own, asks, node_weights
    _library().dgl_gt_choose_clusters(*rows, len(names), names, room, salt, joined, wished)
    return joined, wished


def contract(indptr, neighbours, edge_weights, cluster) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return ``indptr``, neighbours and edge weights of the graph of clusters; ``cluster`` is from :func:`find_clusters`."""
    num_nodes, num_clusters = len(indptr) - 1, int(cluster.max()) + 1 if len(cluster) else 0
    _check_shapes(cluster=(cluster, (num_nodes,)))
    edges = _weighted_edges(indptr, neighbours, edge_weights)
    begin = np.empty(num_clusters + 1, np.int64)
    to, weights = np.empty(len(neighbours), np.int32), np.empty(len(neighbours), np.int64)
    _library().dgl_gt_contract(num_nodes, *edges, cluster, num_clusters, begin, to, weights)
    return begin, to[: begin[-1]].copy(), weights[: begin[-1]].copy()


def _weighted_edges(indptr, neighbours, edge_weights) -> tuple:
    _check_shapes(neighbours=(neighbours, (indptr[-1],)))
    if edge_weights is None:
        edge_weights = np.zeros(0, np.int64)
    else:
        _check_shapes(edge_weights=(edge_weights, neighbours.shape))
    return indptr, neighbours, len(edge_weights), edge_weights


# ---- vertex cuts -----------------------------------------------------------------------------------------------------


def no_copies(num_nodes: int, parts: int) -> np.ndarray:
    """A bit for each node and part, all zero: uint64, (N, ceil(P / 64))."""
    return np.zeros((num_nodes, -(-parts // 64)), np.uint64)


def count_copies(sources, destinations, owner, *, num_nodes: int, parts: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the parts that hold each node, uint64 (N, ceil(P / 64)), and how many edges each part has, int64 (P,).

    ``owner``, int32 (E,), is the part of each edge; a negative one counts nowhere.
    """
    _check_shapes(destinations=(destinations, sources.shape), owner=(owner, sources.shape))
    copies, sizes = no_copies(num_nodes, parts), np.zeros(parts, np.int64)
    _library().dgl_gt_count_copies(len(sources), sources, destinations, parts, owner, copies, sizes)
    return copies, sizes


def place_by_hdrf(
    listed,
    sources,
    destinations,
    *,
    degrees,
    copies,
    sizes,
    owner,
    balance: float,
    capacity,
    counts_degrees: bool = False,
) -> None:
    """Give each listed edge, in this order, to the part of the highest HDRF score; changes copies, sizes and owner.

    ``balance`` is the weight of balance against copies in the score. ``capacity`` is the most edges that a part takes
    while another has room: one number, or one for each part; sizes are then compared relative to it. With
    ``counts_degrees``, the degrees are counted on the way.
    """
    parts = len(sizes)
    _check_shapes(
        destinations=(destinations, sources.shape),
        owner=(owner, sources.shape),
        copies=(copies, (len(degrees), -(-parts // 64))),
    )
    settings = counts_degrees, parts, balance, _capacities(capacity, parts)
    _library().dgl_gt_place_by_hdrf(
        len(listed), listed, sources, destinations, degrees, *settings, copies, sizes, owner
    )


def list_by_node(in_indptr, sources) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """List each edge at both of its ends; a self-loop twice at its node.

    Returns ``indptr``, int64 (N + 1,), and int32 (2 E,): the other end of each edge, and its position among the in-
    edges.
    """
    _check_shapes(sources=(sources, (in_indptr[-1],)))
    indptr = np.empty_like(in_indptr)
    neighbours, edges = (np.empty(2 * len(sources), np.int32) for _ in range(2))
    _library().dgl_gt_list_by_node(len(in_indptr) - 1, in_indptr, sources, indptr, neighbours, edges)
    return indptr, neighbours, edges


def expand_neighbours(indptr, neighbours, edges, *, start, parts: int, capacity, owner, joined) -> None:
    """Grow the parts one after the other, each up to its ``capacity`` of edges (see :func:`place_by_hdrf`).

    The lists are those of :func:`list_by_node`. Nodes are tried as seeds in the order ``start``, int64 (N,). ``owner``,
    int32 (E,), must be -1 everywhere; edges that no part takes keep -1. ``joined``, int64 (N,), gets the order in which
    nodes joined a core, and does not change at other nodes.
    """
    num_nodes = _check_lists(indptr, neighbours, edges, owner)
    _check_shapes(start=(start, (num_nodes,)), joined=(joined, (num_nodes,)))
    limits = parts, _capacities(capacity, parts)
    _library().dgl_gt_expand_neighbours(num_nodes, indptr, neighbours, edges, start, *limits, owner, joined)


def level_copies(indptr, neighbours, edges, *, listed, parts: int, capacity, rounds: int, owner) -> None:
    """Move nodes out of parts that hold many copies, where this makes no more copies; changes ``owner``, int32 (E,).

    ``listed``, int64, are the nodes that may move, in the order in which they are tried. ``capacity`` is the most edges
    of a part, as for :func:`place_by_hdrf`; ``rounds`` is the most passes over the nodes.
    """
    num_nodes = _check_lists(indptr, neighbours, edges, owner)
    counts, limits = np.empty((num_nodes, parts), np.int32), (parts, _capacities(capacity, parts), rounds)
    _library().dgl_gt_level_copies(num_nodes, indptr, neighbours, edges, len(listed), listed, *limits, counts, owner)


def choose_masters(copies, parts: int, capacity=1) -> np.ndarray:
    """Return the master of each node, int32, (N,), from its copies, uint64, (N, ceil(P / 64)).

    Parts get rows in proportion to ``capacity``, (P,).
    """
    _check_shapes(copies=(copies, (len(copies), -(-parts // 64))))
    master = np.empty(len(copies), np.int32)
    _library().dgl_gt_choose_masters(len(copies), parts, _capacities(capacity, parts), copies, master)
    return master


def _capacities(capacity, parts: int) -> np.ndarray:
    """The capacity of each part, int64, (P,), from one number for all or one for each."""
    return np.ascontiguousarray(np.broadcast_to(np.asarray(capacity, np.int64), (parts,)))


# ---- checks and the library ------------------------------------------------------------------------------------------


def _check_shapes(**arrays) -> None:
    for name, (array, shape) in arrays.items():
        if array.shape != tuple(shape):
            raise ValueError(f"{name} has shape {array.shape}; it must be {tuple(map(int, shape))}")


def _check_lists(indptr, neighbours, edges, owner) -> int:
    """The number of nodes; ``ValueError`` where lists by node do not fit together."""
    ends = (indptr[-1],)
    _check_shapes(neighbours=(neighbours, ends), edges=(edges, ends), owner=(owner, (indptr[-1] // 2,)))
    return len(indptr) - 1


def counts_fit(num_nodes: int, num_edges: int, parts: int) -> bool:
    """Whether a count for each node and part takes little memory compared with the edges, so that a loop may have one."""
    return num_nodes * parts <= max(_MAX_COUNTS_PER_EDGE * num_edges, _MAX_COUNTS)


def is_available() -> bool:
    """Whether the package was installed with its compiled extension."""
    return _loaded() is not None


@functools.cache
def _loaded():
    spec = importlib.util.find_spec("dgl_gt.partition.cuts.native._loops")
    try:
        library = None if spec is None else ctypes.CDLL(spec.origin)
        for name, types in _SIGNATURES.items() if library else ():
            function = getattr(library, f"dgl_gt_{name}")
            function.argtypes, function.restype = types, None
        return library
    except (OSError, AttributeError):  # built for another system, or for another version of this package
        return None


def check_available() -> None:
    """Raise :class:`InputError` where the package was installed without its compiled extension."""
    _library()


def _library():
    library = _loaded()
    if library is not None:
        return library
    raise InputError(
        "vertex cuts and engines (--engine) need the compiled extension of dgl-gt, which is not installed: install a C++ compiler (on Debian or "
        "Ubuntu: apt install g++) and then dgl-gt again (in its checkout: pip install --force-reinstall --no-deps .), or make "
        "an edge cut in one process"
    )
