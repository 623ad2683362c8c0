"""Optional packages: imported where they are needed, with a clear message if they are not installed."""

import importlib
import os
from types import ModuleType

from dgl_gt.partition.errors import InputError

INSTALL_DGL = "pip install 'dgl>=1.1.3,!=2.0.*,!=2.1.*' (wheels up to Python 3.11; see https://www.dgl.ai/pages/start.html for newer)"


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
