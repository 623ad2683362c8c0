"""The counts of a part on which the sizes in a training step depend."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .figures import Figures


class Count(NamedTuple):
    """One count of each part of a cut.

    Attributes
    ----------
    of : str
        ``one``, the constant 1; ``owned``, ``edges``, ``cut_edges``, ``returned``, ``returns`` or ``returned_edges``, as in
        :class:`Figures`; ``copies``, ``sent`` or ``sent_edges`` of a hop; ``nodes`` or ``all_edges`` of the whole graph; or
        ``selected``, the owned rows that a mask selects.
    hop : int or None
        Counted from 0. ``edges`` have one, too.
    mask : str or None
        Name of a mask among the node data. A cut without it counts all owned rows.
    ranks_per_host : int or None
        Where it is M, the parts of each host of M ranks are counted together: ``owned``, ``edges``, and those of
        :attr:`Figures.hosts`.
    """

    of: str
    hop: int | None = None
    mask: str | None = None
    ranks_per_host: int | None = None

    def of_parts(self, figures: Figures) -> np.ndarray:
        """The count of each part, (P,)."""
        if self.ranks_per_host is not None:
            return self._of_hosts(figures).repeat(self.ranks_per_host)
        if self.hop is not None:
            return getattr(figures, f"{self.of}_by_hop")[:, self.hop]
        match self.of:
            case "one":
                return np.ones(figures.parts)
            case "nodes":
                return np.full(figures.parts, figures.nodes)
            case "all_edges":
                return np.full(figures.parts, figures.edges.sum())
            case "selected":
                return figures.masked.get(self.mask, figures.owned)
            case _:
                return getattr(figures, self.of)

    def _of_hosts(self, figures: Figures) -> np.ndarray:
        host = figures.hosts[self.ranks_per_host]
        match self.of:
            case "copies":
                return host.received_rows.sum(axis=1)
            case "sent":
                return host.received_rows.sum(axis=0)
            case "cut_edges":
                return host.cut_edges
            case _:
                return getattr(figures, self.of).reshape(-1, self.ranks_per_host).sum(axis=1)


ONE = Count("one")


def counts_of_parts(figures: Figures, counts: tuple[Count, ...]) -> np.ndarray:
    """Counts of each part, float64, (P, counts)."""
    return np.stack([each.of_parts(figures) for each in counts], axis=1).astype(float)
