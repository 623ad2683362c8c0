"""The command ``dgl-gt``: its parser, and its small verbs. Heavy imports wait until a verb needs them."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from dgl_gt import __version__
from dgl_gt.partition import console
from dgl_gt.partition.console import table
from dgl_gt.partition.errors import InputError, import_optional
from dgl_gt.partition.figures.costs import machine_costs
from dgl_gt.partition.figures.profile import MAX_RANKS
from dgl_gt.partition.system.output_checks import check_file
from dgl_gt.partition.system.storage import located
from dgl_gt.partition.system.units import format_bytes

from .options import (
    add_json,
    add_model_factory,
    add_shard_options,
    add_strategy,
    add_timeout,
    load_shards,
    positive_integer,
    run_on_parts,
)

_OFFLINE, _SMALL = "dgl_gt.partition.cli", "dgl_gt.cli.main"
_HOMES = {  # the module of each verb, which is imported where the verb is asked for; --help imports them all
    **dict.fromkeys(("partition", "convert", "inspect", "import"), _OFFLINE),
    "export": "dgl_gt.cli.export",
    "doctor": "dgl_gt.cli.doctor",
    "train": "dgl_gt.cli.train",
    **dict.fromkeys(("predict", "report", "calibrate"), _SMALL),
    "plan": "dgl_gt.cli.plan",
    "tune": "dgl_gt.cli.tune",
}


def main(argv=None) -> int:
    """Run ``dgl-gt``; returns the exit code: 0, 2 if the user can fix the cause, 130 after Ctrl-C.

    Other signals raise ``SystemExit(128 + N)``, and a bug in dgl-gt raises its own exception. Commands that start
    ranks return 128 + N where a signal has ended a rank, and 1 for a bug in a rank.
    """
    argv = sys.argv[1:] if argv is None else list(argv)
    parser = argparse.ArgumentParser(
        prog="dgl-gt", description="Full-graph, distributed training of graph transformers on large graphs."
    )
    parser.add_argument("--version", action="version", version=f"dgl-gt {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    asked = [_HOMES[name] for name in argv[:1] if name in _HOMES]
    for home in asked or dict.fromkeys(_HOMES.values()):
        import_module(home).add_commands(commands)
    parser.set_defaults(argv=argv)
    return console.run(parser, argv)


def add_commands(commands) -> None:
    """Add the small verbs to an argparse subparsers object."""
    for add_verb in (_add_predict, _add_report, _add_calibrate):
        add_verb(commands)


# ---- dgl-gt predict ----


def _add_predict(commands) -> None:
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
    text = "file to write: .npz, .csv or .parquet, with the prediction for each node or edge and probabilities of classes, or links"
    command.add_argument("--out", required=True, metavar="FILE", help=text)
    text = "write the row of each node from which the model predicts, in place of the predictions"
    command.add_argument("--embeddings", action="store_true", help=text)
    text = "most links of a node, for a model of links (default: task.top of its training)"
    command.add_argument("--top", type=positive_integer, metavar="K", help=text)
    text = "score these pairs of nodes: an .npz with pairs (2, n), or a table of your ids, read as an edge list; for a model of links"
    command.add_argument("--pairs", metavar="FILE", help=text)
    command.set_defaults(command=_predict)


def _predict(args):
    if Path(args.out).suffix not in (".npz", ".csv", ".parquet"):
        raise InputError(f"--out is {args.out}; it must end in .npz, .csv or .parquet")
    check_file(args.out, force=args.force)
    given = [name for name in ("embeddings", "top", "pairs") if getattr(args, name)]
    if len(given) > 1:
        raise InputError(f"--{given[0]} and --{given[1]} are both given; they ask for different files: leave one out")
    if Path(args.out).suffix == ".parquet":
        import_optional("pyarrow.parquet", f"--out {args.out}", "pip install pyarrow")
    choice = args.strategy, args.depth
    options = {"choice": choice, "allocator": args.allocator, "spills": args.spill is not None}
    return run_on_parts(args.argv, args.directory, lambda: _predict_rank(args), args.nproc, args.timeout, **options)


def _predict_rank(args):
    """Predict on this rank; rank 0 writes the file and returns what to print."""
    from dgl_gt.comm.group import Comm
    from dgl_gt.partition.shards.files import read_node_names
    from dgl_gt.partition.shards.manifest import read_manifest
    from dgl_gt.partition.sources.pairs import read_pairs
    from dgl_gt.train.model import find_factory
    from dgl_gt.train.predictions import ORDERS, embed, names_of, predict, rows_of, score_pairs, write_predictions
    from dgl_gt.train.required_data import nodes_of_links
    from dgl_gt.train.saved_model import load_model

    with Comm(timeout_s=args.timeout) as comm, comm.raising_together():
        model = load_model(args.model, find_factory(args.model_factory))
        node_names = read_node_names(args.directory) if comm.rank == 0 or args.pairs else None
        pairs = None
        if args.pairs:
            manifest = read_manifest(args.directory)
            pairs = read_pairs(
                args.pairs, node_names, nodes_of_links(manifest, model.dgl_gt_task.relation), manifest["source"]
            )
    if args.top is not None:
        if not model.dgl_gt_task.reads_links:
            raise InputError(
                f"--top is {args.top}, and the model was trained for {model.dgl_gt_task.kind}; leave it out"
            )
        model.dgl_gt_task = replace(model.dgl_gt_task, top=args.top)
    sg = load_shards(args, args.strategy, args.depth)
    answer = score_pairs(model, sg, pairs) if args.pairs else (embed if args.embeddings else predict)(model, sg)
    if answer is None:  # all ranks but rank 0
        return None
    names = names_of(answer, model, sg, node_names)
    write_predictions(args.out, answer, node_names=names, class_names=model.class_names, force=args.force)
    counts = {f"{rows_of(answer)}s": len(answer[0])}
    if "probability" in answer._fields:
        counts["classes"] = answer.probability.shape[1]
    size = ", ".join(f"{count:,} {name}" for name, count in counts.items())
    return counts | {"out": args.out}, f"wrote {args.out}: {size}, {ORDERS[rows_of(answer)]}"


# ---- dgl-gt calibrate ----


def _add_calibrate(commands) -> None:
    """Add ``calibrate`` to an argparse subparsers object."""
    command = commands.add_parser(
        "calibrate",
        help="measure the speed of ranks and of the links between them",
        description="Measure how fast ranks and the links between them are, all at the same time, and write a hardware "
        "profile; and keep the costs of the default model for `dgl-gt partition` to balance parts by. This takes about a "
        "minute. Under torchrun, join the ranks that torchrun started.",
    )
    text = "number of ranks to start on this machine (default: 1)"
    command.add_argument("--nproc", type=positive_integer, metavar="P", help=text)
    command.add_argument("--out", required=True, metavar="FILE.yaml", help="hardware profile to write")
    command.add_argument("--quick", action="store_true", help="measure for some ten seconds, less exactly")
    text = "also measure files in this directory, in which `dgl-gt train --spill DIR` keeps rows between layers"
    command.add_argument("--spill", metavar="DIR", help=text)
    add_timeout(command)
    command.add_argument("--force", action="store_true", help="replace FILE.yaml if it exists")
    add_json(command)
    command.set_defaults(command=_calibrate)


def _calibrate(args):
    from dgl_gt.ranks.launch import run_on_ranks

    if args.nproc is not None and args.nproc > MAX_RANKS:
        raise InputError(f"--nproc is {args.nproc}; it must be from 1 to {MAX_RANKS}")
    out = check_file(args.out, force=args.force)
    return run_on_ranks(
        args.argv,
        lambda: args.nproc or 1,
        lambda: _calibrate_rank(args, out),
        nproc=args.nproc,
        timeout=args.timeout,
        memory_advice=lambda: "free memory, or measure fewer ranks",
    )


def _calibrate_rank(args, out: Path):
    """Measure on this rank; rank 0 writes the profile. Returns its values, and a table of them."""
    from dgl_gt.comm.group import Comm
    from dgl_gt.plan.commands import measure_and_keep

    comm, kept = Comm(timeout_s=args.timeout), ""
    with comm.together(), console.Stages() as stages:
        progress = stages if comm.rank == 0 else None
        profile, problem = measure_and_keep(comm, out, progress, quick=args.quick, force=args.force, spill=args.spill)
    if problem:
        kept = f"\n\n`dgl-gt partition` goes on with its usual costs: {problem}"
    elif comm.world_size > 1:
        kept = f"\nwrote {machine_costs()}, by which `dgl-gt partition` balances parts"
    values = profile.as_dict()
    return values, f"{_profile_table(values, profile.target_weights())}\n\nwrote {out}{kept}"


def _profile_table(values: dict, target_weights: list[float]) -> str:
    def listed(value, scale: float, digits: int = 1) -> str:
        return ", ".join(f"{each / scale:.{digits}f}" for each in (value if isinstance(value, list) else [value]))

    rows = [
        ("ranks", values["ranks"]),
        ("matrix products of width 128 (GFLOP/s)", listed(values["products"][128], 1e9)),
        ("norms and activation functions (GB/s)", listed(values["stream_bytes_per_s"], 1e9)),
        ("element-wise sums (GB/s)", listed(values["simple_bytes_per_s"], 1e9)),
        ("attention, rows nearby, per edge and column (ns)", listed(values["attention"]["near_column_s"], 1e-9, 2)),
        *(
            (
                f"attention, rows anywhere in {format_bytes(held_bytes)}, per edge and column (ns)",
                listed(seconds, 1e-9, 2),
            )
            for held_bytes, seconds in values["attention"]["far_column_s"].items()
        ),
        ("memory (GiB)", listed(values["memory_bytes"], 2**30)),
    ]
    for name, rate in (values["disk"] or {}).items():
        rows.append((f"rows of files, {name.replace('_', ' ')} (GB/s)", f"{rate / 1e9:.2f}"))
    if values["ranks"] > 1:
        link = values["link_bytes_per_s"]
        between = [link[i][j] for i in range(len(link)) for j in range(len(link)) if i != j]
        rows += [
            ("slowest and fastest link (MB/s)", listed([min(between), max(between)], 1e6)),
            ("latency of an exchange (ms)", listed(values["latency_s"], 1e-3, 2)),
            ("exchange hidden behind computation", f"{values['overlap']:.0%}"),
            ("shares for --target-weights", ",".join(f"{each:.3f}" for each in target_weights)),
        ]
    return table(["measured", "one value, or one per rank"], rows)


# ---- dgl-gt report ----


def _add_report(commands) -> None:
    what = "a shard directory or a run directory of `dgl-gt train`"
    text = f"write an HTML report about {what}, with plots, and its numbers as JSON"
    command = commands.add_parser("report", help=text)
    command.add_argument("directory", metavar="DIR", help=what)
    command.add_argument("-o", "--out", required=True, metavar="FILE.html", help="page to write; it needs no network")
    command.add_argument("--force", action="store_true", help="replace existing files")
    command.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    command.set_defaults(command=_report)


def _report(args) -> tuple[dict, str]:
    from dgl_gt.report.of_directory import kind_of

    write, out = kind_of(args.directory).write, located(args.out)
    numbers = write(args.directory, args.out, force=args.force)
    return numbers, f"wrote {out} and {out.with_suffix('.json')}"
