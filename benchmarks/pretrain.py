"""Accuracy with few labels: from scratch, and from a model that was pretrained on the features and edges of the graph.

    python benchmarks/pretrain.py [--graph amazon_computer] [--labels 5] [--splits 5]

A GCN, the same for both. Each split draws some training nodes of each class, and 30 for validation; the rest is the test.
Both start from the seed of the split, and the epoch is chosen by validation.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
from machine import DATA, processor

import dgl_gt
from dgl_gt.partition import partition
from dgl_gt.partition.console import table
from dgl_gt.train import train, train_and_save
from dgl_gt.train.config import read_config

MODEL = {
    "architecture": "gnn",
    "score": "gcn",
    "residual": "none",
    "norm": "layer",
    "layers": 2,
    "hidden": 128,
    "heads": 1,
    "patience": 0,
}
PRETRAIN = MODEL | {"task": "pretrain", "epochs": 100, "evaluate_every": 20, "dropout": 0.2, "lr": 0.003}
FINE_TUNE = MODEL | {
    "epochs": 100,
    "evaluate_every": 2,
    "dropout": 0.5,
    "optimizer": "adam",
    "decay": "all",
    "weight_decay": 0.0005,
    "lr": 0.005,
    "warmup": 0,
}


def with_few_labels(source: Path, out: Path, labels: int, splits: int) -> None:
    """Write the graph with new masks, (N, splits)."""
    data = dict(np.load(source))
    masks = {name: np.zeros((len(data["y"]), splits), bool) for name in ("train_mask", "val_mask", "test_mask")}
    for split in range(splits):
        rng = np.random.default_rng(split)
        for kind in range(data["y"].max() + 1):
            nodes = rng.permutation(np.flatnonzero(data["y"] == kind))
            for mask, some in zip(masks.values(), np.split(nodes, [labels, labels + 30])):
                mask[some, split] = True
    np.savez(out, **data | masks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--graph", default="amazon_computer")
    parser.add_argument("--labels", type=int, default=5, help="of each class")
    parser.add_argument("--splits", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        few = Path(folder) / "few.npz"
        with_few_labels(DATA / f"{args.graph}.npz", few, args.labels, args.splits)
        partition(few, 1, f"{folder}/shards", self_loops=True)
        sg = dgl_gt.load(f"{folder}/shards")
        train_and_save(sg, read_config(**PRETRAIN), f"{folder}/pretrained")
        rows = []
        for name, init in (("from scratch", ""), ("pretrained", f"{folder}/pretrained")):
            settings = FINE_TUNE | {"init": init}
            runs = [train(sg, read_config(**settings, split=each, seed=each)) for each in range(args.splits)]
            found = {of: 100 * np.array([getattr(each, of) for each in runs]) for of in ("validation", "test")}
            rows.append([name, *(f"{each.mean():.2f} ± {each.std():.2f}" for each in found.values())])
    print(f"{processor()}\n\n{table([args.graph, 'validation accuracy (%)', 'test accuracy (%)'], rows)}")


if __name__ == "__main__":
    main()
