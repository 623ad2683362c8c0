"""``dgl-gt plan``, and ``dgl-gt plan --search-policy``."""

from __future__ import annotations

import argparse
import warnings
from functools import cache
from pathlib import Path

from dgl_gt.exchange.policy.policy import Policy
from dgl_gt.partition import console
from dgl_gt.partition.command_options import (
    FILL,
    FILL_HELP,
    READING,
    add_reading,
    reading,
    self_loop_fill,
    show_at_first,
)
from dgl_gt.partition.distributed.engine import MEMORY_BYTES
from dgl_gt.partition.errors import InputError, SourceWarning
from dgl_gt.partition.figures.costs import Costs
from dgl_gt.partition.figures.profile import Profile, read_profile
from dgl_gt.partition.shards.counts import read_figures
from dgl_gt.partition.shards.manifest import is_shards, read_manifest
from dgl_gt.partition.system.output_checks import check_file
from dgl_gt.partition.system.units import format_count
from dgl_gt.plan.candidates import NothingFits, Plan, forecast_table, plot, text_of_plan
from dgl_gt.plan.forecast import assumed_profile, forecast
from dgl_gt.run_files.run_record import check_table, compare_with_prediction
from dgl_gt.train.config import TrainConfig, policy_of
from dgl_gt.train.task_settings import ASSUMED_CLASSES

from .options import (
    add_config,
    add_json,
    add_model_factory,
    add_selection_options,
    add_settings,
    config_of,
    duration,
    positive_float,
    positive_integer,
)
from .plan_prices import quote
from .plan_search import MAX_LOSS, search

_MOST = 10**15  # nodes or edges

_OF_CONFIG = ("layers", "hidden", "heads", "ffn", "precision", "epochs")
_COMMON = (  # options that --help shows; --help-all shows all
    *(
        "world_size",
        "config",
        "set",
        "layers",
        "hidden",
        "heads",
        "policy",
        "classes",
        "model_factory",
        "plot",
        "figures_of",
        "prices",
        "deadline",
        "epochs",
        "check",
    ),
    *("search_policy", "max_loss", "force", "json", "profile", "preset", "rank_memory", "max_depth"),
)
_NOT_WITH_PRICES = (
    *("profile", "preset", "rank_memory", "world_size"),
    *("policy", "plot", "save_costs", "search_policy"),
)
_NOT_WITH_SEARCH = ("policy", "figures_of", "world_size", "classes", "model_factory", "plot", "save_costs", "max_depth")


def add_commands(commands) -> None:
    """Add ``plan`` to an argparse subparsers object."""
    command = commands.add_parser(
        "plan",
        usage="dgl-gt plan [options] SOURCE",
        help="choose cut, strategy, depth and activation checkpointing",
        description="Predict the time and memory of a training step with every cut, strategy and depth, and choose the "
        "fastest that fits; see docs/selector.md.",
    )
    add = command.add_argument
    add("source", nargs="*", metavar="SOURCE", help="shard directories of one graph, or one graph, which plan cuts")
    text = (
        "numbers of ranks to plan for; those of shards divide their parts (default: the parts of the shards, or the ranks of the "
        "profile)"
    )
    add("--world-size", type=_world_sizes, metavar="P,P,..", help=text)
    add_config(command)
    add_settings(command, _OF_CONFIG)
    text = "also predict steps under this transmission policy (shards only); the policy in --config is ignored"
    add("--policy", metavar="POLICY", help=text)
    text = f"number of classes (default: {ASSUMED_CLASSES})"
    add("--classes", type=positive_integer, metavar="N", help=text)
    add_model_factory(command)
    add("--seed", type=int, metavar="N", help="seed of the cuts that plan makes (default: 0)")
    add("--self-loops", action="store_true", help="add a self-loop to each node that has none")
    add("--self-loop-fill", type=self_loop_fill, metavar=FILL, help=FILL_HELP)
    add_reading(command.add_argument_group("reading a graph"))
    add("--undirected", action="store_true", help="add the reverse of each edge that has none")
    add("--random-features", type=int, metavar="WIDTH", help="random features for a graph that has no features")
    text = "plan for a graph of this size, such as 1e9,1e10, of which SOURCE is a sample with the same mean degree"
    add("--figures-of", type=_nodes_and_edges, metavar="NODES,EDGES", help=text)
    text = (
        "file with prices of machines: list clusters of them by the hours and the money of a run; see docs/selector.md"
    )
    add("--prices", metavar="FILE.yaml", help=text)
    add("--deadline", type=duration, metavar="TIME", help="longest time of a run, such as 6h or 2d; needs --prices")
    add("--plot", metavar="FILE.png", help="picture to write: seconds and memory by number of ranks")
    add(
        "--check", metavar="RUN", help="compare the prediction of `dgl-gt train --strategy auto --out RUN` with the run"
    )
    text = "file to write with the costs of a step, by which `dgl-gt partition --costs` compares cuts"
    add("--save-costs", metavar="FILE.json", help=text)
    text = "file to write with the transmission policy of the fastest step within --max-loss; this trains on all ranks"
    add("--search-policy", metavar="FILE.yaml", help=text)
    text = f"points of the validation metric that --search-policy may lose (default: {MAX_LOSS:g})"
    add("--max-loss", type=positive_float, metavar="POINTS", help=text)
    add("--force", action="store_true", help="replace the files that plan writes if they exist")
    add_selection_options(command)
    add_json(command)
    show_at_first(command, _COMMON)
    command.set_defaults(command=lambda args: _plan(args, command))


def _world_sizes(text: str) -> list[int]:
    words = text.split(",")
    if not all(word.strip().lstrip("-").isdecimal() for word in words):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers of ranks; write it as 2 or 4,8,16")
    return list(dict.fromkeys(map(positive_integer, words)))


def _nodes_and_edges(text: str) -> tuple[int, int]:
    try:
        nodes, edges = (int(float(word)) for word in text.split(","))
    except (ValueError, OverflowError):
        nodes = edges = 0
    if min(nodes, edges) < 1 or max(nodes, edges) > _MOST:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no size of a graph; write it as 1e9,1e10, numbers of nodes and edges"
        )
    return nodes, edges


def _plan(args, command: argparse.ArgumentParser):
    if args.check:
        options = [each for each in command._actions if each.dest not in ("help", "check", "json")]
        given = [each for each in options if getattr(args, each.dest) not in (each.default, [])]
        if given:
            ignored = (given[0].option_strings or args.source)[0]
            raise InputError(f"--check compares the run {args.check} with its own plan; leave {ignored} out")
        comparison = compare_with_prediction(args.check)
        return comparison, check_table(comparison)
    _check_options(args)
    config = config_of(args, _OF_CONFIG)
    if args.prices:
        return quote(args, config, _traces_of(args, config), _additions(args))
    profile = assumed_profile(read_profile(args.profile, args.preset), args.rank_memory is not None)
    if args.search_policy:
        return search(args, config, profile)
    policy = policy_of(config.changed(policy=args.policy)) if args.policy else Policy()
    if not policy.is_exact and not all(map(is_shards, args.source)):
        raise InputError(
            f"--policy is {args.policy}, and plan predicts policies for shards only; partition the graph first, or leave "
            "--policy out"
        )
    cuts = [] if policy.is_exact else [(str(each), read_figures(read_manifest(each))) for each in args.source]
    if cuts:  # a policy for other graphs, layers, ranks or models is refused before any work
        if args.world_size not in (None, [cuts[0][1].parts]):
            raise InputError(
                f"--policy is {args.policy}, and --world-size {','.join(map(str, args.world_size))}; {cuts[0][0]} has "
                f"{format_count(cuts[0][1].parts, 'part')}, and a policy is predicted for as many ranks: leave --world-size out"
            )
        if cuts[0][1].schema is not None:
            policy.check_typed(cuts[0][0])
        policy.check(None if args.model_factory else config.model.layers, cuts[0][1].parts)
        policy.check_model(config.activation_checkpoint, config.model.global_attention)
    traces_of, widths = _traces_of(args, config), list[int]()

    def noting_width(features):
        widths.append(features)
        return traces_of(features)

    plans = _forecast(args, noting_width, profile)
    of_policy = None
    if not policy.is_exact:
        from dgl_gt.plan.policy_costs import plan_policy, text_of_policy  # here, because --help needs no torch

        with console.Stages() as progress:
            progress("predicting the policy")
            of_policy = plan_policy(cuts, traces_of(cuts[0][1].features), profile, policy, args.rank_memory)
    if args.save_costs:
        _costs(plans).save(args.save_costs, force=args.force)
    if args.plot:
        plot(plans, profile, args.plot, force=args.force)
    if args.figures_of:
        return _of_large_graph(args, config, plans, profile, widths[0])
    if len(plans) == 1:
        (only,) = plans.values()
        if of_policy is None:
            return only.as_dict(), text_of_plan(only)
        values = {"policy": policy.described(), **of_policy.as_dict()}
        return only.as_dict() | {"policy": values}, f"{text_of_plan(only)}\n\n{text_of_policy(of_policy, args.policy)}"
    return {"plans": _listed(plans)}, forecast_table(plans, profile)


def _listed(plans: dict) -> list[dict]:
    return [
        {"ranks": ranks, "choice": None, "refused": str(each), "least_memory_bytes": each.least_bytes}
        if isinstance(each, NothingFits)
        else each.as_dict()
        for ranks, each in plans.items()
    ]


def _of_large_graph(args, config: TrainConfig, plans: dict, profile: Profile, features: int) -> tuple[dict, str]:
    """Plans for a graph that is not there, and the hours of partitioning it with as many workers and of a run."""
    from dgl_gt.plan.partitioning_hours import hours_table, partitioning_of

    (nodes, edges), memory_bytes = args.figures_of, args.rank_memory or MEMORY_BYTES
    work = {ranks: partitioning_of(nodes, edges, features, ranks, memory_bytes) for ranks in plans}
    steps = {ranks: each.choice.seconds if isinstance(each, Plan) else None for ranks, each in plans.items()}
    listed = [each | {"partitioning": work[each["ranks"]]._asdict()} for each in _listed(plans)]
    text = text_of_plan(next(iter(plans.values()))) if len(plans) == 1 else forecast_table(plans, profile)
    hours = hours_table([(work[ranks], steps[ranks]) for ranks in plans], config.epochs)
    values = listed[0] if len(listed) == 1 else {"plans": listed}
    return values, f"{text}\n\nthe edge cut by many workers, and a run:\n\n{hours}"


def _check_options(args) -> None:
    """Refuse options that do not fit the sources, before any work."""
    if not args.source:
        raise InputError("SOURCE is missing; name shard directories, or a graph")
    for_graphs = {
        "--seed": args.seed,
        "--random-features": args.random_features,
        "--self-loops": args.self_loops or None,
        "--self-loop-fill": args.self_loop_fill,
        "--undirected": args.undirected or None,
        **{f"--{name.replace('_', '-')}": getattr(args, name) for name in READING},
    }
    option = next((name for name, value in for_graphs.items() if value is not None), None)
    if option and is_shards(args.source[0]):
        raise InputError(f"{option} is only for a graph, and {args.source[0]} holds shards; leave {option} out")
    if args.max_loss and not args.search_policy:
        raise InputError("--max-loss needs --search-policy FILE.yaml; add that option, or leave --max-loss out")
    for name in _NOT_WITH_SEARCH if args.search_policy else ():
        if getattr(args, name):
            raise InputError(
                f"--search-policy trains the model of --config on shards; leave --{name.replace('_', '-')} out"
            )
    for name in _NOT_WITH_PRICES if args.prices else ():
        if getattr(args, name):
            raise InputError(
                f"--prices lists clusters by what their machines are, in {args.prices}; leave --{name.replace('_', '-')} out"
            )
    if args.deadline and not args.prices:
        raise InputError("--deadline needs --prices FILE.yaml; add that option, or leave --deadline out")
    if args.epochs and not (args.prices or args.figures_of):
        raise InputError("--epochs needs --prices or --figures-of, which print hours; add one, or leave --epochs out")
    if args.plot:
        if Path(args.plot).suffix != ".png":
            raise InputError(f"--plot is {args.plot}; it must end in .png")
        check_file(args.plot, force=args.force)
    if args.save_costs:
        check_file(args.save_costs, force=args.force)


def _traces_of(args, config: TrainConfig):
    """A function that returns the traces of the model's step, for a number of features."""
    from dgl_gt.plan.planned_step import tracer_of
    from dgl_gt.train.model import check_settings, find_factory  # here, because --help needs no torch

    factory = find_factory(args.model_factory)
    check_settings(config, factory)
    return cache(lambda features: tracer_of(config, features, args.classes, factory))


def _forecast(args, traces_of, profile) -> dict:
    """A plan, or the reason why there is none, for each number of ranks."""
    warnings.simplefilter("ignore", SourceWarning)  # said below, in the form of the command line
    with console.Stages() as progress:
        return forecast(
            args.source,
            args.world_size,
            traces_of,
            profile,
            rank_memory=args.rank_memory,
            max_depth=args.max_depth,
            figures_of=args.figures_of,
            seed=args.seed or 0,
            progress=progress,
            say_notes=console.print_source_notes,
            **_additions(args),
        )


def _additions(args) -> dict:
    """How a graph is read, and what is added to it."""
    names = ("self_loops", "self_loop_fill", "undirected", "random_features")
    return {name: getattr(args, name) for name in names} | reading(args)


def _costs(plans: dict) -> Costs:
    """The linear costs of the plan for most ranks."""
    ranks = max(ranks for ranks, each in plans.items() if isinstance(each, Plan))
    if ranks == 1:
        raise InputError("--save-costs describes cuts, and a plan for one rank has none; add --world-size 2 or more")
    return plans[ranks].costs
