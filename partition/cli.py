"""The commands partition, inspect, export and import."""

from __future__ import annotations

import time
import warnings

from dgl_gt.partition.cuts.balance import shares
from dgl_gt.partition.cuts.permutation import check_parts
from dgl_gt.partition.shards.manifest import read_manifest, verify
from dgl_gt.partition.sources.load import open_source
from dgl_gt.partition.system.memory import children_memory, peak_memory_bytes
from dgl_gt.partition.system.output_checks import free_disk_bytes
from dgl_gt.partition.system.units import format_bytes

from . import console
from .command_options import add_options, settings
from .config import PartitionConfig
from .errors import InputError, SourceWarning
from .memory_bound import METHOD_NAMES, choose_method, estimate_needs, measure_source, possible_methods
from .pipeline import check_extras, partition
from .tables import estimates_table, quality_table


def add_commands(commands) -> None:
    """Add this package's commands to an argparse subparsers object."""
    command = commands.add_parser(
        "partition",
        help="partition a graph into shards",
        description="Partition a graph by an edge cut or a vertex cut, and write one shard per part.",
        epilog="SOURCE is a .npz, .npy, DGL .bin/.dgl, edge list .csv/.tsv/.txt[.gz], METIS .graph[.gz], Matrix Market .mtx, .mat, "
        "GraphML, GML, GEXF, Pajek .net or node-link .json file, dgl:NAME, ogb:NAME or sample:communities?nodes=20000&seed=0",
    )
    add_options(command)
    command.set_defaults(command=_partition)
    inspect = commands.add_parser("inspect", help="print the statistics of a shard directory and verify its checksums")
    inspect.add_argument("directory", metavar="DIR", help="shard directory")
    inspect.set_defaults(command=_inspect)

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
    for command in (inspect, export, import_):
        command.add_argument("--json", action="store_true", help="print one JSON object on stdout")


def _partition(args) -> tuple[dict, str]:
    started = time.monotonic()
    warnings.simplefilter("ignore", SourceWarning)  # print_source_notes says it below
    if args.dry_run:
        return _dry_run(args)
    if args.out is None:
        raise InputError("--out is missing: name the shard directory to write, or add --dry-run")
    with console.Stages() as progress, children_memory() as children:
        manifest = partition(args.source, out=args.out, force=args.force, progress=progress, **settings(args))
    console.print_source_notes(manifest["notes"], manifest["left_out"])
    result = _figures(manifest, started, children.peak_bytes)
    chosen = f"chosen: {manifest['choice']['reason']}\n\n" if manifest["choice"] else ""
    by = f" (cut by {METHOD_NAMES[manifest['method']]})" if args.memory else ""
    return result, f"{quality_table(manifest)}\n\n{chosen}{_written(args.out + by, result)}"


def _dry_run(args) -> tuple[dict, str]:
    config = PartitionConfig(**settings(args))
    disk_free_bytes = free_disk_bytes(args.out or ".")
    source = open_source(args.source, config)
    check_extras(source, config)
    sizes = measure_source(source, config)
    check_parts(sizes.nodes, config.parts)
    try:
        method, advice = choose_method(sizes, config.memory, config.cut), ""
    except InputError as error:  # no method fits: the estimates show by how much
        method, advice = None, f"\n\n{error}"
    weights = config.target_weights
    of_parts = None if weights is None else shares(config.parts, weights)
    estimates = {name: estimate_needs(sizes, name) for name in possible_methods(sizes)}
    result = {
        "nodes": sizes.nodes,
        "edges": sizes.edges,
        "parts": args.parts,
        "method": method,
        "estimates": {name: vars(each) for name, each in estimates.items()},
        "shares": None if of_parts is None else of_parts.tolist(),
        "left_out": list(source.left_out),
        "notes": list(source.notes),
        "disk_free_bytes": disk_free_bytes,
    }
    disk = "" if of_parts is None else f"\n\nshares of the parts: {', '.join(f'{share:.3f}' for share in of_parts)}"
    disk += f"\n\n{format_bytes(disk_free_bytes)} are free on the disk of {args.out or 'this directory'}"
    if method and estimates[method].disk_bytes > disk_free_bytes:
        disk += ", which may not be enough: free space, or choose another disk with --out"
    console.print_source_notes(source.notes, source.left_out)
    return result, estimates_table(args.source, sizes, estimates, method) + disk + advice


def _inspect(args) -> tuple[dict, str]:
    started = time.monotonic()
    manifest = read_manifest(args.directory)
    verify(args.directory, manifest)
    return _figures(manifest, started), f"{quality_table(manifest)}\n\nall checksums match"


def _export(args) -> tuple[dict, str]:
    from dgl_gt.partition.shards.dgl_export import export_dgl

    with console.Stages() as progress:
        path = export_dgl(args.directory, args.out, graph_name=args.name, force=args.force, progress=progress)
    parts = read_manifest(args.directory)["parts"]
    text = f"wrote {path}; read it with dgl.distributed.load_partition({str(path)!r}, part)"
    return {"config": str(path), "parts": parts}, text


def _import(args) -> tuple[dict, str]:
    from dgl_gt.partition.shards.dgl_import import import_dgl

    started = time.monotonic()
    with console.Stages() as progress, children_memory() as children:
        manifest = import_dgl(args.config, args.out, seed=args.seed, force=args.force, progress=progress)
    result = _figures(manifest, started, children.peak_bytes)
    return result, f"{quality_table(manifest)}\n\n{_written(args.out, result)}"


def _written(out: str, result: dict) -> str:
    return f"wrote {out} in {result['seconds']:.1f} s, peak memory {format_bytes(result['peak_memory_bytes'])}"


def _figures(manifest: dict, started: float, with_children_bytes: int = 0) -> dict:
    """Return the documented JSON keys."""
    return {
        **{key: manifest[key] for key in ("nodes", "edges", "parts", "cut", "method", "choice", "mapping", "quality")},
        "isolated_nodes": manifest["isolated_nodes"],
        "left_out": manifest["left_out"],
        "notes": manifest["notes"],
        "encodings": manifest["encodings"],
        "transforms": manifest["transforms"],
        "peak_memory_bytes": max(peak_memory_bytes(), with_children_bytes),
        "seconds": time.monotonic() - started,
    }
