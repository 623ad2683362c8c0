"""What a training step does on any part: sizes that depend linearly on the counts of the part. Made by dgl_gt.plan."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from dgl_gt.partition.figures.figures import Figures
from dgl_gt.partition.figures.strategies import Count, counts_of_parts


class Event(NamedTuple):
    """One event of a step.

    Attributes
    ----------
    kind : str
        ``product``: a matrix product. Sizes: its operations, and three dimensions.
        ``rows``: any other operation. Size: what it reads and writes (bytes).
        ``edges``: passes over edges. Sizes: edges, destinations, and sources.
        ``begin``, ``wait``: the start of an exchange, and where its result is needed. Sizes of the start: what the rank
        sends, and what it receives (bytes).
        ``sum``: a sum over ranks. Size: the summed tensor (bytes), or that of a sum that moves as many bytes.
        ``begin_sum``, ``wait_sum``: the start of a sum that runs at the same time as all else, with the same size, and where its
        result is needed.
        ``memory``: a tensor that is made, or freed. Size: its storage, below 0 if freed (bytes).
    what : tuple
        What is the same on every part. For ``product``: the operation's name, and the size of a number (bytes). For
        ``rows``: the operation's name. For ``edges``: heads, the width of a head, the size of a number (bytes), and the
        number of passes. For an exchange with one other rank only: how many ranks after the sender the receiver is. For
        one ``within`` hosts of M ranks or ``between`` them: this word, and M. Empty for all others.
    layer : str
        The layer of the model that it belongs to, see :class:`dgl_gt.plan.watch.LayerTracker`; empty for memory.
    """

    kind: str
    what: tuple = ()
    layer: str = ""


@dataclass(frozen=True, eq=False)
class Trace:
    """The events of one training step in order, with sizes for any part of a cut."""

    counts: tuple[Count, ...]  # of a part, on which sizes depend
    events: tuple[Event, ...]
    event_of: np.ndarray  # number of the event to which each size belongs, int64, (S,)
    sizes: np.ndarray  # each size per unit of each count, float64, (counts, S)
    kept_bytes: np.ndarray  # of what outlives a step: shard, parameters, optimiser; per unit of each count, (counts,)

    @cached_property
    def placed_events(self) -> list[tuple[Event, int]]:
        """The events, and where the first size of each is among the sizes."""
        return list(zip(self.events, np.searchsorted(self.event_of, np.arange(len(self.events))).tolist()))

    def positions(self, kind: str) -> np.ndarray:
        """Where the first size of each event of a kind is among the sizes."""
        return np.array([start for event, start in self.placed_events if event.kind == kind], int)

    def sizes_of(self, figures: Figures) -> np.ndarray:
        """Each size on each part, float64, (P, S)."""
        return counts_of_parts(figures, self.counts) @ self.sizes

    def does_the_same(self, other: Trace, figures: Figures) -> bool:
        """Whether another trace has the same events, with the same sizes on the parts of a cut, whoever the peers are."""
        events = [
            [each._replace(what=()) if each.kind == "begin" else each for each in it.events] for it in (self, other)
        ]
        return events[0] == events[1] and np.allclose(self.sizes_of(figures), other.sizes_of(figures), atol=0.5)

    def sent_bytes(self, figures: Figures) -> int:
        """Bytes that all ranks together send in the exchanges of a step."""
        return round(float(self.sizes_of(figures)[:, self.positions("begin")].sum()))

    def sent_by_layer(self, figures: Figures) -> dict[str, int]:
        """Bytes that all ranks together send in exchanges, by the layer that exchanges."""
        sizes = self.sizes_of(figures).sum(axis=0)
        found: dict[str, float] = defaultdict(float)
        for event, start in self.placed_events:
            if event.kind == "begin":
                found[event.layer] += float(sizes[start])
        return {layer: round(sent) for layer, sent in found.items()}

    def kept(self, figures: Figures) -> np.ndarray:
        """Bytes of the tensors that outlive a step, of each rank, int64, (P,)."""
        return np.rint(counts_of_parts(figures, self.counts) @ self.kept_bytes).astype(np.int64)

    def peak_bytes(self, figures: Figures) -> np.ndarray:
        """Bytes of the tensors that are alive at the peak of a step, of each rank, int64, (P,)."""
        made = self.sizes_of(figures)[:, self.positions("memory")]
        return self.kept(figures) + np.rint(made.cumsum(axis=1).max(axis=1, initial=0)).astype(np.int64)

    def peak_of_largest_rank(self, figures: Figures) -> tuple[int, np.ndarray]:
        """The rank that needs most, and what is alive at its peak per unit of each count, float64 (bytes), (counts,)."""
        rank, memory = int(self.peak_bytes(figures).argmax()), self.positions("memory")
        alive = np.concatenate([[0.0], self.sizes_of(figures)[rank, memory].cumsum()])
        until = int(alive.argmax())  # this many tensors have been made or freed by then
        return rank, self.kept_bytes + self.sizes[:, memory[:until]].sum(axis=1)
