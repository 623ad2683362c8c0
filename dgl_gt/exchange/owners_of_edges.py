"""A vertex cut read as an edge cut: each edge goes to the rank that owns its destination, the row's master."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .shard import Reader


@dataclass(frozen=True)
class OwnedEdges:
    """The in-edges of a range of nodes, row by row; nodes are numbered in the order of parts.

    Attributes
    ----------
    degrees : Tensor, int64, (N_owned,)
    sources : Tensor, int64, (E_owned,)
    chosen : list of Tensor
        Of the edges of each part of the vertex cut, those that are here.
    order : Tensor, int64, (E_owned,)
        The position of each edge among those that were chosen, one part after the other.
    sent : list of Tensor
        The rows of the range that edges of each rank read, in ascending order; none for the rank itself.
    """

    degrees: Tensor
    sources: Tensor
    chosen: list[Tensor]
    order: Tensor
    sent: list[Tensor]

    def of_edges(self, columns: list[Tensor]) -> Tensor:
        """Rows of edge data of all parts, in the order of the edges here."""
        return torch.cat([column[some] for column, some in zip(columns, self.chosen)])[self.order]


def owned_edges(reader: Reader, places: Tensor, ptr: list[int], rank: int) -> OwnedEdges:
    """The in-edges of the nodes from ``ptr[rank]`` on, from all parts of a vertex cut; ``places`` are those of the user's ids."""
    first, last, ends = ptr[rank], ptr[rank + 1], torch.tensor(ptr[1:])
    size = max(1, last - first)
    to, of, chosen, read = [], [], [], []
    for part in range(reader.parts):
        arrays = reader.structure(part, "indptr", "indices", "node_ids")
        held = places[arrays["node_ids"]]
        destinations = held.repeat_interleave(arrays["indptr"].diff())
        sources = held[arrays["indices"].long()]
        is_here = (destinations >= first) & (destinations < last)
        is_read = ~is_here & (sources >= first) & (sources < last)
        chosen.append(is_here.nonzero().squeeze(1))
        to.append(destinations[is_here] - first)
        of.append(sources[is_here])
        readers = torch.searchsorted(ends, destinations[is_read], right=True)
        read.append((readers * size + sources[is_read] - first).unique())
    rows, order = torch.cat(to).sort(stable=True)
    pairs = torch.cat(read).unique()
    bounds = torch.searchsorted(pairs, torch.arange(len(ptr)) * size).diff().tolist()
    return OwnedEdges(
        degrees=torch.bincount(rows, minlength=last - first),
        sources=torch.cat(of)[order],
        chosen=chosen,
        order=order,
        sent=[each % size for each in pairs.split(bounds)],
    )
