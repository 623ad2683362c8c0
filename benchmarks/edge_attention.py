"""A step of ``dgl_gt.nn.TransformerConv`` with features of edges compared with PyG's, or with that of anemoi-core.

    python benchmarks/edge_attention.py [--graph tolokers] [--edge-dim 16] [--runs 5] [--checkout PATH] [--json]

Forward and backward, with the gradients of the nodes' features and of all weights, from 128 features to H heads of width
D, in float32 without dropout, with the same weights on the same graph, whose edges get seeded features. Seconds: the same
threads, the tools in turn within each run, each after an untimed step of its own; medians. Memory: each tool in a process
of its own; the peak of the resident memory over what was there before the step. `PATH` is a checkout of
https://github.com/ecmwf/anemoi-core: its graph transformer (projections of nodes and edges, then
``GraphTransformerConv``) takes PyG's place.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import time
import types
from pathlib import Path

import torch
from attention import graph_named, size
from attention_memory import resident_bytes, trim
from machine import processor
from torch import nn

import dgl_gt
from dgl_gt.nn import TransformerConv
from dgl_gt.partition.console import table
from dgl_gt.partition.system.units import format_bytes

FEATURES = 128


class Anemoi(nn.Module):
    """anemoi's projections of nodes and edges, and its message passing, as its graph transformer's block calls them."""

    def __init__(self, conv, heads: int, width: int, edge_dim: int):
        super().__init__()
        self.heads, self.conv = heads, conv
        self.lin_query, self.lin_key, self.lin_value = (nn.Linear(FEATURES, heads * width) for _ in range(3))
        self.lin_edge = nn.Linear(edge_dim, heads * width)

    def forward(self, feat, edge_index, edge_attr):
        rows = [
            linear(feat).unflatten(1, (self.heads, -1)) for linear in (self.lin_query, self.lin_key, self.lin_value)
        ]
        edges = self.lin_edge(edge_attr).unflatten(1, (self.heads, -1))
        return self.conv(*rows, edges, edge_index, (len(feat), len(feat))).flatten(1)


def anemoi_convolution(checkout: str, width: int) -> nn.Module:
    """anemoi's message passing layer, from the file that has it."""
    path = Path(checkout) / "models/src/anemoi/models/layers/conv.py"
    for name in ("anemoi", "anemoi.models", "anemoi.models.layers", "anemoi.models.layers.mlp", "anemoi.utils"):
        sys.modules.setdefault(name, types.ModuleType(name))  # another layer of the file needs them
    sys.modules["anemoi.models.layers.mlp"].__dict__.update(MLP=nn.Module, MLPImplementation=str)
    sys.modules["anemoi.utils.config"] = types.ModuleType("anemoi.utils.config")
    sys.modules["anemoi.utils.config"].__dict__["DotDict"] = dict
    spec = importlib.util.spec_from_file_location("anemoi.models.layers.conv", path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.GraphTransformerConv(width)


def layers(heads: int, width: int, edge_dim: int, checkout: str | None) -> dict[str, nn.Module]:
    """The other tool's layer and ours, with the same weights."""
    torch.manual_seed(0)
    if checkout is None:
        import torch_geometric

        other = torch_geometric.nn.TransformerConv(FEATURES, width, heads, edge_dim=edge_dim)
        ours = TransformerConv(FEATURES, width, heads, edge_dim=edge_dim)
        ours.load_state_dict(other.state_dict())
        return {"PyG": other, "dgl-gt": ours}
    other = Anemoi(anemoi_convolution(checkout, width), heads, width, edge_dim)
    ours = TransformerConv(FEATURES, width, heads, edge_dim=edge_dim, root_weight=False)
    state = other.state_dict()
    of_edges = state.pop("lin_edge.bias")  # it is the same for all edges, so it belongs to keys and values as well
    state = {
        name: value + of_edges if name in ("lin_key.bias", "lin_value.bias") else value for name, value in state.items()
    }
    ours.load_state_dict(state, strict=False)
    return {"anemoi": other, "dgl-gt": ours}


def inputs(name: str, edge_dim: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The ends of the edges, and features of nodes and edges."""
    graph = graph_named(name)
    ends = torch.stack([torch.from_numpy(x).long() for x in (graph.indices, graph.destinations())])
    torch.manual_seed(1)
    return ends, torch.randn(graph.num_nodes, FEATURES, requires_grad=True), torch.randn(ends.shape[1], edge_dim)


def step(tool: str, layer: nn.Module, graph, feat, edge) -> torch.Tensor:
    """Forward and backward; the result."""
    layer.zero_grad()
    feat.grad = None
    out = layer(graph, feat, edge) if tool == "dgl-gt" else layer(feat, graph, edge)
    out.backward(torch.ones_like(out))
    return out.detach()


def seconds(args) -> dict[str, float]:
    """Medians of the seconds of a step."""
    ends, feat, edge = inputs(args.graph, args.edge_dim)
    both = layers(*args.size, args.edge_dim, args.checkout)
    graphs = {tool: dgl_gt.csc(ends, num_nodes=len(feat)) if tool == "dgl-gt" else ends for tool in both}
    found = [step(tool, layer, graphs[tool], feat, edge) for tool, layer in both.items()]
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-5)
    times: dict[str, list[float]] = {tool: [] for tool in both}
    for _ in range(args.runs):
        for tool, layer in both.items():
            step(tool, layer, graphs[tool], feat, edge)
            started = time.perf_counter()
            step(tool, layer, graphs[tool], feat, edge)
            times[tool].append(time.perf_counter() - started)
    return {tool: statistics.median(values) for tool, values in times.items()}


def peak_bytes(args) -> int:
    """Peak of the memory of one tool's step, in this process."""
    layer = layers(*args.size, args.edge_dim, args.checkout)[args.tool]
    small = torch.tensor([[0, 1], [1, 0]])
    step(args.tool, layer, small, torch.zeros(2, FEATURES, requires_grad=True), torch.zeros(2, args.edge_dim))
    ends, feat, edge = inputs(args.graph, args.edge_dim)
    graph = dgl_gt.csc(ends, num_nodes=len(feat)) if args.tool == "dgl-gt" else ends
    trim()
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    before = resident_bytes("VmRSS")
    step(args.tool, layer, graph, feat, edge)
    return resident_bytes("VmHWM") - before


def main() -> None:
    """Parse arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", default="tolokers", help="as benchmarks/attention.py takes it")
    parser.add_argument("--size", type=size, metavar="HxD", default=(8, 16))
    parser.add_argument("--edge-dim", type=int, default=16)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--checkout", help="of anemoi-core")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--tool", help=argparse.SUPPRESS)  # measure the memory of one, in this process
    args = parser.parse_args()
    if args.tool:
        print(peak_bytes(args))
        return
    found = {}
    for tool, time_s in seconds(args).items():
        command = [sys.executable, *sys.argv, "--tool", tool]
        printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        found[tool] = {"step_s": time_s, "peak_bytes": int(printed.split()[-1])}
    if args.json:
        print(json.dumps({"graph": args.graph, "size": args.size, "edge_dim": args.edge_dim, "tools": found}))
        return
    ours = found["dgl-gt"]
    rows = [
        [
            tool,
            f"{each['step_s']:.3f}",
            f"{each['step_s'] / ours['step_s']:.1f}x",
            format_bytes(each["peak_bytes"]),
            f"{ours['peak_bytes'] / each['peak_bytes']:.3f}",
        ]
        for tool, each in found.items()
    ]
    heads, width = args.size
    print(
        f"{args.graph}, H {heads}, D {width}, F {args.edge_dim}, float32; {processor()}, {torch.get_num_threads()} threads"
    )
    print()
    print(table(["tool", "step, s", "over ours", "peak", "ours of it"], rows))


if __name__ == "__main__":
    main()
