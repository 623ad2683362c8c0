"""``dgl-gt train``."""

from __future__ import annotations

import os
import sys

from dgl_gt.partition.command_options import show_at_first
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.figures.profile import Profile, read_profile
from dgl_gt.partition.figures.strategies import AUTO, WITH_POLICY
from dgl_gt.partition.shards.counts import read_figures
from dgl_gt.partition.shards.manifest import read_manifest
from dgl_gt.partition.system.output_checks import check_target
from dgl_gt.partition.system.signals import is_rank
from dgl_gt.partition.system.storage import located
from dgl_gt.partition.system.units import format_count
from dgl_gt.ranks.launcher_link import find_launcher, restarts
from dgl_gt.run_files.run_directory import MODEL, RunDirectory, check_can_resume, checkpoints_in
from dgl_gt.train.config import SECTIONS, SETTINGS, policy_of, with_typed_defaults

from .options import (
    add_config,
    add_model_factory,
    add_recipe,
    add_selection_options,
    add_settings,
    add_shard_options,
    config_of,
    load_shards,
    numbers,
    positive_integer,
    positive_integers,
    run_on_parts,
    spill_options,
    whole_number,
)

_ONLY_WITH_OUT = ("resume", "resume_if_possible", "checkpoint_every", "max_restarts", "tensorboard", "timeline")
_COMMON = (  # options that --help shows; --help-all shows all
    *("nproc", "strategy", "force", "json", "config", "set", "out", "resume", "max_restarts", "model_factory"),
    *("recipe", "size", "layers", "hidden", "heads", "dropout", "encodings", "edge_features", "lr", "policy", "task"),
    *("epochs", "patience", "seed", "precision", "activation_checkpoint"),
)
_ONLY_FOR_AUTO = ("other_cut", "profile", "preset", "rank_memory", "max_depth")


def add_commands(commands) -> None:
    """Add ``train`` to an argparse subparsers object."""
    command = commands.add_parser(
        "train",
        help="train a graph transformer or a GNN on shards",
        description="Train a graph transformer or a GNN on the full graph, by default for classes of nodes, with one rank per part. "
        "Under torchrun, join the ranks that torchrun started.",
        usage="dgl-gt train [options] (DIR | --shards DIR DIR ...)",
    )
    add_shard_options(command, optional=True)
    text = "more than one graph, each of as many parts, in place of DIR: one model learns from each of them in turn"
    command.add_argument("--shards", nargs="+", action="extend", default=[], metavar="DIR", help=text)
    auto = command.add_argument_group("with --strategy auto")
    text = "shards of another cut of the same graph to choose from; may be repeated"
    auto.add_argument("--other-cut", action="append", default=[], metavar="DIR", help=text)
    add_selection_options(auto)
    text = (
        "parts that each rank takes, which with --spill run one after the other: a number, or one for each rank, such as 6,2 "
        "(default: nearly equal loads; with --strategy auto by the speeds of --profile)"
    )
    command.add_argument("--parts-per-rank", type=positive_integers, metavar="K[,...]", help=text)
    add_config(command)
    command.add_argument("--out", metavar="DIR", help="directory of the run: best model, record and checkpoints")
    _add_survival_options(command.add_argument_group("fault tolerance"))
    text = "write the numbers of each epoch for TensorBoard into --out, too"
    command.add_argument("--tensorboard", action="store_true", help=text)
    text = (
        "record one training step into --out: a torch.profiler trace of each rank, and a timeline for `dgl-gt report`"
    )
    command.add_argument("--timeline", action="store_true", help=text)
    add_recipe(command)
    add_model_factory(command)
    text = "splits to train on one after the other, such as 0-9 or 0,2; prints the mean and the standard deviation"
    command.add_argument("--splits", metavar="LIST", type=numbers, help=text)
    text = "number of runs for each split, with seeds that count up from --seed; prints the mean and the standard deviation"
    command.add_argument("--seeds", metavar="K", type=positive_integer, help=text)
    for section in SECTIONS:
        group = command.add_argument_group(f"settings of the {section or 'run'}")
        add_settings(group, [name for name, (home, _) in SETTINGS.items() if home == section])
    show_at_first(command, _COMMON)
    command.set_defaults(command=_train)


def _add_survival_options(group) -> None:
    add = group.add_argument
    text = "resume from the latest checkpoint in --out; the number of parts and the cut of the graph may differ"
    add("--resume", action="store_true", help=text)
    text = (
        "resume if --out has a checkpoint, and otherwise start anew: for schedulers that start a command again as it is"
    )
    add("--resume-if-possible", action="store_true", help=text)
    text = (
        "restart all ranks from the latest checkpoint, at most N times, if one was killed, ended by a bug, or kept the "
        "others waiting longer than --timeout (default: 0)"
    )
    add("--max-restarts", metavar="N", type=whole_number, default=0, help=text)


def _train(args):
    config = config_of(args)
    _name_graphs(args, config)
    _check_out(args)
    given = [name for name in _ONLY_FOR_AUTO if getattr(args, name)]
    policy, profile, is_auto = policy_of(config), None, config.exchange.strategy == AUTO
    if is_auto and not policy.is_exact:
        raise InputError(
            f"--policy is {config.exchange.policy}, and --strategy auto compares exact exchanges; choose one of "
            f"{', '.join(WITH_POLICY)}"
        )
    if args.spill_dtype not in (None, "fp32") and (is_auto or args.policy == "exact"):
        asked = "--strategy auto compares exact steps" if is_auto else "--policy is exact"
        raise InputError(f"--spill-dtype is {args.spill_dtype}, which rounds rows, and {asked}; leave one of them out")
    if is_auto:
        profile = read_profile(args.profile, args.preset)
    elif given:
        raise InputError(
            f"--{given[0].replace('_', '-')} needs --strategy auto; add that option, or leave this one out"
        )
    if not (args.shards or args.model_factory):
        config = _with_typed_defaults(args, config)
    return run_on_parts(
        args.argv,
        args.directory,
        lambda: _train_rank(args, config, profile),
        _ranks_of(args),
        args.timeout,
        choice=None if profile else config.exchange.choice,
        allocator=args.allocator,
        spills=args.spill is not None,
        bounded=args.rank_memory is not None,
        memory_advice=lambda: _memory_advice(args, config),
        max_restarts=args.max_restarts,
    )


def _ranks_of(args) -> int | None:
    """The number of ranks that is asked for, with ``--parts-per-rank`` those that share all parts; sets it for each rank."""
    if (given := args.parts_per_rank) is None:
        return args.nproc
    parts, started = read_manifest(args.directory)["parts"], os.environ.get("WORLD_SIZE", "") if is_rank() else ""
    ranks = args.nproc or (int(started) if started.isdecimal() else len(given) if given[1:] else -(-parts // given[0]))
    total = sum(given) if given[1:] else given[0] * ranks
    if total != parts or len(given) not in (1, ranks):
        raise InputError(
            f"--parts-per-rank is {','.join(map(str, given))}, and {args.directory} has {format_count(parts, 'part')} for "
            f"{format_count(ranks, 'rank')}; the parts of all ranks must add up to that number"
        )
    args.parts_per_rank = given if given[1:] else given * ranks
    return ranks


def _with_typed_defaults(args, config):
    """The config with the defaults of typed graphs; the first process says if all nodes have trained rows."""
    manifest = read_manifest(args.directory)
    found = with_typed_defaults(config, read_figures(manifest).features)
    if found.task != config.task and _leads():
        print(
            f"dgl-gt: no node type of {manifest['source']} has features, so every node has a trained row "
            f"(--node-embedding {found.task.node_embedding})",
            file=sys.stderr,
        )
    return found


def _name_graphs(args, config) -> None:
    """Make ``args.directory`` the first graph, and ``args.shards`` the others."""
    if bool(args.directory) == bool(args.shards):
        given = f"are {args.directory} and --shards {' '.join(args.shards)}" if args.directory else "are missing"
        raise InputError(f"the shards {given}; give DIR for one graph, or --shards DIR DIR for several")
    if not args.directory:
        args.directory, *args.shards = args.shards
    if not args.shards:
        return
    if config.exchange.strategy == AUTO:
        raise InputError(
            f"--strategy is auto, which plans the steps of one graph, and --shards names {1 + len(args.shards)}; choose another strategy"
        )
    parts = [read_manifest(each)["parts"] for each in (args.directory, *args.shards)]
    for each, count in zip(args.shards, parts[1:]):
        if count != parts[0]:
            raise InputError(
                f"--shards has {args.directory} of {format_count(parts[0], 'part')}, and {each} of {format_count(count, 'part')}; "
                "partition them into as many"
            )


def _check_out(args) -> None:
    """Check the directory of the run before any work; a launcher or rank 0 does, because other hosts may not see it."""
    if args.splits or args.seeds:
        given = [f"--{name.replace('_', '-')}" for name in ("out", *_ONLY_WITH_OUT) if getattr(args, name)]
        if given:
            raise InputError(
                f"--splits and --seeds train several models, and save none; leave {' and '.join(given)} out"
            )
    if not args.out:
        for name in _ONLY_WITH_OUT:
            if getattr(args, name):
                raise InputError(
                    f"--{name.replace('_', '-')} needs --out DIR, the directory of the run; add that option"
                )
        return
    if (args.resume or args.resume_if_possible) and args.force:
        option = "--resume" if args.resume else "--resume-if-possible"
        raise InputError(f"{option} goes on with the run in --out, and --force replaces it; leave one of them out")
    if not _leads():
        return
    if args.resume_if_possible:
        _decide_to_resume(args)
    if args.resume:
        check_can_resume(args.out)
    else:
        check_target(args.out, MODEL, force=args.force)


def _decide_to_resume(args) -> None:
    """Set ``--resume`` if there is a checkpoint, and else ``--force`` where a run has not finished."""
    out = located(args.out)
    args.resume = bool(checkpoints_in(out))
    args.force = not args.resume and not RunDirectory(out).record().get("finished", False)


def _leads() -> bool:
    """Whether this process is the first to see the directory of the run: the launcher, or torchrun's first rank 0."""
    return not (restarts() or is_rank() and (find_launcher() or os.environ["RANK"] != "0"))


def _memory_advice(args, config) -> str:
    if config.exchange.strategy == AUTO:  # only the ranks know what was predicted
        return (
            "choose a smaller model, partition into more parts on more machines, or let --rank-memory SIZE bound what "
            "--strategy auto chooses from"
        )
    if args.spill:
        return (
            "choose a smaller model, partition into more parts, which ranks run one after another, or start more ranks"
        )
    from dgl_gt.plan.planned_step import advice_for_strategy

    return advice_for_strategy(args.directory, config, args.model_factory)


def _train_rank(args, config, profile: Profile | None):
    """Train on this rank; the record of the run, and its table. With ``--strategy auto`` there is a profile."""
    import msgspec

    from dgl_gt import load
    from dgl_gt.comm.group import Comm
    from dgl_gt.plan.planned_step import check_memory
    from dgl_gt.train import summary
    from dgl_gt.train.edge_inputs import describe_assumed_meanings
    from dgl_gt.train.inputs import describe_unused_data
    from dgl_gt.train.model import check_settings, with_earlier_precision, with_measured_precision
    from dgl_gt.train.run import train, train_and_save

    factory = _factory_on_all_ranks(args)
    check_settings(config, factory)
    if args.resume_if_possible:
        with Comm(timeout_s=args.timeout) as comm, comm.together():
            if comm.rank == 0:
                _decide_to_resume(args)
            args.resume = comm.broadcast_object(args.resume)
    if args.resume or (args.out and restarts()):
        with Comm(timeout_s=args.timeout) as comm:
            config = with_earlier_precision(comm, config, args.out)
    sg, config, plan = _load(args, config, profile, factory)
    strategy, depth = config.exchange.choice
    options = {"overlap": args.overlap, "parts_per_rank": args.parts_per_rank, **spill_options(args)}
    also = [load(each, strategy, depth, sg.comm, **options) for each in args.shards]
    if not plan:  # with --strategy auto, what does not fit was not chosen
        with sg.comm.together():
            config = with_measured_precision(sg, config)
            for directory, each in zip((args.directory, *args.shards), (sg, *also)):
                check_memory(directory, each, config, factory)
    with sg.comm.together():
        assumed = describe_assumed_meanings(sg, config.task.inputs)
    if assumed and sg.comm.rank == 0:
        print(f"dgl-gt: {assumed}", file=sys.stderr)
    if args.splits or args.seeds:
        return _train_several(args, config, sg, plan, factory, also)
    if sg.comm.rank == 0 and (unused := describe_unused_data(sg.manifest, config.task)):
        print(f"dgl-gt: {unused}", file=sys.stderr)
    if sg.comm.rank == 0 and not args.out:
        print("dgl-gt: the model will not be saved; to save it, stop and add --out DIR", file=sys.stderr)
    with summary.show_progress(config.epochs, sg.comm.rank == 0) as progress:
        callbacks = {"on_start": progress and progress.start, "on_epoch": progress and progress.after_epoch}
        if not args.out:
            result = train(sg, config, **callbacks, factory=factory, also=also)
            record = summary.finished_record(result, [sg, *also], plan)
        else:
            options = _options_of_run(args) | callbacks | {"factory": factory, "plan": plan, "also": also}
            record = train_and_save(sg, config, args.out, **options)[1]
    where = f"\n\nwrote {args.out}" if args.out else ""
    return msgspec.to_builtins(record), summary.final_table(record) + where


def _options_of_run(args) -> dict:
    """How this run is kept in ``--out``. A run whose ranks were started again goes on with what it has left there."""
    return {
        "force": args.force,
        "resume": args.resume or ("if_possible" if restarts() else False),
        "tensorboard": args.tensorboard,
        "timeline": args.timeline,
    }


def _train_several(args, config, sg, plan, factory, also):
    """Train on each split with each seed; the records of all runs with their mean and deviation, and the table."""
    import msgspec

    from dgl_gt.train import summary
    from dgl_gt.train.run import train
    from dgl_gt.train.several_graphs import task_on

    settings = [{"split": each} for each in args.splits or ()] or [{}]
    runs = []
    config.changed(seed=config.seed + (args.seeds or 1) - 1)  # refused here, before the first run, if it is too large
    with sg.comm.together():
        for each in settings:
            task_on([sg, *also], config.changed(**each))  # the same
    for each in settings:
        split = each.get("split", getattr(config.task, "split", 0))
        for seed in range(config.seed, config.seed + (args.seeds or 1)):
            with summary.show_progress(config.epochs, sg.comm.rank == 0) as progress:
                callbacks = {"on_start": progress and progress.start, "on_epoch": progress and progress.after_epoch}
                result = train(sg, config.changed(**each, seed=seed), **callbacks, factory=factory, also=also)
            runs.append(summary.OneOfSeveral(split, seed, summary.finished_record(result, [sg, *also])))
            del result  # and with it the model
    values = summary.values_of_runs(runs) | ({"plan": msgspec.to_builtins(plan)} if plan else {})
    return values, summary.table_of_runs(runs)


def _factory_on_all_ranks(args):
    """The factory that ``--model-factory`` names; if one rank cannot import it, all raise."""
    from dgl_gt.comm.group import Comm
    from dgl_gt.train.model import find_factory

    if args.model_factory is None:
        return None
    with Comm(timeout_s=args.timeout) as comm, comm.raising_together():
        return find_factory(args.model_factory)


def _load(args, config, profile: Profile | None, factory):
    """The sharded graph, the config, and the plan that ``--strategy auto`` made, or None."""
    if profile is None:
        return load_shards(args, *config.exchange.choice), config, None
    from dgl_gt.plan.trial import load_fastest

    return load_fastest(
        [args.directory, *args.other_cut],
        config,
        profile,
        rank_memory=args.rank_memory,
        max_depth=args.max_depth,
        overlap=args.overlap,
        timeout_s=args.timeout,
        factory=factory,
        spill=args.spill,
        parts_per_rank=args.parts_per_rank,
    )
