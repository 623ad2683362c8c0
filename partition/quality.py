"""The figures of a partition, from counts per part."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np


@dataclass(frozen=True)
class Quality:
    """Figures of an edge cut with halo depth 1.

    Attributes
    ----------
    cut_ratio : float
        Edges whose ends have different owners, over all edges.
    volume : int
        Rows that cross ranks per layer and direction, summed over parts.
    halo : int
        Halo rows held, summed over parts.
    replication_factor : float
        Rows held over nodes.
    max_copies_factor : float
        Rows held by the largest part, times K / N.
    node_balance, edge_balance : float
        The largest part's owned nodes (edges) over the mean; 1 is perfect.
    """

    cut_ratio: float
    volume: int
    halo: int
    replication_factor: float
    max_copies_factor: float
    node_balance: float
    edge_balance: float

    def as_dict(self) -> dict:
        return asdict(self)


@dataclass(frozen=True)
class VertexCutQuality:
    """Figures of a vertex cut.

    Attributes
    ----------
    mirrors : int
        Copies of nodes in parts that are not their master, summed over parts.
    volume : int
        Rows that cross ranks per layer and direction, summed over parts: one out to each mirror, and one back from each
        that has in-edges.
    replication_factor : float
        Rows held over nodes.
    max_copies_factor : float
        Rows held by the largest part, times K / N.
    node_balance, edge_balance : float
        The largest part's masters (edges) over the mean; 1 is perfect.
    """

    mirrors: int
    volume: int
    replication_factor: float
    max_copies_factor: float
    node_balance: float
    edge_balance: float

    def as_dict(self) -> dict:
        return asdict(self)


def vertex_cut_quality(owned, mirrors, returned, edges) -> VertexCutQuality:
    """Figures from counts per part, each (K,): masters, mirrors, mirrors with in-edges, and edges."""
    owned, mirrors, edges = (np.asarray(counts, dtype=np.int64) for counts in (owned, mirrors, edges))
    held = owned + mirrors
    return VertexCutQuality(
        mirrors=int(mirrors.sum()), volume=int(mirrors.sum()) + int(np.sum(returned)), **_shares(owned, held, edges)
    )


def edge_cut_quality(owned, halo, edges, cut_edges) -> Quality:
    """Figures from counts per part, each (K,): owned nodes, halo nodes, edges, and edges with a remote source."""
    owned, halo, edges = (np.asarray(counts, dtype=np.int64) for counts in (owned, halo, edges))
    return Quality(
        cut_ratio=int(np.sum(cut_edges)) / max(int(edges.sum()), 1),
        volume=int(halo.sum()),
        halo=int(halo.sum()),
        **_shares(owned, owned + halo, edges),
    )


def _shares(owned: np.ndarray, held: np.ndarray, edges: np.ndarray) -> dict[str, float]:
    """What both cuts have in common."""
    parts, nodes, num_edges = len(owned), int(owned.sum()), int(edges.sum())
    return {
        "replication_factor": int(held.sum()) / nodes,
        "max_copies_factor": int(held.max()) * parts / nodes,
        "node_balance": int(owned.max()) * parts / nodes,
        "edge_balance": int(edges.max()) * parts / num_edges if num_edges else 1.0,
    }
