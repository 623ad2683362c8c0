"""Plans for shards, or for a graph that is cut for one or several numbers of ranks."""

from __future__ import annotations

from collections.abc import Callable

from dgl_gt.partition.cuts.edge_cut import make_edge_cut
from dgl_gt.partition.cuts.permutation import check_parts, columns_of
from dgl_gt.partition.cuts.vertex_cut import make_vertex_cut
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.figures.costs import default_costs
from dgl_gt.partition.figures.figures import features_of
from dgl_gt.partition.figures.profile import Profile
from dgl_gt.partition.figures.strategies import STRATEGIES
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
    progress: Callable[[str], object] = lambda stage: None,
    say_notes: Callable | None = None,
    **additions,
) -> dict[int, Plan | NothingFits]:
    """Make a plan for each number of ranks, by default the parts of the shards, or the ranks of the profile.

    ``sources`` are shard directories of one graph with the same number of parts, or one graph, which is cut both ways with
    this ``seed``; ``additions`` are options of :func:`dgl_gt.partition.sources.load.load_graph` for it. ``traces_of`` gets
    the width of the node features and returns the traces of the step. ``say_notes`` is called with the ``notes`` and the
    ``left_out`` of a graph before it is cut. The rest is as in :func:`dgl_gt.plan.choose`.

    :class:`InputError` says that the shards have another number of parts, that nothing fits on any number of ranks, or
    what is wrong with a source or a bound.
    """
    bounds = {"rank_memory": rank_memory, "max_depth": max_depth}
    if all(map(is_shards, sources)):
        return _plan_of_shards(sources, world_sizes, traces_of, profile, bounds, progress)
    if len(sources) > 1:
        other = next(each for each in sources if not is_shards(each))
        raise InputError(f"{other} is not a shard directory; give only shard directories, or a single graph")
    if world_sizes is None:
        if profile.ranks is None:
            raise InputError("--world-size is missing; give a number of ranks such as 2, or several such as 4,8,16")
        world_sizes = [profile.ranks]
    for ranks in world_sizes:
        profile.check_ranks(ranks)
    progress("reading the graph")
    graph = load_graph(sources[0], seed=seed, **additions)
    if say_notes:
        say_notes(graph.notes, graph.left_out)
    check_parts(graph.num_nodes, max(world_sizes))  # before any is cut
    traces, costs = traces_of(features_of(columns_of(graph)["node_data"])), default_costs()
    depth, weights = min(max_depth or traces.max_depth, traces.max_depth), profile.unequal_weights()

    def plan(ranks: int, **options) -> Plan | NothingFits:
        """The plan for a number of ranks, or the error that says why there is none."""
        how = {"target_weights": weights, "seed": seed, "progress": progress}
        cuts = [(make_edge_cut(graph, ranks, profile=profile, **how), depth)]
        if ranks > 1:
            cuts.append((make_vertex_cut(graph, ranks, **how), 1))
        figures = [mapped_layout(graph, cut, hops, costs, profile).figures for cut, hops in cuts]
        progress(f"tracing steps on {format_count(ranks, 'rank')}")
        try:
            return choose([(None, each) for each in figures], traces, profile, **bounds, **options)
        except NothingFits as error:
            return error

    plans = {ranks: plan(ranks) for ranks in world_sizes}
    if any(isinstance(each, Plan) for each in plans.values()):
        return plans
    most = max(plans)
    error = plans[most]
    assert isinstance(error, NothingFits)
    if profile.ranks is not None:
        raise error
    fixed_bytes = float(profile.process_bytes) + error.fixed_bytes
    raise InputError(f"{error}; {_enough_ranks(plan, most, fixed_bytes, rank_memory or profile.memory_bytes)}")


def _plan_of_shards(
    sources: list[str], world_sizes, traces_of: Callable, profile: Profile, bounds: dict, progress: Callable
) -> dict[int, Plan | NothingFits]:
    cuts = [(str(source), read_figures(read_manifest(source))) for source in sources]
    figures = cuts[0][1]
    if world_sizes not in (None, [figures.parts]):
        raise InputError(
            f"--world-size is {','.join(map(str, world_sizes))}, but {sources[0]} has {format_count(figures.parts, 'part')}; "
            "give the graph instead of its shards to plan for other numbers of ranks"
        )
    profile.check_ranks(figures.parts)
    traces = traces_of(figures.features)
    progress("tracing steps")
    return {figures.parts: choose(cuts, traces, profile, **bounds)}


def _enough_ranks(plan: Callable[..., Plan | NothingFits], ranks: int, fixed_bytes: float, memory_bytes: float) -> str:
    """A sentence on how many ranks would be enough, when ``ranks`` are not."""
    if fixed_bytes > memory_bytes:
        return f"no number of ranks is enough: process, parameters and optimiser alone take {format_bytes(fixed_bytes)}"
    tried = ranks
    while 2 * tried <= _MAX_RANKS:
        try:
            found = plan(2 * tried, strategies=_LEAST_MEMORY)
        except InputError:  # more parts than nodes
            break
        if isinstance(found, Plan):
            return f"{2 * tried} ranks would be enough"
        tried *= 2
    return f"{tried} ranks would not be enough either" if tried > ranks else "more ranks were not tried"
