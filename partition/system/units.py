"""Numbers as text for people: bytes with a unit, counts with a noun."""

import math


def size(count_bytes: float) -> str:
    """Format a number of bytes: ``1.5 MiB``."""
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    power = min(len(units) - 1, max(0, int(math.log2(max(count_bytes, 1)) // 10)))
    return f"{count_bytes / 1024**power:.{1 if power else 0}f} {units[power]}"


def counted(number: int, noun: str) -> str:
    """Format a number with its noun: ``1 part``, ``2 parts``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
