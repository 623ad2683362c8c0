"""Sparse attention, forward and backward, beside DGL's operators and PyG's gather and scatter.

    python benchmarks/attention.py [--graph random] [--graph tolokers] ... [--heads 8] [--width 16] [--runs 5] [--json]

All tools run in this process, on the same graph, inputs, dtype (float32) and threads, in turn within each run, after a
warm-up; a figure is the median over runs. DGL: ``u_dot_v``, ``edge_softmax``, ``u_mul_e_sum``. PyG, where it is
installed: the message path of its ``TransformerConv``, without its projections. ``cluster order`` is ours on the graph
renumbered by METIS clusters, against DGL in the original order.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if sys.path[0] == str(ROOT / "benchmarks"):  # where `import partition` would find the benchmark of that name
    sys.path[0] = str(ROOT)
os.environ.setdefault("DGLBACKEND", "pytorch")

import dgl  # noqa: E402
import dgl.function as fn  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402

from dgl_gt import sparse_attention  # noqa: E402
from partition import from_edges, load_graph, make_edge_cut  # noqa: E402
from partition.console import table  # noqa: E402

DATA = Path(os.environ.get("DGL_GT_DATA", ROOT.parent / "shared" / "data"))


def graph_named(name: str):
    """``random``: 100k nodes, 2M uniformly random arcs; ``hub``: one node with 10^6 in-edges; else a real graph."""
    rng = np.random.default_rng(0)
    if name == "random":
        return from_edges(*rng.integers(0, 100_000, (2, 2_000_000)), 100_000)
    if name == "hub":
        return from_edges(rng.integers(0, 100_000, 1_000_000), np.zeros(1_000_000, np.int64), 100_000)
    return load_graph(DATA / f"{name}.npz")


def to_dgl(graph, new_ids=None):
    """A DGLGraph, renumbered where ``new_ids`` (N,) are given."""
    src, dst = (ids if new_ids is None else new_ids[ids] for ids in (graph.indices, graph.destinations()))
    return dgl.graph((torch.from_numpy(src).long(), torch.from_numpy(dst).long()), num_nodes=graph.num_nodes)


def dgl_attention(g, q, k, v):
    """DGL's three operators."""
    with g.local_scope():
        g.srcdata.update({"k": k, "v": v})
        g.dstdata["q"] = q / math.sqrt(q.shape[2])
        g.apply_edges(fn.u_dot_v("k", "q", "score"))
        g.edata["weight"] = dgl.nn.functional.edge_softmax(g, g.edata["score"])
        g.update_all(fn.u_mul_e("v", "weight", "m"), fn.sum("m", "out"))
        return g.dstdata["out"]


def pyg_attention():
    """PyG's own message passing of TransformerConv, or None where PyG is not installed."""
    try:
        from torch_geometric.nn import TransformerConv
    except ImportError:
        return None

    def attend(g, q, k, v):
        conv = TransformerConv(q.shape[2], q.shape[2], heads=q.shape[1])
        edges = torch.stack(g.edges())
        return conv.propagate(edges, query=q, key=k, value=v, edge_attr=None).view_as(q)

    return attend


def seconds(attend, g, tensors, upstream) -> float:
    """One forward and backward pass."""
    for tensor in tensors:
        tensor.grad = None
    started = time.perf_counter()
    attend(g, *tensors).backward(upstream)
    return time.perf_counter() - started


def measure(name: str, heads: int, width: int, runs: int, pyg) -> dict:
    """Median seconds of each tool on one graph, after checking that they agree."""
    graph = graph_named(name)
    g, ordered = to_dgl(graph), to_dgl(graph, make_edge_cut(graph, 1).new_ids())
    generator = torch.Generator().manual_seed(0)
    *tensors, upstream = (torch.randn(graph.num_nodes, heads, width, generator=generator) for _ in range(4))
    tensors = [tensor.requires_grad_() for tensor in tensors]
    tools = {"DGL": (dgl_attention, g), "dgl-gt": (sparse_attention, g), "cluster order": (sparse_attention, ordered)}
    if pyg:
        tools["PyG"] = (pyg, g)
    reference = dgl_attention(g, *tensors).detach()
    for tool, (attend, structure) in tools.items():  # this is the warm-up, too
        seconds(attend, structure, tensors, upstream)
        if structure is g:
            torch.testing.assert_close(attend(g, *tensors).detach(), reference, rtol=1e-3, atol=1e-4, msg=tool)
    times = {tool: [] for tool in tools}
    for _ in range(runs):
        for tool, (attend, structure) in tools.items():
            times[tool].append(seconds(attend, structure, tensors, upstream))
    medians = {tool: statistics.median(values) for tool, values in times.items()}
    return {"graph": name, "nodes": graph.num_nodes, "edges": graph.num_edges, "seconds": medians}


def main(argv=None) -> None:
    """Print the table, or JSON with ``--json``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--graph", action="append", metavar="NAME", help="random, hub, or a file's stem in the data folder"
    )
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    graphs = args.graph or ["random", "ogbn_arxiv_nofeat", "tolokers", "ogbl_ddi_train", "hub"]
    pyg = pyg_attention()
    results = [measure(name, args.heads, args.width, args.runs, pyg if name == "random" else None) for name in graphs]
    if args.json:
        print(
            json.dumps(
                {"threads": torch.get_num_threads(), "heads": args.heads, "width": args.width, "results": results}
            )
        )
        return
    rows = []
    for result in results:
        times = result["seconds"]
        for tool, value in times.items():
            rows.append([result["graph"], tool, f"{value:.3f}", f"{times['DGL'] / value:.2f}"])
    print(
        f"forward + backward, H {args.heads}, D {args.width}, {torch.get_num_threads()} threads, median of {args.runs}"
    )
    print()
    print(table(["graph", "tool", "seconds", "DGL / it"], rows))


if __name__ == "__main__":
    main()
