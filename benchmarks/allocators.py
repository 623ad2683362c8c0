"""A training step by memory allocator: seconds, page faults and the peak memory of the process.

    python benchmarks/allocators.py [--steps 5] [--epochs 4] [--json]

ogbn_arxiv_nofeat with 128 random features: 3 layers, hidden 128, 8 heads, dropout 0.2, one thread per rank. First a loop
of one's own in a process of its own, on one part; then ``dgl-gt train`` on one rank and on two. Seconds and faults are
medians of the steps after the first two.
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

from machine import DATA, processor

from dgl_gt.partition import partition
from dgl_gt.partition.console import table
from dgl_gt.partition.system.allocator import environment_of_ranks
from dgl_gt.partition.system.memory import peak_memory_bytes

OWN = {  # how memory is kept, the allocator that is preloaded
    "glibc as it comes": (False, None),
    "glibc, kept by dgl_gt.load": (True, None),
    "jemalloc": (True, "jemalloc"),
    "tcmalloc": (True, "tcmalloc"),
}


def own_loop(shards: str, keeps: bool, steps: int) -> dict:
    """The README's loop."""
    import torch
    from torch.nn import functional

    import dgl_gt

    torch.manual_seed(0)
    sg = dgl_gt.load(shards, keep_freed_memory=keeps)
    model = dgl_gt.nn.GraphTransformer(128, 128, 40, 3, 8, dropout=0.2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    label, seconds, faults = torch.randint(0, 40, (sg.num_nodes(),)), [], []
    for _ in range(steps):
        started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        loss = functional.cross_entropy(model(sg, sg.ndata["feat"]), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seconds.append(time.perf_counter() - started)
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    middle = {"seconds": statistics.median(seconds[2:]), "faults": statistics.median(faults[2:])}
    return middle | {"peak_bytes": peak_memory_bytes()}


def run(line: list, environment: dict[str, str]) -> dict:
    """The JSON that a command prints."""
    usual = {key: value for key, value in os.environ.items() if not key.startswith("MALLOC_")}
    environment = usual | environment | {"OMP_NUM_THREADS": "1"}
    return json.loads(subprocess.run(list(map(str, line)), env=environment, stdout=subprocess.PIPE, check=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--own", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.own:
        return print(json.dumps(own_loop(args.own[0], args.own[1] == "True", args.steps)))
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for parts in (1, 2):
            partition(DATA / "ogbn_arxiv_nofeat.npz", parts, Path(folder) / str(parts), random_features=128)
        for name, (keeps, asked) in OWN.items():
            environment = environment_of_ranks(asked) if asked else {}
            line = [sys.executable, __file__, "--steps", args.steps, "--own", f"{folder}/1", keeps]
            found[f"own loop, {name}"] = run(line, environment)
        for parts in (1, 2):
            for asked in ("glibc", "jemalloc", "tcmalloc"):
                model = ["--layers", 3, "--hidden", 128, "--patience", 0, "--epochs", args.epochs, "--allocator", asked]
                record = run([sys.executable, "-m", "dgl_gt", "train", f"{folder}/{parts}", *model, "--json"], {})
                row = {"seconds": record["seconds_per_epoch"], "peak_bytes": max(record["peak_memory_bytes"])}
                found[f"dgl-gt train, {parts} rank{'s' * (parts > 1)}, {asked}"] = row
    if args.json:
        return print(json.dumps({"processor": processor(), "rows": found}))
    rows = [
        [
            name,
            f"{row['seconds']:.2f}",
            f"{row['faults']:,.0f}" if "faults" in row else "",
            f"{row['peak_bytes'] / 2**30:.1f}",
        ]
        for name, row in found.items()
    ]
    print(f"{processor()}\n\n{table(['step', 's', 'page faults', 'peak (GiB)'], rows)}")


if __name__ == "__main__":
    main()
