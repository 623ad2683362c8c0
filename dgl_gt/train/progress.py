"""The progress of a run on stderr."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tqdm import tqdm

from .run_state import TrainHistory

_PLAIN_LINES = 10
_SCREEN = {"ncols": 100, "nrows": 20}  # of a terminal that does not know its size


class Progress:
    """The progress of a run on stderr: a bar on a terminal, and ten lines elsewhere.

    Use it as a context. :meth:`start` and :meth:`after_epoch` are callbacks of a run, see
    :func:`dgl_gt.train.train_and_save`.
    """

    def __init__(self, epochs: int):
        self._epochs, self._first, self._best = epochs, 0, ""
        self._best_validation, self._started_s = -math.inf, time.monotonic()
        self._on_terminal = sys.stderr.isatty()

    def __enter__(self) -> Progress:
        has_width = self._on_terminal and os.get_terminal_size(sys.stderr.fileno()).columns > 0
        self._bar = tqdm(
            total=self._epochs,
            disable=not self._on_terminal,
            dynamic_ncols=has_width,
            **({} if has_width else _SCREEN),
            bar_format="epoch {n_fmt}/{total_fmt} |{bar:8}| {desc}",
        )
        return self

    def __exit__(self, *_) -> None:
        self._bar.close()

    def start(self, history: TrainHistory) -> None:
        """Begin where a run goes on: its earlier epochs say nothing about the time left."""
        self._first, self._started_s = len(history.losses), time.monotonic()
        if history.best_epoch >= 0:
            self._note(history.best_epoch, history.validation)

    def after_epoch(self, epoch: int, loss: float, validation: float, seconds: float) -> None:
        """Show an epoch, counted from 0; the validation metric is NaN before the first evaluation."""
        if validation > self._best_validation:
            self._note(epoch, validation)
        done = epoch + 1
        left_s = (time.monotonic() - self._started_s) / (done - self._first) * (self._epochs - done)
        left = f"{tqdm.format_interval(left_s)} left"
        text = f"loss {loss:.4f}  validation {validation:.4f}{self._best}  {seconds:.2f} s per step"
        self._bar.set_description_str(f"{left}  {text}", refresh=False)  # a narrow terminal shows the beginning
        self._bar.update(done - self._bar.n)
        if not self._on_terminal and done % max(1, self._epochs // _PLAIN_LINES) == 0:
            print(f"epoch {done}/{self._epochs}  {text}  {left}", file=sys.stderr, flush=True)

    def _note(self, epoch: int, validation: float) -> None:
        self._best_validation, self._best = validation, f"  best {validation:.4f} (epoch {epoch + 1})"


@contextmanager
def show_progress(epochs: int, is_shown: bool) -> Iterator[Progress | None]:
    """Give the :class:`Progress` of a run, or None where another rank shows it."""
    if not is_shown:
        yield None
        return
    with Progress(epochs) as progress:
        yield progress
