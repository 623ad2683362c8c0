"""Edge cut: every node gets one owner, and an edge lives with the owner of its destination."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from . import metis
from .errors import InputError
from .graph import Graph, symmetrised

CLUSTER_NODES = 1000  # rows of one cluster stay in a core's cache while its edges are attended


@dataclass(frozen=True)
class Rows:
    """A permutation of the nodes and slice pointers: part i owns the new ids ``ptr[i]:ptr[i + 1]``.

    Attributes
    ----------
    order : ndarray of integers, (N,)
        ``order[new id]`` is the user's node id.
    ptr : ndarray, int64, (K + 1,)
    """

    order: np.ndarray
    ptr: np.ndarray

    @property
    def parts(self) -> int:
        return len(self.ptr) - 1

    def new_ids(self) -> np.ndarray:
        """The new id of every node of the user's numbering, (N,)."""
        new = np.empty_like(self.order)
        new[self.order] = np.arange(len(self.order), dtype=self.order.dtype)
        return new


class EdgeCut(Rows):
    """The owner of every node; an edge lives with the owner of its destination."""


def make_edge_cut(graph: Graph, parts: int, *, seed: int = 0, owner=None, progress=None) -> EdgeCut:
    """Cut a graph into parts with METIS, balanced by nodes and edges together, rows in cluster order inside parts.

    A node weighs one plus its in-degree, as a part's work is its in-edges and its rows.

    Parameters
    ----------
    graph : Graph
    parts : int
        K, 1 <= K <= N.
    seed : int
        The same seed gives the same cut.
    owner : array of integers, (N,), optional
        The part of every node, where it is already known; parts may be empty.
    progress : callable, optional
        Called as ``progress(stage)``, and as ``progress(stage, peak_memory_bytes)`` for child processes.

    Raises
    ------
    InputError
        K out of range, or ``owner`` of the wrong length or with a part outside 0..K-1.
    """
    if owner is None or parts < 1:
        check_parts(graph, parts)
    if owner is not None:
        owner = _checked(owner, graph.num_nodes, parts)
    undirected = symmetrised(graph)
    with metis.shared(xadj=undirected.indptr, adjncy=undirected.indices) as adjacency:
        del undirected
        if owner is None and parts == 1:
            owner = np.zeros(graph.num_nodes, np.int64)
        elif owner is None:
            owner = metis.k_way(adjacency, parts, graph.in_degrees() + 1, seed=seed, progress=progress)
            _fill_empty_parts(owner, parts)
        cluster = metis.clusters(adjacency, owner, parts, CLUSTER_NODES, seed=seed, progress=progress)
    order = np.lexsort((cluster, owner)).astype(graph.indices.dtype)
    ptr = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=parts))]).astype(np.int64)
    return EdgeCut(order, ptr)


def check_parts(graph: Graph, parts: int) -> None:
    """Raise :class:`InputError` unless every part can have a node."""
    if not 1 <= parts <= graph.num_nodes:
        raise InputError(
            f"cannot split {graph.num_nodes} nodes into {parts} parts; choose 1 to {graph.num_nodes} parts"
        )


def _fill_empty_parts(owner: np.ndarray, parts: int) -> None:
    """Give each part that METIS left empty, as it does on tiny graphs, a node of the largest part."""
    counts = np.bincount(owner, minlength=parts)
    for part in np.flatnonzero(counts == 0):
        largest = int(counts.argmax())
        owner[np.flatnonzero(owner == largest)[-1]] = part
        counts[largest] -= 1
        counts[part] = 1


def _checked(owner, num_nodes: int, parts: int) -> np.ndarray:
    owner = np.asarray(owner)
    if owner.shape != (num_nodes,) or owner.dtype.kind not in "iu":
        raise InputError(f"owner must be {num_nodes} integers, one a node, not {owner.dtype} {owner.shape}")
    if owner.min() < 0 or owner.max() >= parts:
        bad = owner.min() if owner.min() < 0 else owner.max()
        raise InputError(f"owner names part {bad}; parts are 0..{parts - 1}")
    return owner
