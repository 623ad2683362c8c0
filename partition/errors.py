"""The exception for mistakes that a user can correct, the warning about data left out, printable text, optional packages."""

from __future__ import annotations

import importlib
import operator
import os
import re
import reprlib
from types import ModuleType

import numpy as np

INSTALL_DGL = "pip install 'dgl>=1.1.3,!=2.0.*,!=2.1.*' (wheels up to Python 3.11; see https://www.dgl.ai/pages/start.html for newer)"
INSTALL_PYG = "pip install torch_geometric"
_LONG = re.compile(r"\S{400,}")  # a path or a value that a message shows in part


class InputError(ValueError):
    """An error in the input; the message names the offending value, what is allowed and what to do.

    The command line prints it as one line on stderr and exits with code 2. In Python it is a ``ValueError``. The
    message may quote file names and text from files, so it is made printable here: no control character reaches a
    terminal.
    """

    def __init__(self, message: str):
        super().__init__(_LONG.sub(lambda word: f"{word[0][:200]}...{word[0][-50:]}", printable(message)))


class SourceWarning(UserWarning):
    """A warning that a source may be read otherwise than its owner means."""


class LeftOutWarning(SourceWarning):
    """A warning that a source has data that were not read; the ``left_out`` of the Graph lists them."""


def check_one_of(name: str, value, allowed: tuple[str, ...]) -> None:
    """Raise :class:`InputError` unless the value is one of the strings that are allowed."""
    if not (isinstance(value, str) and value in allowed):
        raise InputError(f"{name} is {value!r}; it must be one of {', '.join(allowed)}")


def whole_number(name: str, value, least: int | None = None, most: int | None = None) -> int:
    """Return the value as an int; raise :class:`InputError` unless it is a whole number in the range."""
    try:
        number = operator.index(None if isinstance(value, bool) else value)
    except TypeError:
        number = None
    if number is None or (least is not None and number < least) or (most is not None and number > most):
        allowed = "" if least is None else f" of at least {least}" if most is None else f" from {least:,} to {most:,}"
        raise InputError(f"{name} is {reprlib.repr(value)}; it must be a whole number{allowed}")
    return number


def check_type(name: str, value, kind: type) -> None:
    """Raise :class:`InputError` unless the value is of this class."""
    if not isinstance(value, kind):
        raise InputError(f"{name} is {reprlib.repr(value)}; it must be a {kind.__name__}")


def check_flags(**flags) -> None:
    """Raise :class:`InputError` unless every flag is True or False."""
    for name, flag in flags.items():
        if not isinstance(flag, (bool, np.bool_)):
            raise InputError(f"{name} is {reprlib.repr(flag)}; it must be True or False")


def printable(text: str) -> str:
    """Return the text in one line that a terminal shows as it is.

    Control characters and invalid Unicode become backslash escapes.
    """
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def import_optional(module: str, purpose: str, install: str) -> ModuleType:
    """Import an optional package, or raise :class:`InputError` that says how to install it."""
    os.environ.setdefault("DGLBACKEND", "pytorch")  # without it DGL prints, and writes into the home directory
    try:
        return importlib.import_module(module)
    except (ImportError, OSError) as error:  # OSError: a binary of the package does not load
        package, why = module.split(".")[0], first_line(error)
        raise InputError(f"{purpose} needs {package}, which cannot be imported ({why}); run {install}") from error


def first_line(error: BaseException) -> str:
    """Describe an exception of another library in one short line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
