"""The exchange strategies, and the rules that say which of them fits which partition."""

from __future__ import annotations

import re

from dgl_gt.partition.errors import InputError, check_one_of
from dgl_gt.partition.system.units import format_count

from .figures import Figures

STRATEGIES = ("local", "halo_h", "halo_kv", "gather", "heads", "ring", "mirror")
_MESH = "mesh="  # begins the name of a strategy for M ranks per host, such as mesh=4
CHOICES = ("halo", *STRATEGIES, f"{_MESH}M")  # halo stands for halo_h
WITH_POLICY = ("halo_h", "halo_kv", "mirror")  # strategies whose exchanges a transmission policy can change
_DEEP = ("halo", "halo_h")  # strategies that can exchange several hops of halo at once
AUTO = "auto"  # in place of a strategy: the selector chooses
ACTIVATION_CHECKPOINTS = ("none", "keep_exchanges", "full")  # what a backward pass computes again: see dgl_gt.nn


def default_strategy(figures: Figures) -> str:
    """``mirror`` for a vertex cut, ``halo_h`` for an edge cut."""
    return "mirror" if figures.cut == "vertex" else "halo_h"


def default_form(strategy: str | None) -> str | None:
    """``halo_h`` for plain ``halo``: its rows are half as wide as K and V together. Any other strategy as it is."""
    return "halo_h" if strategy == "halo" else strategy


def mesh_of(ranks_per_host: int) -> str:
    """The name of the strategy ``mesh`` for this many ranks per host, such as ``mesh=4``."""
    return f"{_MESH}{ranks_per_host}"


def ranks_per_host(strategy: str) -> int | None:
    """The number M of ``mesh=M``; None for any other strategy. ``InputError`` unless M is a whole number of at least 1."""
    if not isinstance(strategy, str) or not f"{strategy}=".startswith(_MESH):
        return None
    number = strategy.removeprefix(_MESH)
    if not re.fullmatch(r"[1-9][0-9]{0,8}", number):
        raise InputError(f"strategy is {strategy!r}; mesh needs the number of ranks on each host, such as mesh=4")
    return int(number)


def depths(figures: Figures, strategy: str, most: int) -> range:
    """The depths, 1 to ``most``, that a strategy can have on a partition."""
    return range(1, (min(figures.halo_depth, most) if strategy in _DEEP else 1) + 1)


def is_of_use(figures: Figures, strategy: str) -> bool:
    """Whether a strategy runs on this kind of cut, and exchanges something unless there is one part."""
    if figures.cut == "vertex":
        return strategy == "mirror"
    return strategy == "local" if figures.parts == 1 else strategy not in ("local", "mirror")


def check_choice(figures: Figures, strategy: str | None, depth: int, shards) -> str:
    """The strategy that a user's name means; for None the cut's default. ``InputError`` unless these shards can have it."""
    strategy = default_strategy(figures) if strategy is None else strategy
    if isinstance(strategy, str) and strategy == AUTO:
        raise InputError(
            "strategy auto depends on the model: use `dgl-gt train --strategy auto`, or choose with "
            "dgl_gt.selector.choose and load what it chose, see docs/selector.md"
        )
    check_strategy(figures, strategy, depth, allowed=CHOICES, shards=shards)
    return default_form(strategy)


def check_strategy(
    figures: Figures,
    strategy: str,
    depth: int,
    *,
    allowed: tuple[str, ...] = STRATEGIES,
    shards="the partition",
) -> None:
    """Raise an error unless a strategy can run on a partition.

    Parameters
    ----------
    figures : Figures
    strategy : str
        One of ``allowed``, or ``mesh=M``.
    depth : int
        Hops of halo that one exchange fills.
    allowed : tuple of str
    shards : str or path
        What messages call the partition.

    Raises
    ------
    InputError
        An unknown strategy, one for the other cut or for one part, hosts that the parts do not fill, or a depth that
        the strategy or the partition does not have.
    """
    per_host = ranks_per_host(strategy)
    if per_host is None:
        check_one_of("strategy", strategy, allowed)
    elif figures.parts % per_host:
        raise InputError(
            f"strategy {strategy} needs {format_count(per_host, 'rank')} on each host, and the partition has "
            f"{format_count(figures.parts, 'part')}, which is not a multiple of {per_host}; partition into as many "
            "parts as there are ranks on all hosts together, or use halo"
        )
    if (strategy == "mirror") != (figures.cut == "vertex"):
        holds, other, fitting = "an edge", "vertex", "halo, gather, heads, ring or mesh=M"
        if figures.cut == "vertex":
            holds, other, fitting = "a vertex", "edge", "mirror"
        raise InputError(
            f"strategy {strategy} does not run on {shards}, which holds {holds} cut; use {fitting}, or partition "
            f"with --cut {other}"
        )
    if strategy == "local" and figures.parts > 1:
        raise InputError(
            f"strategy local runs on one part, and {shards} has {figures.parts}; use halo, or partition with --parts 1"
        )
    if isinstance(depth, bool) or not isinstance(depth, int) or depth < 1:
        raise InputError(f"depth is {depth!r}; it must be an integer of at least 1")
    if depth > 1 and strategy not in _DEEP:
        other = "use halo" if figures.cut == "edge" else "partition with --cut edge"
        raise InputError(
            f"depth is {depth} with strategy {strategy}; only halo can go beyond 1: use depth 1, or {other}"
        )
    if depth > max(figures.halo_depth, 1):
        raise InputError(
            f"depth is {depth}, but {shards} stores {figures.halo_depth} hop{'s' * (figures.halo_depth > 1)} of halo; "
            f"use at most {figures.halo_depth}, or partition with --halo-depth {depth}"
        )
