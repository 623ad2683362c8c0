"""The trace of a step whose layers run piece by piece, with rows in files: its sizes, memory and files on any cut."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from dgl_gt.partition.figures.figures import Figures
from dgl_gt.partition.figures.strategies import counts_of_parts

from .trace import Trace


@dataclass(frozen=True, eq=False)
class StreamedTrace(Trace):
    """A trace of a part that is one piece. What its piece does depends on the counts of a piece, all else on those of a rank.

    So the same trace tells of ranks that have any number of pieces: they are ``pieces`` of the figures.
    """

    piece_bytes: np.ndarray  # what each piece keeps, beside ``kept_bytes``, per unit of each count, (counts,)
    space_bytes: np.ndarray  # of all files at once, per unit of each count of a rank, (counts,)

    @cached_property
    def _spans(self) -> list[tuple[bool, np.ndarray]]:
        """Whether a piece runs, and where the sizes of the memory events are meanwhile, in the order of the step."""
        spans: list[tuple[bool, list[int]]] = [(False, [])]
        for event, start in self.placed_events:
            if event.kind in ("piece", "piece_end"):
                spans.append((event.kind == "piece", []))
            elif event.kind == "memory":
                spans[-1][1].append(start)
        return [(in_piece, np.array(starts, int)) for in_piece, starts in spans]

    @cached_property
    def _in_piece(self) -> np.ndarray:
        """Whether a piece runs at each size, bool, (S,)."""
        changes = np.array([{"piece": 1, "piece_end": -1}.get(each.kind, 0) for each in self.events])
        return changes.cumsum()[self.event_of] > 0

    def _of_pieces(self, figures: Figures) -> list[np.ndarray]:
        """The counts of the pieces of each rank, (pieces, counts)."""
        assert figures.pieces is not None and figures.bounds is not None
        counts = counts_of_parts(figures.pieces, self.counts)
        return [counts[begin:end] for begin, end in pairwise(figures.bounds)]

    def runs(self, figures: Figures, start: int) -> np.ndarray | int:
        assert figures.bounds is not None
        return np.diff(figures.bounds) if self._in_piece[start] else 1

    def sizes_of(self, figures: Figures) -> np.ndarray:
        """Each size on each rank, added up over its pieces, float64, (P, S)."""
        of_pieces = np.array([each.sum(axis=0) for each in self._of_pieces(figures)])
        of_ranks = counts_of_parts(figures, self.counts)
        return np.where(self._in_piece, of_pieces @ self.sizes, of_ranks @ self.sizes)

    def kept(self, figures: Figures) -> np.ndarray:
        of_pieces = [float((each @ self.piece_bytes).sum()) for each in self._of_pieces(figures)]
        return super().kept(figures) + np.rint(of_pieces).astype(np.int64)

    def peak_bytes(self, figures: Figures) -> np.ndarray:
        of_ranks = counts_of_parts(figures, self.counts)
        peaks = [self._peak(*each) for each in zip(of_ranks, self._of_pieces(figures))]
        return self.kept(figures) + np.rint(peaks).astype(np.int64)

    def _peak(self, of_rank: np.ndarray, of_pieces: np.ndarray) -> float:
        """Bytes that the step of one rank makes and has not freed, at its peak."""
        alive = peak = 0.0
        for in_piece, starts in self._spans:
            made = (of_pieces if in_piece else of_rank[None]) @ self.sizes[:, starts]  # piece after piece
            if made.size:
                running = alive + made.ravel().cumsum()
                alive, peak = float(running[-1]), max(peak, float(running.max()))
        return peak

    def file_bytes(self, figures: Figures) -> np.ndarray:
        return np.rint(counts_of_parts(figures, self.counts) @ self.space_bytes).astype(np.int64)

    def copied_bytes(self, figures: Figures) -> np.ndarray:
        """Bytes of rows that each rank copies from files, and to files, in a step, int64, (P, 2)."""
        starts = self.positions("file")[:, None] + np.arange(2)
        return np.rint(self.sizes_of(figures)[:, starts].sum(axis=1)).astype(np.int64)
