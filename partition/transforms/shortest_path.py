"""``shortest_path``: how far it is from one end of an edge to the other and back (the bias of Graphormer, arXiv:2106.05234).

The distances of chosen pairs (s, t) are needed, up to a few hops. Walks of a few hops reach most of a graph through its
hubs, so hubs are treated apart. A shortest path through a hub consists of a path to it and a path from it:
breadth-first searches from and to 64 hubs at a time, one bit each, find the lengths of these for all nodes. All other
paths lie in the graph without hubs, whose walks are few: there the nodes that walks from s reach are compared with
those from which walks reach t, half of the path each.
"""

from __future__ import annotations

import numpy as np
import scipy  # imports its parts at their first use

from dgl_gt.partition.graph import Graph, without_loops

_HUBS = 64  # that are searched from at a time, one bit each
BLOCK_WALKS = 1 << 21  # of the graph without hubs that are followed at a time
CELLS = 1 << 25  # of the table of nodes that are reached from some nodes
_PAIRS = 1 << 18  # that are looked up at a time
# nanoseconds per edge, and per pair, of a hop from 64 hubs; and per walk in the graph without hubs
_HUB_EDGE_NS, _HUB_PAIR_NS, _WALK_NS = 12, 6, 30


def shortest_path_encoding(graph: Graph, plain: Graph, most: int) -> np.ndarray:
    """The hops from source to destination and back for each edge, uint8 (E, 2), at most ``most`` + 1.

    Hops are those of ``plain``, the graph without what transforms added; ``most`` + 1 stands for a longer path, or
    none.
    """
    src, dst = graph.edges()
    result = np.full((graph.num_edges, 2), most + 1, np.uint8)
    result[: plain.num_edges, 0] = 1
    is_plain = np.arange(graph.num_edges) < plain.num_edges
    is_asked = (src < plain.num_nodes) & (dst < plain.num_nodes) & (src != dst)
    forth, back = np.flatnonzero(is_asked & ~is_plain), np.flatnonzero(is_asked)
    starts = np.concatenate([src[forth], dst[back]]).astype(np.int64)
    pairs, places = np.unique(starts * plain.num_nodes + np.concatenate([dst[forth], src[back]]), return_inverse=True)
    backward = without_loops(plain).copy()
    backward.sum_duplicates()
    hops = capped_distances(backward, pairs, most)[places]
    result[forth, 0], result[back, 1] = hops[: len(forth)], hops[len(forth) :]
    result[src == dst] = 0
    return result


def capped_distances(backward: scipy.sparse.csr_array, pairs: np.ndarray, most: int) -> np.ndarray:
    """The hops of each pair (s, t), uint8, at most ``most`` + 1; a pair is s N + t, ascending, with s != t."""
    nodes = backward.shape[0]
    forward = backward.T.tocsr()
    hops = np.full(len(pairs), most + 1, np.uint8)
    hops[_are_edges(forward, pairs)] = 1
    searched = np.flatnonzero(hops > 1) if most > 1 else np.zeros(0, np.int64)
    if not len(searched):
        return hops
    s, t = np.divmod(pairs[searched], nodes)
    found = hops[searched]
    hubs = _choose_hubs(forward, backward, s, t, most)
    for start in range(0, len(hubs), _HUBS):
        _through_hubs(forward, backward, hubs[start : start + _HUBS], s, t, most, found)
    is_hub = np.zeros(nodes, bool)
    is_hub[hubs] = True
    _around_hubs(_without(forward, is_hub), _without(backward, is_hub), s, t, most, found)
    hops[searched] = found
    return hops


def _are_edges(forward: scipy.sparse.csr_array, pairs: np.ndarray) -> np.ndarray:
    """Which of the pairs are edges, bool."""
    nodes = forward.shape[0]
    edges = np.repeat(np.arange(nodes), np.diff(forward.indptr))
    edges *= nodes
    edges += forward.indices
    if not len(edges):
        return np.zeros(len(pairs), bool)
    places = np.searchsorted(edges, pairs)
    np.minimum(places, len(edges) - 1, out=places)
    return edges[places] == pairs


def _choose_hubs(forward, backward, s: np.ndarray, t: np.ndarray, most: int) -> np.ndarray:
    """The nodes of highest degree, as many as make the least work in all."""
    nodes = forward.shape[0]
    by_degree = np.argsort(-(np.diff(forward.indptr) + np.diff(backward.indptr)), kind="stable")
    hub_ns = most * (2 * forward.nnz * _HUB_EDGE_NS + most * len(s) * _HUB_PAIR_NS)
    best, least, count = 0, np.inf, 0
    while True:
        is_hub = np.zeros(nodes, bool)
        is_hub[by_degree[:count]] = True
        walks = _walks(_without(forward, is_hub), most - most // 2)[np.unique(s)].sum()
        walks += _walks(_without(backward, is_hub), most // 2)[t].sum()
        work = -(-count // _HUBS) * hub_ns + _WALK_NS * walks
        if work < least:
            best, least = count, work
        if count == nodes or -(-count // _HUBS) * hub_ns > least:
            return by_degree[:best]
        count = min(nodes, max(2 * count, _HUBS))


def _without(matrix: scipy.sparse.csr_array, is_hub: np.ndarray) -> scipy.sparse.csr_array:
    """The adjacency without the edges that touch hubs."""
    if not is_hub.any():
        return matrix
    keep = ~np.repeat(is_hub, np.diff(matrix.indptr)) & ~is_hub[matrix.indices]
    kept_before = np.concatenate([[0], np.cumsum(keep)])
    return scipy.sparse.csr_array((matrix.data[keep], matrix.indices[keep], kept_before[matrix.indptr]), matrix.shape)


def _walks(matrix: scipy.sparse.csr_array, hops: int) -> np.ndarray:
    """The number of walks of 1 to ``hops`` hops from each node, float64, (N,)."""
    counts, total = np.ones(matrix.shape[0]), np.zeros(matrix.shape[0])
    one = scipy.sparse.csr_array((np.ones(matrix.nnz), matrix.indices, matrix.indptr), matrix.shape)
    for _ in range(hops):
        counts = one @ counts
        total += counts
    return total


def _through_hubs(forward, backward, hubs: np.ndarray, s: np.ndarray, t: np.ndarray, most: int, found) -> None:
    """Lower ``found`` to the length of the shortest path of each pair through one of at most 64 hubs."""
    own = np.zeros(forward.shape[0], np.uint64)
    own[hubs] = np.uint64(1) << np.arange(len(hubs), dtype=np.uint64)
    to_hub, from_hub = [own], [own]  # bits of the hubs within 0, 1, ... hops of each node
    for matrix, bits in ((forward, to_hub), (backward, from_hub)):
        for _ in range(most):
            bits.append(bits[-1] | _union(matrix, bits[-1]))
    for start in range(0, len(s), _PAIRS):
        here = slice(start, start + _PAIRS)
        first, second = ([each[ends[here]] for each in bits] for bits, ends in ((to_hub, s), (from_hub, t)))
        for length in range(most, 1, -1):
            meets = first[0] & second[length]
            for hops in range(1, length + 1):
                meets |= first[hops] & second[length - hops]
            found[here][(meets != 0) & (found[here] > length)] = length


def _union(matrix: scipy.sparse.csr_array, bits: np.ndarray) -> np.ndarray:
    """The bits of each node's neighbours, united."""
    result = np.zeros_like(bits)
    filled = np.flatnonzero(np.diff(matrix.indptr))
    if len(filled):
        result[filled] = np.bitwise_or.reduceat(bits[matrix.indices], matrix.indptr[filled])
    return result


def _around_hubs(forward, backward, s: np.ndarray, t: np.ndarray, most: int, found: np.ndarray) -> None:
    """Lower ``found`` to the length of the shortest path of each pair that visits no hub between its ends."""
    nodes, is_first = forward.shape[0], np.diff(s, prepend=-1) > 0
    walks = np.where(is_first, _walks(forward, most - most // 2)[s], 0) + _walks(backward, most // 2)[t]
    rows = max(1, min(CELLS // nodes, np.count_nonzero(is_first)))
    blocks = np.stack([np.cumsum(walks) // BLOCK_WALKS, (np.cumsum(is_first) - 1) // rows])
    ends = np.flatnonzero(np.diff(blocks, append=-1).any(axis=0)) + 1
    is_reached = np.zeros((rows, nodes), bool)
    for begin, end in zip([0, *ends[:-1].tolist()], ends.tolist()):
        _search(forward, backward, s[begin:end], t[begin:end], most, found[begin:end], is_reached)


def _search(forward, backward, s: np.ndarray, t: np.ndarray, most: int, found: np.ndarray, is_reached) -> None:
    """Do the work of :func:`_around_hubs` for some pairs; ``is_reached`` is false before and after."""
    starts, row = np.unique(s, return_inverse=True)
    after, before = forward[starts], backward[t]
    for length in range(2, most + 1):
        if length % 2:
            after = after @ forward
        elif length > 2:
            before = before @ backward
        searched = np.flatnonzero(found > length)
        if not len(searched):
            return
        ends = before[searched]
        pair = np.repeat(searched, np.diff(ends.indptr))
        walked = np.repeat(np.arange(len(starts)), np.diff(after.indptr)), after.indices
        is_reached[walked] = True
        found[pair[is_reached[row[pair], ends.indices]]] = length
        is_reached[walked] = False
