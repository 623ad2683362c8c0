"""Seconds of a training step of one process, by dropout and precision.

    python benchmarks/training_step.py [--threads 2] [--steps 6] [--json]

ogbn_arxiv_nofeat in one part, with 128 random features: 3 layers, hidden 128, 8 heads, 40 classes. A step is the
forward pass, the loss of all nodes, the backward pass and AdamW. Each setting runs in a process of its own, which keeps
freed memory, as ``dgl-gt train`` does; a figure is the median of the steps after the first two. To compare two
versions, run it in turn with PYTHONPATH set to the root of one checkout and of the other.
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
from pathlib import Path

from machine import DATA, processor

from dgl_gt.partition import partition
from dgl_gt.partition.console import table

SETTINGS = [  # precision, dropout of features, dropout of attention weights
    ("fp32", 0.2, 0.2),
    ("bf16", 0.2, 0.2),
    ("fp32", 0.0, 0.0),
    ("fp32", 0.2, 0.0),
    ("bf16", 0.0, 0.0),
    ("bf16", 0.2, 0.0),
]


def steps(shards, precision: str, dropout: float, attention_dropout: float, threads: int, count: int) -> list[float]:
    """The seconds of each step."""
    import torch

    import dgl_gt
    from dgl_gt.nn import GraphTransformer, apply_precision, set_dropout_step

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    sg = dgl_gt.load(shards)
    model = GraphTransformer(128, 128, 40, 3, 8, dropout=dropout, attention_dropout=attention_dropout)
    apply_precision(model, precision)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    feat, label, times = sg.ndata["feat"], torch.randint(0, 40, (len(sg.node_ids),)), []
    for step in range(count):
        started = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        set_dropout_step(model, 0, step)
        torch.nn.functional.cross_entropy(model(sg, feat).float(), label).backward()
        optimizer.step()
        times.append(time.perf_counter() - started)
    return times


def main(argv=None) -> None:
    """Print the table, or JSON with ``--json``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.child:
        shards, precision, *dropouts = args.child
        return print(json.dumps(steps(shards, precision, *map(float, dropouts), args.threads, args.steps)))
    from dgl_gt.partition.system.allocator import environment_of_ranks

    with tempfile.TemporaryDirectory() as folder:
        shards = Path(folder) / "shards"
        partition(DATA / "ogbn_arxiv_nofeat.npz", 1, shards, random_features=128)
        seconds = []
        for setting in SETTINGS:
            words = [sys.executable, __file__, "--threads", str(args.threads), "--steps", str(args.steps), "--child"]
            ran = subprocess.run(
                [*words, str(shards), *map(str, setting)],
                env={**os.environ, **environment_of_ranks()},
                stdout=subprocess.PIPE,
                check=True,
            )
            seconds.append(statistics.median(json.loads(ran.stdout)[2:]))
    if args.json:
        results = [{"setting": setting, "seconds": each} for setting, each in zip(SETTINGS, seconds)]
        return print(json.dumps({"processor": processor(), "threads": args.threads, "results": results}))
    print(f"{args.threads} threads, median of {args.steps - 2}; {processor()}\n")
    rows = [[*map(str, setting), f"{each:.2f}"] for setting, each in zip(SETTINGS, seconds)]
    print(table(["precision", "dropout", "attention dropout", "s / step"], rows))


if __name__ == "__main__":
    main()
