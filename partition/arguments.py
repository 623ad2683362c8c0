"""Checks of the arguments of :func:`partition.partition`."""

from __future__ import annotations

from partition.predict.profile import Profile

from .errors import InputError, check_one_of, check_type

CUTS = ("edge", "vertex", "auto")
MOST_HALO_DEPTH = 100  # hops; the halos of a connected graph hold every node long before


def resolve_cut(cut: str | None, halo_depth: int = 1, attempts: int = 1, **edge_options) -> str | None:
    """Return the cut to make: ``"edge"`` if options are given that only edge cuts have, else ``cut``.

    ``edge_options`` are other options that only edge cuts have; None stands for one that was not given.
    """
    if cut is not None:
        check_one_of("cut", cut, CUTS)
    given = [name for name, value in edge_options.items() if value is not None]
    given += ["halo_depth"] if halo_depth > 1 else []
    given += ["attempts"] if attempts > 1 and cut != "auto" else []
    if given and cut not in (None, "edge"):
        name = given[0] if given[0] == "owner" else f"{given[0]} (--{given[0].replace('_', '-')})"
        raise InputError(f"{name} applies only to edge cuts; leave it out, or choose cut='edge' (--cut edge)")
    return "edge" if given else cut


def weights_for(profile: Profile, parts: int, target_weights=None, owner=None) -> list[float] | None:
    """Return the load of each part by a profile; None for equal loads.

    :class:`InputError` if the profile is for another number of ranks, or if an option that it replaces is given, too.
    """
    check_type("profile", profile, Profile)
    profile.check_ranks(parts)
    for name, value in (("target_weights (--target-weights)", target_weights), ("owner", owner)):
        if value is not None:
            raise InputError(
                f"{name} and a profile ({profile.name}) are given, and both say how large parts are; leave one out"
            )
    return profile.unequal_weights()
