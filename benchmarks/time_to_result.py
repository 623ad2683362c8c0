"""Seconds to a result, from the shell's return key to the prompt: dgl-gt against the authors' code of three models.

Polynormer on tolokers, the tuned GAT on amazon_computer and the tuned GCN on cora, each with the same recipe, split,
threads and dtype in one process. A long run of each code says after how many epochs its validation metric first reaches
99 % of its best, unless --epochs says how many both take. Then the whole command is timed with so many: imports, evaluations after each epoch and what
it writes included, and `dgl-gt partition`. It needs torch_geometric and scikit-learn.

    git clone https://github.com/cornell-zhang/Polynormer
    git clone https://github.com/LUOyk1999/tunedGNN
    python benchmarks/time_to_result.py --checkouts . [--graph cora] [--turns 3]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
from machine import DATA, processor

from dgl_gt.partition.console import table
from dgl_gt.partition.system.allocator import environment_of_ranks

SHARE = 0.99
EXAMPLES = Path(__file__).parents[1] / "examples"
PEER_LINE = re.compile(r"^Epoch: (\d+),.* Valid: ([\d.]+)%", re.MULTILINE)


@dataclass(frozen=True)
class Case:
    folder: str  # of the authors' main.py, in the checkouts
    theirs: str  # options of main.py
    ours: str  # settings of `dgl-gt train`; empty for the config in examples
    epochs: int  # of the long run
    most_local_epochs: int | None = None  # before those with global attention, and at most half of all


_ADAM = "optimizer.kind=adam optimizer.decay=all optimizer.lr=0.001 optimizer.warmup=0"
_GNN = "model.architecture=gnn model.heads=1 model.input=none model.residual=none"
CASES = {
    "cora": Case(
        "tunedGNN/medium_graph",
        "--gnn gcn --lr 0.001 --local_layers 3 --hidden_channels 512 --weight_decay 5e-4 --dropout 0.7",
        f"{_GNN} model.layers=3 model.hidden=512 model.norm=none model.activation=relu model.dropout=0.7 "
        f"{_ADAM} optimizer.weight_decay=0.0005",
        500,
    ),
    "amazon_computer": Case(
        "tunedGNN/medium_graph",
        "--gnn gat --lr 0.001 --local_layers 2 --hidden_channels 64 --weight_decay 5e-5 --dropout 0.5 --ln",
        f"{_GNN} model.score=additive model.layers=2 model.hidden=64 model.norm=layer model.dropout=0.5 "
        f"{_ADAM} optimizer.weight_decay=0.00005",
        500,
    ),
    "tolokers": Case(
        "Polynormer",
        "--metric rocauc --hidden_channels 16 --num_heads 8 --local_layers 5 --global_layers 2 --dropout 0.3 "
        "--global_dropout 0.3 --in_dropout 0.2 --lr 0.001 --weight_decay 0 --beta 0.1",
        "",
        300,
        150,
    ),
}


def peer(name: str, checkouts: Path, epochs: int) -> None:
    """Run the authors' main.py in this process, on the graph and split that dgl-gt reads."""
    import torch

    case, data = CASES[name], dict(np.load(DATA / f"{name}.npz"))
    if "x" not in data:
        from scipy.sparse import csr_array

        parts = data["x_data"], data["x_indices"], data["x_indptr"]
        data["x"] = csr_array(parts, shape=data["x_shape"]).toarray()
    tensors = {key: torch.from_numpy(data[key]) for key in ("x", "y")}
    edges = torch.from_numpy(data["edge_index"].astype(np.int64))
    masks = {theirs: data[f"{ours}_mask"] for theirs, ours in (("train", "train"), ("valid", "val"), ("test", "test"))}
    split = {
        key: torch.from_numpy(np.flatnonzero(mask if mask.ndim == 1 else mask[:, 0])) for key, mask in masks.items()
    }
    graph = {"edge_index": edges, "node_feat": tensors["x"], "edge_feat": None, "num_nodes": len(tensors["x"])}
    dataset = ModuleType("dataset")
    dataset.load_dataset = lambda *_: SimpleNamespace(graph=graph, label=tensors["y"])
    sys.modules["dataset"] = dataset
    folder = checkouts.resolve() / case.folder
    sys.path.insert(0, str(folder))
    import data_utils

    data_utils.load_fixed_splits = lambda *_, **__: [split]
    local = case.most_local_epochs and min(case.most_local_epochs, epochs // 2)
    counts = f"--local_epochs {local} --global_epochs {epochs - local}" if local else f"--epochs {epochs}"
    options = [*case.theirs.split(), *counts.split(), "--display_step", "1"]
    sys.argv = ["main.py", "--dataset", name, "--cpu", *options]
    runpy.run_path(str(folder / "main.py"), run_name="__main__")


def run(*line, environment=None, folder=None) -> str:
    environment = os.environ | (environment or {})
    options = {"check": True, "stdout": subprocess.PIPE, "text": True, "env": environment, "cwd": folder}
    return subprocess.run(list(map(str, line)), **options).stdout


def theirs(name: str, checkouts: Path, epochs: int) -> list[float]:
    """The validation metric after each epoch."""
    line = sys.executable, Path(__file__).resolve(), "--checkouts", checkouts.resolve(), "--peer", name, epochs
    with tempfile.TemporaryDirectory() as folder:  # it writes results where it runs
        text = run(*line, environment=environment_of_ranks(), folder=folder)  # the allocator that dgl-gt starts with
    return [float(each[2]) / 100 for each in PEER_LINE.finditer(text)]


def ours(name: str, _, epochs: int) -> list[float]:
    case = CASES[name]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "dgl_gt"]
        run(*command, "partition", DATA / f"{name}.npz", "--parts", 1, "--self-loops", "--out", f"{folder}/shards")
        settings = [f"--set={each}" for each in case.ours.split()]
        if not settings:
            local = min(case.most_local_epochs, epochs // 2)
            settings = ["--config", EXAMPLES / f"{name}_polynormer.yaml", f"--set=local_epochs={local}"]
        counts = ["--epochs", epochs, "--set=evaluate_every=1", "--patience", 0]
        text = run(*command, "train", f"{folder}/shards", *settings, *counts, "--out", f"{folder}/run", "--json")
        return json.loads(text)["validations"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkouts", type=Path, required=True, help="folder with the two checkouts")
    parser.add_argument("--graph", action="append", choices=CASES)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--peer", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peer:
        return peer(args.peer[0], args.checkouts, int(args.peer[1]))
    os.environ["OMP_NUM_THREADS"] = "2"
    rows = []
    for name in args.graph or CASES:
        reached, seconds = {}, {theirs: [], ours: []}
        needed = dict.fromkeys(seconds, args.epochs) if args.epochs else {}
        for code in () if needed else seconds:
            metric = np.array(code(name, args.checkouts, CASES[name].epochs))
            needed[code] = int(np.argmax(metric >= SHARE * metric.max())) + 1
        for _ in range(args.turns):
            for code in seconds:
                started = time.perf_counter()
                metric = code(name, args.checkouts, needed[code])
                seconds[code].append(time.perf_counter() - started)
                reached[code] = max(metric)
        medians = {code: statistics.median(each) for code, each in seconds.items()}
        cells = [cell for code in seconds for cell in (needed[code], f"{reached[code]:.4f}", f"{medians[code]:.1f}")]
        rows.append([name, *cells, f"{medians[ours] / medians[theirs]:.2f}"])
    header = ["graph", "epochs, theirs", "metric", "s", "epochs, dgl-gt", "metric", "s", "dgl-gt / theirs"]
    print(f"{processor()}\n\n{table(header, rows)}")


if __name__ == "__main__":
    main()
