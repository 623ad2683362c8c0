"""Numbers as text for people: bytes with a unit (both ways), counts with a noun."""

import math

from dgl_gt.partition.errors import InputError


def format_bytes(count_bytes: float) -> str:
    """Format a number of bytes: ``1.5 MiB``."""
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    power = min(len(units) - 1, max(0, int(math.log2(max(count_bytes, 1)) // 10)))
    return f"{count_bytes / 1024**power:.{1 if power else 0}f} {units[power]}"


def format_count(number: int, noun: str) -> str:
    """Format a number with its noun: ``1 part``, ``2 parts``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def parse_size(text: str) -> int:
    """Return the bytes that ``4GiB``, ``500MB`` or a plain number stands for; raise :class:`InputError` for others."""
    units = {"": 1, "b": 1}
    for power, letter in enumerate("kmgt", start=1):
        units |= {letter: 1024**power, f"{letter}ib": 1024**power, f"{letter}b": 1000**power}
    number = text.strip().lower().rstrip("bikmgt")
    try:
        value = float(number) * units[text.strip().lower()[len(number) :].strip()]
    except (ValueError, KeyError):
        value = 0.0
    if not 1 <= value < 2**63:
        raise InputError(f"{text!r} is not an amount of memory; write it as 4GiB, 500MB or a number of bytes")
    return int(value)
