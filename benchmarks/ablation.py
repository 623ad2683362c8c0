"""What each option of the model and each part of a recipe brings: one change at a time, with the same seeds.

    python benchmarks/ablation.py [--graph tolokers] [--seeds 10] [--only 'NAME;...'] [--json]

Two bases of width 32, a graph transformer and a graph attention network, are trained on one rank of one thread for 100
epochs. Each variant differs from its base in the settings of its row. The metric is that of the epoch with the best
validation metric. *Points* are the mean of the differences to the base with the same seed, and the standard error of
that mean: a difference below twice its standard error may be chance.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
from pathlib import Path

import torch
from machine import DATA, processor

import dgl_gt
from dgl_gt.partition import load_graph, partition
from dgl_gt.partition.console import table
from dgl_gt.train.config import read_config
from dgl_gt.train.run import train

_COMMON = {"layers": 2, "hidden": 32, "dropout": 0.2, "epochs": 100, "evaluate_every": 5, "patience": 0}
_OF_GRAPH = {"tolokers": {"lr": 0.01}, "amazon_computer": {"lr": 0.005}}
_ENCODINGS = "laplacian=8,random_walk=8,degree,anchors=16,shortest_path=2"
_CONVOLUTION = {"architecture": "gnn", "score": "additive"}
_GATED = {"norm": "none", "input": "linear", "gate": "free", "gate_start": 0.1, "jumping": "sum"}
_BASES = {"transformer": {}, "convolution": _CONVOLUTION}
_VARIANTS = {
    "transformer": [
        {"score": "additive"},
        {"residual": "linear"},
        {"norm": "none"},
        {"norm": "rms"},
        {"norm": "batch"},
        {"norm_first": False},
        {"ffn": 0},
        {"activation": "relu"},
        {"activation": "swiglu"},
        {"layers": 4},
        {"jumping": "sum"},
        {"jumping": "concat"},
        {"global_attention": "polynormer"},
        {"global_attention": "sgformer"},
        {"encodings": "laplacian"},
        {"encodings": "random_walk"},
        {"encodings": "degree"},
        {"encodings": "anchors"},
        {"edge_features": "shortest_path"},
        {"edge_features": "shortest_path", "edge_update": True},
        {"input": "mlp"},
        {"input_dropout": 0.2},
        {"attention_dropout": 0.2},
        {"label_smoothing": 0.1},
        {"class_weights": "balanced"},
        {"entropy_unlabelled": 0.5},
        {"schedule": "cosine"},
        {"optimizer": "adam", "decay": "all", "weight_decay": 0.0005},
    ],
    "convolution": [
        {"score": "gcn", "heads": 1},
        {"score": "mean", "heads": 1},
        {"score": "dot"},
        {"residual": "none"},
        {"residual": "initial"},
        {"norm": "batch"},
        {"norm": "none"},
        {"global_attention": "sgformer"},
        _GATED,
        _GATED | {"global_attention": "polynormer"},
    ],
}


def name_of(changes: dict) -> str:
    """The settings as they are written in a config file, the gate's five in one word."""
    words = {"gate and sum of layers": None} if _GATED.items() <= changes.items() else {}
    words |= {key: value for key, value in changes.items() if key not in _GATED or not words}
    return ", ".join(key if value is None else f"{key} {value}".lower() for key, value in words.items()) or "base"


def measure(graph: str, seeds: int, only: list[str] | None):
    """Train every variant with every seed, and yield a row for each variant."""
    base_config = read_config(**_COMMON, **_OF_GRAPH[graph])
    with tempfile.TemporaryDirectory() as folder:
        source = load_graph(str(DATA / f"{graph}.npz"))
        partition(source, 1, self_loops=True, encode=_ENCODINGS, out=Path(folder) / "shards")
        sg = dgl_gt.load(Path(folder) / "shards")
        for base, settings in _BASES.items():
            tests = {}
            for changes in [{}, *_VARIANTS[base]]:
                name = name_of(changes)
                if only and name not in [*only, "base"]:
                    continue
                config = base_config.changed(**(settings | changes))
                tests[name] = [train(sg, config.changed(seed=seed)).test for seed in range(seeds)]
                yield {"graph": graph, "base": base, "change": name, "tests": tests[name], "of_base": tests["base"]}
                print(f"{base}, {name}: {statistics.fmean(tests[name]):.4f}", file=sys.stderr, flush=True)


def cells(row: dict) -> list[str]:
    """The row's metric, and its difference to the base in points with the standard error."""
    tests, gains = row["tests"], [100 * (a - b) for a, b in zip(row["tests"], row["of_base"], strict=True)]
    found = [row["base"], row["change"], f"{statistics.fmean(tests):.2%} ± {statistics.stdev(tests):.2%}"]
    if row["change"] == "base":
        return [*found, ""]
    return [*found, f"{statistics.fmean(gains):+.2f} ± {statistics.stdev(gains) / math.sqrt(len(gains)):.2f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description="What each option of the model and each part of a recipe brings.")
    parser.add_argument("--graph", choices=_OF_GRAPH, default="tolokers")
    parser.add_argument("--seeds", type=int, default=10, help="at least 2")
    parser.add_argument(
        "--only", type=lambda text: text.split(";"), help="variants besides the bases, as the table has them"
    )
    parser.add_argument("--json", action="store_true", help="a line for each variant as soon as it is measured")
    args = parser.parse_args()
    names = {name_of(changes) for variants in _VARIANTS.values() for changes in variants}
    if unknown := set(args.only or []) - names:
        parser.error(f"--only {unknown.pop()!r} is no variant; these are: {'; '.join(sorted(names))}")
    torch.set_num_threads(1)
    rows = []
    for row in measure(args.graph, args.seeds, args.only):
        if args.json:
            print(json.dumps(row), flush=True)
        rows.append(row)
    if not args.json:
        print(f"{args.graph}, {args.seeds} seeds, {processor()}")
        print(table(["base", "change", "test", "points"], [cells(row) for row in rows]))


if __name__ == "__main__":
    main()
