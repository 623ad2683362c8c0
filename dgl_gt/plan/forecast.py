"""Plans for shards, or for a graph, which is cut for one or several numbers of ranks."""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec
import numpy as np

from dgl_gt.partition.cuts.edge_cut import make_edge_cut
from dgl_gt.partition.cuts.permutation import check_parts, columns_of
from dgl_gt.partition.cuts.vertex_cut import make_vertex_cut
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.figures.costs import default_costs
from dgl_gt.partition.figures.figures import Figures, features_of
from dgl_gt.partition.figures.profile import Profile
from dgl_gt.partition.figures.scaled import scaled
from dgl_gt.partition.graph import Graph
from dgl_gt.partition.shards.counts import read_figures
from dgl_gt.partition.shards.layout import mapped_layout
from dgl_gt.partition.shards.manifest import is_shards, read_manifest
from dgl_gt.partition.sources.load import load_graph
from dgl_gt.partition.system.allocator import factor_with_bound, memory_factor_of_ranks
from dgl_gt.partition.system.units import format_count

from .candidates import NothingFits, Plan
from .select import choose
from .tracer import Tracer

_MOST_PIECES = 64  # parts per rank that a plan of a graph tries
_MOST_SAVING = 4  # by all further parts, relative to what the last doubling of their number saved


def assumed_profile(profile: Profile, bounded: bool) -> Profile:
    """The profile with what the allocator adds to the memory of ranks: in the default one, what that of this machine does."""
    factor = memory_factor_of_ranks() if profile.kind == "default" else profile.memory_factor
    return msgspec.structs.replace(profile, memory_factor=factor_with_bound(factor) if bounded else factor)


def forecast(
    sources: list,
    world_sizes: list[int] | None,
    traces_of: Callable[[int], Tracer],
    profile: Profile,
    *,
    seed: int = 0,
    progress: Callable[[str], object] = lambda stage: None,
    say_notes: Callable | None = None,
    rank_memory: int | None = None,
    max_depth: int | None = None,
    figures_of: tuple[int, int] | None = None,
    **additions,
) -> dict[int, Plan | NothingFits]:
    """Make a plan for each number of ranks, by default the parts of the shards, or the ranks of the profile.

    ``sources``, ``say_notes`` and ``additions`` are those of :func:`read_sources`, the rest those of
    :func:`forecast_clusters`. :class:`InputError` says that the shards have another number of parts, that nothing fits on
    any of the numbers of ranks, or what is wrong with a source or a bound.
    """
    is_graph = not all(map(is_shards, sources))
    if is_graph and len(sources) == 1:
        if world_sizes is None and profile.ranks is None:
            raise InputError(
                "world_size (--world-size) is missing; give a number of ranks such as 2, or several such as 4,8,16"
            )
        world_sizes = world_sizes or [profile.ranks or 1]
        for ranks in world_sizes:
            profile.check_ranks(ranks)
    sources = read_sources(sources, seed, progress, say_notes, **additions)
    if world_sizes is None:
        world_sizes = [read_figures(read_manifest(sources[0])).parts]
    bounds = {"rank_memory": rank_memory, "max_depth": max_depth, "figures_of": figures_of}
    clusters = [(profile, ranks) for ranks in world_sizes]
    found = forecast_clusters(sources, clusters, traces_of, seed=seed, progress=progress, **bounds)
    plans = dict(zip(world_sizes, found))
    errors = [each for _, each in sorted(plans.items()) if isinstance(each, NothingFits)]
    if len(errors) < len(plans):
        return plans
    if not is_graph or profile.ranks is not None:
        raise errors[-1]
    more = [str(max(plans) * times) for times in (2, 4, 8) if max(plans) * times <= sources[0].num_nodes]
    raise InputError(f"{errors[-1]}; --world-size {','.join(more)} tries more ranks") if more else errors[-1]


def read_sources(
    sources: list, seed: int, progress: Callable[[str], object], say_notes: Callable | None = None, **additions
) -> list:
    """Check that ``sources`` are shard directories, which are returned, or one graph, which is loaded.

    ``additions`` are options of :func:`dgl_gt.partition.sources.load.load_graph`. ``say_notes`` is called with the
    ``notes`` and the ``left_out`` of the graph.
    """
    if all(map(is_shards, sources)):
        return sources
    if len(sources) > 1:
        other = next(each for each in sources if not is_shards(each))
        raise InputError(f"{other} is not a shard directory; give only shard directories, or a single graph")
    progress("reading the graph")
    graph = load_graph(sources[0], seed=seed, **additions)
    if say_notes:
        say_notes(graph.notes, graph.left_out)
    return [graph]


def forecast_clusters(
    sources: list,
    clusters: list[tuple[Profile, int]],
    traces_of: Callable[[int], Tracer],
    *,
    rank_memory: int | None = None,
    max_depth: int | None = None,
    figures_of: tuple[int, int] | None = None,
    seed: int = 0,
    progress: Callable[[str], object] = lambda stage: None,
) -> list[Plan | NothingFits]:
    """Make a plan, or say why nothing fits, for each cluster: a profile, and a number of ranks.

    ``sources`` are shard directories of one graph with the same number of parts, or one loaded graph, which is cut both
    ways with this ``seed``. ``traces_of`` gets the width of the node features and returns the traces of the step.
    ``figures_of`` are the nodes and edges of a graph of which the source is a sample, see :func:`.scaled`. On a
    CPU, a graph is also cut into more parts than ranks, as long as that saves memory and nothing fits, and edge cuts may
    have a multiple of the ranks. The rest is as in :func:`dgl_gt.plan.choose`.
    """
    bounds = {"rank_memory": rank_memory, "max_depth": max_depth}
    if all(map(is_shards, sources)):
        plan = _planner_of_shards(sources, clusters, traces_of, figures_of, progress)
    else:
        check_parts(sources[0].num_nodes, max(ranks for _, ranks in clusters))  # before any is cut
        plan = _planner_of_graph(sources[0], traces_of, max_depth, figures_of, seed, progress)
    plans: list[Plan | NothingFits] = []
    for profile, ranks in clusters:
        try:
            plans.append(plan(profile, ranks, {**bounds, "spill": profile.device == "cpu"}))
        except NothingFits as error:
            plans.append(error)
    return plans


def _planner_of_graph(graph: Graph, traces_of, max_depth, figures_of, seed: int, progress) -> Callable:
    """A function that makes the plan of a graph for a profile, a number of ranks, and the bounds of :func:`choose`."""
    traces, costs = traces_of(features_of(columns_of(graph)["node_data"], graph.schema)), default_costs()
    depth = min(max_depth or traces.max_depth, traces.max_depth)

    def plan(profile: Profile, ranks: int, bounds: dict) -> Plan:
        weights = profile.unequal_weights()
        how = {"target_weights": weights, "seed": seed, "progress": progress}
        cuts = [(make_edge_cut(graph, ranks, profile=profile, **how), depth)]
        if ranks > 1:
            cuts.append((make_vertex_cut(graph, ranks, **how), 1))
        figures = [mapped_layout(graph, cut, hops, costs, profile).figures for cut, hops in cuts]
        figures = [scaled(each, *figures_of) for each in figures] if figures_of else figures
        progress(f"tracing steps on {format_count(ranks, 'rank')}")
        least_bytes = math.inf
        while True:
            try:
                return choose([(None, each) for each in figures], traces, profile, **bounds)
            except NothingFits as error:
                parts = 2 * (figures[-1].pieces or figures[0]).parts
                is_all = parts > min(_MOST_PIECES * ranks, graph.num_nodes)
                if (
                    not bounds["spill"]
                    or graph.schema is not None
                    or is_all
                    or error.missing_bytes > _MOST_SAVING * (least_bytes - error.least_bytes)
                ):
                    raise
                least_bytes = error.least_bytes
            shares = None if weights is None else np.repeat(weights, parts // ranks) * ranks / parts
            cut = make_edge_cut(graph, parts, target_weights=shares, seed=seed, progress=progress)
            of_parts = mapped_layout(graph, cut, 1, costs, profile.of_slowest_rank()).figures
            of_parts = scaled(of_parts, *figures_of) if figures_of else of_parts
            figures = [each for each in figures if each.pieces is None] + [of_parts.on_ranks(ranks)]

    return plan


def _planner_of_shards(sources: list, clusters: list, traces_of, figures_of, progress) -> Callable:
    """The same for shards, after a check of the numbers of ranks."""
    cuts = [(str(source), read_figures(read_manifest(source))) for source in sources]
    figures = cuts[0][1]
    for profile, ranks in clusters:
        shares_parts = any(can_share_ranks(each) for _, each in cuts) and figures.parts % ranks == 0
        if ranks != figures.parts and not shares_parts:
            sizes = ",".join(dict.fromkeys(str(each) for _, each in clusters))
            raise InputError(
                f"world_size is {sizes}, but {sources[0]} has {format_count(figures.parts, 'part')}; give a number that divides "
                "the parts of an edge cut with one type of nodes, or the graph instead of its shards"
            )
        profile.check_ranks(ranks)
    traces = traces_of(figures.features)
    progress("tracing steps")
    if figures_of:
        cuts = [(name, scaled(each, *figures_of)) for name, each in cuts]

    def plan(profile: Profile, ranks: int, bounds: dict) -> Plan:
        if ranks == figures.parts:
            return choose(cuts, traces, profile, **bounds)
        shared = [(name, each.on_ranks(ranks)) for name, each in cuts if can_share_ranks(each)]
        return choose(shared, traces, profile, **bounds)

    return plan


def can_share_ranks(figures: Figures) -> bool:
    """Whether several parts of a cut can be on one rank."""
    return figures.cut == "edge" and figures.schema is None
