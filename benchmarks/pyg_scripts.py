"""PyG's own example scripts on one process, and on ranks by ``distribute_whole``: lines that change, and their losses.

    git clone https://github.com/pyg-team/pytorch_geometric
    python benchmarks/pyg_scripts.py --checkout pytorch_geometric [--ranks 2] [--epochs 30] [--script gat]

The scripts run as they are but for this, in both forms: their data set is cora, because no network is needed then; numbers
are float64, and losses are printed with all digits; there is no dropout, whose masks differ by rank; and where a script
samples neighbours, the sampler takes all neighbours of all its nodes in one batch, because dgl-gt trains full-graph. In
``reddit.py``, which computes its test with the layers of the model one by one, a fourth line calls the model instead.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import re
import subprocess
import sys
import tempfile
import types
from pathlib import Path

import numpy as np
import torch
from machine import DATA

from dgl_gt.partition import load_graph
from dgl_gt.partition.console import table

SCRIPTS = ("gat", "gcn", "unimp_arxiv", "graph_sage_unsup", "reddit")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkout", type=Path, help="PyG's repository")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--script", action="append", choices=SCRIPTS)
    parser.add_argument("--form", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.form:
        return run_script(args.form, args.epochs)
    rows = [compared(name, args) for name in args.script or SCRIPTS]
    print(table(("script", "lines", "first loss", "last loss", "largest difference", "of metrics"), rows))


def compared(name: str, args: argparse.Namespace) -> tuple:
    """Return the lines that change, the first and last loss, and the largest difference of losses and of metrics."""
    text = (args.checkout / "examples" / f"{name}.py").read_text()
    with tempfile.TemporaryDirectory() as folder:
        plain, changed = (Path(folder) / each / f"{name}.py" for each in ("plain", "changed"))
        distributed = on_ranks(text, f"{folder}/shards")
        for path, form in ((plain, text), (changed, distributed)):
            path.parent.mkdir()
            path.write_text(form)
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={args.ranks}"]
        one = numbers([], plain, args.epochs)
        several = numbers([*launcher, "--local-ranks-filter=0"], changed, args.epochs)
    apart = [max(abs(a - b) for a, b in zip(*each, strict=True)) for each in zip(one, several, strict=True)]
    lines = len({*distributed.splitlines()} - {*text.splitlines()})
    return name, lines, f"{one[0][0]:.6f}", f"{one[0][-1]:.6f}", *(f"{each:.0e}" for each in apart)


def on_ranks(text: str, shards: str) -> str:
    """Return a script with the lines that make it distributed."""
    body, lines = ast.parse(text).body, text.splitlines()
    start = max(each.end_lineno for each in body if isinstance(each, (ast.Import, ast.ImportFrom)))
    (made,) = (
        each.end_lineno for each in body if isinstance(each, ast.Assign) and ast.unparse(each.targets) == "model"
    )
    lines.insert(made, f'dgl_gt.pyg.distribute_whole(model, data, "{shards}")')
    lines[start:start] = ["import dgl_gt", 'torch.distributed.init_process_group("gloo")']
    return re.sub(r"model\.inference\(.*?\)", "model(data.x, data.edge_index)", "\n".join(lines))


def numbers(launcher: list[str], path: Path, epochs: int) -> tuple[list[float], list[float]]:
    """Run a form of a script; return the losses that it prints, and the metrics."""
    command = [sys.executable, *launcher, __file__, "--form", str(path), "--epochs", str(epochs)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        sys.exit(f"{path.name} failed:\n{done.stderr[-3000:]}")
    losses = re.findall(r"Loss: ([-\d.e]+)", done.stdout)
    return [*map(float, losses)], [*map(float, re.findall(r"(?:Train|Val|Test): ([-\d.e]+)", done.stdout))]


def run_script(path: Path, epochs: int) -> None:
    """Run a script on cora."""
    import torch_geometric.datasets
    import torch_geometric.loader
    import torch_geometric.logging

    torch.set_default_dtype(torch.float64)
    torch_geometric.datasets.Planetoid = torch_geometric.datasets.Reddit = Cora
    torch_geometric.loader.NeighborLoader = torch_geometric.loader.LinkNeighborLoader = WholeGraph
    torch_geometric.logging.log = lambda **values: print(*(f"{name}: {each!r}" for name, each in values.items()))
    sys.modules["ogb"], sys.modules["ogb.nodeproppred"] = types.ModuleType("ogb"), types.ModuleType("nodeproppred")
    sys.modules["ogb.nodeproppred"].PygNodePropPredDataset = Cora  # type: ignore[attr-defined]
    text = re.sub(r"\b(dropout|p)=0\.\d", r"\1=0.0", path.read_text())
    text = re.sub(r"range\(1, (\d+|args\.epochs \+ 1)\)", f"range(1, {epochs + 1})", text.replace(":.4f", ":.16g"))
    sys.argv = [str(path)]
    torch.manual_seed(0)
    exec(compile(text, path, "exec", dont_inherit=True), {"__name__": "__main__", "__file__": str(path)})


class Cora:
    """Cora as a data set of PyG, its training nodes first, as a sampler would give them."""

    num_features, num_classes = 1433, 7

    def __init__(self, *arguments, transform=None):
        self.transform = transform or next((each for each in arguments if callable(each)), lambda data: data)

    def __getitem__(self, _):
        from torch_geometric.data import Data

        graph = load_graph(DATA / "cora.npz")
        columns = {name: torch.from_numpy(each) for name, each in graph.node_data.items()}
        order = columns["train_mask"].long().argsort(descending=True, stable=True)
        edge_index = order.argsort()[torch.from_numpy(np.stack(graph.edges()).astype(np.int64))]
        masks = {name: each[order] for name, each in columns.items() if name.endswith("mask")}
        feat, label = columns["feat"][order].double(), columns["label"][order]
        return self.transform(Data(x=feat, y=label, edge_index=edge_index, **masks))

    def get_idx_split(self):
        data = self[0]
        names = {"train": "train_mask", "valid": "val_mask", "test": "test_mask"}
        return {part: data[name].nonzero().view(-1) for part, name in names.items()}


class WholeGraph:
    """A sampler that takes all neighbours of all nodes, or all edges and as many pairs, in one batch."""

    def __init__(self, data, input_nodes=None, **options):
        self.data, self.is_of_links = data, "neg_sampling_ratio" in options
        self.dataset = range(data.num_nodes if input_nodes is None else int(input_nodes.sum()))

    def __len__(self):
        return 1

    def __iter__(self):
        batch = copy.copy(self.data)
        batch.batch_size = len(self.dataset)
        if self.is_of_links:
            pairs = torch.randint(0, batch.num_nodes, batch.edge_index.shape)
            batch.edge_label_index = torch.cat([batch.edge_index, pairs], 1)
            batch.edge_label = torch.ones(2, pairs.shape[1]).mul_(torch.tensor([[1.0], [0.0]])).view(-1)
        yield batch


if __name__ == "__main__":
    main()
