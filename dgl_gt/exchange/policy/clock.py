"""When rows of an adaptive staleness are sent: the less they change, the longer ranks wait."""

from __future__ import annotations

import math

MAX_STEPS = 64
_CHANGE = 0.5  # relative change of rows below which k is doubled
_SPIKE = 1.25  # ratio of the loss to its recent mean above which k is halved
_MEMORY = 0.9  # weight of the mean so far in the running mean of the loss


class Clock:
    """Says which steps send rows; all ranks have the same.

    After a transmission, k is doubled if on every rank and in every exchange the rows differ from those that were sent
    before by less than half of their own norm, ``|h - h_stale| < 0.5 |h|``. It is halved where the loss jumps. This
    follows the adaptive period of DIGEST (Chai et al. 2022, arXiv 2206.00057), with the change of rows instead of a
    schedule.

    Attributes
    ----------
    every : int
        Steps from one transmission to the next, k, from 1 to 64.
    """

    def __init__(self):
        self.every, self._left, self._change, self._mean_loss = 1, 0, None, None

    @property
    def is_due(self) -> bool:
        """Whether the step that runs, or comes next, sends rows."""
        return self._left == 0

    def note_change(self, change: float) -> None:
        """Note how much the rows of an exchange differ from those that were sent before, |h - h_stale| / |h|."""
        self._change = change if self._change is None else max(self._change, change)

    def end_step(self, largest) -> None:
        """Count a step; ``largest`` returns the largest value of all ranks, a collective, in steps that sent rows."""
        if self.is_due:
            change = largest(-1.0 if self._change is None else self._change)
            if 0 <= change < _CHANGE:
                self.every = min(2 * self.every, MAX_STEPS)
            self._left, self._change = self.every, None
        self._left -= 1

    def note_loss(self, loss: float) -> None:
        """Halve k, and send rows in the next step, where the loss is well above its recent mean."""
        if self._mean_loss is None or not math.isfinite(self._mean_loss):
            self._mean_loss = loss
        if loss - self._mean_loss > (_SPIKE - 1) * abs(self._mean_loss):
            self.every, self._left = max(1, self.every // 2), 0
        self._mean_loss = _MEMORY * self._mean_loss + (1 - _MEMORY) * loss
