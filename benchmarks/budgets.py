"""The memory budget of one rank, halved again and again: what `dgl-gt plan` chooses for it, and what the run then takes.

    python benchmarks/budgets.py [--graph ogbn_arxiv_nofeat] [--layers 3] [--hidden 256] [--first 14] [--halvings 4]

128 random features, 40 classes, a graph transformer with the settings of `dgl-gt train`, one rank. This machine is measured
first (`dgl-gt calibrate --spill`). For each budget, the graph is planned and cut as the plan says, and `dgl-gt train
--strategy auto` takes three epochs with the budget; seconds are those of the median step, and memory is the largest resident
size of the process, its libraries included.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from attention import graph_named
from machine import processor

from dgl_gt.partition import partition
from dgl_gt.partition.console import table
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.system.units import format_bytes, format_count
from dgl_gt.plan import plan, read_profile
from dgl_gt.plan.candidates import Candidate
from dgl_gt.train import read_config

FEATURES, CLASSES = 128, 40


def dgl_gt(*arguments) -> str:
    """What a command prints on stdout."""
    command = [sys.executable, "-m", "dgl_gt", *map(str, arguments)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def with_data(graph):
    """The graph with random features, labels and splits."""
    rng = np.random.default_rng(0)
    nodes = {"feat": rng.standard_normal((graph.num_nodes, FEATURES), dtype=np.float32)}
    nodes["label"] = rng.integers(0, CLASSES, graph.num_nodes)
    split = rng.integers(0, 3, graph.num_nodes)
    nodes |= {f"{name}_mask": split == number for number, name in enumerate(("train", "val", "test"))}
    return replace(graph, node_data=nodes)


def run(folder: Path, graph, choice, budget: int, settings: list) -> dict:
    """What training takes on as many parts as planned, with this budget (bytes)."""
    shards = folder / f"{choice.parts} parts"
    if not shards.exists():
        partition(graph, choice.parts, shards)
    options = ["--profile", folder / "profile.yaml", "--rank-memory", budget, "--spill", folder, "--strategy", "auto"]
    return json.loads(dgl_gt("train", shards, "--nproc", 1, "--epochs", 3, *settings, *options, "--json"))


def main() -> None:
    """Parse arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", default="ogbn_arxiv_nofeat", help="as benchmarks/attention.py takes it")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--first", type=float, default=14, help="the first budget (GiB)")
    parser.add_argument("--halvings", type=int, default=4)
    args = parser.parse_args()
    settings = ["--layers", args.layers, "--hidden", args.hidden, "--heads", 8]
    config, found = read_config(layers=args.layers, hidden=args.hidden, heads=8), []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        dgl_gt("calibrate", "--out", folder / "profile.yaml", "--spill", folder)
        graph, profile = with_data(graph_named(args.graph)), read_profile(folder / "profile.yaml")
        for halvings in range(args.halvings + 1):
            budget = int(args.first * 2**30 / 2**halvings)
            try:
                choice = plan(graph, world_size=1, config=config, profile=profile, rank_memory=budget).choice
            except InputError as error:
                print(f"{format_bytes(budget)}: {error}", file=sys.stderr)
                break
            record = run(folder, graph, choice, budget, settings)
            found.append({"budget": budget, "record": record})
            print(format_bytes(budget), choice.title, file=sys.stderr)
    rows = []
    for each in found:
        record = each["record"]
        choice = Candidate(**record["plan"]["choice"])
        how = "in memory" if not choice.spilled else f"{format_count(choice.parts, 'part')}, part by part"
        how += f", checkpoint {choice.activation_checkpoint}" if choice.activation_checkpoint != "none" else ""
        peak = record["peak_memory_bytes"][0]
        cells = [format_bytes(each["budget"]), how, format_bytes(choice.memory_bytes), format_bytes(peak)]
        cells += [f"{choice.seconds:.1f}", f"{record['seconds_per_epoch']:.1f}"]
        rows.append([*cells, format_bytes(choice.file_bytes["at_once"]) if choice.spilled else ""])
    print(
        f"{args.graph}, {args.layers} layers, hidden {args.hidden}; {processor()}, {torch.get_num_threads()} threads\n"
    )
    header = ["budget", "chosen", "predicted", "peak", "predicted s", "s", "on disk"]
    print(table(header, rows))


if __name__ == "__main__":
    main()
