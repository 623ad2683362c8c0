"""A step of ``dgl_gt.nn.HGTLayer`` compared with ``dgl.nn.HGTConv``: seconds, and peak memory.

    python benchmarks/hetero.py [--graph random] ... [--runs 5] [--dgl-runs 5] [--json]

Forward and backward, with the gradient of the features, C 64 and H 8, in float32 without dropout, on two threads, with
the same weights on the same graph. ``random`` has 4 node types, 8 relations, 200k nodes and 4M edges; ``acm_hetero`` is
read from the data folder, with reverse relations. Each tool runs in a process of its own, and the two take turns; a
figure is the median of the steps after an untimed one. DGL is told that nodes and edges are sorted by type, which is
faster. `memory` is the peak of the resident memory in one more step, over what was there before it: the graph, its
formats, the weights and the features. Linux alone keeps a peak that can be reset.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import dgl
import numpy as np
import torch
from attention_memory import resident_bytes, trim
from machine import DATA, processor

from dgl_gt.nn import HGTLayer
from dgl_gt.partition import load_graph
from dgl_gt.partition.console import table
from dgl_gt.partition.system.units import format_bytes

WIDTH, HEADS, THREADS = 64, 8, 2
TOOLS = ("DGL", "dgl-gt")


def random_graph(nodes=(80_000, 60_000, 40_000, 20_000), edges: int = 4_000_000):
    """Four types, and as many edges between random nodes in each of eight relations."""
    rng, pairs = np.random.default_rng(0), [(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1), (0, 3), (3, 0)]
    ends = {
        ("abcd"[src], f"r{number}", "abcd"[dst]): tuple(
            rng.integers(0, nodes[end], edges // len(pairs)) for end in (src, dst)
        )
        for number, (src, dst) in enumerate(pairs)
    }
    return dgl.heterograph(ends, dict(zip("abcd", nodes)))


def graph_named(name: str):
    """A heterograph: ``random``, or one of the data folder with reverse relations."""
    if name == "random":
        return random_graph()
    graph = load_graph(DATA / f"{name}.npz")
    (src, dst), schema = map(torch.as_tensor, graph.edges()), graph.schema
    ends = {}
    for relation, (a, b), begin, end in zip(schema.edges, schema.ends, schema.edge_ptr, schema.edge_ptr[1:]):
        pair = src[begin:end] - int(schema.node_ptr[a]), dst[begin:end] - int(schema.node_ptr[b])
        ends[relation] = pair
        ends[relation.destination, f"rev {relation.name}", relation.source] = pair[::-1]
    return dgl.heterograph(ends, schema.nodes)


def make_step(tool: str, name: str):
    """Return a function that runs a step of a tool and returns the result."""
    hetero = graph_named(name)
    torch.manual_seed(0)
    sizes = WIDTH, WIDTH // HEADS, HEADS, len(hetero.ntypes), len(hetero.canonical_etypes)
    layer = dgl.nn.HGTConv(*sizes, dropout=0.0)
    h = torch.randn(hetero.num_nodes(), WIDTH, requires_grad=True)
    upstream = torch.randn(hetero.num_nodes(), WIDTH)
    if tool == "DGL":
        conv, whole = layer, dgl.to_homogeneous(hetero)
        inputs = whole, h, whole.ndata[dgl.NTYPE], whole.edata[dgl.ETYPE]
        options = {"presorted": True}
    else:
        conv, inputs, options = HGTLayer(*sizes, dropout=0.0), (hetero, h), {}
        conv.load_state_dict(layer.state_dict())

    def step():
        conv.zero_grad()
        h.grad = None
        out = conv(*inputs, **options)
        out.backward(upstream)
        return out.detach()

    return step


def work(tool: str, name: str) -> None:
    """Serve the main process: a line on stdin asks for the "time" of a step, or names a file for its result."""
    torch.set_num_threads(THREADS)
    step = make_step(tool, name)
    step()
    print("ready", flush=True)
    for line in map(str.strip, sys.stdin):
        if line == "time":
            started = time.perf_counter()
            step()
            answer = time.perf_counter() - started
        else:
            trim()
            Path("/proc/self/clear_refs").write_text("5")
            before = resident_bytes("VmRSS")
            out = step()
            answer = resident_bytes("VmHWM") - before
            np.save(line, out.numpy())
        print(json.dumps(answer), flush=True)


def measure(name: str, runs: dict[str, int]) -> dict:
    """Seconds and bytes of both tools."""
    workers = {}
    for tool in TOOLS:
        command = [sys.executable, __file__, "--tool", tool, "--graph", name]
        workers[tool] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert workers[tool].stdout.readline() == "ready\n"

    def ask(tool: str, what):
        print(what, file=workers[tool].stdin, flush=True)
        return json.loads(workers[tool].stdout.readline())

    times = {tool: [] for tool in TOOLS}
    for run in range(max(runs.values())):
        for tool in TOOLS:
            if run < runs[tool]:
                times[tool].append(ask(tool, "time"))
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{tool}.npy" for tool in TOOLS]
        memory = {tool: ask(tool, file) for tool, file in zip(TOOLS, files)}
        np.testing.assert_allclose(*map(np.load, files), rtol=1e-3, atol=1e-4)
    for worker in workers.values():
        worker.communicate()
    seconds = {tool: statistics.median(values) for tool, values in times.items()}
    return {"graph": name, "seconds": seconds, "bytes": memory, "times": times}


def main() -> None:
    """Parse arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", action="append", help="random, or a file's stem in the data folder; may be repeated")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--dgl-runs", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--tool", choices=TOOLS, help=argparse.SUPPRESS)  # measure one, in this process
    args = parser.parse_args()
    names = args.graph or ["random", "acm_hetero"]
    if args.tool:
        work(args.tool, names[0])
        return
    measured = [measure(name, dict(zip(TOOLS, (args.dgl_runs, args.runs)))) for name in names]
    if args.json:
        print(json.dumps(measured))
        return
    rows = []
    for each in measured:
        row = [each["graph"]]
        for kind, text in (("seconds", "{:.3f}".format), ("bytes", format_bytes)):
            theirs, ours = (each[kind][tool] for tool in TOOLS)
            row += [text(theirs), text(ours), f"{theirs / ours:.1f}x" if kind == "seconds" else f"{ours / theirs:.2f}x"]
        rows.append(row)
    print(f"{processor()}, {THREADS} threads")
    print(table(["graph", "DGL s", "dgl-gt s", "faster", "DGL memory", "dgl-gt memory", "memory"], rows))


if __name__ == "__main__":
    main()
