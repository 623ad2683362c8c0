"""Packages that few users need: imported where they are needed, with words for who has not installed them."""

import importlib
import os
from types import ModuleType

from partition.errors import InputError

INSTALL_DGL = "pip install 'dgl>=1.1.3' (wheels up to Python 3.11; see docs.dgl.ai for newer)"


def need(module: str, purpose: str, install: str) -> ModuleType:
    """Import an optional package, or raise :class:`InputError` saying what to install."""
    os.environ.setdefault("DGLBACKEND", "pytorch")  # unset, importing DGL prints and writes into the home directory
    try:
        return importlib.import_module(module)
    except (ImportError, OSError) as error:  # OSError: a binary of the package does not load
        package, why = module.split(".")[0], first_line(error)
        raise InputError(f"{purpose} needs {package}, which cannot be imported ({why}); {install}") from error


def first_line(error: BaseException) -> str:
    """A foreign exception in one short line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
