"""The exchange strategies: one row of rules for each, which all that depends on a strategy reads."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from dgl_gt.partition.errors import InputError, check_one_of
from dgl_gt.partition.system.units import format_count

from .figures import Figures
from .step_counts import ONE, Count

AUTO = "auto"  # in place of a strategy: the selector chooses
ACTIVATION_CHECKPOINTS = ("none", "keep_exchanges", "full")  # what a backward pass computes again: see dgl_gt.nn


@dataclass(frozen=True)
class StrategyRules:
    """What is known of a strategy without running it.

    Attributes
    ----------
    name : str
    cut : {"edge", "vertex"}
    on_one_part : bool
        It runs on one part, and exchanges nothing.
    is_deep : bool
        It can exchange several hops of halo at once.
    sends_copies : bool
        All that it exchanges are rows of copies. So its exchanges can follow a transmission policy, and grow
        with the copies of a cut.
    is_lean : bool
        Of the strategies for its kind of cut, it holds least.
    moves_keys : bool
        It moves what attention of this package reads. A step without such attention runs as with ``halo_h``.
    in_rank_order : bool
        Ranks read the rows of all ranks in one order.
    shares_heads : bool
        Ranks compute some heads each, for rows of several parts, whose structure they read.
    ranks_per_host : int or None
        M of ``mesh=M``.
    whole_graph : tuple of str
        Counts of the whole graph on which the sizes of its step depend.
    """

    name: str
    cut: str = "edge"
    on_one_part: bool = False
    is_deep: bool = False
    sends_copies: bool = False
    is_lean: bool = False
    moves_keys: bool = False
    in_rank_order: bool = False
    shares_heads: bool = False
    ranks_per_host: int | None = None
    whole_graph: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name

    def counts(self, depth: int) -> tuple[Count, ...]:
        """The counts of a part on which the sizes of a step can depend."""
        if self.on_one_part:
            return ONE, Count("owned"), Count("edges")
        found = [ONE, Count("owned"), Count("cut_edges")]
        found += [Count(of, hop) for hop in range(depth) for of in ("copies", "sent", "edges")]
        found += [Count("sent_edges", hop) for hop in range(1, depth)]
        if self.ranks_per_host is not None:
            of_host = ("owned", "edges", "copies", "sent", "cut_edges")
            found += [Count(of, ranks_per_host=self.ranks_per_host) for of in of_host]
        if self.cut == "vertex":
            found += [Count("returned"), Count("returns"), Count("returned_edges")]
        return *found, *map(Count, self.whole_graph)

    def depths(self, figures: Figures, most: int) -> range:
        """The depths, 1 to ``most``, that it can have on a partition."""
        return range(1, (min(figures.halo_depth, most) if self.is_deep else 1) + 1)

    def is_of_use(self, figures: Figures) -> bool:
        """Whether it runs on this kind of cut, and exchanges something unless there is one part."""
        return self.cut == figures.cut and (self.cut == "vertex" or self.on_one_part == (figures.parts == 1))


_MESH = StrategyRules("mesh", moves_keys=True, shares_heads=True)
STRATEGIES = (
    StrategyRules("local", on_one_part=True, is_lean=True),
    StrategyRules("halo_h", is_deep=True, sends_copies=True, is_lean=True),
    StrategyRules("halo_kv", sends_copies=True, moves_keys=True),
    StrategyRules("gather", moves_keys=True, in_rank_order=True, whole_graph=("nodes",)),
    replace(_MESH, name="heads", whole_graph=("nodes", "all_edges")),
    StrategyRules("ring", moves_keys=True, in_rank_order=True, whole_graph=("nodes",)),
    StrategyRules("mirror", cut="vertex", sends_copies=True, is_lean=True),
)
NAMES = tuple(each.name for each in STRATEGIES)
_BY_NAME = dict(zip(NAMES, STRATEGIES))
LOCAL, HALO, MIRROR = (_BY_NAME[name] for name in ("local", "halo_h", "mirror"))
_BY_NAME["halo"] = HALO
CHOICES = ("halo", *NAMES, "mesh=M")  # halo stands for halo_h, whose rows are half as wide as keys and values
WITH_POLICY = tuple(each.name for each in STRATEGIES if each.sends_copies)


def strategy_of(name: str, allowed: tuple[str, ...] = NAMES, argument: str = "strategy") -> StrategyRules:
    """The strategy of this name, one of ``allowed`` or ``mesh=M``; ``InputError`` names the argument if there is none."""
    if isinstance(name, str) and f"{name}=".startswith("mesh="):
        number = name.removeprefix("mesh=")
        if not re.fullmatch(r"[1-9][0-9]{0,8}", number):
            raise InputError(f"{argument} is {name!r}; mesh needs the number of ranks on each host, such as mesh=4")
        return mesh(int(number))
    check_one_of(argument, name, allowed)
    return _BY_NAME[name]


def mesh(ranks_per_host: int) -> StrategyRules:
    """``mesh=M``."""
    return replace(_MESH, name=f"mesh={ranks_per_host}", ranks_per_host=ranks_per_host)


def default_strategy(figures: Figures) -> StrategyRules:
    """``mirror`` for a vertex cut, ``halo_h`` for an edge cut."""
    return MIRROR if figures.cut == "vertex" else HALO


def strategy_for(figures: Figures, name: str | None, depth: int, shards) -> StrategyRules:
    """The strategy that a user's name means; for None the cut's default. ``InputError`` unless these shards can have it."""
    if isinstance(name, str) and name == AUTO:
        raise InputError(
            "strategy auto depends on the model: use `dgl-gt train --strategy auto`, or choose with "
            "dgl_gt.plan.choose and load what it chose, see docs/selector.md"
        )
    strategy = default_strategy(figures) if name is None else strategy_of(name, CHOICES)
    check_strategy(figures, strategy, depth, shards, asked=name)
    return strategy


def check_strategy(
    figures: Figures, strategy: StrategyRules, depth: int, shards="the partition", asked: str | None = None
) -> None:
    """Raise ``InputError`` unless a strategy can run on a partition.

    It may be for the other cut or for one part, its hosts may be such that the parts do not fill them, or neither the
    strategy nor the partition may have the depth. ``depth`` is the hops of halo that one exchange fills, ``shards`` what
    messages call the partition, and ``asked`` what they call the strategy.
    """
    name, per_host = asked or strategy.name, strategy.ranks_per_host
    if per_host is not None and figures.parts % per_host:
        raise InputError(
            f"strategy {name} needs {format_count(per_host, 'rank')} on each host, and the partition has "
            f"{format_count(figures.parts, 'part')}, which is not a multiple of {per_host}; partition into as many "
            "parts as there are ranks on all hosts together, or use halo"
        )
    if strategy.cut != figures.cut:
        holds, fitting = "an edge", "halo, gather, heads, ring or mesh=M"
        if figures.cut == "vertex":
            holds, fitting = "a vertex", "mirror"
        raise InputError(
            f"strategy {name} does not run on {shards}, which holds {holds} cut; use {fitting}, or partition "
            f"with --cut {strategy.cut}"
        )
    if strategy.on_one_part and figures.parts > 1:
        raise InputError(
            f"strategy {name} runs on one part, and {shards} has {figures.parts}; use halo, or partition with --parts 1"
        )
    if isinstance(depth, bool) or not isinstance(depth, int) or depth < 1:
        raise InputError(f"depth is {depth!r}; it must be an integer of at least 1")
    if depth > 1 and not strategy.is_deep:
        other = "use halo" if figures.cut == "edge" else "partition with --cut edge"
        raise InputError(f"depth is {depth} with strategy {name}; only halo can go beyond 1: use depth 1, or {other}")
    if depth > max(figures.halo_depth, 1):
        raise InputError(
            f"depth is {depth}, but {shards} stores {figures.halo_depth} hop{'s' * (figures.halo_depth > 1)} of halo; "
            f"use at most {figures.halo_depth}, or partition with --halo-depth {depth}"
        )


def same_as(strategy: StrategyRules, parts: int) -> str | None:
    """The name of a plain strategy that does the same on this many parts; None if there is none."""
    return {1: "halo_kv", parts: "heads"}.get(strategy.ranks_per_host)
