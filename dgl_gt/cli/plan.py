"""``dgl-gt calibrate`` and ``dgl-gt plan``."""

from __future__ import annotations

import argparse
import warnings
from contextlib import ExitStack
from pathlib import Path

from dgl_gt.selector.check import check_table, errors
from dgl_gt.selector.forecast import forecast, forecast_table, is_shards, plot, text_of_plan
from dgl_gt.selector.hardware_profile import MOST_RANKS, PRESETS, read_profile
from dgl_gt.selector.select import NothingFits
from dgl_gt.train.config import TrainConfig, read_config
from partition import console
from partition.cli import positive_float, positive_integer, size_in_bytes
from partition.console import table
from partition.errors import InputError, LeftOutWarning
from partition.predict.traffic import Model
from partition.system.atomic_write import new_file
from partition.system.output_checks import check_file
from partition.system.units import size


def add_commands(commands) -> None:
    """Add ``calibrate`` and ``plan`` to an argparse subparsers object."""
    calibrate = commands.add_parser(
        "calibrate",
        help="measure ranks and links",
        description="Measure what ranks and the links between them do, all at the same time, about a minute. Under "
        "torchrun it joins the ranks there.",
    )
    calibrate.add_argument("--nproc", type=positive_integer, default=1, metavar="P", help="ranks to start here")
    calibrate.add_argument("--out", required=True, metavar="FILE.yaml", help="the profile to write")
    add_timeout(calibrate)
    calibrate.add_argument("--force", action="store_true", help="replace FILE.yaml where it exists")
    calibrate.set_defaults(command=_calibrate)

    plan = commands.add_parser(
        "plan",
        help="choose cut, strategy, depth and activation checkpointing",
        description="Predict a training step under every strategy that fits, and choose; see docs/selector.md.",
    )
    plan.add_argument("source", nargs="*", metavar="SOURCE", help="shard directories of one graph, or a graph to cut")
    plan.add_argument(
        "--world-size", type=_counts, metavar="P,P,..", help="numbers of ranks (default: the parts of the shards)"
    )
    plan.add_argument("--config", metavar="FILE", help="YAML file of `dgl-gt train`; options override it")
    for name in ("layers", "hidden", "heads", "ffn"):
        default = getattr(TrainConfig, name)
        plan.add_argument(f"--{name}", type=positive_integer, help=f"of the model (default: {default})")
    plan.add_argument("--classes", type=positive_integer, default=40, help="of the model (default: %(default)s)")
    plan.add_argument("--seed", type=int, help="of cuts made here (default: 0)")
    plan.add_argument("--undirected", action="store_true", help="add the reverse of each edge that has none")
    plan.add_argument("--random-features", type=int, metavar="WIDTH", help="for a graph that has none")
    plan.add_argument("--plot", metavar="FILE.png", help="draw seconds and memory by number of ranks")
    plan.add_argument("--check", metavar="RUN", help="compare what a run was predicted to take with what it took")
    plan.add_argument("--force", action="store_true", help="replace FILE.png where it exists")
    add_choice(plan)
    for command in (calibrate, plan):
        command.add_argument("--json", action="store_true", help="one JSON object on stdout")
    plan.set_defaults(command=_plan)


def add_timeout(command) -> None:
    """Add ``--timeout``."""
    command.add_argument(
        "--timeout",
        type=positive_float,
        metavar="SECONDS",
        help="longest time that ranks wait for each other (default: no end; after 60 s the awaited rank is named)",
    )


def add_choice(command) -> None:
    """Add what a choice of strategy depends on: ``--profile``, ``--preset``, ``--rank-memory``, ``--max-depth``."""
    command.add_argument("--profile", metavar="FILE.yaml", help="what `dgl-gt calibrate` wrote")
    command.add_argument("--preset", metavar="NAME", help=f"instead of a profile: {', '.join(PRESETS)}")
    command.add_argument(
        "--rank-memory",
        type=size_in_bytes,
        metavar="SIZE",
        help="memory per rank; candidates that need more are refused",
    )
    command.add_argument("--max-depth", type=positive_integer, metavar="R", help="deepest halo to consider")


def _counts(text: str) -> list[int]:
    words = text.split(",")
    if not all(word.strip().lstrip("-").isdecimal() for word in words):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers of ranks, such as 2 or 4,8,16")
    return list(dict.fromkeys(map(positive_integer, words)))


def _calibrate(args):
    from dgl_gt.train.run_on_ranks import run_on_ranks

    if args.nproc > MOST_RANKS:
        raise InputError(f"--nproc is {args.nproc}; it must be from 1 to {MOST_RANKS}")
    out = check_file(args.out, force=args.force)
    return run_on_ranks(
        args.argv,
        lambda: args.nproc,
        lambda: _calibrate_rank(args, out),
        timeout=args.timeout,
        memory_advice=lambda: "free memory, or measure fewer ranks",
    )


def _calibrate_rank(args, out: Path):
    import yaml

    from dgl_gt.comm.group import Comm
    from dgl_gt.selector.calibrate import measure

    comm, progress = Comm(timeout_s=args.timeout), console.Progress()
    with comm.together(), ExitStack() as stack:
        stack.callback(progress.close)
        profile = measure(comm, progress if comm.rank == 0 else None)
    values = profile.as_dict()
    if comm.rank == 0:
        with new_file(out, force=args.force) as file:
            file.write(yaml.safe_dump(values, sort_keys=False, default_flow_style=None, width=100).encode())
    return values, _profile_text(values, profile.target_weights(Model())) + f"\n\nwrote {out}"


def _profile_text(values: dict, weights: list[float]) -> str:
    def listed(value, scale: float, digits: int = 1) -> str:
        return ", ".join(f"{each / scale:.{digits}f}" for each in (value if isinstance(value, list) else [value]))

    rows = [
        ("ranks", values["ranks"]),
        ("products of width 128, GFLOP/s", listed(values["products"][128], 1e9)),
        ("operations on rows, GB/s", listed(values["stream_bytes_per_s"], 1e9)),
        ("edge, per number, near, ns", listed(values["attention"]["near_column_s"], 1e-9, 2)),
        *(
            (f"edge, per number, among {size(held)}, ns", listed(seconds, 1e-9, 2))
            for held, seconds in values["attention"]["far_column_s"].items()
        ),
        ("memory, GiB", listed(values["memory_bytes"], 2**30)),
    ]
    if values["ranks"] > 1:
        link = values["link_bytes_per_s"]
        between = [link[i][j] for i in range(len(link)) for j in range(len(link)) if i != j]
        rows += [
            ("slowest and fastest link, MB/s", listed([min(between), max(between)], 1e6)),
            ("latency of an exchange, ms", listed(values["latency_s"], 1e-3, 2)),
            ("exchange hidden by computation", f"{values['overlap']:.0%}"),
            ("shares, for --target-weights", ",".join(f"{each:.3f}" for each in weights)),
        ]
    return table(["measured", ""], rows)


def _plan(args):
    if args.check:
        if args.source:
            raise InputError(f"--check compares the run {args.check} alone; leave {args.source[0]} out")
        found = errors(args.check)
        return found, check_table(found)
    if not args.source:
        raise InputError("SOURCE is missing: name shard directories, or a graph")
    given = {"--seed": args.seed, "--random-features": args.random_features, "--undirected": args.undirected or None}
    option = next((name for name, value in given.items() if value is not None), None)
    if option and is_shards(args.source[0]):
        raise InputError(f"{option} is for a graph, and {args.source[0]} is shards of one; leave it out")
    if args.plot:
        if Path(args.plot).suffix != ".png":
            raise InputError(f"--plot is {args.plot}; it must end in .png")
        check_file(args.plot, force=args.force)
    names = ("layers", "hidden", "heads", "ffn")
    config = read_config(args.config, **{name: getattr(args, name) for name in names})
    profile = read_profile(args.profile, args.preset)
    progress = console.Progress()
    warnings.simplefilter("ignore", LeftOutWarning)  # said below, in the form of the command line
    try:
        plans = forecast(
            args.source,
            args.world_size,
            {**{name: getattr(config, name) for name in names}, "classes": args.classes},
            profile,
            rank_memory=args.rank_memory,
            max_depth=args.max_depth,
            seed=args.seed or 0,
            progress=progress,
            say_left_out=console.say_left_out,
            undirected=args.undirected,
            random_features=args.random_features,
        )
    finally:
        progress.close()
    if args.plot:
        plot(plans, profile, args.plot, force=args.force)
    if len(plans) == 1:
        (only,) = plans.values()
        return only.as_dict(), text_of_plan(only)
    listed = [
        _refused(ranks, each) if isinstance(each, NothingFits) else each.as_dict() for ranks, each in plans.items()
    ]
    return {"plans": listed}, forecast_table(plans, profile)


def _refused(ranks: int, error: NothingFits) -> dict:
    return {"ranks": ranks, "choice": None, "refused": str(error), "least_memory_bytes": error.least_bytes}
