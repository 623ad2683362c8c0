"""Names of graphs with options: ``prefix:name?key=value&...``."""

from __future__ import annotations

import urllib.parse
from collections.abc import Callable

from partition.errors import InputError


def split_source_name(source: str, allowed: dict[str, Callable]) -> tuple[str, dict]:
    """Split ``prefix:name?key=value&...`` into the name and its options.

    Parameters
    ----------
    source : str
    allowed : dict of str to callable
        Allowed options, each with the function that converts its text; it raises ValueError for a wrong value.

    Returns
    -------
    (str, dict)
        The name between the colon and the question mark, and the converted options.

    Raises
    ------
    InputError
        An option is unknown, repeated or wrong.
    """
    name, _, query = source.partition(":")[2].partition("?")
    options: dict = {}
    for key, text in urllib.parse.parse_qsl(query, keep_blank_values=True):
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
