"""A training step of a graph transformer on one GPU: dgl-gt's, and the same layers around PyG's TransformerConv.

    python benchmarks/step_gpu.py [--graph FILE.npz] [--layers 3] [--hidden 128] [--heads 8] [--precision fp32]
        [--tool NAME] ... [--device cuda] [--runs 20]

Full graph, random features (128) and labels (40 classes), dropout 0.2, AdamW. A figure is the median over steps, each of
which the host waits for, after an untimed few; memory is the allocator's peak. Without a file, the graph is random.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT)  # in place of the folder of benchmarks, where `import partition` would find one of that name

import torch  # noqa: E402
from torch import nn  # noqa: E402

from benchmarks.attention_gpu import graph_of, random_graph  # noqa: E402
from dgl_gt import CSC  # noqa: E402
from dgl_gt.nn import GraphTransformer  # noqa: E402
from dgl_gt.partition.console import table  # noqa: E402

FEATURES, CLASSES, DROPOUT = 128, 40, 0.2
TOOLS = ("dgl-gt", "dgl-gt compiled", "PyG", "PyG compiled")


class PyGLayer(nn.Module):
    """The layer of GraphTransformer, pre-norm, with attention by PyG."""

    def __init__(self, width: int, heads: int):
        from torch_geometric.nn import TransformerConv

        super().__init__()
        self.attention_norm, self.ffn_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = TransformerConv(width, width // heads, heads, root_weight=False)
        self.out = nn.Sequential(nn.Linear(width, width), nn.Dropout(DROPOUT))
        inner = nn.Linear(width, 2 * width), nn.GELU(), nn.Dropout(DROPOUT)
        self.ffn = nn.Sequential(*inner, nn.Linear(2 * width, width), nn.Dropout(DROPOUT))

    def forward(self, edges, h):
        h = h + self.out(self.attention(self.attention_norm(h), edges))
        return h + self.ffn(self.ffn_norm(h))


class PyGModel(nn.Module):
    """GraphTransformer of such layers."""

    def __init__(self, width: int, layers: int, heads: int):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(FEATURES, width), nn.Dropout(DROPOUT), nn.GELU())
        self.layers = nn.ModuleList(PyGLayer(width, heads) for _ in range(layers))
        self.output = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, CLASSES))

    def forward(self, edges, h):
        h = self.encoder(h)
        for layer in self.layers:
            h = layer(edges, h)
        return self.output(h)


def edge_index(graph: CSC) -> torch.Tensor:
    """The edges as PyG takes them, grouped by destination."""
    rows = torch.repeat_interleave(torch.arange(graph.num_dst, device=graph.device), graph.indptr.diff())
    return torch.stack([graph.indices.long(), rows])


def measure(tool: str, graph: CSC, args) -> dict:
    """Seconds of a step, of the first steps, and bytes."""
    torch.manual_seed(0)
    on_gpu = args.device == "cuda"
    wait = torch.cuda.synchronize if on_gpu else (lambda: None)
    x = torch.randn(graph.num_dst, FEATURES, device=args.device)
    labels = torch.randint(0, CLASSES, (graph.num_dst,), device=args.device)
    if tool.startswith("PyG"):
        model, edges = PyGModel(args.hidden, args.layers, args.heads), edge_index(graph)
    else:
        model = GraphTransformer(FEATURES, args.hidden, CLASSES, args.layers, args.heads, dropout=DROPOUT)
        edges = graph
    model.to(args.device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    run = torch.compile(model, dynamic=False) if tool.endswith("compiled") else model

    def step() -> float:
        started = time.perf_counter()
        with torch.autocast(args.device, torch.bfloat16, enabled=args.precision == "bf16"):
            out = run(edges, x)
        optimizer.zero_grad()
        nn.functional.cross_entropy(out.float(), labels).backward()
        optimizer.step()
        wait()
        return time.perf_counter() - started

    first = sum(step() for _ in range(3))
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    seconds = statistics.median(step() for _ in range(args.runs))
    peak = torch.cuda.max_memory_allocated() if on_gpu else 0
    return {"tool": tool, "seconds": seconds, "first_s": first, "peak_bytes": peak}


def main(argv=None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", metavar="FILE", help="a graph to read in place of the random one")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--precision", default="fp32", choices=["fp32", "bf16"])
    parser.add_argument("--tool", action="append", choices=TOOLS)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--runs", type=int, default=20)
    args = parser.parse_args(argv)
    graph = graph_of(args.graph, args.device) if args.graph else random_graph(100_000, 2_000_000, args.device)
    results = [measure(tool, graph, args) for tool in args.tool or TOOLS]
    name = torch.cuda.get_device_name() if args.device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    print(f"{name}: {graph.num_dst:,} nodes, {graph.num_edges:,} edges, {args.precision}, median of {args.runs}\n")
    rows = [
        [each["tool"], f"{each['seconds'] * 1e3:.1f}", f"{each['first_s']:.1f}", f"{each['peak_bytes'] / 2**20:.0f}"]
        for each in results
    ]
    print(table(["tool", "ms / step", "first three, s", "peak MiB"], rows))


if __name__ == "__main__":
    main()
