"""The compiled loops of native.cpp, through ctypes."""

from __future__ import annotations

import ctypes
import functools
import importlib.util

import numpy as np

from partition.errors import InputError

_COUNTS_PER_EDGE, _COUNTS = 16, 2**24


def run(name: str, *arguments) -> None:
    """Call a function of native.cpp.

    Parameters
    ----------
    name : str
        Without its prefix ``dgl_gt_``.
    *arguments : ndarray, int or float
        As the function takes them: arrays by address, contiguous and of its element types; integers as int64.

    Raises
    ------
    InputError
        The package was installed without its compiled part.
    """
    getattr(_library(), f"dgl_gt_{name}")(*map(_argument, arguments))


def _argument(value):
    if isinstance(value, np.ndarray):
        assert value.flags.c_contiguous
        return ctypes.c_void_p(value.ctypes.data)
    return ctypes.c_double(value) if isinstance(value, float) else ctypes.c_int64(value)


def counts_fit(num_nodes: int, num_edges: int, parts: int) -> bool:
    """Whether a count for each node and part takes little memory beside the edges, so that a loop may have one."""
    return num_nodes * parts <= max(_COUNTS_PER_EDGE * num_edges, _COUNTS)


def available() -> bool:
    """Whether the package was installed with its compiled part."""
    return _loaded() is not None


@functools.cache
def _loaded():
    spec = importlib.util.find_spec("partition.cuts.native._loops")
    try:
        return None if spec is None else ctypes.CDLL(spec.origin)
    except OSError:  # built for another system
        return None


def _library():
    library = _loaded()
    if library is not None:
        return library
    raise InputError(
        "vertex cuts need the compiled part of dgl-gt, which is not there: install a C++ compiler (on Debian or "
        "Ubuntu: apt install g++) and then dgl-gt again (pip install --force-reinstall --no-deps dgl-gt), or make an "
        "edge cut"
    )
