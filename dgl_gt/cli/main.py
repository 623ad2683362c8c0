"""``dgl-gt``: partition, inspect, calibrate, plan, train, predict. Heavy imports wait until a command needs them."""

from __future__ import annotations

import argparse
import sys
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path

from dgl_gt import __version__
from dgl_gt.selector.hardware_profile import read_profile
from dgl_gt.train.config import MODEL, TrainConfig, read_config
from partition import console
from partition.cli import DEFAULT_LINK_GBIT, add_commands, add_link
from partition.errors import InputError
from partition.predict.step_time import Speeds, halo_sends
from partition.predict.traffic import AUTO, CHOICES, Model
from partition.shards.manifest import read_manifest
from partition.system.atomic_write import check_file, check_target
from partition.system.units import counted

from . import plan
from .plan import add_timeout


def main(argv=None) -> int:
    """Run ``dgl-gt``; returns the exit code: 0, 2 for the user's mistake, 1 for ours."""
    argv = sys.argv[1:] if argv is None else list(argv)
    parser = argparse.ArgumentParser(
        prog="dgl-gt", description="Full-graph, distributed training of graph transformers on large graphs."
    )
    parser.add_argument("--version", action="version", version=f"dgl-gt {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    add_commands(commands)
    _add_train(commands)
    _add_predict(commands)
    plan.add_commands(commands)
    parser.set_defaults(argv=argv)
    return console.run(parser, argv)


def _add_ranks(command, choices=CHOICES) -> None:
    command.add_argument("directory", metavar="DIR", help="shards made by `dgl-gt partition`")
    command.add_argument(
        "--nproc", type=int, metavar="P", help="ranks to start here, one a part (default: the number of parts)"
    )
    add_timeout(command)
    command.add_argument(
        "--strategy",
        metavar="NAME",
        help=f"how attention crosses ranks: {', '.join(choices)} (default: halo, or mirror)",
    )
    command.add_argument(
        "--depth",
        type=int,
        default=1,
        metavar="R",
        help="layers between exchanges, with --halo-depth shards (default: 1)",
    )
    command.add_argument(
        "--overlap",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="compute while rows travel (default: yes)",
    )
    add_link(command)
    command.add_argument("--force", action="store_true", help="replace the output where it exists")
    command.add_argument("--json", action="store_true", help="one JSON object on stdout")


def _add_train(commands) -> None:
    command = commands.add_parser(
        "train",
        help="train a graph transformer on shards",
        description="Train a graph transformer for node classification, full-graph, one rank a part. "
        "Under torchrun it joins the ranks there.",
    )
    _add_ranks(command, (*CHOICES, AUTO))
    auto = command.add_argument_group("with --strategy auto")
    auto.add_argument("--other-cut", action="append", default=[], metavar="DIR", help="more shards to choose from")
    plan.add_choice(auto)
    command.add_argument(
        "--config", metavar="FILE", help="YAML file with any of the settings below; options override it"
    )
    command.add_argument("--out", metavar="DIR", help="write the best model here")
    kinds = {"int": int, "float": float, "str": str}
    for option in fields(TrainConfig):
        kind = {"action": argparse.BooleanOptionalAction} if option.type == "bool" else {"type": kinds[option.type]}
        text = f"{option.metadata['help']} (default: {option.default})"
        command.add_argument("--" + option.name.replace("_", "-"), dest=option.name, default=None, help=text, **kind)
    command.set_defaults(command=_train)


def _add_predict(commands) -> None:
    command = commands.add_parser(
        "predict",
        help="predict every node with a trained model",
        description="Write predictions in the original node order.",
    )
    _add_ranks(command)
    command.add_argument("--model", required=True, metavar="DIR", help="what `dgl-gt train --out` wrote")
    command.add_argument(
        "--out", required=True, metavar="FILE", help=".npz (prediction, probability) or .csv (node, prediction, ...)"
    )
    command.set_defaults(command=_predict)


def _parts(args) -> int:
    """Ranks to start: the number of parts. What the shards do not allow is refused before."""
    from dgl_gt.exchange.sharded_graph import check_choice

    manifest = read_manifest(args.directory)
    parts = manifest["parts"]
    if args.nproc not in (None, parts):
        raise InputError(
            f"--nproc is {args.nproc} but {args.directory} has {counted(parts, 'part')}; use --nproc {parts}, or "
            "partition again"
        )
    if getattr(args, "chosen_from", None) is None:
        check_choice(args.directory, manifest, args.strategy, args.depth)
    return parts


def _on_ranks(args, work, memory_advice=None):
    from dgl_gt.train.run_on_ranks import run_on_ranks

    options = {"keep_memory": getattr(args, "rank_memory", None) is None, "timeout": args.timeout}
    return run_on_ranks(args.argv, lambda: _parts(args), work, memory_advice=memory_advice, **options)


def _load(args, model: Model):
    from dgl_gt import load

    strategy = _with_form_of_halo(args, model)
    return load(args.directory, strategy, args.depth, overlap=args.overlap, timeout_s=args.timeout)


def _with_form_of_halo(args, model: Model) -> str | None:
    """Return the strategy; for plain ``halo``, the form that is faster for this model on these links."""
    if args.strategy not in (None, "halo") or args.depth != 1:
        return args.strategy
    try:
        manifest = read_manifest(args.directory)
    except InputError:  # ``load`` finds the same error, and raises it on all ranks together
        return args.strategy
    if manifest["cut"] == "vertex":
        return args.strategy
    return halo_sends(manifest, model, Speeds(link_bytes_per_s=args.link_gbit * 1e9 / 8))


def _train(args):
    config = read_config(args.config, **{option.name: getattr(args, option.name) for option in fields(TrainConfig)})
    if args.out:
        check_target(args.out, MODEL, force=args.force)
    given = [name for name in ("other_cut", "profile", "preset", "rank_memory", "max_depth") if getattr(args, name)]
    if args.strategy == AUTO:
        if args.depth != 1:
            raise InputError(f"--depth is {args.depth}, but --strategy auto chooses it; bound it with --max-depth")
        if args.link_gbit != DEFAULT_LINK_GBIT:
            raise InputError("--link-gbit is not for --strategy auto: its links are those of --profile or --preset")
        args.chosen_from = read_profile(args.profile, args.preset)
    elif given:
        raise InputError(f"--{given[0].replace('_', '-')} is for --strategy auto; add that, or leave it out")
    return _on_ranks(args, lambda: _train_rank(args, config), lambda: _memory_advice(args, config))


def _memory_advice(args, config) -> str:
    from dgl_gt.train.memory_advice import advice, advice_for_auto

    return advice_for_auto() if args.strategy == AUTO else advice(args.directory, config, args.strategy, args.depth)


def _train_rank(args, config):
    from dgl_gt.train import summary
    from dgl_gt.train.saved_model import ModelWriter
    from dgl_gt.train.task import unused
    from dgl_gt.train.trainer import train

    plan = {}
    if args.strategy == AUTO:
        from dgl_gt.train.trial import load_best

        options = {name: getattr(args, name) for name in ("rank_memory", "max_depth", "overlap")}
        options["timeout_s"] = args.timeout
        sg, config, plan["plan"] = load_best([args.directory, *args.other_cut], config, args.chosen_from, **options)
    else:
        sg = _load(args, Model(config.layers, config.hidden, config.heads, config.ffn))
    left_out, writer = unused(sg.manifest), None
    if sg.comm.rank == 0 and left_out:
        print(f"dgl-gt: {left_out}", file=sys.stderr)
    if sg.comm.rank == 0 and args.out:
        writer = ModelWriter(args.out, config, lambda run: summary.unfinished(run, sg) | plan, force=args.force)
    with writer or nullcontext(), summary.progress(config.epochs, show=sg.comm.rank == 0) as on_epoch:
        result = train(sg, config, on_epoch, writer)
    record = summary.record(result, sg) | plan
    if writer:
        writer.finish(result.model.state_dict(), record)
    return record, summary.final_table(record) + (
        f"\n\nwrote {args.out}" if args.out else "\n\nmodel not kept (no --out)"
    )


def _predict(args):
    from dgl_gt.train import saved_model

    suffix = Path(args.out).suffix
    if suffix not in (".npz", ".csv"):
        raise InputError(f"--out is {args.out}; it must end in .npz or .csv")
    check_file(args.out, force=args.force)
    saved_model.load(args.model)  # refuse a bad one before ranks start
    return _on_ranks(args, lambda: _predict_rank(args))


def _predict_rank(args):
    from dgl_gt.train import predict, saved_model

    model = saved_model.load(args.model)
    layer = model.layers[0]
    sizes = Model(len(model.layers), layer.attn.feat_size, layer.attn.num_heads)
    found = predict.predict(model, _load(args, sizes))
    if found is None:  # not rank 0
        return None
    prediction, probability = found
    predict.write(args.out, prediction, probability, force=args.force)
    result = {"nodes": len(prediction), "classes": probability.shape[1], "out": args.out}
    return (
        result,
        f"wrote {args.out}: {result['nodes']:,} nodes, {result['classes']} classes, in the original node order",
    )
