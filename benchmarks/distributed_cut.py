"""The cut by many tasks beside that of one process: halo rows or mirrors, predicted steps, memory and time.

    python benchmarks/distributed_cut.py [--graph NAME] [--parts 4,16] [--cut vertex] [--json]
    python benchmarks/distributed_cut.py --graph FILE.npz --parts 16 --workers 2 --worker-memory 1GiB

Graphs this small would fit into one task. So, unless ``--workers`` is given, each is divided among many: eight ranges of
nodes, clusters until METIS sees a quarter of the edges, and two parts in a task of the search. The tasks run in this
process, because their number and result do not depend on workers. With ``--workers``, tasks have the memory that is
given and run in worker processes, whose peak memory is printed; the time of one process is that of the command.
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
from machine import DATA, processor

from dgl_gt.partition import load_graph, partition, read_figures
from dgl_gt.partition.console import table
from dgl_gt.partition.distributed.engine import local
from dgl_gt.partition.distributed.job import Sizes
from dgl_gt.partition.distributed.stages import InProcess
from dgl_gt.partition.figures.costs import default_costs
from dgl_gt.partition.graph import symmetrised
from dgl_gt.partition.system.memory import peak_memory_bytes
from dgl_gt.partition.system.units import format_bytes, parse_size

GRAPHS = ("email_enron", "amazon_computer", "tolokers", "ogbn_arxiv_nofeat")


def divided(path: Path) -> Sizes:
    """Sizes of tasks by which a small graph is divided among many."""
    ends = symmetrised(load_graph(path)).nnz
    return Sizes(chunk_edges=ends // 16, range_ends=ends // 8, coarse_ends=ends // 4, group_edges=1)


def quality(path: Path, parts: int, seed: int, cut: str) -> dict:
    """Both cuts of a graph: halo rows or mirrors, predicted steps, and their ratios."""
    sizes, costs = divided(path), default_costs()
    within, Sizes.within = Sizes.within, lambda *given: sizes
    with tempfile.TemporaryDirectory() as folder:
        many = partition(path, parts, f"{folder}/many", engine=InProcess(), seed=seed, cut=cut)
        one = partition(path, parts, f"{folder}/one", seed=seed, cut=cut)
    Sizes.within = within
    name = "halo" if cut == "edge" else "mirrors"
    copies = [each["quality"][name] for each in (many, one)]
    step_s = [costs.step_seconds(read_figures(each)) for each in (many, one)]
    ratios = {
        f"{name}_ratio": copies[0] / copies[1],
        "step_ratio": step_s[0] / step_s[1],
        "edge_balance": many["quality"]["edge_balance"],
    }
    return {"graph": path.stem, "parts": parts, "seed": seed, name: copies[0], f"one_{name}": copies[1], **ratios}


def measured(path: Path, parts: int, workers: int, memory_bytes: int) -> dict:
    """The cut by worker processes, and by one process: seconds and peak memory."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        with local(workers, memory_bytes) as engine:
            started = time.monotonic()
            many = partition(path, parts, f"{folder}/many", engine=engine, worker_memory=memory_bytes)
            seconds, peaks = time.monotonic() - started, engine.client.run(peak_memory_bytes)
        command = [
            sys.executable,
            "-m",
            "dgl_gt",
            "partition",
            str(path),
            "--parts",
            str(parts),
            "--out",
            f"{folder}/one",
        ]
        done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True)
        one = json.loads(done.stdout)
    halo = many["quality"]["halo"]
    return {
        "graph": path.stem,
        "parts": parts,
        "workers": workers,
        "halo_ratio": halo / one["quality"]["halo"],
        "seconds": seconds,
        "one_seconds": one["seconds"],
        "worker_peak": format_bytes(max(peaks.values())),
        "one_peak": format_bytes(one["peak_memory_bytes"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--graph", action="append", help="name in the data folder, or a file")
    parser.add_argument("--parts", default="4,16")
    parser.add_argument("--cut", choices=("edge", "vertex"), default="edge")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--worker-memory", type=parse_size, default=4 << 30)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = []
    for name in args.graph or GRAPHS:
        path = Path(name) if Path(name).is_file() else DATA / f"{name}.npz"
        for parts in map(int, args.parts.split(",")):
            if args.workers:
                rows.append(measured(path, parts, args.workers, args.worker_memory))
                continue
            rows += [quality(path, parts, seed, args.cut) for seed in range(args.seeds)]
    if args.json:
        print(json.dumps({"processor": processor(), "rows": rows}))
        return
    shown = [[f"{each:.3f}" if isinstance(each, float) else each for each in row.values()] for row in rows]
    print(table([*rows[0]], shown))
    for key in ("halo_ratio", "mirrors_ratio", "step_ratio"):
        if key in rows[0]:
            print(f"mean {key} {np.mean([row[key] for row in rows]):.3f}, largest {max(row[key] for row in rows):.3f}")


if __name__ == "__main__":
    main()
