"""Training under transmission policies, compared with the exact run: bytes, seconds, metric and epochs.

    python benchmarks/approximate.py [--graph tolokers] [--config examples/tolokers.yaml] [--parts 2] [--seeds 3]
        [--policies 'exact;int8;stale=4,int8'] [--strategy halo_h] [--depth 2] [--alone] [--epochs 300]
        [--link-mbit 50] [--json]

All policies run on the same shards, with the same seeds and with ranks of one thread each, one run after another in the
same processes. A run ends by its patience. The metric is that of the epoch with the best validation metric; *epochs*
are those until the validation metric first reached the best one of the exact run with that seed less 0.2 points, in the
mean over seeds, and over those of the exact run. Seconds are the median training step of the slowest rank. A graph
without features gets random ones and no metric. ``--depth`` adds exact runs with halos of this many hops.
``--alone`` then trains each part of a vertex cut as a graph of its own, in a process of its own, one after another:
about the least that a step of ``alone`` can take where each rank has a core. Nodes and edges are those of the rank; the
order of rows is not, since a rank holds its masters before its mirrors.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile

import numpy as np
from links import run_ranks
from machine import DATA, processor

from dgl_gt.partition import load_graph, partition
from dgl_gt.partition.console import table
from dgl_gt.partition.cuts.vertex_cut import make_vertex_cut
from dgl_gt.partition.graph import from_edges
from dgl_gt.partition.system.units import format_bytes
from dgl_gt.partition.transforms.added_edges import with_self_loops
from dgl_gt.train.config import read_config

_WIDTH = 128  # of random features
_WITHIN = 0.002  # of the exact run's best validation metric
_POLICIES = "exact;bf16;int8;int4;stale=4;stale=4,int8;stale=4,int4"


def train_on_rank(task: dict) -> None:
    """Train with each policy and seed; rank 0 prints one JSON line for each."""
    import torch.distributed as dist

    import dgl_gt
    from dgl_gt.train.run import train

    dist.init_process_group("gloo")
    config = read_config(**task["config"])
    loaded = {}
    for name, *source, policy in task["runs"]:
        if tuple(source) not in loaded:
            loaded[tuple(source)] = dgl_gt.load(*source)
        sg = loaded[tuple(source)]
        for seed in range(task["seeds"]):
            found = train(sg, config.changed(policy=policy, seed=seed))
            row = {
                "policy": name,
                "seed": seed,
                "sent_bytes": found.exchanged_bytes_per_epoch,
                "seconds": found.seconds_per_epoch,
                "validations": found.validations,
                "test": found.test,
            }
            if sg.comm.rank == 0:
                print(json.dumps(row), flush=True)
                print(f"{name}, seed {seed}: test {found.test:.4f}", file=sys.stderr, flush=True)
    dist.destroy_process_group()


def parts_alone(graph, parts: int, config: dict, folder: str) -> list[float]:
    """Seconds of a step of each part of a vertex cut, with the nodes that its edges touch, as a graph of its own."""
    graph, seconds = with_self_loops(graph) if "feat" in graph.node_data else graph, []
    cut = make_vertex_cut(graph, parts)  # that of the other run: the same function and seed
    for part in range(parts):
        src, dst, _ = cut.part_edges(graph, part)
        held, ends = np.unique(np.concatenate([src, dst]), return_inverse=True)
        node_data = {name: values[held] for name, values in graph.node_data.items()}
        own = from_edges(*ends.reshape(2, -1), num_nodes=len(held), node_data=node_data)
        partition(own, 1, f"{folder}/part{part}", random_features=None if "feat" in node_data else _WIDTH)
        task = {
            "runs": [(f"part {part} alone", f"{folder}/part{part}", "halo_h", 1, "exact")],
            "seeds": 1,
            "config": config,
        }
        output = run_ranks([sys.executable, __file__, "--task", json.dumps(task)], 1)
        seconds.append(json.loads(output)["seconds"])
    return seconds


def summary(runs: list[dict]) -> list[dict]:
    """A row for each policy."""
    exact = {run["seed"]: run for run in runs if run["policy"] == "exact"}
    rows = []
    for policy in dict.fromkeys(run["policy"] for run in runs):
        mine = [run for run in runs if run["policy"] == policy]
        tests = [run["test"] for run in mine]
        epochs = [_epochs_until(run, max(exact[run["seed"]]["validations"]) - _WITHIN) for run in mine]
        of_exact = [_epochs_until(each, max(each["validations"]) - _WITHIN) for each in exact.values()]
        rows.append(
            {
                "policy": policy,
                "sent_bytes": statistics.median(run["sent_bytes"] for run in mine),
                "seconds": statistics.median(run["seconds"] for run in mine),
                "test": statistics.fmean(tests),
                "deviation": statistics.stdev(tests) if len(tests) > 1 else 0.0,
                "epochs": None if None in epochs else statistics.fmean(epochs) / statistics.fmean(of_exact),
            }
        )
    return rows


def _epochs_until(run: dict, validation: float) -> int | None:
    return next((epoch + 1 for epoch, each in enumerate(run["validations"]) if each >= validation), None)


def report(rows: list[dict], has_metric: bool) -> str:
    """The rows as a table."""
    exact, cells = rows[0], []
    for row in rows:
        cell = [row["policy"], format_bytes(row["sent_bytes"]), f"{row['sent_bytes'] / exact['sent_bytes'] - 1:+.1%}"]
        cell += [f"{row['seconds']:.3f}", f"{exact['seconds'] / row['seconds']:.2f}"]
        if has_metric:
            epochs = "not reached" if row["epochs"] is None else f"{row['epochs']:.2f}"
            cell += [
                f"{row['test']:.2%} ± {row['deviation']:.2%}",
                f"{100 * (row['test'] - exact['test']):+.2f}",
                epochs,
            ]
        cells.append(cell)
    header = ["policy", "sent / epoch", "", "s / step", "speed-up", "test", "points", "epochs"]
    return table(header[: len(cells[0])], cells)


def main() -> None:
    parser = argparse.ArgumentParser(description="Training under transmission policies, compared with the exact run.")
    parser.add_argument("--graph", default="tolokers", help="of the data folder, or any source")
    parser.add_argument("--config", help="YAML file with the settings of the model and the run")
    parser.add_argument("--parts", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--policies", type=lambda text: text.split(";"), default=_POLICIES.split(";"))
    parser.add_argument("--strategy", default="halo_h")
    parser.add_argument("--depth", type=int, help="also exact runs with halos of this many hops")
    parser.add_argument("--alone", action="store_true", help="also each part of a vertex cut as a graph of its own")
    parser.add_argument("--epochs", type=int, help="in place of the config's")
    parser.add_argument("--link-mbit", type=float, help="of each rank, in network namespaces")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--task", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.task:
        return train_on_rank(args.task)
    if args.alone and args.strategy != "mirror":
        parser.error("--alone is about a vertex cut; add --strategy mirror")
    real = DATA / f"{args.graph}.npz"
    graph = load_graph(str(real) if real.is_file() else args.graph)
    has_features = "feat" in graph.node_data
    config = read_config(args.config, epochs=args.epochs)
    with tempfile.TemporaryDirectory() as folder:
        cut = {"cut": "vertex"} if args.strategy == "mirror" else {}
        settings = {"self_loops": has_features} | ({} if has_features else {"random_features": _WIDTH})
        shards, deep = f"{folder}/shards", f"{folder}/deep"
        partition(graph, args.parts, shards, **cut, **settings)
        policies = ["exact", *(each for each in args.policies if each != "exact")]
        runs = [(policy, shards, args.strategy, 1, policy) for policy in policies]
        if args.depth:
            partition(graph, args.parts, deep, halo_depth=args.depth, **settings)
            runs.insert(1, (f"exact, depth {args.depth}", deep, "halo_h", args.depth, "exact"))
        task = {"runs": runs, "seeds": args.seeds, "config": config.flat()}
        output = run_ranks([sys.executable, __file__, "--task", json.dumps(task)], args.parts, args.link_mbit)
        alone = parts_alone(graph, args.parts, config.flat(), folder) if args.alone else []
    rows = summary([json.loads(line) for line in output.splitlines()])
    if args.json:
        print(json.dumps({"processor": processor(), "rows": rows, "alone_s": alone}))
    else:
        link = f"{args.link_mbit:g} Mbit/s" if args.link_mbit else "loopback"
        print(f"{args.graph}, {args.parts} ranks, {args.strategy}, {link}, {processor()}\n")
        print(report(rows, has_features))
        if alone:
            print(f"\nparts alone: {', '.join(f'{each:.3f}' for each in alone)} s / step")


if __name__ == "__main__":
    main()
