"""The one exception for what a user can correct, the one warning, and the form in which text from outside is shown."""

import re

_LONG = re.compile(r"\S{400,}")  # a path or a value that a message shows in part


class InputError(ValueError):
    """Bad input: the message names the value, what is allowed and what to do.

    The command line turns it into one line on stderr and exit code 2; from Python it is a ``ValueError``. The message
    may quote names from files and file names: it is made printable here, so that none of them reaches a terminal raw.
    """

    def __init__(self, message: str):
        super().__init__(_LONG.sub(lambda word: f"{word[0][:200]}...{word[0][-50:]}", printable(message)))


class LeftOutWarning(UserWarning):
    """A source has data that are not taken; the Graph's ``left_out`` names them, too."""


def printable(text: str) -> str:
    """One line that a terminal shows as it is: control characters and what is not Unicode become backslash escapes."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
