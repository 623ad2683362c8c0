"""The one exception for what a user can mend."""


class InputError(ValueError):
    """Bad input: the message names the value, what is allowed and what to do.

    The command line turns it into one line on stderr and exit code 2; from Python it is a ``ValueError``.
    """
