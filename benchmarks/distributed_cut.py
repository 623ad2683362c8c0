"""The cut by many tasks beside that of one process: halo rows or mirrors, predicted steps, memory and time.

    python benchmarks/distributed_cut.py [--graph NAME] [--parts 4,16] [--cut vertex] [--json]
    python benchmarks/distributed_cut.py --graph FILE.npz --parts 16 --workers 2 --worker-memory 1GiB
    python benchmarks/distributed_cut.py --generate 4000000,40000000 --parts 16 --workers 2 [--only-workers]

Graphs this small would fit into one task. So, unless ``--workers`` is given, each is divided among many: eight ranges of
nodes, clusters until METIS sees a quarter of the edges, and two parts in a task of the search. The tasks run in this
process, because their number and result do not depend on workers. With ``--workers``, tasks have the memory that is
given and run in worker processes, whose peak memory is printed; the time of one process is that of the command. The
seconds of the stages stand beside those that ``--dry-run`` estimates. ``--generate NODES,EDGES`` makes the graph first:
power-law degrees, communities, both directions listed, 16 features (see partition_scale.py).
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from machine import DATA, processor
from partition_scale import generate

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
GROUPS = {
    **dict.fromkeys(("count", "ranges", "edges"), "edges sorted by ranges of nodes"),
    **dict.fromkeys(("labels",), "clusters"),
    "coarse-cut": "METIS",
    "cells": "local search",
    "order": "parts written",
}  # of the stages that begin one, those of the estimates


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


class Clock:
    """The seconds of each group of stages of a run, by what it says as they begin."""

    def __init__(self):
        self.seconds: dict[str, float] = {}
        self.of_stages: dict[str, float] = {}
        self._group, self._stage, self._since = "", "", time.monotonic()

    def __call__(self, said: str) -> None:
        """Count what has passed since the last stage began."""
        now = time.monotonic()
        for seconds, name in ((self.seconds, self._group), (self.of_stages, self._stage)):
            seconds[name] = seconds.get(name, 0.0) + now - self._since
        self._stage, self._since = said.partition(":")[0], now
        self._group = GROUPS.get(re.sub(r"(-\d+)*$", "", self._stage), self._group)


def measured(path: Path, parts: int, workers: int, memory_bytes: int, only_workers: bool) -> dict:
    """The cut by worker processes, and by one process: seconds, those of stages and their estimates, and peak memory."""
    command = [sys.executable, "-m", "dgl_gt", "partition", str(path), "--parts", str(parts), "--json"]
    many_options = ["--engine", "local", "--workers", str(workers), "--worker-memory", f"{memory_bytes >> 20}MiB"]
    estimated = run(*command, *many_options, "--dry-run")
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        with local(workers, memory_bytes) as engine:
            clock, started = Clock(), time.monotonic()
            many = partition(path, parts, f"{folder}/many", engine=engine, worker_memory=memory_bytes, progress=clock)
            clock("")
            seconds, peaks = time.monotonic() - started, engine.client.run(peak_memory_bytes)
        one = {} if only_workers else run(*command, "--out", f"{folder}/one")
    expected = {name: each["seconds"] / min(workers, each["tasks"]) for name, each in estimated.items()}
    shown = [[name, f"{clock.seconds.get(name, 0.0):.1f}", f"{each:.1f}"] for name, each in expected.items()]
    print(table(["stages", "seconds", "estimated"], shown), file=sys.stderr)
    row = {"graph": path.stem, "parts": parts, "workers": workers, "halo": many["quality"]["halo"], "seconds": seconds}
    row |= {"estimated_seconds": sum(expected.values()), "worker_peak": format_bytes(max(peaks.values()))}
    row |= {"stages": {name: round(each, 1) for name, each in clock.of_stages.items() if each >= 0.1}}
    if one:
        row |= {"halo_ratio": row["halo"] / one["quality"]["halo"], "one_seconds": one["seconds"]}
        row |= {"seconds_ratio": seconds / one["seconds"], "one_peak": format_bytes(one["peak_memory_bytes"])}
    return row


def run(*command: str) -> dict:
    """What a command prints."""
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--graph", action="append", help="name in the data folder, or a file")
    parser.add_argument("--parts", default="4,16")
    parser.add_argument("--cut", choices=("edge", "vertex"), default="edge")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--worker-memory", type=parse_size, default=4 << 30)
    parser.add_argument("--generate", metavar="NODES,EDGES", help="make a graph, and cut it with --workers")
    parser.add_argument("--only-workers", action="store_true", help="do not run one process beside them")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        if args.generate:
            nodes, edges = map(int, args.generate.split(","))
            args.graph = [f"{folder}/{edges}-edges.npz"]
            generate(args.graph[0], nodes, edges, features=16)
        for name in args.graph or GRAPHS:
            path = Path(name) if Path(name).is_file() else DATA / f"{name}.npz"
            for parts in map(int, args.parts.split(",")):
                if args.workers:
                    rows.append(measured(path, parts, args.workers, args.worker_memory, args.only_workers))
                else:
                    rows += [quality(path, parts, seed, args.cut) for seed in range(args.seeds)]
    if args.json:
        print(json.dumps({"processor": processor(), "rows": rows}))
        return
    for row in rows:
        row.pop("stages", None)
    shown = [[f"{each:.3f}" if isinstance(each, float) else each for each in row.values()] for row in rows]
    print(table([*rows[0]], shown))
    for key in ("halo_ratio", "mirrors_ratio", "step_ratio"):
        if key in rows[0]:
            print(f"mean {key} {np.mean([row[key] for row in rows]):.3f}, largest {max(row[key] for row in rows):.3f}")


if __name__ == "__main__":
    main()
