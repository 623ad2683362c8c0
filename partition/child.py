"""Starting this project's own modules as child processes."""

from __future__ import annotations

import os
from pathlib import Path


def environment() -> dict[str, str]:
    """An environment in which ``python -m`` finds this project, not a namesake in the working directory."""
    home = str(Path(__file__).resolve().parent.parent)
    path = os.pathsep.join(filter(None, [home, os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}  # the latter is heeded from Python 3.11 on
