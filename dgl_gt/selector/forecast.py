"""Plans for sizes at hand or not: shards or a graph, and numbers of ranks in, a plan for each out; table and plot."""

from __future__ import annotations

import os

from partition.console import table
from partition.cuts.edge_cut import make_edge_cut
from partition.cuts.permutation import check_parts
from partition.cuts.vertex_cut import make_vertex_cut
from partition.errors import InputError
from partition.predict.traffic import Model, feature_width
from partition.shards.layout import Layout
from partition.shards.manifest import read_manifest
from partition.sources.load import load_graph
from partition.system.atomic_write import new_file
from partition.system.units import counted, size

from .hardware_profile import Profile
from .select import NothingFits, Plan, choose

_SHOWN = 12  # candidates that fit, in the table; those that do not are all there, with the reason
_MOST_RANKS = 128  # tried where nothing fits
_MEMORY = (
    "The column memory / rank is what a run with --rank-memory takes. Without it, ranks on a CPU keep freed memory, "
    "which is faster and takes up to 1.45 times as much."  # 1.34 to 1.43 times was measured
)
_KINDS = {
    "measured": "ranks and links as measured",
    "datasheet": "ranks and links from datasheets: peaks, which no run reaches; compare choices, not seconds",
    "default": "no profile or preset given: a modest processor core a rank and 10 Gbit/s links are assumed",
}


def forecast(
    sources: list[str],
    world_sizes: list[int] | None,
    model: dict,
    profile: Profile,
    *,
    rank_memory: int | None = None,
    max_depth: int | None = None,
    seed: int = 0,
    progress=None,
    say_left_out=None,
    **additions,
) -> dict[int, Plan | NothingFits]:
    """A plan for each number of ranks, or why there is none.

    Parameters
    ----------
    sources : list of path
        Shard directories of one graph and number of parts, or one graph, which is cut both ways.
    world_sizes : list of int, optional
        By default the parts of the shards, or the ranks of the profile.
    model : dict
        ``layers, hidden, heads, ffn, classes``; the width of the features is the graph's.
    profile, rank_memory, max_depth
        See :func:`dgl_gt.selector.select.choose`.
    seed : int
        Of cuts that are made here.
    progress : callable, optional
    say_left_out : callable, optional
        Called with the ``left_out`` of a graph that is read, before it is cut.
    **additions
        Of :func:`partition.sources.load.load_graph`, for a graph.

    Raises
    ------
    InputError
        Also where shards do not have as many parts as a world size, and where nothing fits any number of ranks.
    """
    bounds = {"rank_memory": rank_memory, "max_depth": max_depth}
    if all(map(is_shards, sources)):
        cuts = [(str(source), read_manifest(source)) for source in sources]
        parts = cuts[0][1]["parts"]
        if world_sizes not in (None, [parts]):
            raise InputError(
                f"--world-size is {','.join(map(str, world_sizes))} and {sources[0]} has {counted(parts, 'part')}; "
                "name the graph in place of its shards, and it is cut for each"
            )
        return {parts: choose(cuts, Model(**model, features=feature_width(cuts[0][1])), profile, **bounds)}
    if len(sources) > 1:
        raise InputError(f"{sources[1]} is one source too many: give shard directories, or one graph")
    if world_sizes is None:
        if profile.ranks is None:
            raise InputError("--world-size is missing: how many ranks are there? (such as 2, or 4,8,16)")
        world_sizes = [profile.ranks]
    for ranks in world_sizes:
        profile.check_ranks(ranks)  # before any work
    if progress:
        progress("reading the graph")
    graph = load_graph(sources[0], seed=seed, **additions)
    if say_left_out:
        say_left_out(graph.left_out)
    check_parts(graph.num_nodes, max(world_sizes))  # before any is cut
    features = graph.node_data.get("feat")
    whole = Model(**model, features=0 if features is None or features.ndim < 2 else features.shape[1])
    deepest = min(max_depth or whole.layers, whole.layers)

    def plan(ranks: int) -> Plan:
        return choose(_cuts(graph, ranks, deepest, whole, profile, seed, progress), whole, profile, **bounds)

    plans = {}
    for ranks in world_sizes:
        try:
            plans[ranks] = plan(ranks)
        except NothingFits as error:
            plans[ranks] = error
    if all(isinstance(each, NothingFits) for each in plans.values()):
        most = max(plans)
        if profile.ranks is not None:
            raise plans[most]
        bound = rank_memory or float(profile.memory_bytes[0])
        raise InputError(f"{plans[most]}; {_enough(plan, most, bound, whole, profile)}")
    return plans


def is_shards(source) -> bool:
    """Whether a source is a shard directory."""
    return os.path.isfile(os.path.join(source, "manifest.json"))  # False, too, for a name that is too long


def _cuts(graph, ranks: int, depth: int, model: Model, profile: Profile, seed: int, progress):
    """Figures of the cuts that a graph can have."""
    weights = None if profile.ranks is None or ranks == 1 else profile.target_weights(model)
    if weights is not None and max(weights) < 1.05 * min(weights):
        weights = None
    edge = make_edge_cut(graph, ranks, seed=seed, target_weights=weights, model=model, progress=progress)
    cuts = [(None, Layout(graph, edge, depth).figures)]
    if ranks > 1:
        cuts.append((None, Layout(graph, make_vertex_cut(graph, ranks, seed=seed, progress=progress)).figures))
    return cuts


def _enough(plan, ranks: int, bound: float, model: Model, profile: Profile) -> str:
    """How many ranks it would take."""
    fixed = float(profile.process_bytes[0]) + 4 * model.parameters * model.itemsize  # on any number of ranks
    if fixed > bound:
        return f"no number of ranks would do: process, parameters and optimiser alone take {size(fixed)}"
    tried = ranks
    while 2 * tried <= _MOST_RANKS:
        try:
            plan(2 * tried)
        except NothingFits:
            tried *= 2
            continue
        except InputError:  # more parts than nodes
            break
        return f"{2 * tried} ranks would do"
    return f"{tried} ranks would not do either" if tried > ranks else "more ranks were not tried"


def text_of_plan(plan: Plan) -> str:
    """One plan: all candidates, and the reason."""
    fitting = [each for each in plan.candidates if not each.refused]
    refused = plan.candidates[len(fitting) :]
    rows = []
    for each in fitting[:_SHOWN] + refused:
        terms = each.seconds_by_term or {}
        seconds = [f"{terms[key]:.3g}" for key in ("products_s", "rows_s", "attention_s")] if terms else [""] * 3
        exchange = f"{terms['exchange_s'] - terms['hidden_s']:.3g}" if terms else ""
        figures = [f"{each.seconds:.3g}", *seconds, exchange] if terms else [""] * 5
        moved = [size(each.sent_bytes), size(each.memory_bytes)] if terms else ["", ""]
        rows.append(
            [each.cut, each.strategy, each.depth, each.activation_checkpoint, *figures, *moved, each.refused or ""]
        )
    header = "cut|strategy|depth|checkpoint|s / step|products|rows|edges|exchange|sent|memory / rank|".split("|")
    more = len(fitting) - _SHOWN
    listed = table(header, rows) + (f"\nand {more} more that fit (--json lists all)" if more > 0 else "")
    return f"{listed}\n\nchosen: {plan.reason}\n{_MEMORY}\n{_KINDS[plan.profile['kind']]}"


def forecast_table(plans: dict[int, Plan | NothingFits], profile: Profile) -> str:
    """Plans for several numbers of ranks."""
    rows = []
    for ranks, plan in plans.items():
        if isinstance(plan, NothingFits):
            rows.append([ranks, *["-"] * 8, f"{size(plan.least_bytes)} at least: does not fit"])
            continue
        choice, speed_up = plan.choice, plan.one_rank_seconds / plan.choice.seconds
        named = [choice.cut, choice.strategy, choice.depth, choice.activation_checkpoint]
        figures = [f"{choice.seconds:.3g}", f"{speed_up:.2f}", f"{speed_up / plan.ranks:.0%}"]
        rows.append([ranks, *named, *figures, size(choice.sent_bytes), size(choice.memory_bytes)])
    header = "ranks|cut|strategy|depth|checkpoint|s / step|speed-up|efficiency|sent|memory / rank".split("|")
    measured = "rows, edges and bytes are those of real cuts into so many parts; " + _KINDS[profile.kind]
    return f"{table(header, rows)}\n\n{_MEMORY}\n{measured}"


def plot(plans: dict[int, Plan | NothingFits], profile: Profile, path, *, force: bool = False) -> None:
    """Draw seconds, memory and efficiency by number of ranks as a PNG, which with ``force`` replaces another."""
    try:
        import matplotlib
    except ImportError:
        raise InputError("--plot needs matplotlib; install it with: pip install matplotlib") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    plans = [plan for plan in plans.values() if isinstance(plan, Plan)]
    ranks = [plan.ranks for plan in plans]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    left.plot(ranks, [plan.choice.seconds for plan in plans], "o-", label="predicted")
    left.plot(ranks, [plan.one_rank_seconds / plan.ranks for plan in plans], ":", color="grey", label="perfect")
    for plan in plans:
        left.annotate(
            plan.choice.strategy, (plan.ranks, plan.choice.seconds), textcoords="offset points", xytext=(4, 6)
        )
    left.set(xlabel="ranks", ylabel="seconds a step", xscale="log", yscale="log")
    left.legend()
    right.plot(ranks, [plan.choice.memory_bytes / 2**30 for plan in plans], "s-", color="tab:red")
    right.set(xlabel="ranks", ylabel="GiB of the largest rank", xscale="log", ylim=(0, None))
    for axes in (left, right):
        axes.set_xticks(ranks, [str(each) for each in ranks])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    figure.suptitle(_KINDS[profile.kind], fontsize=9)
    with new_file(path, force=force) as file:
        figure.savefig(file, format="png", dpi=120)
    pyplot.close(figure)
