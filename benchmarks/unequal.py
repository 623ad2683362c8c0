"""Ranks and links that differ: a partition fitted to them against an even one.

    python benchmarks/unequal.py [--graphs amazon_computer,tolokers] [--settings 2@200,4@200] [--runs 5] [--json]

A setting is a number of ranks of one thread each, in network namespaces behind links of this many Mbit/s (Linux, root,
iproute2). The link between ranks 0 and 1 has a tenth of that, and the last rank runs for a third of the time. Ranks and
links are measured as they are (`dgl-gt calibrate`). Then the graph is partitioned evenly, with the parts in the order
in which they were cut; by shares alone (`--target-weights` of the profile); and with `--profile`. Ranks train on these
partitions in turn, with the default strategy `halo_h`, and with the cut, strategy and depth that `dgl-gt plan` chooses
among shards made with `--profile`. Ratios are medians over the rounds of steps.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

import yaml
from links import SlowPair, run_ranks
from machine import processor
from selector import HIDDEN, LAYERS, WIDTH, Runner, calibrate_on_rank, graph_of, restore_keys

from dgl_gt.partition import partition, read_figures, read_manifest, read_profile
from dgl_gt.partition.console import table
from dgl_gt.plan import Tracer, choose

SLOW_LINK, SLOW_RANK = 0.1, 1 / 3
WAYS = ("even", "shares", "profile", "plan")
LIMIT_S = 1500


def on_ranks(setting: str, task: dict) -> dict:
    """Start the ranks of a setting; what rank 0 prints."""
    ranks, mbit = int(setting.partition("@")[0]), float(setting.partition("@")[2])
    output = run_ranks(
        [sys.executable, __file__, "--task", json.dumps(task)],
        ranks,
        mbit,
        slow_pair=SlowPair((0, 1), SLOW_LINK * mbit),
        speeds={ranks - 1: SLOW_RANK},
        limit_s=LIMIT_S,
    )
    return json.loads(output.splitlines()[-1])


def rank_main(task: dict) -> None:
    import torch
    import torch.distributed as dist

    import dgl_gt

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    if not task:
        calibrate_on_rank()
    else:
        runners = [Runner(dgl_gt.load(*way), "gt", task["hidden"]) for way in task["ways"]]
        for runner in runners:
            runner.step()
        seconds = [[runner.seconds() for runner in runners] for _ in range(task["runs"])]
        if dist.get_rank() == 0:
            print(json.dumps(seconds), flush=True)
    dist.destroy_process_group()


def planned(cuts: list[Path], profile, hidden: int):
    """The candidate that the selector chooses on these shards."""
    traces = Tracer(lambda sg: Runner(sg, "gt", hidden).step, LAYERS)
    return choose([(str(cut), read_figures(read_manifest(cut))) for cut in cuts], traces, profile).choice


def cell(setting: str, name: str, profile, folder: Path, runs: int) -> dict:
    graph, ranks, hidden = graph_of(name), int(setting.partition("@")[0]), HIDDEN.get(name, 128)
    added = {} if "feat" in graph.node_data else {"random_features": WIDTH}
    fitted = {"profile": profile, "halo_depth": LAYERS}
    shares = {"target_weights": profile.target_weights()}
    options = {"even": {}, "shares": shares, "profile": fitted, "vertex": {"profile": profile, "cut": "vertex"}}
    made = {way: partition(graph, ranks, folder / way, **each, **added) for way, each in options.items()}
    plan = planned([folder / "profile", folder / "vertex"], profile, hidden)
    ways = [(str(folder / way), "halo_h", 1) for way in WAYS[:-1]]
    ways.append((plan.directory, plan.strategy, plan.depth))
    rounds = on_ranks(setting, {"ways": ways, "hidden": hidden, "runs": runs})
    return {
        "setting": setting,
        "graph": name,
        "shares": profile.target_weights(),
        "mapping": made["profile"]["mapping"],
        "plan": plan.title,
        "seconds": {way: statistics.median(each[i] for each in rounds) for i, way in enumerate(WAYS)},
        "ratios": {way: statistics.median(each[0] / each[i] for each in rounds) for i, way in enumerate(WAYS)},
    }


def summary(cells: list[dict]) -> str:
    rows = []
    for each in cells:
        shares = ", ".join(f"{share:.2f}" for share in each["shares"])
        rows.append([each["graph"], each["setting"].replace("@", ", ") + " Mbit/s", shares])
        rows[-1] += [f"{each['seconds'][way]:.2f}" for way in WAYS]
        rows[-1] += [f"{each['ratios'][way]:.2f}x" for way in WAYS[1:]]
        rows[-1].append(each["plan"])
    times = ["even (s)", "shares (s)", "--profile (s)", "plan (s)"]
    return table(["graph", "ranks", "shares", *times, "even / shares", "even / --profile", "even / plan", "plan"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description="A partition fitted to unequal ranks and links against an even one.")
    parser.add_argument("--graphs", type=lambda text: text.split(","), default=["amazon_computer", "tolokers", "mesh"])
    parser.add_argument("--settings", type=lambda text: text.split(","), default=["2@1000", "2@200", "4@200"])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--task", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.task is not None:
        return rank_main(args.task)
    cells = []
    with tempfile.TemporaryDirectory() as folder:
        for setting in args.settings:
            figures = on_ranks(setting, {})
            restore_keys(figures)
            path = Path(folder) / f"{setting}.yaml"
            path.write_text(yaml.safe_dump(figures))
            for name in args.graphs:
                cells.append(cell(setting, name, read_profile(path), Path(folder) / f"{name}-{setting}", args.runs))
                print(json.dumps(cells[-1]), file=sys.stderr, flush=True)
    print(json.dumps({"processor": processor(), "cells": cells}) if args.json else f"{processor()}\n\n{summary(cells)}")


if __name__ == "__main__":
    main()
