"""A training step of Polynormer's ogbn-arxiv model: the published PyG code and dgl-gt on one rank and on two.

    git clone https://github.com/cornell-zhang/Polynormer
    python benchmarks/polynormer.py --checkout Polynormer [--layers 7] [--pieces 8] [--steps 3] [--turns 2] [--json]

The model is that of ``large_graph_exp/arxiv.sh`` with its two layers of global attention: hidden 256, 7 local layers of
GCN with batch norm, on ogbn_arxiv_nofeat made undirected, with self-loops and random features of width 128. Every tool
keeps freed memory, and has two threads: one process of two, or two ranks of one. They take turns; medians of the
training steps after the first of each turn, evaluation left out. The losses of both codes without dropout, from the
same weights, are those of benchmarks/published_models.py. The published code needs torch_geometric, and memory: 3.5 GiB
for a sixteenth of the graph, and more than 22 GiB for the whole even with two layers. Where its step does not fit,
``--pieces`` takes one of this many METIS parts of the graph, with the edges inside it, for every tool.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
import yaml
from machine import DATA, processor
from torch.nn import functional

from dgl_gt.partition import load_graph, make_edge_cut, partition
from dgl_gt.partition.console import table
from dgl_gt.partition.system.allocator import environment_of_ranks
from dgl_gt.partition.system.units import format_bytes
from dgl_gt.train.config import read_config

FEATURES, CLASSES = 128, 40
CONFIG = {
    "architecture": "polynormer",
    "score": "gcn",
    "norm": "batch",
    "input": "none",
    "gate": "constant",
    "gate_start": 0.9,
    "hidden": 256,
    "heads": 1,
    "global_layers": 2,
    "global_dropout": 0.5,
    "dropout": 0.5,
    "input_dropout": 0.15,
    "optimizer": "adam",
    "decay": "all",
    "weight_decay": 0.0005,
    "lr": 0.0005,
    "warmup": 0,
    "patience": 0,
}


def write_graph(path: Path, pieces: int) -> tuple[int, int]:
    """Write ogbn-arxiv, undirected and with self-loops, or a piece of it; returns its numbers of nodes and edges."""
    whole = load_graph(str(DATA / "ogbn_arxiv_nofeat.npz"), random_features=FEATURES, undirected=True, self_loops=True)
    cut = make_edge_cut(whole, pieces)
    new, count = cut.new_ids(), cut.ptr[1]
    src, dst = new[whole.indices], new[whole.destinations()]
    inside = (src < count) & (dst < count)
    data = {name: values[cut.order[:count]] for name, values in whole.node_data.items()}
    np.savez(path, edge_index=np.stack([src[inside], dst[inside]]), num_nodes=count, directed=True, **data)
    return int(count), int(inside.sum())


def published(checkout: Path, graph: str, layers: int, steps: int) -> None:
    """Run steps of the published model in this process, and print their seconds."""

    sys.path.insert(0, str(checkout / "large_graph_exp"))
    from lg_model import Polynormer

    graph = load_graph(graph)
    edges = torch.stack([torch.tensor(graph.indices).long(), torch.tensor(graph.destinations()).long()])
    x, label = torch.tensor(graph.node_data["feat"]).float(), torch.tensor(graph.node_data["label"]).flatten()
    train = torch.tensor(graph.node_data["train_mask"]).nonzero()[:, 0]
    model = Polynormer(FEATURES, 256, CLASSES, layers, 2, heads=1, post_bn=True)
    model._global = True
    optimizer = torch.optim.Adam(model.parameters(), lr=0.0005, weight_decay=0.0005)
    seconds = []
    for _ in range(steps + 1):
        started = time.perf_counter()
        model.train()
        optimizer.zero_grad()
        loss = functional.nll_loss(functional.log_softmax(model(x, edges), 1)[train], label[train])
        loss.backward()
        optimizer.step()
        loss.item()
        seconds.append(time.perf_counter() - started)
    peak = int(next(line for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line).split()[1])
    print(json.dumps({"seconds": seconds[1:], "peak_bytes": peak << 10}))


def run(threads: int, *arguments) -> dict:
    """Run Python with these arguments; the JSON that it prints."""
    environment = {**os.environ, **environment_of_ranks(), "OMP_NUM_THREADS": str(threads)}
    done = subprocess.run([sys.executable, *map(str, arguments)], env=environment, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def ours(folder: Path, ranks: int, steps: int) -> dict:
    """Train with ``dgl-gt train``, whose seconds are the median step of the slowest rank."""
    arguments = [
        "-m",
        "dgl_gt",
        "train",
        folder / f"shards-{ranks}",
        "--config",
        folder / "config.yaml",
        "--nproc",
        ranks,
    ]
    ran = run(2 // ranks, *arguments, "--epochs", steps + 1, "--evaluate-every", steps + 1, "--json")
    return {"seconds": [ran["seconds_per_epoch"]], "peak_bytes": max(ran["peak_memory_bytes"])}


def main() -> None:
    """Parse arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkout", type=Path, required=True, help="the published code")
    parser.add_argument("--layers", type=int, default=7)
    parser.add_argument("--pieces", type=int, default=1)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--published", metavar="GRAPH", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.published:
        published(args.checkout, args.published, args.layers, args.steps)
        return
    found: dict[str, list[dict]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.yaml").write_text(yaml.safe_dump(asdict(read_config(**CONFIG, layers=args.layers))))
        nodes, edges = write_graph(folder / "graph.npz", args.pieces)
        for ranks in (1, 2):
            partition(folder / "graph.npz", ranks, folder / f"shards-{ranks}")
        theirs = [__file__, "--checkout", args.checkout, "--layers", args.layers, "--steps", args.steps]
        theirs += ["--published", folder / "graph.npz"]
        tools = {
            "published code, PyG": lambda: run(2, *theirs),
            "dgl-gt, one rank": lambda: ours(folder, 1, args.steps),
            "dgl-gt, two ranks": lambda: ours(folder, 2, args.steps),
        }
        for _ in range(args.turns):
            for tool, measure in tools.items():
                found.setdefault(tool, []).append(measure())
    rows = {
        tool: {
            "seconds": statistics.median(each for turn in turns for each in turn["seconds"]),
            "peak_bytes": max(turn["peak_bytes"] for turn in turns),
        }
        for tool, turns in found.items()
    }
    if args.json:
        print(json.dumps({"nodes": nodes, "edges": edges, "tools": rows}))
        return
    base = rows["published code, PyG"]["seconds"]
    cells = [
        [tool, f"{row['seconds']:.2f}", f"{base / row['seconds']:.2f}x", format_bytes(row["peak_bytes"])]
        for tool, row in rows.items()
    ]
    print(f"{nodes:,} nodes, {edges:,} edges, {args.layers} local layers; {processor()}")
    print(table(["", "s / step", "", "peak / process"], cells))


if __name__ == "__main__":
    main()
