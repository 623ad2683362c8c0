"""Checks of JSON values, from which :mod:`.manifest` builds a table of what each field must be.

A check is a function of a value and of the value's place in the file. It raises :class:`InputError` where the value
does not fit. A schema library would not be shorter here: most lengths and keys depend on other fields (parts, hops).
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Callable

from dgl_gt.partition.errors import InputError

Check = Callable[[object, str], None]
LARGEST = 2**62  # the sum of two such numbers fits into int64


def misfit(value, where: str, allowed: str) -> InputError:
    """Return the error to raise for a value that does not fit."""
    return InputError(f"{where} is {reprlib.repr(value)}, but must be {allowed}")


def whole(least: int = 0, most: int = LARGEST) -> Check:
    """Check for an integer in a range, which is not a bool."""

    def check(value, where: str) -> None:
        if type(value) is not int or not least <= value <= most:
            raise misfit(value, where, f"a whole number from {least} to {most}")

    return check


def number(least: float = 0.0, most: float = 1e300) -> Check:
    """Check for a number in a range, which is not NaN."""

    def check(value, where: str) -> None:
        is_number = type(value) is float or (type(value) is int and abs(value) <= LARGEST)
        if not is_number or not least <= value <= most:
            raise misfit(value, where, f"a number from {least:g} to {most:g}")

    return check


def flag() -> Check:
    """Check for true or false."""

    def check(value, where: str) -> None:
        if type(value) is not bool:
            raise misfit(value, where, "true or false")

    return check


def text(pattern: str = r"(?s).*") -> Check:
    """Check for a string that matches a regular expression."""

    def check(value, where: str) -> None:
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            raise misfit(value, where, "text" if pattern == r"(?s).*" else f"text like {pattern}")

    return check


def one_of(*allowed) -> Check:
    """Check for one of a few strings."""

    def check(value, where: str) -> None:
        if not isinstance(value, str) or value not in allowed:
            raise misfit(value, where, " or ".join(map(repr, allowed)))

    return check


def none_or(other: Check) -> Check:
    """Check for null or a value that passes another check."""
    return lambda value, where: None if value is None else other(value, where)


def all_of(*checks: Check) -> Check:
    """Check for a value that passes several checks."""

    def check(value, where: str) -> None:
        for each in checks:
            each(value, where)

    return check


def any_of(*others: Check) -> Check:
    """Check for a value that passes one of several checks; the last of them gives the message."""

    def check(value, where: str) -> None:
        for other in others[:-1]:
            try:
                return other(value, where)
            except InputError:
                pass
        return others[-1](value, where)

    return check


def list_of(entry: Check, length: int | None = None) -> Check:
    """Check for a list of entries of one kind; ``length``, where given, is its length."""

    def check(value, where: str) -> None:
        if not isinstance(value, list) or length not in (None, len(value)):
            raise misfit(value, where, "a list" + ("" if length is None else f" of {length}"))
        for index, each in enumerate(value):
            entry(each, f"{where}[{index}]")

    return check


def dict_of(entry: Check, keys: set | None = None) -> Check:
    """Check for an object of entries of one kind; ``keys``, where given, are all of its keys."""

    def check(value, where: str) -> None:
        if not isinstance(value, dict) or keys not in (None, value.keys()):
            raise misfit(value, where, "an object" + ("" if keys is None else f" with the keys {reprlib.repr(keys)}"))
        for key, each in value.items():
            entry(each, f"{where}[{key[:80]!r}]")

    return check


def fields(**table: Check) -> Check:
    """Check for an object that has these fields; other fields are allowed."""

    def check(value, where: str) -> None:
        if not isinstance(value, dict):
            raise misfit(value, where, "an object")
        for key, entry in table.items():
            if key not in value:
                raise InputError(f"{where} has no field {key!r}")
            entry(value[key], f"{where}.{key}")

    return check


def where_present(**table: Check) -> Check:
    """Check for an object whose fields of these names fit, if it has them; other fields are allowed."""

    def check(value, where: str) -> None:
        fields(**{key: entry for key, entry in table.items() if key in value})(value, where)

    return check


def some_of(**table: Check) -> Check:
    """Check for an object that has some of these fields, and no others."""

    def check(value, where: str) -> None:
        dict_of(fields())(value, where)
        for key, entry in value.items():
            one_of(*table)(key, f"a name in {where}")
            table[key](entry, f"{where}[{key!r}]")

    return check
