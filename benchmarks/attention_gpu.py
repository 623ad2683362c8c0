"""Sparse attention on a GPU, forward and backward, compared with plain torch operations and PyG. It needs neither DGL nor
a network.

    python benchmarks/attention_gpu.py [--nodes 100000] [--edges 2000000] [--graph FILE.npz] [--size HxD] ... [--edge-dim F]
        [--runs 20] [--json]

All tools run in this process on the same graph, by default a random one, and the same inputs, in turn, each after an
untimed pass. A figure is the median over runs; memory is the allocator's peak beyond the inputs. ``rows`` is the rate at
which rows are read along the edges: two rows per edge in each of three passes. PyG, where it is installed: the message
path of its ``TransformerConv``, without its projections, as it is and compiled. With ``--edge-dim``, F features of each
edge enter its keys and values by a weight.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if sys.path[0] == str(ROOT / "benchmarks"):  # where `import partition` would find the benchmark of that name
    sys.path[0] = str(ROOT)

import torch  # noqa: E402
from torch import nn  # noqa: E402

from dgl_gt import CSC, sparse_attention  # noqa: E402
from dgl_gt.ops.reference import reference_attention  # noqa: E402
from dgl_gt.partition.console import table  # noqa: E402

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def random_graph(nodes: int, edges: int, device: str) -> CSC:
    """Uniformly random edges."""
    generator = torch.Generator().manual_seed(0)
    degrees = torch.bincount(torch.randint(0, nodes, (edges,), generator=generator), minlength=nodes)
    indptr = torch.cat([degrees.new_zeros(1), degrees.cumsum(0)])
    indices = torch.randint(0, nodes, (edges,), generator=generator, dtype=torch.int32)
    return CSC.build(indptr, indices, nodes).to(device)


def graph_of(path: str, device: str) -> CSC:
    """The graph of a file."""
    from dgl_gt.partition import load_graph  # it needs packages that the random graph does not

    graph = load_graph(path)
    return CSC.build(torch.from_numpy(graph.indptr), torch.from_numpy(graph.indices), graph.num_nodes).to(device)


class Attention(nn.Module):
    """dgl-gt's operator, or the same in torch operations, which store rows of all edges."""

    def __init__(self, plain: bool, weight: torch.Tensor | None, features: torch.Tensor | None):
        super().__init__()
        self.plain, self.features = plain, features
        self.weight = None if weight is None else nn.Parameter(weight)

    def forward(self, graph: CSC, q, k, v):
        if self.weight is None:
            return self.attend(graph, q, k, v)[0]
        q_edge, features = torch.einsum("nhd,hdf->nhf", q, self.weight), self.features.to(q.dtype)
        out, out_edge = self.attend(graph, q, k, v, q_edge, features)
        return out + torch.einsum("nhf,hdf->nhd", out_edge, self.weight)

    def attend(self, graph, q, k, v, q_edge=None, features=None):
        if self.plain:
            queries = q if q_edge is None else torch.cat([q, q_edge], 2)
            out = reference_attention(graph, queries, k, v, None, q.shape[2] ** -0.5, 0.0, None, edge=features)[0]
            return out[..., : q.shape[2]], out[..., q.shape[2] :]
        if q_edge is None:
            return (sparse_attention(graph, q, k, v),)
        return sparse_attention(graph, q, k, v, edge=(features, q_edge))


def pyg_attention(graph: CSC, heads: int, width: int, weight: torch.Tensor | None, features: torch.Tensor | None):
    """The message path of PyG's TransformerConv, or None where PyG is not installed."""
    try:
        from torch_geometric.nn import TransformerConv
    except ImportError:
        return None
    rows = torch.repeat_interleave(torch.arange(graph.num_dst, device=graph.device), graph.indptr.diff())
    edges = torch.stack([graph.indices.long(), rows])

    class Path(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = TransformerConv(width, width, heads, edge_dim=None if weight is None else weight.shape[2])
            if weight is not None:
                self.layer.lin_edge.weight = nn.Parameter(weight.flatten(0, 1))

        def forward(self, _graph, q, k, v):
            edge = None if features is None else features.to(q.dtype)
            return self.layer.propagate(edges, query=q, key=k, value=v, edge_attr=edge).view_as(q)

    return Path()


def step(attend: nn.Module, graph: CSC, tensors, upstream, device: str) -> tuple[float, int]:
    """Seconds of one forward and backward pass, and its peak memory in bytes beyond the inputs."""
    on_gpu = device == "cuda"
    for tensor in (*tensors, *attend.parameters()):
        tensor.grad = None
    if on_gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    started = time.perf_counter()
    attend(graph, *tensors).backward(upstream)
    if not on_gpu:
        return time.perf_counter() - started, 0
    torch.cuda.synchronize()
    return time.perf_counter() - started, torch.cuda.max_memory_allocated() - before


def measure(graph: CSC, heads: int, width: int, edge_dim: int | None, runs: int, device: str) -> list[dict]:
    """Medians of each tool and dtype, after a check that they agree."""
    results = []
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(graph.num_src, heads, width, generator=generator) for _ in range(4)]
    of_edges = None, None
    if edge_dim is not None:
        shapes = (heads, width, edge_dim), (graph.num_edges, edge_dim)
        of_edges = tuple(torch.randn(shape, generator=generator).to(device) / edge_dim**0.5 for shape in shapes)
    plain = Attention(True, *of_edges)
    reference = plain(graph, *(each.to(device) for each in drawn[:3])).detach()
    peers = [("torch", plain)]
    if pyg := pyg_attention(graph, heads, width, *of_edges):
        peers += [("PyG", pyg), ("PyG compiled", pyg)]
    tools = [("dgl-gt", Attention(False, *of_edges), dtype) for dtype in DTYPES]
    tools += [(name, attend, dtype) for name, attend in peers for dtype in DTYPES[:2]]
    for name, attend, dtype in tools:
        attend = copy.deepcopy(attend).to(device, dtype)  # a weight that was rounded stays so
        if name.endswith("compiled"):
            attend = torch.compile(attend, dynamic=False)
        *tensors, upstream = (each.to(device, dtype).requires_grad_() for each in drawn)
        error = float((attend(graph, *tensors).detach().float() - reference).norm() / reference.norm())
        assert error < (1e-4 if dtype == torch.float32 else 2e-2), f"{name} in {dtype} is off by {error}"
        upstream = upstream.detach()
        step(attend, graph, tensors, upstream, device)
        steps = [step(attend, graph, tensors, upstream, device) for _ in range(runs)]
        seconds = statistics.median(each for each, _ in steps)
        rows_bytes = 3 * graph.num_edges * 2 * heads * width * drawn[0].to(dtype).element_size()
        result = {"tool": name, "dtype": str(dtype).removeprefix("torch."), "heads": heads, "width": width}
        results.append(
            result | {"seconds": seconds, "rows_gb_s": rows_bytes / seconds / 1e9, "peak_bytes": steps[-1][1]}
        )
    return results


def size(text: str) -> tuple[int, int]:
    """``HxD`` -> (H, D)."""
    heads, _, width = text.partition("x")
    return int(heads), int(width)


def main(argv=None) -> None:
    """Print the table, or JSON with ``--json``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=100_000)
    parser.add_argument("--edges", type=int, default=2_000_000)
    parser.add_argument("--graph", metavar="FILE", help="a graph to read in place of the random one")
    parser.add_argument("--size", action="append", type=size, metavar="HxD", help="heads and their width")
    parser.add_argument("--edge-dim", type=int, metavar="F", help="features of edges in keys and values")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    graph = graph_of(args.graph, args.device) if args.graph else random_graph(args.nodes, args.edges, args.device)
    results = [
        row for each in args.size or [(8, 16)] for row in measure(graph, *each, args.edge_dim, args.runs, args.device)
    ]
    name = torch.cuda.get_device_name() if args.device == "cuda" else "CPU"
    if args.json:
        print(json.dumps({"device": name, "nodes": graph.num_dst, "edges": graph.num_edges, "results": results}))
        return
    rows = [
        [f"{each['heads']}x{each['width']}", each["tool"], each["dtype"], f"{each['seconds'] * 1e3:.2f}"]
        + [f"{each['rows_gb_s']:.0f}", f"{each['peak_bytes'] / 2**20:.0f}"]
        for each in results
    ]
    print(
        f"{name}: {graph.num_dst:,} nodes, {graph.num_edges:,} edges, {args.edge_dim or 0} features of each, forward + backward, median of {args.runs}\n"
    )
    print(table(["HxD", "tool", "dtype", "ms", "rows, GB/s", "peak MiB"], rows))


if __name__ == "__main__":
    main()
