"""Estimates of the memory and the time that encodings take, before anything is computed.

Bytes are counted from the arrays of each step, and times come from runs on two cores of a server.
"""

from __future__ import annotations

from collections.abc import Sequence

from . import random_walk
from .eigenvectors import SPARE, lanczos_vectors
from .parse import Encoding

# nanoseconds per entry of the adjacency, and per column, probe and step, landmark, or hop and feature
_ENTRY_NS = {"adjacency": 50, "laplacian": 250, "random_walk": 1.5, "anchors": 15, "hops": 2}


def row_bytes(encodings: Sequence[Encoding], features: int) -> int:
    """Return the bytes per node of the node data; ``features`` is the width of ``feat``."""
    return 4 * sum(each.columns(features) for each in encodings)


def work_bytes(encodings: Sequence[Encoding], nodes: int, edges: int, undirected_edges: int, features: int) -> int:
    """Return the most memory that computing takes beside the graph and the node data (bytes)."""
    if all(each.name == "degree" for each in encodings):
        return max(40 * nodes, 8 * (nodes + edges)) if encodings else 0
    entries = 2 * undirected_edges
    building = 36 * edges + 30 * nodes  # the adjacency and its transpose, with indices of 64 bits
    return max(building, 5 * entries + 4 * nodes + max(_one(each, nodes, entries, features) for each in encodings))


def seconds(encodings: Sequence[Encoding], nodes: int, undirected_edges: int, features: int) -> float:
    """Return about how long computing takes on one core."""
    entries, total = 2 * undirected_edges, 0.0
    for each in encodings:
        if each.name != "degree":
            total += 1e-9 * entries * _ENTRY_NS[each.name] * _repeats(each, nodes, entries, features)
            total += 1e-9 * entries * _ENTRY_NS["adjacency"]
    return total


def _repeats(encoding: Encoding, nodes: int, entries: int, features: int) -> int:
    """Return how often an encoding passes over the adjacency."""
    if encoding.name == "random_walk":
        columns = nodes if random_walk.is_exact(nodes, entries, encoding.size) else random_walk.PROBES
        return columns * ((encoding.size + 1) // 2)
    return encoding.columns(features)


def _one(encoding: Encoding, nodes: int, entries: int, features: int) -> int:
    """Return the memory of one encoding beside the adjacency and the result (bytes)."""
    size = encoding.size
    match encoding.name:
        case "laplacian":
            lanczos = lanczos_vectors(size, nodes) + size + 10
            return 8 * nodes * max(lanczos, 6 * (size + SPARE)) + 32 * entries + 60 * nodes
        case "random_walk":
            if random_walk.is_exact(nodes, entries, size):
                return 5 * random_walk.block_bytes(nodes) + 8 * entries
            return nodes * (20 * random_walk.BLOCK_PROBES + 8 * size + 60) + 8 * entries
        case "anchors":
            return 8 * entries + 60 * nodes
        case "hops":
            return 8 * nodes * (encoding.columns(features) // size) + 8 * entries + 20 * nodes
    return 40 * nodes
