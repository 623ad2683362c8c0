"""How often a checkpoint is written."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dgl_gt.partition.errors import InputError

CHECKPOINT_EVERY = "10m"  # where nothing else is asked for
_SECONDS = {"s": 1, "m": 60, "h": 3600}


@dataclass(frozen=True)
class Interval:
    """Epochs or seconds from one checkpoint to the next; one of them is None."""

    epochs: int | None = None
    seconds: float | None = None

    @classmethod
    def parse(cls, text: str | int) -> Interval:
        """An interval from a number of epochs, or a text such as "50", "30s", "10m" or "2h".

        Raises
        ------
        InputError
            The text is not such an interval.
        """
        found = re.fullmatch(r"([1-9][0-9]{0,8})([smh]?)", str(text))
        if not found:
            raise InputError(
                f"checkpoint_every is {text!r}; it must be a number of epochs such as 50, or a time such as 30s, 10m or 2h"
            )
        number = int(found[1])
        return cls(seconds=number * _SECONDS[found[2]]) if found[2] else cls(epochs=number)
