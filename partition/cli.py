"""``dgl-gt partition`` and ``dgl-gt inspect``; also ``python -m partition``."""

from __future__ import annotations

import argparse
import time

from . import console
from .cost import Model, Speeds
from .manifest import read_manifest, verify
from .memory import peak_memory_bytes
from .pipeline import CUTS, partition


def main(argv=None) -> int:
    """Run ``python -m partition``."""
    parser = argparse.ArgumentParser(
        prog="python -m partition", description="Partition graphs into shards and inspect them."
    )
    add_commands(parser.add_subparsers(required=True, metavar="COMMAND"))
    return console.run(parser, argv)


def add_commands(commands) -> None:
    """Add this package's commands to an argparse subparsers object."""
    make = commands.add_parser(
        "partition",
        help="partition a graph into shards",
        description="Partition a graph by edge cut or vertex cut, one shard a part.",
        epilog="SOURCE is a .npz, DGL .bin/.dgl, edge list .csv/.tsv/.txt[.gz] or METIS .graph file, "
        "dgl:NAME, ogb:NAME or sample:communities?nodes=20000&seed=0",
    )
    make.add_argument("source", metavar="SOURCE")
    make.add_argument("--parts", type=int, required=True, metavar="K", help="number of parts, one a rank")
    make.add_argument("--out", required=True, metavar="DIR", help="shard directory to make")
    make.add_argument(
        "--cut", default="edge", choices=CUTS, help="deal out nodes or edges, or what is predicted to train faster"
    )
    model, speeds = Model(), Speeds()
    auto = make.add_argument_group("what --cut auto has in mind")
    auto.add_argument("--layers", type=_positive, default=model.layers, metavar="L", help="(default: %(default)s)")
    auto.add_argument("--hidden", type=_positive, default=model.hidden, metavar="C", help="(default: %(default)s)")
    auto.add_argument("--heads", type=_positive, default=model.heads, metavar="H", help="(default: %(default)s)")
    auto.add_argument(
        "--link-gbit",
        type=_positive_float,
        default=speeds.link_bytes_per_s * 8 / 1e9,
        metavar="GBIT/S",
        help="into and out of a rank (default: %(default)g)",
    )
    make.add_argument("--seed", type=int, default=0, help="same seed, same shards (default: 0)")
    make.add_argument("--force", action="store_true", help="replace DIR where it holds shards")
    make.add_argument("--self-loops", action="store_true", help="add a self-loop to each node that has none")
    make.add_argument("--undirected", action="store_true", help="add the reverse of each edge that has none")
    make.add_argument("--random-features", type=int, metavar="WIDTH", help="normal features for a graph that has none")
    make.add_argument(
        "--num-nodes", type=int, metavar="N", help="edge lists: number of nodes (default: largest id + 1)"
    )
    make.add_argument("--node-data", metavar="FILE", help="edge lists: .npz or .csv with feat, label and masks")
    make.add_argument("--json", action="store_true", help="one JSON object on stdout")
    make.set_defaults(command=_partition)

    inspect = commands.add_parser("inspect", help="print a shard directory's figures and verify its checksums")
    inspect.add_argument("directory", metavar="DIR")
    inspect.add_argument("--json", action="store_true", help="one JSON object on stdout")
    inspect.set_defaults(command=_inspect)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return number


def _positive_float(text: str) -> float:
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return number


def _partition(args) -> tuple[dict, str]:
    started, progress = time.monotonic(), console.Progress()
    try:
        manifest = partition(
            args.source,
            args.parts,
            args.out,
            cut=args.cut,
            model=Model(layers=args.layers, hidden=args.hidden, heads=args.heads),
            speeds=Speeds(link_bytes_per_s=args.link_gbit * 1e9 / 8),
            seed=args.seed,
            force=args.force,
            progress=progress,
            self_loops=args.self_loops,
            undirected=args.undirected,
            random_features=args.random_features,
            num_nodes=args.num_nodes,
            node_data=args.node_data,
        )
    finally:
        progress.close()
    result = _figures(manifest, started, progress.children_bytes)
    chosen = f"chosen: {manifest['choice']['reason']}\n\n" if manifest["choice"] else ""
    written = f"wrote {args.out} in {result['seconds']:.1f} s, peak memory {_peak(result)}"
    return result, f"{_quality_table(manifest)}\n\n{chosen}{written}"


def _inspect(args) -> tuple[dict, str]:
    started = time.monotonic()
    manifest = read_manifest(args.directory)
    verify(args.directory, manifest)
    return _figures(manifest, started), f"{_quality_table(manifest)}\n\nall checksums match"


def _peak(result: dict) -> str:
    return console.size(result["peak_memory_bytes"])


def _figures(manifest: dict, started: float, children_bytes: int = 0) -> dict:
    """The documented JSON keys."""
    return {
        **{key: manifest[key] for key in ("nodes", "edges", "parts", "cut", "choice", "quality")},
        "peak_memory_bytes": peak_memory_bytes() + children_bytes,
        "seconds": time.monotonic() - started,
    }


def _quality_table(manifest: dict) -> str:
    quality, cut = manifest["quality"], manifest["cut"]
    copies = {"edge": "halo", "vertex": "mirrors"}[cut]
    parts = console.table(
        ["part", "owned nodes", f"{copies} nodes" if cut == "edge" else copies, "edges", "rows sent", "size"],
        [
            [i, *(f"{part[key]:,}" for key in ("owned", copies, "edges", "sent")), console.size(part["bytes"])]
            for i, part in enumerate(manifest["per_part"])
        ],
    )
    lines = [
        ("volume", f"{quality['volume']:,}", "rows that cross ranks per layer and direction"),
        ("replication", f"{quality['replication_factor']:.3f}", "rows held / nodes"),
        ("max copies", f"{quality['max_copies_factor']:.3f}", "rows held by the largest part x parts / nodes"),
        ("node balance", f"{quality['node_balance']:.3f}", "largest part's nodes / mean"),
        ("edge balance", f"{quality['edge_balance']:.3f}", "largest part's edges / mean"),
    ]
    if cut == "edge":
        lines.insert(0, ("cut ratio", f"{quality['cut_ratio']:.2%}", "edges whose source another part owns"))
    figures = "\n".join(f"{name:<13} {value:>12}  {meaning}" for name, value, meaning in lines)
    counts = f"{manifest['nodes']:,} nodes, {manifest['edges']:,} edges, {manifest['parts']} parts, {cut} cut"
    return f"{manifest['source']}: {counts}\n\n{parts}\n\n{figures}"
