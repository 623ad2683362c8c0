"""How good a partition is: ratios and sums of counts per part, for people and for reports."""

from __future__ import annotations

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


def edge_cut_quality(owned, halo, edges, cut_edges, shares=None, train=None) -> dict:
    """The quality of an edge cut, as docs/format.md describes it.

    All arguments have one entry for each part, (P,): owned nodes, halo rows, edges, edges with a source in another
    part, the share of the whole load that the part was to take, equal by default, and, (P, splits), training nodes.
    """
    return {
        "volume": int(np.sum(halo)),
        **_of_both_cuts(owned, halo, edges, shares, train),
        "cut_ratio": int(np.sum(cut_edges)) / max(int(np.sum(edges)), 1),
        "halo": int(np.sum(halo)),
    }


def vertex_cut_quality(owned, mirrors, returned, edges, shares=None, train=None) -> dict:
    """The same of a vertex cut; ``returned`` are mirrors with in-edges."""
    return {
        "volume": int(np.sum(mirrors)) + int(np.sum(returned)),
        **_of_both_cuts(owned, mirrors, edges, shares, train),
        "mirrors": int(np.sum(mirrors)),
    }


def _of_both_cuts(owned, copies, edges, shares, train) -> dict[str, float | None]:
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
