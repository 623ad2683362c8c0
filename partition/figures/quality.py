"""How good a partition is: ratios and sums of counts per part, for people and for reports."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

MEANINGS = {  # of the figures, a title and what is counted; what costs comes first: many cut edges may share a row
    "volume": ("Volume", "rows that parts send each other in one exchange"),
    "cut_ratio": ("Cut ratio", "edges whose source another part owns"),
    "cut_weight": ("Cut weight", "weight (--cut-weights) of these edges"),
    "cut_weight_ratio": ("Weight ratio", "their weight / the weight of all edges"),
    "mirrors": ("Mirrors", "copies of nodes outside their master's part"),
    "replication_factor": ("Replication", "rows held / nodes; 1 means no copies"),
    "max_copies_factor": ("Largest part", "rows that it holds / an even share of the nodes"),
    "node_balance": ("Node balance", "nodes of the fullest part / its share; 1 is perfect"),
    "edge_balance": ("Edge balance", "edges of the busiest part / its share; 1 is perfect"),
    "weight_balance": (
        "Weight balance",
        "weight of nodes (--node-weights) of the heaviest part / its share; 1 is perfect",
    ),
    "train_balance": ("Train balance", "training nodes of the fullest part / its share; 1 is perfect"),
}


@dataclass(frozen=True, kw_only=True)
class CutQuality:
    """What edge cuts and vertex cuts have in common.

    Attributes
    ----------
    volume : int
        Rows that cross ranks per layer and direction (with a halo of r hops, per r layers), summed over parts. A vertex
        cut sends one to each mirror, and one back from each mirror that has in-edges.
    replication_factor : float
        Rows held by all parts, over nodes.
    max_copies_factor : float
        Rows held by the largest part, over an even share of the nodes, N / P.
    node_balance, edge_balance : float
        Owned nodes (edges) of a part over its share of all, for the part where this is largest; 1 is perfect.
    train_balance : float or None
        The same for training nodes, in the split where it is largest; None without training nodes.
    """

    volume: int
    replication_factor: float
    max_copies_factor: float
    node_balance: float
    edge_balance: float
    train_balance: float | None

    def as_dict(self) -> dict:
        """The fields by name, as the manifest stores them."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class EdgeCutQuality(CutQuality):
    """Quality of an edge cut, see :class:`CutQuality`.

    Attributes
    ----------
    cut_ratio : float
        Edges whose ends have different owners, over all edges.
    halo : int
        Halo rows that parts hold, of all hops, summed over parts. This is the same number as ``volume``, as every halo
        row is sent once per exchange.
    cut_weight, cut_weight_ratio : float or None
        Sum of weights of the edges whose ends have different owners, and this sum over that of all edges; None unless
        the cut follows weights of edges.
    weight_balance : float or None
        As ``node_balance``, for the weights of nodes; None without such.
    """

    cut_ratio: float
    halo: int
    cut_weight: float | None = None
    cut_weight_ratio: float | None = None
    weight_balance: float | None = None

    def as_dict(self) -> dict:
        """The fields by name, as the manifest stores them; those by weights are left out without weights."""
        by_weights = ("cut_weight", "cut_weight_ratio", "weight_balance")
        return {key: value for key, value in super().as_dict().items() if value is not None or key not in by_weights}


@dataclass(frozen=True, kw_only=True)
class VertexCutQuality(CutQuality):
    """Quality of a vertex cut, see :class:`CutQuality`.

    Attributes
    ----------
    mirrors : int
        Copies of nodes that parts hold and do not own, summed over parts.
    """

    mirrors: int


def vertex_cut_quality(owned, mirrors, returned, edges, shares=None, train=None) -> VertexCutQuality:
    """Return the quality of a vertex cut.

    Parameters
    ----------
    owned, mirrors, returned, edges : sequence of int, (P,)
        Masters, mirrors, mirrors with in-edges, and edges of each part.
    shares : sequence of float, (P,), optional
        Share of the whole load that each part was to take; equal by default.
    train : array of int, (P, splits), optional
        Training nodes of each part and split.
    """
    return VertexCutQuality(
        mirrors=int(np.sum(mirrors)),
        volume=int(np.sum(mirrors)) + int(np.sum(returned)),
        **_of_both_cuts(owned, mirrors, edges, shares, train),
    )


def edge_cut_quality(owned, halo, edges, cut_edges, shares=None, train=None) -> EdgeCutQuality:
    """Return the quality of an edge cut.

    Parameters
    ----------
    owned, halo, edges, cut_edges : sequence of int, (P,)
        Owned nodes, halo rows, edges, and edges with a source in another part, of each part.
    shares, train
        See :func:`vertex_cut_quality`.
    """
    return EdgeCutQuality(
        cut_ratio=int(np.sum(cut_edges)) / max(int(np.sum(edges)), 1),
        volume=int(np.sum(halo)),
        halo=int(np.sum(halo)),
        **_of_both_cuts(owned, halo, edges, shares, train),
    )


def _of_both_cuts(owned, copies, edges, shares, train) -> dict[str, float | None]:
    """The fields that both cuts have, by name."""
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
    """The largest count over its share of the sum."""
    return float((counts / shares).max()) / int(counts.sum()) if counts.sum() else 1.0
