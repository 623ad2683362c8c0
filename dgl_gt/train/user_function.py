"""Functions of the user's that options and settings name as ``package.module:function``."""

from __future__ import annotations

import importlib
import sys
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path

from dgl_gt.partition.errors import InputError

_LONGEST_CAUSE = 300  # characters of a user's error


def find_function(name: str, option: str) -> Callable:
    """The function or class of this name, the value of ``option``. Modules in the working directory are found, too.

    Raises
    ------
    InputError
        The name is not ``package.module:function``, the module cannot be imported, or has no such function.
    """
    module_name, colon, function_name = name.partition(":")
    if not colon or not all(part.isidentifier() for part in (*module_name.split("."), function_name)):
        raise InputError(f"{option} is {name!r}; write it as package.module:function")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        module = importlib.import_module(module_name)
        function = getattr(module, function_name, None)
    except Exception as error:  # whatever the user's module raises
        raise InputError(
            f"{option} is {name!r}, and importing {module_name} failed: {cause_of(error)}; fix the module, or start "
            "the command in the directory that holds it"
        ) from error
    if not callable(function):
        raise InputError(f"{option} is {name!r}, but {module_name} has no function {function_name}; define it")
    return function


def cause_of(error: Exception) -> str:
    """The error that a user's code raised, and the last line of its traceback that is outside installed packages."""
    text = " ".join(str(error).split())[:_LONGEST_CAUSE]
    text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    others = str(Path(__file__).parents[1]), sysconfig.get_path("stdlib"), "<"
    frames = [
        each
        for each in traceback.extract_tb(error.__traceback__)
        if not each.filename.startswith(others) and "site-packages" not in each.filename
    ]
    return f"{text} ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else text
