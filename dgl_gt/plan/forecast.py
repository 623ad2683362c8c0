"""Plans for shards, or for a graph that is cut for one or several numbers of ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dgl_gt.partition.cuts.edge_cut import make_edge_cut
from dgl_gt.partition.cuts.permutation import check_parts, columns_of
from dgl_gt.partition.cuts.vertex_cut import make_vertex_cut
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.figures.costs import default_costs
from dgl_gt.partition.figures.figures import Figures, features_of
from dgl_gt.partition.figures.profile import Profile
from dgl_gt.partition.figures.strategies import STRATEGIES
from dgl_gt.partition.graph import Graph
from dgl_gt.partition.shards.counts import read_figures
from dgl_gt.partition.shards.layout import mapped_layout
from dgl_gt.partition.shards.manifest import is_shards, read_manifest
from dgl_gt.partition.sources.load import load_graph
from dgl_gt.partition.system.units import format_bytes, format_count

from .plan import NothingFits, Plan
from .select import choose
from .tracer import Tracer

_LEAST_MEMORY = tuple(each.name for each in STRATEGIES if each.is_lean)
_MAX_RANKS = 128  # the most that are tried to find out how many ranks would do


def forecast(
    sources: list[str],
    world_sizes: list[int] | None,
    traces_of: Callable[[int], Tracer],
    profile: Profile,
    *,
    rank_memory: int | None = None,
    max_depth: int | None = None,
    seed: int = 0,
    progress=None,
    say_notes=None,
    **additions,
) -> dict[int, Plan | NothingFits]:
    """Make a plan for each number of ranks.

    Parameters
    ----------
    sources : list of path
        Shard directories of one graph with the same number of parts, or one graph, which is cut both ways.
    world_sizes : list of int, optional
        Numbers of ranks; by default the parts of the shards, or the ranks of the profile.
    traces_of : callable
        Called as ``traces_of(features)`` with the width of the node features; returns the traces of the training step.
    profile, rank_memory, max_depth
        See :func:`dgl_gt.plan.select.choose`.
    seed : int
        Seed of the cuts that are made here.
    progress : callable, optional
        Called as ``progress(stage)``.
    say_notes : callable, optional
        Called with the ``notes`` and the ``left_out`` of a graph before it is cut.
    **additions
        Options of :func:`dgl_gt.partition.sources.load.load_graph`, for a graph.

    Returns
    -------
    dict of int to Plan or NothingFits
        By number of ranks.

    Raises
    ------
    InputError
        The shards have another number of parts than a world size, nothing fits on any number of ranks, or a source or a
        bound is wrong.
    """
    bounds = {"rank_memory": rank_memory, "max_depth": max_depth}
    if all(map(is_shards, sources)):
        return _plan_of_shards(sources, world_sizes, traces_of, profile, bounds, progress)
    if len(sources) > 1:
        other = next(each for each in sources if not is_shards(each))
        raise InputError(f"{other} is not a shard directory; give only shard directories, or a single graph")
    world_sizes = _checked_world_sizes(world_sizes, profile)
    if progress:
        progress("reading the graph")
    graph = load_graph(sources[0], seed=seed, **additions)
    if say_notes:
        say_notes(graph.notes, graph.left_out)
    check_parts(graph.num_nodes, max(world_sizes))  # before any is cut
    traces = traces_of(features_of(columns_of(graph)["node_data"]))
    return _Planner(graph, traces, profile, bounds, seed, progress).plans(world_sizes)


def _plan_of_shards(
    sources: list[str], world_sizes, traces_of: Callable, profile: Profile, bounds: dict, progress
) -> dict[int, Plan]:
    cuts = [(str(source), read_figures(read_manifest(source))) for source in sources]
    figures = cuts[0][1]
    if world_sizes not in (None, [figures.parts]):
        raise InputError(
            f"--world-size is {','.join(map(str, world_sizes))}, but {sources[0]} has {format_count(figures.parts, 'part')}; "
            "give the graph instead of its shards to plan for other numbers of ranks"
        )
    profile.check_ranks(figures.parts)
    traces = traces_of(figures.features)
    if progress:
        progress("tracing steps")
    return {figures.parts: choose(cuts, traces, profile, **bounds)}


def _checked_world_sizes(world_sizes: list[int] | None, profile: Profile) -> list[int]:
    """The numbers of ranks to plan for; raises :class:`InputError` unless the profile has figures for them."""
    if world_sizes is None:
        if profile.ranks is None:
            raise InputError("--world-size is missing; give a number of ranks such as 2, or several such as 4,8,16")
        world_sizes = [profile.ranks]
    for ranks in world_sizes:
        profile.check_ranks(ranks)
    return world_sizes


@dataclass(frozen=True)
class _Planner:
    """Cuts one graph for any number of ranks, and plans for it.

    Attributes
    ----------
    graph, traces, profile, seed, progress
        See :func:`forecast`.
    bounds : dict
        ``rank_memory`` and ``max_depth`` of :func:`dgl_gt.plan.select.choose`.
    """

    graph: Graph
    traces: Tracer
    profile: Profile
    bounds: dict
    seed: int
    progress: Callable | None

    def plans(self, world_sizes: list[int]) -> dict[int, Plan | NothingFits]:
        """A plan or an error for each number of ranks; raises an error where nothing fits any of them."""
        plans = {ranks: self.plan_or_error(ranks) for ranks in world_sizes}
        if all(isinstance(each, NothingFits) for each in plans.values()):
            most = max(plans)
            if self.profile.ranks is not None:
                raise plans[most]
            raise InputError(f"{plans[most]}; {self.enough_ranks(most, plans[most])}")
        return plans

    def plan(self, ranks: int, **options) -> Plan:
        """The plan for a number of ranks; raises :class:`NothingFits`. Options are those of :func:`choose`."""
        cuts = [(None, each) for each in self._cuts(ranks)]
        if self.progress:
            self.progress(f"tracing steps on {format_count(ranks, 'rank')}")
        return choose(cuts, self.traces, self.profile, **self.bounds, **options)

    def plan_or_error(self, ranks: int) -> Plan | NothingFits:
        """The plan for a number of ranks, or the error that says why there is none."""
        try:
            return self.plan(ranks)
        except NothingFits as error:
            return error

    def enough_ranks(self, ranks: int, error: NothingFits) -> str:
        """A sentence on how many ranks would be enough, when ``ranks`` are not."""
        fixed = self.profile.process_bytes + error.fixed_bytes
        if fixed > (self.bounds["rank_memory"] or self.profile.memory_bytes):
            return f"no number of ranks is enough: process, parameters and optimiser alone take {format_bytes(fixed)}"
        tried = ranks
        while 2 * tried <= _MAX_RANKS:
            try:
                self.plan(2 * tried, strategies=_LEAST_MEMORY)
            except NothingFits:
                tried *= 2
                continue
            except InputError:  # more parts than nodes
                break
            return f"{2 * tried} ranks would be enough"
        return f"{tried} ranks would not be enough either" if tried > ranks else "more ranks were not tried"

    def _cuts(self, ranks: int) -> list[Figures]:
        """Figures of the cuts that the graph can have."""
        options = {"seed": self.seed, "progress": self.progress}
        options |= {"target_weights": self.profile.unequal_weights()}
        depth = min(self.bounds["max_depth"] or self.traces.max_depth, self.traces.max_depth)
        cuts = [(make_edge_cut(self.graph, ranks, profile=self.profile, **options), depth)]
        if ranks > 1:
            cuts.append((make_vertex_cut(self.graph, ranks, **options), 1))
        costs = default_costs()
        return [mapped_layout(self.graph, cut, depth, costs, self.profile).figures for cut, depth in cuts]
