"""A step of link prediction on ogbl-ddi compared with the same model on DGL's full-graph operators, in one process.

    python benchmarks/link_step.py [--model transformer] [--model sage] [--runs 3]

A trained row of 256 numbers for each node, two layers of width 256, scores by dot products, 65,536 links a step and one
pair for each that is no link, cross-entropy, Adam; float32, the same threads. ``transformer`` is the default model (8
heads; the peer's attention is ``u_dot_v``, ``edge_softmax`` and ``u_mul_e_sum``), and ``sage`` the mean of neighbours
(the peer: ``dgl.nn.SAGEConv``). The peer draws pairs without a look at the edges; dgl-gt draws those that are edges
again. Epochs in turn, each code after an untimed one; medians.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import dgl
import numpy as np
import torch
from layer import DGLOperators, Peer
from machine import DATA, processor
from torch import nn
from torch.nn import functional

import dgl_gt
from dgl_gt.partition import partition
from dgl_gt.partition.console import table
from dgl_gt.train import read_config
from dgl_gt.train.loop import take_step
from dgl_gt.train.optimizer import make_optimizer
from dgl_gt.train.run import prepare

WIDTH, LINKS = 256, 65536
SETTINGS = {
    "transformer": {},
    "sage": {"architecture": "gnn", "score": "mean", "residual": "linear", "norm": "none", "heads": 1},
}


class OfDGL(nn.Module):
    """The peer: rows of nodes by DGL's operators."""

    def __init__(self, kind: str, nodes: int):
        super().__init__()
        self.kind, self.table = kind, nn.Parameter(0.02 * torch.randn(nodes, WIDTH))
        self.encoder = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU())
        if kind == "sage":
            self.layers = nn.ModuleList(dgl.nn.SAGEConv(WIDTH, WIDTH, "mean", activation=torch.relu) for _ in range(2))
        else:
            self.layers = nn.ModuleList(
                dgl_gt.nn.GraphTransformerLayer(WIDTH, 2 * WIDTH, 8, dropout=0.0, attn_dropout=0.0) for _ in range(2)
            )
            for layer in self.layers:
                layer.__class__, layer.attn.__class__ = Peer, DGLOperators
        self.output = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH))

    def forward(self, graph):
        h = self.encoder(self.table)
        for layer in self.layers:
            h = layer(graph, h)
        return self.output(h)


def epoch_of_dgl(kind: str, edges: torch.Tensor):
    """A function that takes the steps of an epoch, and returns their number."""
    nodes = int(edges.max()) + 1
    graph = dgl.graph((torch.cat([edges[0], edges[1]]), torch.cat([edges[1], edges[0]])), num_nodes=nodes)
    graph.create_formats_()
    model = OfDGL(kind, nodes)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001, fused=True)

    def run() -> int:
        batches = edges[:, torch.randperm(edges.shape[1])].split(LINKS, 1)
        for links in batches:
            h = model(graph)
            ends = links, torch.randint(nodes, links.shape)
            positive, negative = (dgl.ops.u_dot_v(dgl.graph(tuple(each), num_nodes=nodes), h, h) for each in ends)
            scale = WIDTH**-0.5
            loss = functional.softplus(-positive * scale).mean() + functional.softplus(negative * scale).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return len(batches)

    return run


def epoch_of_ours(kind: str, folder: Path):
    """The same as ``dgl-gt train`` does it."""
    sg = dgl_gt.load(folder)
    common = {"task": "link_prediction", "node_embedding": WIDTH, "hidden": WIDTH, "layers": 2, "dropout": 0.0}
    config = read_config(**common, **SETTINGS[kind], optimizer="adam", lr=0.001, pairs_per_step=LINKS)
    task, model = prepare(sg, config)
    optimizer = make_optimizer(model, config)

    def run() -> int:
        take_step(model, task, sg.comm, optimizer, 0)
        return task.steps.count

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", choices=SETTINGS)
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    edges = torch.from_numpy(np.load(DATA / "ogbl_ddi_train.npz")["edge_index"].astype(np.int64))
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        shards = Path(folder) / "shards"
        partition(DATA / "ogbl_ddi_train.npz", 1, shards, link_split=str(DATA / "ogbl_ddi_eval.npz"))
        for kind in args.model or SETTINGS:
            codes = {"DGL": epoch_of_dgl(kind, edges), "dgl-gt": epoch_of_ours(kind, shards)}
            seconds = {name: [] for name in codes}
            for number in range(args.runs + 1):
                for name, run in codes.items():
                    started = time.perf_counter()
                    steps = run()
                    if number:
                        seconds[name].append((time.perf_counter() - started) / steps)
            theirs, ours = (statistics.median(each) for each in seconds.values())
            rows.append([kind, f"{theirs:.2f}", f"{ours:.2f}", f"{theirs / ours:.2f}"])
    print(f"{processor()}, {torch.get_num_threads()} threads\n")
    print(table(["model", "DGL, s a step", "dgl-gt, s a step", "DGL / dgl-gt"], rows))


if __name__ == "__main__":
    main()
