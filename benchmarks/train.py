"""Seconds per epoch of full-graph training at 1, 2 and more ranks, one thread each, through ``dgl-gt train``.

    python benchmarks/train.py [--source SOURCE ...] [--parts 1,2,4] [--epochs 10] [--layers 3] [--hidden 128]
        [--strategy halo_kv] [--precision bf16] [--json]

Each row is one run of the command line in processes of its own: partition the graph, then train with as many ranks as
parts and no early stopping. A graph without features gets random ones: they cost what real ones cost, and teach
nothing, so no metric is shown. Seconds are the median training step of the slowest rank, evaluation left out; the
speed-up is against the first row. Memory is the largest rank's whole process, interpreter and libraries included.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from machine import DATA, processor

from dgl_gt.partition import InputError, load_graph
from dgl_gt.partition.console import table
from dgl_gt.partition.system.units import format_bytes

REAL = "ogbn_arxiv_nofeat.npz"
MODEL = ("layers", "hidden", "heads", "epochs", "precision")
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


def dgl_gt(*arguments) -> dict:
    """Run ``dgl-gt ARGUMENTS --json`` with one thread a process; its progress goes on to stderr."""
    command = [sys.executable, "-m", "dgl_gt", *map(str, arguments), "--json"]
    ran = subprocess.run(command, env={**os.environ, **ONE_THREAD}, stdout=subprocess.PIPE)
    if ran.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with status {ran.returncode}")
    return json.loads(ran.stdout)


def measure(source: str, parts: int, args) -> dict:
    """Partition, train, and return one row: the keys of ``dgl-gt train --json`` that cost, and the partition's."""
    features = [] if _has_features(source) else ["--random-features", args.random_features]
    model = [text for key in MODEL for text in (f"--{key}", getattr(args, key))]
    with tempfile.TemporaryDirectory() as folder:
        shards = Path(folder) / "shards"
        made = dgl_gt("partition", source, "--parts", parts, "--out", shards, *features)
        ran = dgl_gt("train", shards, *model, "--patience", 0, "--strategy", args.strategy if parts > 1 else "local")
    kept = ("ranks", "epochs", "seconds_per_epoch", "exchange_share", "exchanged_bytes_per_epoch", "peak_memory_bytes")
    return {
        **{key: ran[key] for key in kept},
        **{key: made[key] for key in ("nodes", "edges")},
        **{key: made["quality"][key] for key in ("halo", "cut_ratio", "node_balance", "edge_balance")},
    }


def _has_features(source: str) -> bool:
    return "feat" in load_graph(source).node_data


def _report(source: str, rows: list[dict]) -> str:
    header = [
        "ranks",
        "s / epoch",
        "speed-up",
        "exchange",
        "sent / epoch",
        "peak / rank",
        "halo rows",
        "cut",
        "edge bal.",
    ]
    cells = []
    for row in rows:
        seconds, peaks = row["seconds_per_epoch"], row["peak_memory_bytes"]
        cell = [
            row["ranks"],
            f"{seconds:.3f}",
            f"{rows[0]['seconds_per_epoch'] / seconds:.2f}",
            f"{row['exchange_share']:.1%}",
        ]
        cell += [format_bytes(row["exchanged_bytes_per_epoch"]), format_bytes(max(peaks)), f"{row['halo']:,}"]
        cells.append([*cell, f"{row['cut_ratio']:.2%}", f"{row['edge_balance']:.3f}"])
    return f"{Path(source).name}: {rows[0]['nodes']:,} nodes, {rows[0]['edges']:,} edges\n\n{table(header, cells)}"


def _counts(text: str) -> list[int]:
    return [int(count) for count in text.split(",")]


def _arguments(real: Path):
    parser = argparse.ArgumentParser(description="Seconds per epoch by number of ranks, one thread each.")
    text = f"as for `dgl-gt partition`; may be given again (default: {real})".replace("%", "%%")
    parser.add_argument("--source", action="append", metavar="SOURCE", help=text)
    parser.add_argument(
        "--parts", type=_counts, default=[1, 2, 4], metavar="1,2,4", help="numbers of parts (default: 1,2,4)"
    )
    parser.add_argument("--layers", type=int, default=3, help="default: 3")
    parser.add_argument("--hidden", type=int, default=128, help="default: 128")
    parser.add_argument("--heads", type=int, default=8, help="default: 8")
    parser.add_argument("--epochs", type=int, default=10, help="default: 10")
    parser.add_argument("--strategy", default="halo_h", help="of several ranks (default: halo_h)")
    parser.add_argument("--precision", default="fp32", help="default: fp32")
    parser.add_argument(
        "--random-features", type=int, default=128, metavar="WIDTH", help="for graphs without (default: 128)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout, the table on stderr")
    return parser.parse_args()


def main() -> int:
    """Run the measurement; 2 where a source cannot be read."""
    real = DATA / REAL
    args = _arguments(real)
    if not args.source and not real.is_file():
        print(f"skipped {real}: no such file; $DGL_GT_DATA names the folder", file=sys.stderr)
        return 0
    cores = len(os.sched_getaffinity(0))
    versions = {name: metadata.version(name) for name in ("torch", "numpy")}
    stream = sys.stderr if args.json else sys.stdout
    model = {key: getattr(args, key) for key in (*MODEL, "strategy")}
    settings = ", ".join([*(f"{key} {value}" for key, value in model.items()), f"one thread a rank, {processor()}"])
    print(f"{settings}; {', '.join(f'{name} {version}' for name, version in versions.items())}", file=stream)
    if max(args.parts) > cores:
        print(
            f"more than {cores} ranks share the {cores} cores: such rows show memory and bytes, not speed", file=stream
        )
    results = []
    for source in args.source or [str(real)]:
        try:
            rows = [measure(source, parts, args) for parts in args.parts]
        except InputError as error:
            print(f"train.py: error: {error}", file=sys.stderr)
            return 2
        results.append({"source": source, "rows": rows})
        print(f"\n{_report(source, rows)}", file=stream, flush=True)
    if args.json:
        print(
            json.dumps(
                {**model, "processor": processor(), "threads_per_rank": 1, "versions": versions, "results": results}
            )
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
