"""A training step whose layers run part by part, compared with steps in memory: seconds and peak memory of one rank.

    python benchmarks/spilling.py [--graph ogbn_arxiv_nofeat] [--parts 8] [--layers 3] [--hidden 256] [--spill DIR]
        [--steps 3] [--json]

A graph transformer on 128 random features, 40 classes, AdamW, dropout 0.2, float32, on one rank. In memory: as it is, and
with activation checkpointing of all layers, on shards of one part. Part by part: on shards of several. Each runs in a
process of its own with the allocator of `dgl-gt train`, one after the other; seconds are the median of the steps after a
first one, and memory is the largest resident size of the process, and how much it was above that before the first step.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from attention import graph_named
from machine import processor

import dgl_gt
from dgl_gt.nn import GraphTransformer, apply_activation_checkpoint, set_dropout_step
from dgl_gt.partition import partition
from dgl_gt.partition.console import table
from dgl_gt.partition.system.allocator import environment_of_ranks
from dgl_gt.partition.system.units import format_bytes

FEATURES, CLASSES = 128, 40
TOOLS = {"in memory": "none", "in memory, checkpointing": "full", "part by part": "none"}


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def measure(args) -> dict[str, float]:
    """Seconds of a step, and bytes, of one tool in this process."""
    is_streamed = args.tool == "part by part"
    folder = Path(args.shards) / ("several" if is_streamed else "one")
    sg = dgl_gt.load(folder, spill=args.spill if is_streamed else None)
    torch.manual_seed(0)
    model = GraphTransformer(FEATURES, args.hidden, CLASSES, args.layers, 8, dropout=0.2)
    apply_activation_checkpoint(model, TOOLS[args.tool])
    feat = torch.randn(sg.num_nodes(), FEATURES)
    label = torch.randint(0, CLASSES, (sg.num_nodes(),))
    optimizer, times = torch.optim.AdamW(model.parameters(), 1e-3), []
    before = resident_bytes()
    for number in range(args.steps + 1):
        set_dropout_step(model, 0, number)
        started = time.perf_counter()
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(sg, feat), label).backward()
        optimizer.step()
        times.append(time.perf_counter() - started)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"step_s": statistics.median(times[1:]), "peak_bytes": peak, "step_bytes": peak - before}


def main() -> None:
    """Parse arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", default="ogbn_arxiv_nofeat", help="as benchmarks/attention.py takes it")
    parser.add_argument("--parts", type=int, default=8)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--spill", help="directory for rows (default: one for temporary files)")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--tool", help=argparse.SUPPRESS)  # measure one, in this process
    parser.add_argument("--shards", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.tool:
        print(json.dumps(measure(args)))
        return
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        graph = graph_named(args.graph)
        for name, parts in (("one", 1), ("several", args.parts)):
            partition(graph, parts, Path(folder) / name)
        for tool in TOOLS:
            more = ["--tool", tool, "--shards", folder, "--spill", args.spill or folder]
            line = [sys.executable, *sys.argv, *more]
            environment = os.environ | environment_of_ranks(bounded=tool == "part by part")
            printed = subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True, env=environment)
            found[tool] = json.loads(printed.stdout.splitlines()[-1])
    if args.json:
        print(json.dumps({"graph": args.graph, "parts": args.parts, "tools": found}))
        return
    base = found["in memory"]
    rows = [
        [tool, f"{each['step_s']:.2f}", f"{each['step_s'] / base['step_s']:.2f}", format_bytes(each["peak_bytes"])]
        + [f"{each['peak_bytes'] / base['peak_bytes']:.2f}", format_bytes(each["step_bytes"])]
        for tool, each in found.items()
    ]
    print(f"{args.graph}, {args.parts} parts, {args.layers} layers, hidden {args.hidden}; {processor()}, ", end="")
    print(f"{torch.get_num_threads()} threads\n")
    print(table(["step", "s", "of in memory", "peak", "of in memory", "above before"], rows))


if __name__ == "__main__":
    main()
