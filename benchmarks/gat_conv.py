"""A step of ``dgl_gt.nn.GATConv`` compared with DGL's.

    python benchmarks/gat_conv.py [--graph tolokers] ... [--size HxD] ... [--runs 5] [--json]

Forward and backward, with the gradient of the features, from 128 features to H heads of width D, in float32 without
dropout, with the same weights on the same graph with self-loops and the same threads, in turn within each run, each
after an untimed step of its own; medians. DGL's sparse formats are made beforehand.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import dgl
import torch
from attention import graph_named, size, to_dgl
from machine import processor

from dgl_gt.nn import GATConv
from dgl_gt.partition.console import table

FEATURES = 128


def step(conv, g, feat, upstream) -> torch.Tensor:
    """Forward and backward; the result."""
    conv.zero_grad()
    feat.grad = None
    out = conv(g, feat)
    out.backward(upstream)
    return out.detach()


def measure(name: str, heads: int, width: int, runs: int) -> dict:
    """Seconds of both."""
    g = dgl.add_self_loop(to_dgl(graph_named(name)))
    g.create_formats_()
    torch.manual_seed(0)
    convs = {"DGL": dgl.nn.GATConv(FEATURES, width, heads), "dgl-gt": GATConv(FEATURES, width, heads)}
    convs["dgl-gt"].load_state_dict(convs["DGL"].state_dict())
    feat = torch.randn(g.num_nodes(), FEATURES, requires_grad=True)
    upstream = torch.randn(g.num_nodes(), heads, width)
    results = [step(conv, g, feat, upstream) for conv in convs.values()]
    torch.testing.assert_close(*results, rtol=1e-3, atol=1e-4)
    times = {tool: [] for tool in convs}
    for _ in range(runs):
        for tool, conv in convs.items():
            step(conv, g, feat, upstream)
            started = time.perf_counter()
            step(conv, g, feat, upstream)
            times[tool].append(time.perf_counter() - started)
    seconds = {tool: statistics.median(values) for tool, values in times.items()}
    return {"graph": name, "edges": g.num_edges(), "heads": heads, "width": width, "seconds": seconds}


def main() -> None:
    """Parse arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", action="append", help="as benchmarks/attention.py takes it; may be repeated")
    parser.add_argument("--size", action="append", type=size, metavar="HxD", help="may be repeated")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    graphs, sizes = args.graph or ["tolokers", "ogbn_arxiv_nofeat"], args.size or [(8, 16), (4, 32), (1, 64)]
    measured = [measure(name, *each, args.runs) for name in graphs for each in sizes]
    if args.json:
        print(json.dumps(measured))
        return
    cells = []
    for row in measured:
        ours, theirs = row["seconds"]["dgl-gt"], row["seconds"]["DGL"]
        shape = f"{row['heads']} x {row['width']}"
        cells.append([row["graph"], shape, f"{theirs:.3f}", f"{ours:.3f}", f"{theirs / ours:.1f}x"])
    print(f"{processor()}, {torch.get_num_threads()} threads")
    print(table(["graph", "H x D", "DGL", "dgl-gt", "ratio"], cells))


if __name__ == "__main__":
    main()
