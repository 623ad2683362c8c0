"""``python -m partition``."""

import sys

from partition.system.command_entry import enter


def _run() -> int:
    from .cli import main

    return main()


sys.exit(enter("python -m partition", _run))
