"""The commands partition, inspect and import, and what they print."""

from __future__ import annotations

import time
import warnings

from dgl_gt.partition.cuts.balance import shares
from dgl_gt.partition.cuts.permutation import check_parts
from dgl_gt.partition.figures.by_type import count_by_type
from dgl_gt.partition.figures.costs import Costs, default_costs
from dgl_gt.partition.figures.figures import MEANINGS
from dgl_gt.partition.shards.counts import describe_transforms, read_figures
from dgl_gt.partition.shards.files import verify
from dgl_gt.partition.shards.manifest import read_manifest
from dgl_gt.partition.sources.load import open_source
from dgl_gt.partition.system.memory import peak_memory_bytes, peak_with_children_bytes
from dgl_gt.partition.system.output_checks import free_disk_bytes
from dgl_gt.partition.system.units import format_bytes, format_count

from . import console
from .command_options import (
    add_bound,
    add_options,
    add_reading,
    check_engine,
    engine_options,
    reading,
    settings,
    show_at_first,
)
from .config import PartitionConfig
from .conversion import convert
from .distributed.engine import MEMORY_BYTES
from .distributed.estimate import estimated_stages
from .distributed.pipeline import check_options, checked
from .errors import InputError, SourceWarning
from .memory_bound import (
    METHOD_NAMES,
    Needs,
    SourceSizes,
    choose_method,
    estimate_needs,
    measure_source,
    possible_methods,
)
from .pipeline import check_extras, partition
from .schema import Schema

_COMMON = (  # options of `partition` that --help shows; --help-all shows all
    *("parts", "out", "dry_run", "seed", "force", "json", "cut", "attempts", "halo_depth", "profile", "max_imbalance"),
    *("memory", "node_data", "node_table", "id", "ids", "label", "features", "self_loops", "undirected"),
    *("encode", "link_split", "like", "engine"),
)


def add_commands(commands) -> None:
    """Add this package's commands to an argparse subparsers object."""
    command = commands.add_parser(
        "partition",
        usage="dgl-gt partition [options] --parts P --out DIR SOURCE",
        help="partition a graph into shards",
        description="Partition a graph by an edge cut or a vertex cut, and write one shard per part.",
        epilog="SOURCE is a .npz, .npy, DGL .bin/.dgl, edge list .csv/.tsv/.txt[.gz], METIS .graph[.gz], a folder or a pattern of "
        ".parquet, .csv or .tsv tables, s3://..., Matrix Market .mtx, .mat, GraphML, GML, GEXF, Pajek .net, node-link .json or PyG "
        ".pt file, a SuiteSparse .tar.gz, a directory of DGL's chunked format, of OGB's raw form or with a meta.yaml, dgl:NAME, pyg:NAME, ogb:NAME or "
        "sample:communities?nodes=20000&seed=0",
    )
    add_options(command)
    show_at_first(command, _COMMON)
    command.set_defaults(command=_partition)
    convert = commands.add_parser(
        "convert",
        help="write a graph from tables, or from any other source, as one .npz file, to look at before it is cut",
    )
    convert.add_argument("source", metavar="SOURCE", help="the graph, as for partition")
    convert.add_argument("--out", required=True, metavar="FILE.npz", help="file to write; partition reads it")
    convert.add_argument("--force", action="store_true", help="replace FILE.npz if it exists")
    add_reading(convert)
    add_bound(convert, "tables are read within half of it, or 256 MiB")
    convert.set_defaults(command=_convert)

    inspect = commands.add_parser("inspect", help="print the statistics of a shard directory and verify its checksums")
    inspect.add_argument("directory", metavar="DIR", help="shard directory")
    inspect.set_defaults(command=_inspect)

    import_ = commands.add_parser("import", help="make shards from a partition directory of dgl.distributed")
    import_.add_argument("config", metavar="FILE.json", help=".json file of a partition directory of dgl.distributed")
    import_.add_argument("--out", required=True, metavar="DIR", help="shard directory to write")
    import_.add_argument("--seed", type=int, default=0, help="seed of the order of rows inside parts (default: 0)")
    import_.add_argument("--force", action="store_true", help="replace DIR if it holds shards")
    import_.set_defaults(command=_import)
    for command in (convert, inspect, import_):
        command.add_argument("--json", action="store_true", help="print one JSON object on stdout")


def _partition(args) -> tuple[dict, str]:
    started = time.monotonic()
    warnings.simplefilter("ignore", SourceWarning)  # print_source_notes says it below
    if args.dry_run:
        check_engine(args)
        return _dry_run_of_engine(args) if args.engine else _dry_run(args)
    if args.out is None:
        raise InputError("--out is missing: name the shard directory to write, or add --dry-run")
    options = settings(args)
    with console.Stages() as progress, engine_options(args) as of_engine:
        manifest = partition(args.source, out=args.out, force=args.force, progress=progress, **options, **of_engine)
    notes = [*manifest["notes"], *one_way_notes(read_figures(manifest).schema)]
    console.print_source_notes(notes, manifest["left_out"])
    result = _figures(manifest, started, peak_with_children_bytes(), options.get("costs"))
    chosen = f"chosen: {manifest['choice']['reason']}\n\n" if manifest["choice"] else ""
    by = f" (cut by {METHOD_NAMES[manifest['method']]})" if args.memory else ""
    return result, f"{quality_table(manifest, result)}\n\n{chosen}{_written(args.out + by, result)}"


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
        "parts": config.parts,
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


def _dry_run_of_engine(args) -> tuple[dict, str]:
    """What many workers would do; none is started or asked."""
    config = PartitionConfig(**settings(args))
    check_options(config)
    memory_bytes, workers = args.worker_memory or MEMORY_BYTES, args.workers or 1
    source = open_source(args.source, config)
    check_extras(source, config)
    source = checked(source, config, memory_bytes)
    stages = estimated_stages(source, config, memory_bytes)
    result = {name: {"tasks": tasks, "bytes": size, "seconds": seconds} for name, tasks, size, seconds in stages}
    rows = [
        [name, tasks, format_bytes(size), f"{seconds / min(workers, tasks) / 60:.1f}"]
        for name, tasks, size, seconds in stages
    ]
    told = f"{args.source}: {format_count(config.parts, 'part')}, {format_count(workers, 'worker')} of {format_bytes(memory_bytes)}"
    console.print_source_notes(source.notes, source.left_out)
    table = console.table(["stage", "tasks", "written", "minutes"], rows)
    return result, f"{told}; estimates only, nothing is written\n\n{table}"


def _convert(args) -> tuple[dict, str]:
    warnings.simplefilter("ignore", SourceWarning)  # print_source_notes says it below
    memory = {} if args.memory is None else {"memory": args.memory}
    graph = convert(args.source, args.out, force=args.force, **reading(args), **memory)
    console.print_source_notes(graph.notes, graph.left_out)
    columns = {f"node data {name}": each for name, each in graph.node_data.items()}
    columns |= {f"edge data {name}": each for name, each in graph.edge_data.items()}
    rows = [[name, str(each.dtype), " x ".join(map(str, each.shape))] for name, each in columns.items()]
    counts = f"{format_count(graph.num_nodes, 'node')}, {format_count(graph.num_edges, 'edge')}"
    shown = f"\n\n{console.table(['column', 'dtype', 'shape'], rows)}" if rows else ""
    result = {
        "nodes": graph.num_nodes,
        "edges": graph.num_edges,
        "columns": {name: {"dtype": str(each.dtype), "shape": list(each.shape)} for name, each in columns.items()},
        "left_out": list(graph.left_out),
        "notes": list(graph.notes),
    }
    return result, f"{graph.name}: {counts}{shown}\n\nwrote {args.out}"


def _inspect(args) -> tuple[dict, str]:
    started = time.monotonic()
    manifest = read_manifest(args.directory)
    verify(args.directory, manifest)
    result = _figures(manifest, started, peak_memory_bytes())
    return result, f"{quality_table(manifest, result)}\n\nall checksums match"


def _import(args) -> tuple[dict, str]:
    from dgl_gt.partition.shards.dgl_import import import_dgl

    started = time.monotonic()
    with console.Stages() as progress:
        manifest = import_dgl(args.config, args.out, seed=args.seed, force=args.force, progress=progress)
    result = _figures(manifest, started, peak_with_children_bytes())
    return result, f"{quality_table(manifest, result)}\n\n{_written(args.out, result)}"


def _written(out: str, result: dict) -> str:
    return f"wrote {out} in {result['seconds']:.1f} s, peak memory {format_bytes(result['peak_memory_bytes'])}"


def _figures(manifest: dict, started: float, peak_bytes: int, costs: Costs | None = None) -> dict:
    """Return the documented JSON keys."""
    costs = costs or default_costs()
    kept = (
        "nodes edges parts cut method choice mapping quality isolated_nodes left_out notes encodings transforms links"
    )
    counts, figures = read_figures(manifest), {key: manifest[key] for key in kept.split()}
    figures |= {"compute_balance": costs.compute_balance(counts), "types": count_by_type(counts)}
    return figures | {"peak_memory_bytes": peak_bytes, "seconds": time.monotonic() - started}


# ---- the tables that are printed


def quality_table(manifest: dict, result: dict) -> str:
    """A table of a partition's parts and one of its quality, from its manifest and what the command returns."""
    quality, cut = manifest["quality"], manifest["cut"]
    copies = {"edge": "halo", "vertex": "mirrors"}[cut]
    size = ["size"] if "files" in manifest else []  # an assignment alone has none
    parts = console.table(
        ["part", "owned nodes", f"{copies} nodes" if cut == "edge" else copies, "edges", "rows sent", *size],
        [
            [
                i,
                *(f"{part[key]:,}" for key in ("owned", copies, "edges", "sent")),
                *(format_bytes(part["bytes"]) for _ in size),
            ]
            for i, part in enumerate(manifest["per_part"])
        ],
    )
    figures = "\n".join(
        f"{title.lower():<13} {_figure(key, quality[key]):>12}  {meaning}"
        for key, (title, meaning) in MEANINGS.items()
        if quality.get(key) is not None
    )
    meaning = "predicted time that the slowest rank computes / the mean"
    figures += f"\n{'compute':<13} {result['compute_balance']:>12.3f}  {meaning}"
    isolated = manifest["isolated_nodes"]
    figures += f"\n{'isolated':<13} {isolated:>12,}  nodes without an edge to another node"
    depth = f", halo depth {manifest['halo_depth']}" if manifest["halo_depth"] > 1 else ""
    sizes = f"{format_count(manifest['nodes'], 'node')}, {format_count(manifest['edges'], 'edge')}"
    counts = f"{sizes}, {format_count(manifest['parts'], 'part')}, {cut} cut{depth}"
    notes = [types_tables(result["types"])] if result["types"] else []
    notes += [f"added: {added}"] if (added := describe_transforms(manifest["transforms"])) else []
    notes += [_mapping(manifest["mapping"], manifest["shares"])] if manifest["mapping"] else []
    notes += [f"encodings: {_encodings(manifest['encodings'])}"] if manifest["encodings"] else []
    notes += [f"links: {_links(manifest['links'])}"] if manifest["links"] else []
    return "\n\n".join([f"{manifest['source']}: {counts}", parts, figures, *notes])


def one_way_notes(schema: Schema | None) -> list[str]:
    """A note if relations join two node types in one direction alone, in which models then pass nothing back."""
    relations = schema.relations if schema else ()
    joined = {(each.source, each.destination) for each in relations}
    names = [str(each) for each in relations if (each.destination, each.source) not in joined]
    if not names:
        return []
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return [f"no relation leads back along {' '.join(names[:3])}{more}; --undirected adds reverse relations"]


def types_tables(types: dict) -> str:
    """A table of node types and one of relations."""
    nodes = [
        [name, f"{each['nodes']:,}", f"{each['copies']:,}", f"{each['balance']:.3f}", _data(each["data"])]
        for name, each in types["nodes"].items()
    ]
    edges = [
        [name, f"{each['edges']:,}", f"{each['cut_edges']:,}", _data(each["data"])]
        for name, each in types["edges"].items()
    ]
    tables = (["node type", "nodes", "copies", "balance", "data"], nodes), (["relation", "edges", "cut", "data"], edges)
    return "\n\n".join(console.table(*each, left=(0, len(each[0]) - 1)) for each in tables)


def _data(columns: dict[str, str]) -> str:
    return ", ".join(f"{name} {described}" for name, described in columns.items()) or "none"


def _figure(key: str, number: float) -> str:
    if key.endswith("_ratio"):
        return f"{number:.2%}"
    if key == "cut_weight":
        return f"{number:,.10g}"
    return f"{number:,}" if isinstance(number, int) else f"{number:.3f}"


def _links(record: dict) -> str:
    """How many links are in each set, and how many pairs that are none."""
    pairs, each = record["pairs"], "pairs" if record["is_undirected"] else "directed pairs"
    sets = ", ".join(f"{pairs[name]:,} for {name}" for name in ("train", "val", "test"))
    of = f" of {','.join(record['relation'])}" if record["relation"] else ""
    return f"{sets} ({each}{of}); no links: {pairs['val_neg']:,} for val, {pairs['test_neg']:,} for test"


_SEARCHES = {"all orders": "trying all orders", "swaps": "swapping pairs"}


def _mapping(mapping: dict, shares: list[float]) -> str:
    """Say how parts were fitted to ranks."""
    sizes = (
        "equal parts" if mapping["shares"] == "equal" else f"parts of {', '.join(f'{share:.1%}' for share in shares)}"
    )
    before, mapped, after = (mapping[key] for key in ("unmapped_s", "mapped_s", "predicted_s"))
    moved = f"; {after:.3g} s after nodes have moved" if after < mapped else ""
    return (
        f"ranks of {mapping['profile']}: {sizes}\npredicted step: {before:.3g} s with the parts in the order in which "
        f"they were cut, {mapped:.3g} s with each on the rank that suits it best (found by {_SEARCHES[mapping['search']]}){moved}"
    )


def _encodings(records: dict) -> str:
    """Name encodings with their columns, and say which columns are estimates or empty."""
    named = []
    for name, record in records.items():
        notes = [format_count(record["columns"], "column")]
        if record.get("probes"):
            notes.append(
                f"estimated with {record['probes']} random vectors from column {record['exact_columns'] + 1} on"
            )
        filled = len(record.get("eigenvalues", record.get("landmarks", range(record["columns"]))))
        if filled < record["columns"]:
            empty = record["columns"] - filled
            notes.append("the last one is zero" if empty == 1 else f"the last {empty} are zero")
        named.append(f"{name} ({', '.join(notes)})")
    return ", ".join(named)


def estimates_table(source: str, sizes: SourceSizes, estimates: dict[str, Needs], chosen: str | None) -> str:
    """A table of the memory, disk and time that each way to cut a graph is estimated to take."""
    rows = [
        [
            METHOD_NAMES[method] + (" (would be used)" if method == chosen else ""),
            format_bytes(each.memory_bytes),
            format_bytes(each.disk_bytes),
            f"{each.seconds:,.0f} s" if each.seconds >= 1 else "under 1 s",
        ]
        for method, each in estimates.items()
    ]
    counts = (
        f"{format_count(sizes.nodes, 'node')}, {format_count(sizes.edges, 'edge')}, {format_count(sizes.parts, 'part')}"
    )
    return f"{source}: {counts}; estimates only, nothing is written\n\n{console.table(['method', 'peak memory', 'disk', 'time'], rows)}"
