"""Checks of the arguments of :func:`dgl_gt.partition.partition`."""

from __future__ import annotations

from dataclasses import dataclass

from dgl_gt.partition.cuts import metis
from dgl_gt.partition.cuts.balance import shares
from dgl_gt.partition.cuts.edge_cut import MAX_ATTEMPTS
from dgl_gt.partition.encodings.parse import parse_encodings
from dgl_gt.partition.figures.costs import Costs, default_costs
from dgl_gt.partition.figures.profile import Profile
from dgl_gt.partition.sources.load import check_additions

from .errors import InputError, check_one_of, check_type, whole_number
from .transforms import check_transforms

CUTS = ("edge", "vertex", "auto")
_MAX_HALO_DEPTH = 100  # hops; the halos of a connected graph hold every node long before


@dataclass(frozen=True, kw_only=True)
class Request:
    """What :func:`dgl_gt.partition.partition` is asked for, after all checks that need no graph.

    ``cut`` and ``target_weights`` are those that follow from the other arguments. ``additions`` and ``transforms`` are
    keyword arguments of :func:`dgl_gt.partition.load_graph` and :func:`dgl_gt.partition.transforms.transformed`.
    """

    parts: int
    cut: str | None
    halo_depth: int
    attempts: int
    max_imbalance: dict[str, float] | float | None
    target_weights: list[float] | None
    cut_weights: str | None
    node_weights: str | None
    owner: object
    costs: Costs
    profile: Profile | None
    memory: int | None
    rank_memory: int | None
    seed: int
    encodings: tuple
    additions: dict
    transforms: dict


def checked_request(
    parts,
    *,
    cut,
    halo_depth,
    attempts,
    max_imbalance,
    target_weights,
    cut_weights,
    node_weights,
    owner,
    costs,
    profile,
    memory,
    rank_memory,
    seed,
    encode,
    additions: dict,
    transforms: dict,
) -> Request:
    """Check arguments of :func:`dgl_gt.partition.partition`, which describes them; :class:`InputError` says what is wrong."""
    parts, seed = whole_number("parts", parts), metis.check_seed(seed)
    halo_depth = whole_number("halo_depth", halo_depth, 1, _MAX_HALO_DEPTH)
    attempts = whole_number("attempts", attempts, 1, MAX_ATTEMPTS)
    costs = default_costs() if costs is None else costs
    check_type("costs", costs, Costs)
    if profile is not None:
        target_weights = _weights_for(profile, parts, target_weights, owner)
    memory = None if memory is None else whole_number("memory", memory, 1)
    rank_memory = None if rank_memory is None else whole_number("rank_memory", rank_memory, 1)
    cut = _resolve_cut(
        cut,
        halo_depth,
        attempts,
        max_imbalance=max_imbalance,
        cut_weights=cut_weights,
        node_weights=node_weights,
        owner=owner,
    )
    for kind in ("vertex", "edge") if cut == "auto" else (cut or "edge",):
        costs.of(kind)  # raises if they do not cover this kind of cut
    if target_weights is not None:
        shares(parts, target_weights)  # raises unless they are valid weights for this many parts
    check_additions(**additions)
    encodings = parse_encodings(encode)
    check_transforms(None, **transforms)
    return Request(
        parts=parts,
        cut=cut,
        halo_depth=halo_depth,
        attempts=attempts,
        max_imbalance=max_imbalance,
        target_weights=target_weights,
        cut_weights=cut_weights,
        node_weights=node_weights,
        owner=owner,
        costs=costs,
        profile=profile,
        memory=memory,
        rank_memory=rank_memory,
        seed=seed,
        encodings=encodings,
        additions=additions,
        transforms=transforms,
    )


def _resolve_cut(cut: str | None, halo_depth: int = 1, attempts: int = 1, **edge_options) -> str | None:
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


def _weights_for(profile: Profile, parts: int, target_weights=None, owner=None) -> list[float] | None:
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
