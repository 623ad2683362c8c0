"""The exchange strategies: one row of rules for each, which all that depends on a strategy reads."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from dgl_gt.partition.errors import InputError, check_one_of
from dgl_gt.partition.schema import Schema
from dgl_gt.partition.system.units import format_count

from .figures import Figures

AUTO = "auto"  # in place of a strategy: the selector chooses
ACTIVATION_CHECKPOINTS = ("none", "keep_exchanges", "full")  # what a backward pass computes again: see dgl_gt.nn


class Count(NamedTuple):
    """One count of each part of a cut, on which the sizes in a training step depend.

    ``of`` is one of these: ``one``, the constant 1; ``owned``, ``edges``, ``cut_edges``, ``returned``, ``returns`` or
    ``returned_edges``, as in :class:`Figures`; ``copies``, ``sent`` or ``sent_edges`` of a hop; ``nodes`` or
    ``all_edges`` of the whole graph; ``selected``, the owned rows that a mask selects; or of a typed graph those of a kind:
    ``typed_nodes`` of a hop, where hop 0 are the owned rows; ``typed_edges`` or ``sources`` of a hop; or ``own_sources``.
    """

    of: str
    hop: int | None = None  # counted from 0; ``edges`` have one, too
    mask: str | None = None  # among the node data; a cut without it counts all owned rows
    ranks_per_host: int | None = None  # if M, the parts of each host of M ranks are counted together
    kind: int | None = None  # the number of a node type, or of a relation, see :class:`TypedCounts`

    def of_parts(self, figures: Figures) -> np.ndarray:
        """The count of each part, (P,)."""
        if self.ranks_per_host is not None:
            return self._of_hosts(figures, self.ranks_per_host).repeat(self.ranks_per_host)
        if self.kind is not None and figures.typed is not None:
            typed = figures.typed
            match self.of:
                case "typed_nodes":
                    return typed.nodes[:, self.hop, self.kind]
                case "typed_edges":
                    return typed.edges[:, self.hop, self.kind]
                case "sources":
                    return typed.sources[:, self.hop, self.kind]
                case _:
                    return typed.own_sources[:, self.kind]
        if self.hop is not None:
            return getattr(figures, f"{self.of}_by_hop")[:, self.hop]
        match self.of:
            case "one":
                return np.ones(figures.parts)
            case "nodes":
                return np.full(figures.parts, figures.nodes)
            case "all_edges":
                return np.full(figures.parts, figures.edges.sum())
            case "selected":
                return figures.masked.get(self.mask, figures.owned)
            case _:
                return getattr(figures, self.of)

    def _of_hosts(self, figures: Figures, size: int) -> np.ndarray:
        host = figures.hosts[size]
        match self.of:
            case "copies":
                return host.received_rows.sum(axis=1)
            case "sent":
                return host.received_rows.sum(axis=0)
            case "cut_edges":
                return host.cut_edges
            case _:
                return getattr(figures, self.of).reshape(-1, size).sum(axis=1)


ONE = Count("one")


def counts_of_parts(figures: Figures, counts: tuple[Count, ...]) -> np.ndarray:
    """Counts of each part, float64, (P, counts)."""
    return np.stack([each.of_parts(figures) for each in counts], axis=1).astype(float)


@dataclass(frozen=True)
class StrategyRules:
    """A strategy's row: its name, and what its step exchanges and depends on."""

    name: str
    cut: str = "edge"  # or "vertex"
    on_one_part: bool = False  # it runs on one part, and exchanges nothing
    is_deep: bool = False  # it can exchange several hops of halo at once
    # all that it exchanges are rows of copies; so it can follow a transmission policy, and grows with the copies of a cut
    sends_copies: bool = False
    # it moves what attention of this package reads; a step without such attention runs as with ``halo_h``
    moves_keys: bool = False
    in_rank_order: bool = False  # ranks read the rows of all ranks in one order
    shares_heads: bool = False  # ranks compute some heads each, for rows of several parts, whose structure they read
    ranks_per_host: int | None = None  # M of ``mesh=M``
    is_typed: bool = False  # it runs on typed graphs
    whole_graph: tuple[str, ...] = ()  # counts of the whole graph on which the sizes of its step depend

    def __str__(self) -> str:
        return self.name

    def counts(self, depth: int, schema: Schema | None = None, edge_data: Iterable[str] = ()) -> tuple[Count, ...]:
        """The counts of a part on which the sizes of a step can depend; of a typed graph with edge data of these names."""
        if schema is not None:
            of_data = [Count("typed_edges", 0, kind=each) for each in schema.having(edge_data)]
            return *self._typed_counts(depth, len(schema.nodes), len(schema.edges)), *of_data
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

    def _typed_counts(self, depth: int, types: int, relations: int) -> tuple[Count, ...]:
        hops = depth if depth > 1 else 1 if self.cut == "vertex" else 0  # of copies that are projected by type
        found = [ONE, *(Count("typed_nodes", hop, kind=each) for hop in range(1 + hops) for each in range(types))]
        found += [Count("sources", hop, kind=each) for hop in range(depth) for each in range(relations)]
        if self.on_one_part:
            return *found, Count("edges")
        known = [*self.counts(depth)]
        known.remove(Count("owned"))  # the sum over types
        copies = [Count("copies", hop) for hop in range(hops)]
        found += [each for each in known[1:] if each not in copies]
        return *found, *(Count("own_sources", kind=each) for each in range(relations) if self.cut == "edge")

    def depths(self, figures: Figures, most: int) -> range:
        """The depths, 1 to ``most``, that it can have on a partition."""
        return range(1, (min(figures.halo_depth, most) if self.is_deep else 1) + 1)

    def has_counts(self, figures: Figures) -> bool:
        """Whether the figures have what its step depends on: parts that ranks share have no counts of hosts."""
        return self.ranks_per_host is None or self.ranks_per_host in figures.hosts

    def is_of_use(self, figures: Figures) -> bool:
        """Whether it runs on this kind of cut, exchanges something unless there is one part, and can be predicted."""
        if (figures.schema is not None and not self.is_typed) or not self.has_counts(figures):
            return False
        return self.cut == figures.cut and (self.cut == "vertex" or self.on_one_part == (figures.parts == 1))


_MESH = StrategyRules("mesh", moves_keys=True, shares_heads=True)
STRATEGIES = (
    StrategyRules("local", on_one_part=True, is_typed=True),
    StrategyRules("halo_h", is_deep=True, sends_copies=True, is_typed=True),
    StrategyRules("halo_kv", sends_copies=True, moves_keys=True),
    StrategyRules("gather", moves_keys=True, in_rank_order=True, whole_graph=("nodes",)),
    replace(_MESH, name="heads", whole_graph=("nodes", "all_edges")),
    StrategyRules("ring", moves_keys=True, in_rank_order=True, whole_graph=("nodes",)),
    StrategyRules("mirror", cut="vertex", sends_copies=True, is_typed=True),
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

    ``depth`` is the hops of halo that one exchange fills, ``shards`` what messages call the partition, and ``asked`` what
    they call the strategy.
    """
    name, per_host = asked or strategy.name, strategy.ranks_per_host
    if figures.schema is not None and not strategy.is_typed:
        raise InputError(
            f"strategy {name} does not run on {shards}, a typed graph; use {'mirror' if figures.cut == 'vertex' else 'halo'}"
        )
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
