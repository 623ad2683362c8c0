"""Names of graphs with options: ``prefix:name?key=value&...``."""

from __future__ import annotations

from collections.abc import Callable

from dgl_gt.partition.errors import InputError


def split_source_name(source: str, allowed: dict[str, Callable]) -> tuple[str, dict]:
    """Split ``prefix:name?key=value&...`` into the name and its options.

    ``allowed`` has for each option the function that converts its text and raises ValueError for a wrong value.
    """
    name, _, query = source.partition(":")[2].partition("?")
    options: dict = {}
    for pair in filter(None, query.split("&")):  # not a URL's query: "+" and "%" stand for themselves
        key, _, text = pair.partition("=")
        if key not in allowed:
            raise InputError(f"{source!r}: unknown option {key!r}; allowed are {', '.join(allowed)}")
        if key in options:
            raise InputError(f"{source!r}: option {key!r} is given twice; give it once")
        try:
            options[key] = allowed[key](text)
        except ValueError:
            kind = {int: "a whole number", float: "a number"}.get(allowed[key], "a non-empty text")
            raise InputError(f"{source!r}: {key}={text!r} is wrong; it must be {kind}") from None
    return name, options


def nonempty_text(text: str) -> str:
    """Return the text; raise ValueError if it is empty."""
    if not text:
        raise ValueError("empty")
    return text
