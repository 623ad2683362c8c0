"""Numbers of the report as text for people."""

from __future__ import annotations

from dgl_gt.partition.system.units import format_bytes, format_count

SPACE = "\N{NO-BREAK SPACE}"


def printable(value):
    """Return a text without control characters and lone surrogates; return any other value as it is."""
    if not isinstance(value, str) or hasattr(value, "__html__"):  # markup of our own
        return value
    return "".join(each if each.isprintable() or each == SPACE else "\N{REPLACEMENT CHARACTER}" for each in value)


def percent(share: float) -> str:
    """Return a share as 5.7 %, 12.5 % or 31 %."""
    number = 100 * share
    text = f"{number:,.0f}" if number >= 20 else f"{number:.1f}".removesuffix(".0")
    return ("less than 0.1" if 0 < number < 0.05 else text) + f"{SPACE}%"


def figure(number: float, key: str) -> str:
    """Return a quality figure as text."""
    if key.endswith("_ratio"):
        return percent(number)
    if key == "cut_weight":
        return f"{number:,.10g}"
    return f"{number:,}" if isinstance(number, int) else f"{number:,.2f}"


def short(number: int) -> str:
    """Return a count in at most five characters: 9,999, 10k, 1.2M."""
    for unit, letter in ((10**9, "G"), (10**6, "M")):
        if number >= unit:
            return f"{number / unit:.{1 if number < 10 * unit else 0}f}{letter}"
    return f"{number // 1000}k" if number >= 10_000 else f"{number:,}"


def seconds(number: float) -> str:
    """Return a time with three digits, without its unit."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def bytes_text(number: float) -> str:
    """Return a number of bytes as 1.5 MiB, without a line break."""
    return format_bytes(number).replace(" ", SPACE)


def count(number: int, noun: str) -> str:
    """Return 1 part, 2 parts, without a line break."""
    return format_count(number, noun).replace(" ", SPACE)


def degrees(entry: dict) -> str:
    """Return the degrees of an entry of ``by_degree`` as 4–7."""
    first, last = entry["degrees"]
    return f"{first:,}" if first == last else f"{first:,}–{last:,}"
