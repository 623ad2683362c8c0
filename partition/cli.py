"""``dgl-gt partition``, ``inspect``, ``report``, ``export`` and ``import``; also ``python -m partition``."""

from __future__ import annotations

import argparse
import reprlib
import time
import warnings
from pathlib import Path

from partition.cuts.balance import KINDS, shares
from partition.cuts.method import NAMES, choose, estimate, measure, parse_size, possible
from partition.predict.step_time import Speeds
from partition.predict.traffic import Model
from partition.shards.manifest import read_manifest, verify
from partition.sources.load import open_source
from partition.system.memory import peak_memory_bytes
from partition.system.output_checks import free_disk_bytes
from partition.system.units import size
from partition.system.user_files import regular_file

from . import console
from .errors import InputError, LeftOutWarning
from .pipeline import CUTS, effective_cut, partition
from .tables import estimates_table, quality_table

_LARGEST, _LEAST_FLOAT = 10**9, 1e-6  # numbers that an option takes: far beyond any use
DEFAULT_LINK_GBIT = Speeds().link_bytes_per_s * 8 / 1e9


def main(argv=None) -> int:
    """Run ``python -m partition``."""
    parser = argparse.ArgumentParser(
        prog="python -m partition", description="Partition graphs into shards and inspect them."
    )
    add_commands(parser.add_subparsers(required=True, metavar="COMMAND"))
    return console.run(parser, argv)


def add_commands(commands) -> None:
    """Add this package's commands to an argparse subparsers object."""
    _add_partition(commands)
    inspect = commands.add_parser("inspect", help="print a shard directory's figures and verify its checksums")
    inspect.add_argument("directory", metavar="DIR")
    inspect.set_defaults(command=_inspect)

    report = commands.add_parser(
        "report", help="write a page with pictures of a shard directory, and its numbers as JSON"
    )
    report.add_argument("directory", metavar="DIR")
    report.add_argument(
        "-o", "--out", required=True, metavar="FILE.html", help="the page; no network is needed to read it"
    )
    report.add_argument("--force", action="store_true", help="replace files that exist")
    report.set_defaults(command=_report)

    export = commands.add_parser("export", help="write shards in the format of another library")
    export.add_argument("directory", metavar="DIR")
    export.add_argument("out", metavar="OUT", help="directory to make")
    export.add_argument("--to", default="dgl", choices=["dgl"], help="dgl.distributed's partition directory (default)")
    export.add_argument("--name", metavar="NAME", help="name of the graph and of its .json (default: that of DIR)")
    export.add_argument("--force", action="store_true", help="replace OUT where it holds such an export")
    export.set_defaults(command=_export)

    take = commands.add_parser("import", help="make shards of a partition directory of dgl.distributed")
    take.add_argument("config", metavar="FILE.json", help="the json in that directory")
    take.add_argument("--out", required=True, metavar="DIR", help="shard directory to make")
    take.add_argument("--seed", type=int, default=0, help="of the order of rows inside parts (default: 0)")
    take.add_argument("--force", action="store_true", help="replace DIR where it holds shards")
    take.set_defaults(command=_import)
    for command in (inspect, report, export, take):
        command.add_argument("--json", action="store_true", help="one JSON object on stdout")


def _add_partition(commands) -> None:
    make = commands.add_parser(
        "partition",
        help="partition a graph into shards",
        description="Partition a graph by edge cut or vertex cut, one shard a part.",
        epilog="SOURCE is a .npz, .npy, DGL .bin/.dgl, edge list .csv/.tsv/.txt[.gz] or METIS .graph file, "
        "dgl:NAME, ogb:NAME or sample:communities?nodes=20000&seed=0",
    )
    make.add_argument("source", metavar="SOURCE")
    make.add_argument("--parts", type=int, required=True, metavar="K", help="number of parts, one a rank")
    make.add_argument("--out", metavar="DIR", help="shard directory to make")
    make.add_argument("--dry-run", action="store_true", help="print estimated memory, disk and time, and write nothing")
    make.add_argument("--seed", type=int, default=0, help="same seed, same shards (default: 0)")
    make.add_argument("--force", action="store_true", help="replace DIR where it holds shards")
    make.add_argument("--json", action="store_true", help="one JSON object on stdout")
    make.set_defaults(command=_partition)
    _add_cut(make.add_argument_group("the cut"))
    _add_memory(make.add_argument_group("memory"))
    _add_predictions(make.add_argument_group("model and link that predictions assume"))
    _add_graph(make.add_argument_group("the graph"))


def _add_cut(cut) -> None:
    cut.add_argument(
        "--cut",
        choices=CUTS,
        help="deal out nodes or edges, or what is predicted to train faster (default: edge; vertex where "
        "--memory is too little for METIS)",
    )
    cut.add_argument(
        "--attempts", type=int, default=1, metavar="A", help="edge cuts to make; the best is kept (default: 1)"
    )
    cut.add_argument(
        "--halo-depth", type=int, default=1, metavar="R", help="hops of halo that edge cuts store (default: 1)"
    )
    cut.add_argument("--target-weights", metavar="W,W,..", help="how much each part takes, or a file of such numbers")
    cut.add_argument(
        "--max-imbalance",
        metavar="X",
        help="a part has at most X times its share of nodes, edges and training nodes; or edges=X,nodes=Y,train=Z",
    )


def _add_memory(memory) -> None:
    memory.add_argument(
        "--memory",
        type=size_in_bytes,
        metavar="SIZE",
        help="bound on the memory of partitioning, e.g. 4GiB: METIS runs, or a method that needs less",
    )
    memory.add_argument(
        "--rank-memory",
        type=size_in_bytes,
        metavar="SIZE",
        help="memory per training rank; cuts that exceed it are refused",
    )


def _add_predictions(mind) -> None:
    model = Model()
    mind.add_argument(
        "--layers", type=positive_integer, default=model.layers, metavar="L", help="(default: %(default)s)"
    )
    mind.add_argument(
        "--hidden", type=positive_integer, default=model.hidden, metavar="C", help="(default: %(default)s)"
    )
    mind.add_argument("--heads", type=positive_integer, default=model.heads, metavar="H", help="(default: %(default)s)")
    add_link(mind)


def add_link(command) -> None:
    """Add ``--link-gbit``."""
    command.add_argument(
        "--link-gbit",
        type=positive_float,
        default=DEFAULT_LINK_GBIT,
        metavar="GBIT/S",
        help="into and out of a rank (default: %(default)g)",
    )


def _add_graph(graph) -> None:
    graph.add_argument("--self-loops", action="store_true", help="add a self-loop to each node that has none")
    graph.add_argument("--undirected", action="store_true", help="add the reverse of each edge that has none")
    graph.add_argument("--random-features", type=int, metavar="WIDTH", help="normal features for a graph that has none")
    graph.add_argument("--num-nodes", type=int, metavar="N", help="where SOURCE does not say (default: largest id + 1)")
    graph.add_argument(
        "--node-data",
        action="append",
        metavar="FILE",
        help=".npz or .csv with feat, label and masks, or feat.npy; may be given again",
    )


def positive_integer(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{reprlib.repr(text)} is no whole number") from None
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    if number > _LARGEST:
        raise argparse.ArgumentTypeError(f"{reprlib.repr(number)} is more than {_LARGEST:,}")
    return number


def positive_float(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{reprlib.repr(text)} is no number") from None
    if not _LEAST_FLOAT <= number <= _LARGEST:
        raise argparse.ArgumentTypeError(f"{reprlib.repr(text)} is not from {_LEAST_FLOAT:g} to {_LARGEST:g}")
    return number


def size_in_bytes(text: str) -> int:
    try:
        return parse_size(text)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _imbalance(text: str | None):
    """A number, or a dict of the kinds named."""
    if text is None:
        return None
    if "=" not in text:
        return _number("--max-imbalance", text)
    pairs = [(name.strip(), value) for name, _, value in (pair.partition("=") for pair in text.split(","))]
    if len(dict(pairs)) < len(pairs):
        raise InputError(f"--max-imbalance {text!r} names a kind twice; allowed are {', '.join(KINDS)}, once each")
    return {name: _number("--max-imbalance", value) for name, value in pairs}


def _weights(text: str | None) -> list[float] | None:
    """Numbers from the option itself or from the file that it names."""
    if text is None:
        return None
    words = text.replace(",", " ").split()
    try:
        return [float(word) for word in words]
    except ValueError as error:
        try:
            words = regular_file(text).read_text().replace(",", " ").split()
        except (OSError, ValueError):  # InputError is a ValueError, too
            raise InputError(
                f"--target-weights: {_last(error)} is no number, and {text!r} is no file of numbers that can be read"
            ) from None
    return [_number(f"--target-weights {text}", word) for word in words]


def _last(error: ValueError) -> str:
    """What could not be converted, as float's message ends with it."""
    return str(error).rpartition(": ")[2]


def _number(option: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{option}: {text.strip()!r} is no number; write numbers, such as 1.5") from None


def _partition(args) -> tuple[dict, str]:
    started, progress = time.monotonic(), console.Progress()
    warnings.simplefilter("ignore", LeftOutWarning)  # said below, in the form of this command
    if args.dry_run:
        return _dry_run(args)
    if args.out is None:
        raise InputError("--out is missing: name the shard directory to make, or add --dry-run")
    try:
        manifest = partition(
            args.source,
            args.parts,
            args.out,
            cut=args.cut,
            halo_depth=args.halo_depth,
            attempts=args.attempts,
            max_imbalance=_imbalance(args.max_imbalance),
            target_weights=_weights(args.target_weights),
            model=Model(layers=args.layers, hidden=args.hidden, heads=args.heads),
            speeds=Speeds(link_bytes_per_s=args.link_gbit * 1e9 / 8),
            memory=args.memory,
            rank_memory=args.rank_memory,
            seed=args.seed,
            force=args.force,
            progress=progress,
            num_nodes=args.num_nodes,
            node_data=args.node_data,
            **_additions(args),
        )
    finally:
        progress.close()
    console.say_left_out(manifest["left_out"])
    result = _figures(manifest, started, progress.children_bytes)
    chosen = f"chosen: {manifest['choice']['reason']}\n\n" if manifest["choice"] else ""
    by = f" by {NAMES[manifest['method']]}" if args.memory else ""
    written = f"wrote {args.out}{by} in {result['seconds']:.1f} s, peak memory {_peak(result)}"
    return result, f"{quality_table(manifest)}\n\n{chosen}{written}"


def _additions(args) -> dict:
    return {key: getattr(args, key) for key in ("self_loops", "undirected", "random_features")}


def _dry_run(args) -> tuple[dict, str]:
    for name in ("parts", "attempts", "halo_depth"):
        if getattr(args, name) < 1:
            raise InputError(f"--{name.replace('_', '-')} is {getattr(args, name)}; it must be at least 1")
    weights = _weights(args.target_weights)
    shares(args.parts, weights)
    bounds = _imbalance(args.max_imbalance)
    cut = effective_cut(args.cut, args.halo_depth, args.attempts, max_imbalance=bounds, target_weights=weights)
    source = open_source(args.source, num_nodes=args.num_nodes, node_data=args.node_data)
    sizes = measure(source, args.parts, **_additions(args))
    if args.parts > sizes.nodes:
        raise InputError(f"cannot split {sizes.nodes} nodes into {args.parts} parts; choose 1 to {sizes.nodes} parts")
    try:
        method, advice = choose(sizes, args.memory, cut), ""
    except InputError as error:  # then the estimates are wanted all the more
        method, advice = None, f"\n\n{error}"
    estimates = {name: estimate(sizes, name) for name in possible(sizes)}
    result = {
        "nodes": sizes.nodes,
        "edges": sizes.edges,
        "parts": args.parts,
        "method": method,
        "estimates": {name: vars(each) for name, each in estimates.items()},
        "left_out": list(source.left_out),
        "disk_free_bytes": free_disk_bytes(args.out or "."),
    }
    room = f"\n\n{size(result['disk_free_bytes'])} are free on the disk of {args.out or 'this directory'}"
    if method and estimates[method].disk_bytes > result["disk_free_bytes"]:
        room += ", which may be too little: free space, or choose another disk with --out"
    console.say_left_out(source.left_out)
    return result, estimates_table(args.source, sizes, estimates, method) + room + advice


def _inspect(args) -> tuple[dict, str]:
    started = time.monotonic()
    manifest = read_manifest(args.directory)
    verify(args.directory, manifest)
    return _figures(manifest, started), f"{quality_table(manifest)}\n\nall checksums match"


def _report(args) -> tuple[dict, str]:
    from partition.report.write import write_report

    figures = write_report(args.directory, args.out, force=args.force)
    out = Path(args.out)
    return figures, f"wrote {out} and {out.with_suffix('.json')}"


def _export(args) -> tuple[dict, str]:
    from partition.shards.dgl_export import export_dgl

    progress = console.Progress()
    try:
        path = export_dgl(args.directory, args.out, graph_name=args.name, force=args.force, progress=progress)
    finally:
        progress.close()
    parts = read_manifest(args.directory)["parts"]
    text = f"wrote {path}; read it with dgl.distributed.load_partition({str(path)!r}, part)"
    return {"config": str(path), "parts": parts}, text


def _import(args) -> tuple[dict, str]:
    from partition.shards.dgl_import import import_dgl

    started, progress = time.monotonic(), console.Progress()
    try:
        manifest = import_dgl(args.config, args.out, seed=args.seed, force=args.force, progress=progress)
    finally:
        progress.close()
    result = _figures(manifest, started, progress.children_bytes)
    return (
        result,
        f"{quality_table(manifest)}\n\nwrote {args.out} in {result['seconds']:.1f} s, peak memory {_peak(result)}",
    )


def _peak(result: dict) -> str:
    return size(result["peak_memory_bytes"])


def _figures(manifest: dict, started: float, children_bytes: int = 0) -> dict:
    """The documented JSON keys."""
    return {
        **{key: manifest[key] for key in ("nodes", "edges", "parts", "cut", "method", "choice", "quality")},
        "left_out": manifest["left_out"],
        "peak_memory_bytes": peak_memory_bytes() + children_bytes,
        "seconds": time.monotonic() - started,
    }
