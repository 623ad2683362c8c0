"""The figures of a partition, from counts per part."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np


@dataclass(frozen=True)
class Quality:
    """Figures of an edge cut.

    Attributes
    ----------
    cut_ratio : float
        Edges whose ends have different owners, over all edges.
    volume : int
        Rows that cross ranks per exchange and direction, summed over parts.
    halo : int
        Halo rows held, of all hops, summed over parts.
    replication_factor : float
        Rows held over nodes.
    max_copies_factor : float
        Rows held by the largest part, over an even share of the nodes, N / K.
    node_balance, edge_balance : float
        Owned nodes (edges) of the part that has most for its share, over that share; 1 is perfect.
    train_balance : float or None
        The same of training nodes, in the split where it is worst; None where there are none.
    """

    cut_ratio: float
    volume: int
    halo: int
    replication_factor: float
    max_copies_factor: float
    node_balance: float
    edge_balance: float
    train_balance: float | None

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
        Rows held by the largest part, over an even share of the nodes, N / K.
    node_balance, edge_balance : float
        Masters (edges) of the part that has most for its share, over that share; 1 is perfect.
    train_balance : float or None
        The same of training nodes, in the split where it is worst; None where there are none.
    """

    mirrors: int
    volume: int
    replication_factor: float
    max_copies_factor: float
    node_balance: float
    edge_balance: float
    train_balance: float | None

    def as_dict(self) -> dict:
        return asdict(self)


def vertex_cut_quality(owned, mirrors, returned, edges, shares=None, train=None) -> VertexCutQuality:
    """Figures from counts per part.

    Parameters
    ----------
    owned, mirrors, returned, edges : sequence of int, (K,)
        Masters, mirrors, mirrors with in-edges, and edges.
    shares : sequence of float, (K,), optional
        Of the whole load, by part; equal by default.
    train : array of int, (K, splits), optional
        Training nodes.
    """
    return VertexCutQuality(
        mirrors=int(np.sum(mirrors)),
        volume=int(np.sum(mirrors)) + int(np.sum(returned)),
        **_shared_figures(owned, mirrors, edges, shares, train),
    )


def edge_cut_quality(owned, halo, edges, cut_edges, shares=None, train=None) -> Quality:
    """Figures from counts per part: as :func:`vertex_cut_quality`, with halo nodes, and edges with a remote source."""
    return Quality(
        cut_ratio=int(np.sum(cut_edges)) / max(int(np.sum(edges)), 1),
        volume=int(np.sum(halo)),
        halo=int(np.sum(halo)),
        **_shared_figures(owned, halo, edges, shares, train),
    )


def _shared_figures(owned, copies, edges, shares, train) -> dict[str, float | None]:
    """What both cuts have in common."""
    owned, copies, edges = (np.asarray(counts, dtype=np.int64) for counts in (owned, copies, edges))
    parts, held = len(owned), owned + copies
    shares = np.full(parts, 1 / parts) if shares is None else np.asarray(shares)
    return {
        "replication_factor": int(held.sum()) / int(owned.sum()),
        "max_copies_factor": int(held.max()) * parts / int(owned.sum()),
        "node_balance": _balance(owned, shares),
        "edge_balance": _balance(edges, shares),
        "train_balance": None if train is None else max(_balance(split, shares) for split in np.asarray(train).T),
    }


def _balance(counts: np.ndarray, shares: np.ndarray) -> float:
    return float((counts / shares).max()) / int(counts.sum()) if counts.sum() else 1.0
