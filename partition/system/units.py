"""Numbers as people read them: bytes with a unit, counts with a noun."""

import math


def size(count_bytes: float) -> str:
    """A number of bytes for people: 1.5 MiB."""
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    power = min(len(units) - 1, max(0, int(math.log2(max(count_bytes, 1)) // 10)))
    return f"{count_bytes / 1024**power:.{1 if power else 0}f} {units[power]}"


def counted(number: int, noun: str) -> str:
    """A number with its noun: 1 part, 2 parts."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
