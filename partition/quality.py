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


def edge_cut_quality(owned, halo, edges, cut_edges) -> Quality:
    """Figures from counts per part, each (K,): owned nodes, halo nodes, edges, and edges with a remote source."""
    owned, halo, edges = (np.asarray(counts, dtype=np.int64) for counts in (owned, halo, edges))
    parts, nodes, num_edges = len(owned), int(owned.sum()), int(edges.sum())
    held = owned + halo
    return Quality(
        cut_ratio=int(np.sum(cut_edges)) / max(num_edges, 1),
        volume=int(halo.sum()),
        halo=int(halo.sum()),
        replication_factor=int(held.sum()) / nodes,
        max_copies_factor=int(held.max()) * parts / nodes,
        node_balance=int(owned.max()) * parts / nodes,
        edge_balance=int(edges.max()) * parts / num_edges if num_edges else 1.0,
    )
