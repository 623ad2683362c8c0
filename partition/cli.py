"""The commands partition, inspect, report, export and import of ``dgl-gt`` and of ``python -m partition``."""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from partition.cuts.balance import shares
from partition.cuts.memory_bound import (
    METHOD_NAMES,
    choose_method,
    estimate_needs,
    measure_source,
    possible_methods,
)
from partition.cuts.permutation import check_parts
from partition.cuts.weights import check_weights
from partition.encodings.encode import check_encodable
from partition.predict.costs import read_costs
from partition.predict.profile import PRESETS, Profile, read_profile
from partition.shards.manifest import read_manifest, verify
from partition.sources.load import open_source
from partition.system.memory import children_memory, peak_memory_bytes
from partition.system.output_checks import free_disk_bytes
from partition.system.units import format_bytes

from . import console
from .arguments import CUTS, checked_request
from .errors import InputError, LeftOutWarning
from .option_texts import FILL, FILL_HELP, imbalance, part_weights, self_loop_fill, size_in_bytes
from .pipeline import partition
from .tables import estimates_table, quality_table
from .transforms import check_transforms


@dataclass(frozen=True)
class ReportOn:
    """What the command ``report`` accepts, for its help text, and the function of its arguments that writes the report."""

    what: str
    command: Callable[[argparse.Namespace], tuple[dict, str]]


def main(argv=None) -> int:
    """Run ``python -m partition``."""
    parser = argparse.ArgumentParser(
        prog="python -m partition", description="Partition graphs into shards and inspect them."
    )
    add_commands(parser.add_subparsers(required=True, metavar="COMMAND"))
    return console.run(parser, argv)


def add_commands(commands, report_on: ReportOn | None = None) -> None:
    """Add this package's commands to an argparse subparsers object.

    ``report_on`` replaces what the command ``report`` accepts and how it writes; by default it accepts shards.
    """
    _add_partition(commands)
    inspect = commands.add_parser("inspect", help="print the statistics of a shard directory and verify its checksums")
    inspect.add_argument("directory", metavar="DIR", help="shard directory")
    inspect.set_defaults(command=_inspect)

    report_on = report_on or ReportOn("a shard directory", _report)
    text = f"write an HTML report about {report_on.what}, with plots, and its numbers as JSON"
    report = commands.add_parser("report", help=text)
    report.add_argument("directory", metavar="DIR", help=report_on.what)
    report.add_argument("-o", "--out", required=True, metavar="FILE.html", help="page to write; it needs no network")
    report.add_argument("--force", action="store_true", help="replace existing files")
    report.set_defaults(command=report_on.command)

    export = commands.add_parser("export", help="write shards as a partition directory of dgl.distributed")
    export.add_argument("directory", metavar="DIR", help="shard directory")
    export.add_argument("out", metavar="OUT", help="directory to write")
    export.add_argument("--name", metavar="NAME", help="name of the graph and its .json file (default: name of DIR)")
    export.add_argument("--force", action="store_true", help="replace OUT if it holds such an export")
    export.set_defaults(command=_export)

    import_ = commands.add_parser("import", help="make shards from a partition directory of dgl.distributed")
    import_.add_argument("config", metavar="FILE.json", help=".json file of a partition directory of dgl.distributed")
    import_.add_argument("--out", required=True, metavar="DIR", help="shard directory to write")
    import_.add_argument("--seed", type=int, default=0, help="seed of the order of rows inside parts (default: 0)")
    import_.add_argument("--force", action="store_true", help="replace DIR if it holds shards")
    import_.set_defaults(command=_import)
    for command in (inspect, report, export, import_):
        command.add_argument("--json", action="store_true", help="print one JSON object on stdout")


def _add_partition(commands) -> None:
    command = commands.add_parser(
        "partition",
        help="partition a graph into shards",
        description="Partition a graph by an edge cut or a vertex cut, and write one shard per part.",
        epilog="SOURCE is a .npz, .npy, DGL .bin/.dgl, edge list .csv/.tsv/.txt[.gz] or METIS .graph[.gz] file, "
        "dgl:NAME, ogb:NAME or sample:communities?nodes=20000&seed=0",
    )
    command.add_argument("source", metavar="SOURCE", help="the graph, see below")
    command.add_argument("--parts", type=int, required=True, metavar="P", help="number of parts, one per rank")
    command.add_argument("--out", metavar="DIR", help="shard directory to write")
    command.add_argument(
        "--dry-run", action="store_true", help="print estimates of memory, disk and time; write nothing"
    )
    command.add_argument("--seed", type=int, default=0, help="the same seed gives the same shards (default: 0)")
    command.add_argument("--force", action="store_true", help="replace DIR if it holds shards")
    command.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    command.set_defaults(command=_partition)
    _add_cut(command.add_argument_group("cut"))
    _add_memory(command.add_argument_group("memory"))
    _add_graph(command.add_argument_group("changes to the graph"))


def _add_cut(group) -> None:
    group.add_argument(
        "--cut",
        choices=CUTS,
        help="assign nodes to parts (edge), edges to parts (vertex), or make both cuts and keep the one that is "
        "predicted to train faster (auto); default: edge, or vertex if --memory is too small for METIS",
    )
    group.add_argument(
        "--attempts", type=int, default=1, metavar="A", help="edge cuts to make; the best one is kept (default: 1)"
    )
    group.add_argument(
        "--costs",
        metavar="FILE.json",
        help="file with the costs of a training step of your model on your machines, by which attempts and cuts are compared; "
        "`dgl-gt plan --save-costs` writes it (default: costs of the default model of `dgl-gt train`)",
    )
    group.add_argument(
        "--halo-depth", type=int, default=1, metavar="R", help="hops of halo that an edge cut stores (default: 1)"
    )
    group.add_argument(
        "--target-weights", metavar="W,W,..", help="relative size of each part: P numbers, or a file of them"
    )
    text = "edge data with weights of edges: an edge cut of little weight, in place of few halo rows"
    group.add_argument("--cut-weights", metavar="NAME", help=text)
    text = "node data with weights of nodes, such as a METIS file's (weight): parts have even sums of these, in place of even times"
    group.add_argument("--node-weights", metavar="NAME", help=text)
    group.add_argument(
        "--profile",
        metavar="FILE.yaml",
        help="hardware profile of the ranks that will train, written by `dgl-gt calibrate`: parts are sized by the speeds "
        "of their ranks, and placed so that heavy traffic uses fast links",
    )
    group.add_argument(
        "--preset", metavar="NAME", help=f"profile that comes with dgl-gt, in place of --profile: {', '.join(PRESETS)}"
    )
    group.add_argument(
        "--max-imbalance",
        metavar="X",
        help="upper bound on a part's nodes, edges and training nodes, relative to its share: one number X for all, "
        "or edges=X,nodes=Y,train=Z",
    )


def _add_memory(group) -> None:
    group.add_argument(
        "--memory",
        type=size_in_bytes,
        metavar="SIZE",
        help="bound on the memory of partitioning, such as 4GiB; if METIS needs more, a method that needs less is used",
    )
    group.add_argument(
        "--rank-memory",
        type=size_in_bytes,
        metavar="SIZE",
        help="memory for the tensors of a training rank, excluding about 0.5 GiB for its process (unlike --rank-memory of "
        "train and plan); cuts that need more are refused",
    )


def _add_graph(group) -> None:
    group.add_argument("--self-loops", action="store_true", help="add a self-loop to each node that has none")
    group.add_argument("--self-loop-fill", type=self_loop_fill, metavar=FILL, help=FILL_HELP)
    group.add_argument("--undirected", action="store_true", help="add the reverse of each edge that has none")
    group.add_argument(
        "--random-features", type=int, metavar="WIDTH", help="add random features to a graph that has none"
    )
    group.add_argument(
        "--num-nodes",
        type=int,
        metavar="N",
        help="number of nodes, if SOURCE does not say (default: rows of --node-data, or largest id + 1)",
    )
    group.add_argument(
        "--node-data",
        action="append",
        metavar="FILE",
        help="add node data: a .npz, .csv, .tsv or .txt file (feat, label, masks), or a .npy file named after its column, such as "
        "feat.npy; may be repeated",
    )
    group.add_argument(
        "--encode",
        metavar="NAME=K,..",
        help="compute structural encodings of the whole graph, separated by commas, and store them: laplacian=K, random_walk=K, "
        "degree, anchors=A, hops=K or hops=KxW as node data, shortest_path=K as edge data",
    )
    group.add_argument(
        "--expander",
        type=int,
        metavar="D",
        help="add the edges of a random graph in which each node has D neighbours (an even number), in both directions",
    )
    group.add_argument(
        "--virtual-nodes", type=int, metavar="V", help="add V nodes that are joined with every node, in both directions"
    )


def _partition(args) -> tuple[dict, str]:
    started = time.monotonic()
    warnings.simplefilter("ignore", LeftOutWarning)  # print_left_out says it below
    if args.dry_run:
        return _dry_run(args)
    if args.out is None:
        raise InputError("--out is missing: name the shard directory to write, or add --dry-run")
    with console.Stages() as progress, children_memory() as children:
        manifest = partition(
            args.source,
            args.parts,
            args.out,
            force=args.force,
            progress=progress,
            num_nodes=args.num_nodes,
            node_data=args.node_data,
            **_requested(args),
            **_additions(args),
            **_transforms(args),
        )
    console.print_left_out(manifest["left_out"])
    result = _figures(manifest, started, children.peak_bytes)
    chosen = f"chosen: {manifest['choice']['reason']}\n\n" if manifest["choice"] else ""
    by = f" (cut by {METHOD_NAMES[manifest['method']]})" if args.memory else ""
    return result, f"{quality_table(manifest)}\n\n{chosen}{_written(args.out + by, result)}"


def _requested(args) -> dict:
    """Arguments of :func:`partition.partition` that say how to cut."""
    return {
        "cut": args.cut,
        "halo_depth": args.halo_depth,
        "attempts": args.attempts,
        "max_imbalance": imbalance(args.max_imbalance),
        "target_weights": part_weights(args.target_weights),
        "cut_weights": args.cut_weights,
        "node_weights": args.node_weights,
        "costs": args.costs and read_costs(args.costs),
        "profile": _profile(args),
        "memory": args.memory,
        "rank_memory": args.rank_memory,
        "seed": args.seed,
        "encode": args.encode,
    }


def _profile(args) -> Profile | None:
    """The profile that the parts are fitted to, if there is one."""
    return None if args.profile is None and args.preset is None else read_profile(args.profile, args.preset)


def _additions(args) -> dict:
    return {key: getattr(args, key) for key in ("self_loops", "self_loop_fill", "undirected", "random_features")}


def _transforms(args) -> dict:
    return {"expander": args.expander, "virtual_nodes": args.virtual_nodes}


def _dry_run(args) -> tuple[dict, str]:
    additions, transforms = _additions(args), _transforms(args)
    request = checked_request(args.parts, owner=None, additions=additions, transforms=transforms, **_requested(args))
    disk_free_bytes = free_disk_bytes(args.out or ".")
    source = open_source(args.source, num_nodes=args.num_nodes, node_data=args.node_data)
    check_encodable(source, request.encodings, args.random_features)
    check_transforms(source, **transforms)
    check_weights(source, request.cut_weights, request.node_weights)
    options = {"encode": request.encodings, "cut_weights": request.cut_weights, **additions, **transforms}
    sizes = measure_source(source, request.parts, **options)
    check_parts(sizes.nodes, request.parts)
    try:
        method, advice = choose_method(sizes, request.memory, request.cut), ""
    except InputError as error:  # no method fits: the estimates show by how much
        method, advice = None, f"\n\n{error}"
    weights = request.target_weights
    of_parts = None if weights is None else shares(request.parts, weights)
    estimates = {name: estimate_needs(sizes, name) for name in possible_methods(sizes)}
    result = {
        "nodes": sizes.nodes,
        "edges": sizes.edges,
        "parts": args.parts,
        "method": method,
        "estimates": {name: vars(each) for name, each in estimates.items()},
        "shares": None if of_parts is None else of_parts.tolist(),
        "left_out": list(source.left_out),
        "disk_free_bytes": disk_free_bytes,
    }
    disk = "" if of_parts is None else f"\n\nshares of the parts: {', '.join(f'{share:.3f}' for share in of_parts)}"
    disk += f"\n\n{format_bytes(disk_free_bytes)} are free on the disk of {args.out or 'this directory'}"
    if method and estimates[method].disk_bytes > disk_free_bytes:
        disk += ", which may not be enough: free space, or choose another disk with --out"
    console.print_left_out(source.left_out)
    return result, estimates_table(args.source, sizes, estimates, method) + disk + advice


def _inspect(args) -> tuple[dict, str]:
    started = time.monotonic()
    manifest = read_manifest(args.directory)
    verify(args.directory, manifest)
    return _figures(manifest, started), f"{quality_table(manifest)}\n\nall checksums match"


def _report(args) -> tuple[dict, str]:
    from partition.report.write import write_report

    return report_written(args, write_report)


def report_written(args, write) -> tuple[dict, str]:
    """Write a report with one of the functions ``write_report``; return its numbers, and where they are."""
    numbers, out = write(args.directory, args.out, force=args.force), Path(args.out)
    return numbers, f"wrote {out} and {out.with_suffix('.json')}"


def _export(args) -> tuple[dict, str]:
    from partition.shards.dgl_export import export_dgl

    with console.Stages() as progress:
        path = export_dgl(args.directory, args.out, graph_name=args.name, force=args.force, progress=progress)
    parts = read_manifest(args.directory)["parts"]
    text = f"wrote {path}; read it with dgl.distributed.load_partition({str(path)!r}, part)"
    return {"config": str(path), "parts": parts}, text


def _import(args) -> tuple[dict, str]:
    from partition.shards.dgl_import import import_dgl

    started = time.monotonic()
    with console.Stages() as progress, children_memory() as children:
        manifest = import_dgl(args.config, args.out, seed=args.seed, force=args.force, progress=progress)
    result = _figures(manifest, started, children.peak_bytes)
    return result, f"{quality_table(manifest)}\n\n{_written(args.out, result)}"


def _written(out: str, result: dict) -> str:
    return f"wrote {out} in {result['seconds']:.1f} s, peak memory {format_bytes(result['peak_memory_bytes'])}"


def _figures(manifest: dict, started: float, children_bytes: int = 0) -> dict:
    """Return the documented JSON keys."""
    return {
        **{key: manifest[key] for key in ("nodes", "edges", "parts", "cut", "method", "choice", "mapping", "quality")},
        "left_out": manifest["left_out"],
        "encodings": manifest["encodings"],
        "transforms": manifest["transforms"],
        "peak_memory_bytes": peak_memory_bytes() + children_bytes,
        "seconds": time.monotonic() - started,
    }
