"""``dgl-gt predict``."""

from __future__ import annotations

from pathlib import Path

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.system.output_checks import check_file

from .options import add_model_factory, add_shard_options, add_strategy, load_shards, run_on_parts


def add_command(commands) -> None:
    """Add ``predict`` to an argparse subparsers object."""
    command = commands.add_parser(
        "predict",
        help="predict with a trained model, such as the class of every node",
        description="Predict what the model was trained for, and write the predictions in the original node order.",
    )
    add_shard_options(command)
    add_strategy(command)
    add_model_factory(command)
    text = "model directory written by `dgl-gt train --out`, or the model.safetensors in it"
    command.add_argument("--model", required=True, metavar="DIR", help=text)
    text = "file to write: .npz (prediction, probability) or .csv (node, prediction, probability_0, ...)"
    command.add_argument("--out", required=True, metavar="FILE", help=text)
    command.set_defaults(command=_predict)


def _predict(args):
    if Path(args.out).suffix not in (".npz", ".csv"):
        raise InputError(f"--out is {args.out}; it must end in .npz or .csv")
    check_file(args.out, force=args.force)
    choice = args.strategy, args.depth
    return run_on_parts(args.argv, args.directory, lambda: _predict_rank(args), args.nproc, args.timeout, choice=choice)


def _predict_rank(args):
    """Predict on this rank; rank 0 writes the file and returns what to print."""
    from dgl_gt.comm.group import Comm
    from dgl_gt.partition.shards.manifest import read_node_names
    from dgl_gt.train.model import find_factory
    from dgl_gt.train.predictions import predict, write_predictions
    from dgl_gt.train.saved_model import load_model

    with Comm(timeout_s=args.timeout) as comm, comm.raising_together():
        model = load_model(args.model, find_factory(args.model_factory))
        node_names = read_node_names(args.directory) if comm.rank == 0 else None
    answer = predict(model, load_shards(args, args.strategy, args.depth))
    if answer is None:  # all ranks but rank 0
        return None
    write_predictions(args.out, answer, node_names=node_names, class_names=model.class_names, force=args.force)
    counts = {"nodes": len(answer[0])}
    if "probability" in answer._fields:
        counts["classes"] = answer.probability.shape[1]
    size = ", ".join(f"{count:,} {name}" for name, count in counts.items())
    return counts | {"out": args.out}, f"wrote {args.out}: {size}, in the original node order"
