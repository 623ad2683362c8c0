"""What the search asks of the processes that try settings, and what they answer."""

from __future__ import annotations

from typing import Any

import msgspec

RUNGS = (1 / 9, 1 / 3)  # shares of the epochs after which hopeless runs end
FEWEST_EPOCHS = 12
GRID = 1.25  # a run has as many epochs as a power of it, so that small differences of time change nothing


class Job(msgspec.Struct, omit_defaults=True):
    """A run that the search asks for.

    Attributes
    ----------
    number : int
        By which the search knows it.
    settings : dict
        By their names, as ``TrainConfig.changed`` takes them, and ``local_share``.
    epochs : int
        Most epochs.
    longest_s, usual_s : float
        The most seconds that a run may take to have ``FEWEST_EPOCHS``, and those of a run with more, from which their number
        follows; 0 for as many as ``epochs``.
    bars : tuple of float or None
        For each of ``RUNGS`` the validation metric that a run must reach there to go on.
    deadline_s : float
        By ``time.monotonic``, when the run ends whatever it has reached.
    out : str
        Directory for the model; empty to keep none.
    title : str
        What a person reads of it.
    """

    number: int
    settings: dict[str, Any]
    epochs: int
    deadline_s: float
    longest_s: float = 0.0
    usual_s: float = 0.0
    bars: tuple[float | None, ...] = ()
    out: str = ""
    title: str = ""


class Outcome(msgspec.Struct, omit_defaults=True):
    """What became of a run; ``state`` is complete, stopped (at a rung), cut (by the deadline) or failed."""

    state: str
    epochs: int = 0
    seconds: float = 0.0
    epoch_s: float = 0.0  # measured before the run, with its share of the evaluations
    value: float | None = None
    rungs: list[float] = []
    curve: list[tuple[int, float]] = []
    why: str = ""


class Hello(msgspec.Struct):
    """What the data say, once the shards are loaded."""

    metric: str
    lower_is_better: bool
    splits: int
    rows: int  # of validation; 0 where the task does not count them
    device: str


def on_grid(epochs: float) -> int:
    """The largest power of 1.25 that is at most as large, as a whole number; 0 below 1."""
    number, best = 1.0, 0
    while number <= epochs:
        best, number = int(number), number * GRID
    return best
