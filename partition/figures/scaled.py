"""The figures of a graph that is not there, from those of a sample of it, or of a graph of its kind."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dgl_gt.partition.errors import InputError

from .figures import Figures, HostCounts

_MOST_OFF = 0.1  # relative, of the mean degrees: with another degree, copies of rows do not grow as rows do

_OF_ROWS = ("owned", "copies_by_hop", "sent_by_hop", "received_rows", "returned", "returns")
_OF_EDGES = ("edges_by_hop", "cut_edges", "sent_edges_by_hop", "returned_edges")


def scaled(figures: Figures, nodes: int, edges: int) -> Figures:
    """Return the figures of a graph of this many nodes and edges, cut into as many parts; counts grow in proportion.

    So each part has the share of nodes, copies and edges that it has in the sample. Copies of rows then grow as rows do,
    which holds where the sample has about the same mean degree, and overrates them where large graphs have communities.

    Raises
    ------
    InputError
        The mean degree differs by more than 10 %, or the graph is typed.
    """
    if figures.schema is not None:
        raise InputError("figures_of (--figures-of) is given, and the sample is a typed graph; leave one of them out")
    of_nodes, of_edges = nodes / figures.nodes, edges / max(int(figures.edges.sum()), 1)
    if not 1 - _MOST_OFF <= of_edges / of_nodes <= 1 + _MOST_OFF:
        raise InputError(
            f"figures_of (--figures-of) is {nodes},{edges}, a mean degree of {edges / nodes:.3g}, and the sample has "
            f"{figures.edges.sum() / figures.nodes:.3g}; give a sample of the same mean degree"
        )

    def times(counts: np.ndarray, factor: float) -> np.ndarray:
        whole = np.rint(np.cumsum(counts, axis=0) * factor).astype(np.int64)  # so that the sum over parts is right
        return np.diff(whole, axis=0, prepend=0)

    def rows(counts: np.ndarray) -> np.ndarray:
        return times(counts, of_nodes)

    def of_edge(counts: np.ndarray) -> np.ndarray:
        return times(counts, of_edges)

    return replace(
        figures,
        near_edges=None if figures.near_edges is None else of_edge(figures.near_edges),
        hosts={
            size: HostCounts(rows(each.received_rows), of_edge(each.cut_edges)) for size, each in figures.hosts.items()
        },
        masked={name: rows(each) for name, each in figures.masked.items()},
        **{name: rows(getattr(figures, name)) for name in _OF_ROWS},
        **{name: of_edge(getattr(figures, name)) for name in _OF_EDGES},
    )
