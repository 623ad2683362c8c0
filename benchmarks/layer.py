"""A step of one graph transformer layer compared with the same layer on DGL's operators.

    python benchmarks/layer.py [--graph ogbn_arxiv_nofeat] [--hidden 128] [--heads 8] [--runs 5] [--json]

Both are QKV, attention, output, feed-forward (multiple 2) and norms, forward and backward, in float32 without dropout,
with the same weights, on the same threads, on the graph in cluster order. The peer is the same code but for attention:
three projections, then ``u_dot_v``, ``edge_softmax``, ``u_mul_e_sum``. In turn within each run, each after an untimed
step of its own; medians. The second table says where each layer's time goes, by torch's profiler in one more step.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from collections import Counter

import torch
from attention import dgl_attention, graph_named, to_dgl
from machine import processor

from dgl_gt.nn import BiasedMHA, GraphTransformerLayer
from dgl_gt.partition import make_edge_cut
from dgl_gt.partition.console import table

KINDS = {
    "attention": ("dgl_gt::", "GSpMM", "GSDDMM", "EdgeSoftmax", "SpMM", "SDDMM"),
    "matrix products": ("aten::mm", "aten::addmm"),
    "norms": ("aten::native_layer_norm",),
}


class DGLOperators(BiasedMHA):
    """The attention as a DGL user writes it, without attention bias or dropout."""

    def forward(self, graph, feat, attn_bias=None):
        rows = (projection(feat) for projection in (self.q_proj, self.k_proj, self.v_proj))
        q, k, v = (self._heads_of(x) for x in rows)
        return self.out_proj(dgl_attention(graph, q, k, v).flatten(1))

    def _heads_of(self, rows):
        return rows.unflatten(1, (self.num_heads, self.head_dim))


class Peer(GraphTransformerLayer):
    """The layer on DGL's operators."""

    def forward(self, graph, feat, attn_bias=None):
        h = self.attn_layer_norm(feat + self.attn(graph, feat))
        return self.ffn_layer_norm(h + self.ffn(h))


def step(layer, g, feat, upstream) -> torch.Tensor:
    """Forward and backward; the result."""
    layer.zero_grad()
    feat.grad = None
    out = layer(g, feat)
    out.backward(upstream)
    return out.detach()


def shares(layer, *inputs) -> dict[str, float]:
    """Seconds of one step by kind of operation."""
    with torch.profiler.profile() as profile:
        step(layer, *inputs)
    spent = Counter()
    for event in profile.key_averages():
        kind = next((kind for kind, names in KINDS.items() if any(name in event.key for name in names)), "the rest")
        spent[kind] += event.self_cpu_time_total / 1e6
    return dict(spent)


def measure(name: str, hidden: int, heads: int, runs: int) -> dict:
    """Median seconds of both layers, and where they go, after checking that they agree."""
    graph = graph_named(name)
    g = to_dgl(graph, make_edge_cut(graph, 1).new_ids())
    g.create_formats_()
    torch.manual_seed(0)
    ours = GraphTransformerLayer(hidden, 2 * hidden, heads, dropout=0.0, attn_dropout=0.0)
    peer = copy.deepcopy(ours)
    peer.__class__, peer.attn.__class__ = Peer, DGLOperators
    feat = torch.randn(graph.num_nodes, hidden, requires_grad=True)
    inputs = (g, feat, torch.randn(graph.num_nodes, hidden))
    layers = {"DGL operators": peer, "dgl-gt": ours}
    results = [step(layer, *inputs) for layer in layers.values()]  # the warm-up, too
    torch.testing.assert_close(*results, rtol=1e-3, atol=1e-4)
    times = {tool: [] for tool in layers}
    for _ in range(runs):
        for tool, layer in layers.items():
            step(layer, *inputs)
            started = time.perf_counter()
            step(layer, *inputs)
            times[tool].append(time.perf_counter() - started)
    return {
        "graph": name,
        "hidden": hidden,
        "heads": heads,
        "seconds": {tool: statistics.median(values) for tool, values in times.items()},
        "shares_s": {tool: shares(layer, *inputs) for tool, layer in layers.items()},
    }


def main(argv=None) -> None:
    """Print the tables, or JSON with ``--json``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", default="ogbn_arxiv_nofeat", help="random, hub, or a file's stem in the data folder")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    result = measure(args.graph, args.hidden, args.heads, args.runs)
    if args.json:
        print(json.dumps({"processor": processor(), "threads": torch.get_num_threads(), **result}))
        return
    times = result["seconds"]
    print(
        f"{args.graph} in cluster order, hidden {args.hidden}, H {args.heads}, float32, forward + backward, "
        f"{torch.get_num_threads()} threads, median of {args.runs}; {processor()}"
    )
    print()
    rows = [[tool, f"{value:.3f}", f"{times['DGL operators'] / value:.2f}"] for tool, value in times.items()]
    print(table(["layer", "seconds", "DGL / it"], rows))
    print()
    kinds = [*KINDS, "the rest"]
    rows = [[tool, *(f"{spent.get(kind, 0):.3f}" for kind in kinds)] for tool, spent in result["shares_s"].items()]
    print(table(["layer", *kinds], rows))


if __name__ == "__main__":
    main()
