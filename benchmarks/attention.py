"""Sparse attention, forward and backward, compared with DGL's operators and PyG's gather and scatter.

    python benchmarks/attention.py [--graph NAME] ... [--size HxD] ... [--runs 5] [--json]

All tools run in this process, on the same graph and inputs and with the same threads, in turn within each run, each
after an untimed pass of its own (so that none pays for memory that another gave back); a figure is the median over
runs. DGL: ``u_dot_v``, ``edge_softmax``, ``u_mul_e_sum``, its sparse formats made beforehand. PyG, where it is
installed, on ``random`` at 8 heads of 16: the message path of its ``TransformerConv``, without its projections. All are
in float32 but where the tool's name says otherwise. ``cluster order`` is the graph renumbered by
clusters, as in a part, for both tools; each row is compared with DGL in the same order. ``floors`` is the time over six
times that of ``torch.embedding_bag``, which adds up a row for each edge: forward, dQ, and dK with dV each read two.

DGL and PyG take queries, keys and values as three tensors; dgl-gt takes them packed, in the layout in which its layers
project them, which costs nothing: with the heads of a row side by side where there is a kernel for that. ``head after
head`` takes packed rows of the usual layout, and gathers them as they are; ``head after head, copied`` may copy them to
the other layout first, as ``sparse_attention`` does where the degree pays for it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import statistics
import time

os.environ.setdefault("DGLBACKEND", "pytorch")

import dgl
import dgl.function as fn
import numpy as np
import torch
from machine import DATA, processor

from dgl_gt import sparse_attention
from dgl_gt.ops import cpu
from dgl_gt.ops.head_minor import has_head_minor_kernel
from dgl_gt.partition import from_edges, load_graph, make_edge_cut
from dgl_gt.partition.console import table

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
HEAD_AFTER_HEAD = "dgl-gt, head after head"
COPIED = "dgl-gt, head after head, copied"


def graph_named(name: str):
    """``random``: 100k nodes, 2M uniformly random edges; ``hub``: one node with 10^6 in-edges; else a real graph."""
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


def on_one_thread(attend):
    """The same on one thread."""

    def attend_alone(g, *tensors):
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        out = attend(g, *tensors)
        out.register_hook(lambda grad: torch.set_num_threads(1))
        tensors[0].register_post_accumulate_grad_hook(lambda _: torch.set_num_threads(threads))
        return out

    return attend_alone


@contextlib.contextmanager
def layout_of(tool: str):
    """Inside the block, kernels gather rows as they are if the tool's name says so."""
    usual = cpu.gathers_head_minor
    if tool == HEAD_AFTER_HEAD:
        cpu.gathers_head_minor = lambda *_: False
    try:
        yield
    finally:
        cpu.gathers_head_minor = usual


def draw(num_nodes: int, heads: int, width: int, dtype) -> tuple[list, torch.Tensor]:
    """q, k, v, and the gradient of the result."""
    generator = torch.Generator().manual_seed(0)
    *tensors, upstream = (torch.randn(num_nodes, heads, width, generator=generator).to(dtype) for _ in range(4))
    return [tensor.requires_grad_() for tensor in tensors], upstream


def seconds_to_add_rows(graph, columns: int) -> float:
    """One call of ``torch.embedding_bag`` after an untimed one: each node adds up the rows of its in-edges."""
    sources, begins = torch.from_numpy(graph.indices).long(), torch.from_numpy(graph.indptr[:-1]).long()
    rows = torch.randn(graph.num_nodes, columns)
    for _ in range(2):
        started = time.perf_counter()
        torch.nn.functional.embedding_bag(sources, rows, begins, mode="sum")
    return time.perf_counter() - started


def project(tensors: list, upstream, head_minor: bool) -> tuple[list, torch.Tensor]:
    """The same rows packed, and the gradient of the result, in the layout of a layer."""
    packed, grad = torch.stack([tensor.detach() for tensor in tensors], 1), upstream
    if head_minor:
        packed, grad = (rows.transpose(-2, -1).contiguous().transpose(-2, -1) for rows in (packed, grad))
    return [packed.requires_grad_()], grad


def measure(name: str, heads: int, width: int, runs: int) -> dict:
    """Median seconds of each tool on one graph, after checking that they agree."""
    graph = graph_named(name)
    g, ordered = to_dgl(graph), to_dgl(graph, make_edge_cut(graph, 1).new_ids())
    for each in (g, ordered):
        each.create_formats_()
    drawn = {dtype: draw(graph.num_nodes, heads, width, dtype) for dtype in DTYPES}
    head_minor = has_head_minor_kernel(heads, width, drawn[torch.float32][1])
    rows = {dtype: project(*inputs, head_minor) for dtype, inputs in drawn.items()}
    apart = drawn[torch.float32]
    tools = {
        "DGL": (dgl_attention, g, apart),
        "dgl-gt": (sparse_attention, g, rows[torch.float32]),
        "DGL, cluster order": (dgl_attention, ordered, apart),
        "dgl-gt, cluster order": (sparse_attention, ordered, rows[torch.float32]),
        "dgl-gt, bfloat16": (sparse_attention, g, rows[torch.bfloat16]),
        "dgl-gt, float16": (sparse_attention, g, rows[torch.float16]),
    }
    if name == "hub":
        tools["dgl-gt, one thread"] = (on_one_thread(sparse_attention), g, rows[torch.float32])
    if head_minor:
        tools[HEAD_AFTER_HEAD] = tools[COPIED] = (sparse_attention, g, project(*apart, False))
    if name == "random" and (heads, width) == (8, 16) and pyg_attention():
        tools["PyG"] = (pyg_attention(), g, apart)
    reference = dgl_attention(g, *apart[0]).detach()
    for tool, (attend, structure, (tensors, upstream)) in tools.items():  # this is the warm-up, too
        dtype = tensors[0].dtype
        with layout_of(tool):
            seconds(attend, structure, tensors, upstream)
            out = attend(structure, *tensors).detach().float()
        if structure is g:
            tolerance = dict(rtol=1e-3, atol=1e-4) if dtype == torch.float32 else dict(rtol=0.1, atol=0.1)
            torch.testing.assert_close(out, reference, msg=lambda text, tool=tool: f"{tool}: {text}", **tolerance)
    times = {tool: [] for tool in tools}
    for _ in range(runs):
        for tool, (attend, structure, inputs) in tools.items():
            with layout_of(tool):
                seconds(attend, structure, *inputs)
                times[tool].append(seconds(attend, structure, *inputs))
    return {
        "graph": name,
        "nodes": graph.num_nodes,
        "edges": graph.num_edges,
        "heads": heads,
        "width": width,
        "floor_s": 6 * statistics.median(seconds_to_add_rows(graph, heads * width) for _ in range(runs)),
        "seconds": {tool: statistics.median(values) for tool, values in times.items()},
    }


def size(text: str) -> tuple[int, int]:
    """``HxD`` -> (H, D)."""
    heads, _, width = text.partition("x")
    return int(heads), int(width)


def main(argv=None) -> None:
    """Print the table, or JSON with ``--json``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--graph", action="append", metavar="NAME", help="random, hub, or a file's stem in the data folder"
    )
    parser.add_argument("--size", action="append", type=size, metavar="HxD", help="heads and their width")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    graphs = args.graph or ["random", "ogbn_arxiv_nofeat", "tolokers", "ogbl_ddi_train", "hub"]
    results = [measure(name, *each, args.runs) for each in args.size or [(8, 16)] for name in graphs]
    if args.json:
        print(json.dumps({"processor": processor(), "threads": torch.get_num_threads(), "results": results}))
        return
    rows = []
    for result in results:
        for tool, value in result["seconds"].items():
            peer = "DGL, cluster order" if "cluster" in tool else "DGL"
            ratio = result["seconds"][peer] / value
            floors = value / result["floor_s"]
            shape = f"{result['heads']}x{result['width']}"
            rows.append([result["graph"], shape, tool, f"{value:.3f}", f"{ratio:.2f}", f"{floors:.2f}"])
    print(f"forward + backward, {torch.get_num_threads()} threads, median of {args.runs}; {processor()}")
    print()
    print(table(["graph", "HxD", "tool", "seconds", "DGL / it", "floors"], rows))


if __name__ == "__main__":
    main()
