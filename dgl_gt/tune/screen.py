"""What a person watches while a search goes on: the best trials, what runs now, and the time that is left."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import cast

from dgl_gt.partition.console import table
from dgl_gt.partition.errors import printable
from dgl_gt.run_files.search_files import TrialLine, in_words, ranked
from dgl_gt.train.metric_kinds import MetricKind

_SHOWN, _PAUSE_S = 6, 1.0


def clock(seconds: float) -> str:
    """Seconds as 1:02:03 or 2:03."""
    hours, rest = divmod(max(0, int(seconds)), 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"


class Screen:
    """The table on stderr: drawn anew every second on a terminal; elsewhere a line for each trial that has ended."""

    def __init__(self, metric: MetricKind):
        self._metric, self._lines, self._next_s = metric, 0, 0.0
        self._on_terminal = sys.stderr.isatty()

    def ended(self, trial: TrialLine, left_s: float) -> None:
        """Tell of a trial that has ended."""
        if not self._on_terminal:
            value = "-" if trial.value is None else self._metric.text(trial.value)
            done = trial.curve[-1][0] if trial.curve else 0
            what = (
                f"{trial.state} after {done} of {trial.epochs} epochs, {trial.seconds:.1f} s" if done else trial.state
            )
            why = f": {trial.why}" if trial.why else f"; {in_words(trial.settings)}"
            self._print(f"trial {trial.number}  {trial.model}  {value}  {what}{why}  ({clock(left_s)} left)")

    def say(self, text: str) -> None:
        """Say what happens now."""
        self._clear()
        self._print(text)

    def draw(self, trials: Sequence[TrialLine], running: Sequence[tuple[str, int, int, float | None]], left_s: float):
        """Draw the best trials, and what runs: its title, epoch, epochs and best metric so far."""
        if not self._on_terminal or time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + _PAUSE_S
        best = ranked(trials, self._metric.lower_is_better)[:_SHOWN]
        rows: list[tuple] = [
            (
                each.number,
                each.model,
                self._metric.text(cast(float, each.value)),
                each.epochs,
                f"{each.seconds:.0f} s",
                in_words(each.settings),
            )
            for each in best
        ]
        rows += [
            ("now", title, "-" if value is None else self._metric.text(value), f"{epoch}/{epochs or '?'}", "", "")
            for title, epoch, epochs, value in running
        ]
        head = f"{len(trials)} trials have ended; {clock(left_s)} left"
        text = table(
            ["trial", "model", f"validation {self._metric.title}", "epochs", "time", "settings"], rows, (0, 1, 5)
        )
        width = os.get_terminal_size(sys.stderr.fileno()).columns or 100
        lines = [printable(each)[: width - 1] for each in [head, *text.split("\n")]]
        self._clear()
        print("\n".join(lines), file=sys.stderr, flush=True)
        self._lines = len(lines)

    def _clear(self) -> None:
        if self._lines:
            print(f"\x1b[{self._lines}A\x1b[J", end="", file=sys.stderr)
        self._lines = 0

    def _print(self, text: str) -> None:
        print(f"dgl-gt: {printable(text)}", file=sys.stderr, flush=True)
