"""Partition a large power-law graph within a memory bound, and compare the estimates with what was needed.

    python benchmarks/partition_scale.py [--nodes 2000000] [--edges 40000000] [--parts 8] [--memory 8GiB --memory 1GiB]

The graph (power-law degrees, communities, both directions of each edge listed, 64 float32 features) is generated into
an uncompressed .npz first. *Peak* is the proportional set size of the command and all its children, polled. Linux only.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from machine import memory_bytes, processor

from dgl_gt.partition.console import table
from dgl_gt.partition.system.units import format_bytes

FEATURES, COMMUNITY, INSIDE = 64, 2000, 0.8
_INTERVAL_S = 0.1


def generate(path: Path, nodes: int, edges: int, features: int = FEATURES, seed: int = 0) -> None:
    """Write the graph: nodes have weights 1 / rank^0.6 in random order; most edges stay in a community of 2,000."""
    rng = np.random.default_rng(seed)
    weight = (rng.permutation(nodes) + 10.0) ** -0.6
    ends = np.cumsum(weight)
    half = edges // 2
    src = np.searchsorted(ends, rng.random(half) * ends[-1]).astype(np.int32)
    low = src - src % COMMUNITY
    high = np.minimum(low + COMMUNITY, nodes) - 1
    before = np.concatenate([[0.0], ends])
    inside = rng.random(half) < INSIDE
    begin, end = np.where(inside, before[low], 0.0), np.where(inside, ends[high], ends[-1])
    dst = np.searchsorted(ends, begin + rng.random(half) * (end - begin)).astype(np.int32)
    dst = np.minimum(dst, nodes - 1)
    shuffled = rng.permutation(nodes).astype(np.int32)  # ids tell nothing
    src, dst = shuffled[src], shuffled[dst]
    edge_index = np.stack([np.concatenate([src, dst]), np.concatenate([dst, src])])
    feat = rng.standard_normal((nodes, features), dtype=np.float32)
    np.savez(path, edge_index=edge_index, num_nodes=nodes, feat=feat, name=f"power law, {nodes:,} nodes")


def run(source: Path, parts: int, memory: str, folder: Path) -> dict:
    """One command, watched."""
    command = [sys.executable, "-m", "dgl_gt", "partition", str(source), "--parts", str(parts), "--memory", memory]
    dry = subprocess.run([*command, "--dry-run", "--json"], check=True, stdout=subprocess.PIPE)
    planned = json.loads(dry.stdout)
    started, peak = time.monotonic(), 0
    with open(folder / "stdout", "w+b") as stdout:
        process = subprocess.Popen([*command, "--out", str(folder / "shards"), "--json"], stdout=stdout)
        while process.poll() is None:
            peak = max(peak, memory_bytes(process.pid))
            time.sleep(_INTERVAL_S)
        if process.returncode:
            raise RuntimeError(f"the command ended with status {process.returncode}")
        stdout.seek(0)
        made = json.loads(stdout.read())
    disk = sum(path.stat().st_size for path in (folder / "shards").rglob("*") if path.is_file())
    return {
        "memory": memory,
        "method": made["method"],
        "estimate": planned["estimates"][made["method"]],
        "peak_bytes": peak,
        "seconds": time.monotonic() - started,
        "disk_bytes": disk,
        "cut": made["cut"],
        "quality": made["quality"],
    }


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Partition a large power-law graph within memory bounds.")
    parser.add_argument("--nodes", type=int, default=2_000_000)
    parser.add_argument("--edges", type=int, default=40_000_000)
    parser.add_argument("--parts", type=int, default=8, metavar="K")
    parser.add_argument("--memory", action="append", metavar="SIZE", help="(default: 8GiB, 3GiB and 1GiB)")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout, the table on stderr")
    args = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "graph.npz"
        subprocess.run(
            [sys.executable, __file__, "--generate", str(source), str(args.nodes), str(args.edges)], check=True
        )
        for memory in args.memory or ("8GiB", "3GiB", "1GiB"):
            with tempfile.TemporaryDirectory() as out:
                results.append(run(source, args.parts, memory, Path(out)))
            print(f"{memory}: {results[-1]['method']}, {results[-1]['seconds']:.0f} s", file=sys.stderr, flush=True)
    rows = [
        [
            *(each["memory"], each["method"], each["cut"]),
            *(format_bytes(value) for value in (each["estimate"]["memory_bytes"], each["peak_bytes"])),
            *(format_bytes(value) for value in (each["estimate"]["disk_bytes"], each["disk_bytes"])),
            *(f"{value:,.0f}" for value in (each["estimate"]["seconds"], each["seconds"])),
            f"{each['quality']['replication_factor']:.2f}",
            f"{each['quality']['max_copies_factor']:.2f}",
            f"{each['quality']['edge_balance']:.2f}",
        ]
        for each in results
    ]
    header = ["bound", "by", "cut", "est. peak", "peak", "est. disk", "disk left", "est. s", "s"]
    text = table([*header, "replication", "largest", "edge bal."], rows)
    print(f"{processor()}\n\n{text}", file=sys.stderr if args.json else sys.stdout)
    if args.json:
        print(json.dumps({"nodes": args.nodes, "edges": args.edges, "parts": args.parts, "results": results}))
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--generate"]:  # in a process of its own, whose memory is nobody's
        generate(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
        sys.exit(0)
    sys.exit(main())
