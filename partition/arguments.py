"""Checks of the arguments of :func:`partition.partition`."""

from __future__ import annotations

import operator
import reprlib

from .errors import InputError

CUTS = ("edge", "vertex", "auto")
_MOST_HALO_DEPTH = 100  # hops; the halos of a connected graph hold every node long before


def effective_cut(cut: str | None, halo_depth: int = 1, attempts: int = 1, **edge_options) -> str | None:
    """Return the cut to make: ``"edge"`` if options are given that only edge cuts have, else ``cut``.

    Parameters
    ----------
    cut : {"edge", "vertex", "auto"}, optional
    halo_depth, attempts : int
    **edge_options
        Other options that only edge cuts have; None if not given.

    Raises
    ------
    InputError
        The cut is unknown, the halo is too deep, or an option of edge cuts is given with another cut.
    """
    if cut not in (None, *CUTS):
        raise InputError(f"cut is {cut!r}; it must be one of {', '.join(CUTS)}")
    if halo_depth > _MOST_HALO_DEPTH:
        raise InputError(f"halo_depth is {reprlib.repr(halo_depth)}; it must be from 1 to {_MOST_HALO_DEPTH}")
    given = [name for name, value in edge_options.items() if value is not None]
    given += ["halo_depth"] if halo_depth > 1 else []
    given += ["attempts"] if attempts > 1 and cut != "auto" else []
    if given and cut not in (None, "edge"):
        name = given[0] if given[0] == "owner" else f"{given[0]} (--{given[0].replace('_', '-')})"
        raise InputError(f"{name} applies only to edge cuts; leave it out, or choose cut='edge' (--cut edge)")
    return "edge" if given else cut


def integer(name: str, value) -> int:
    """Return the value as an int; raise :class:`InputError` if it is not an integer."""
    try:
        return operator.index(value)
    except TypeError:
        raise InputError(f"{name} is {value!r}; it must be an integer") from None


def positive(name: str, value) -> int:
    """Return the value as an int; raise :class:`InputError` if it is not an integer of at least 1."""
    value = integer(name, value)
    if value < 1:
        raise InputError(f"{name} is {value}; it must be at least 1")
    return value
