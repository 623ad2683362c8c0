"""Peak memory of sparse attention, forward and backward, beside DGL's operators and PyG's gather and scatter.

    python benchmarks/attention_memory.py [--graph random] [--heads 8] [--width 16] [--json]

Each tool runs in a process of its own, on the same graph and the same packed projection (N, 3, H, D) in float32, of
which q, k and v are views; ours takes the packed tensor itself. A figure is the peak of the resident memory over what
was there before the pass (graph and its sparse formats, inputs), less the result and the gradient of the packed tensor.
Linux alone keeps a peak that can be reset.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import sys

from attention import dgl_attention, graph_named, pyg_attention, to_dgl  # first: it puts the packages on the path

import torch  # isort: skip

from dgl_gt import csc, sparse_attention
from partition.console import table
from partition.system.units import size

TOOLS = ("DGL", "PyG", "dgl-gt")


def attend(tool: str, g, packed: torch.Tensor) -> torch.Tensor:
    """The result (N, H, D) of one tool."""
    if tool == "dgl-gt":
        return sparse_attention(g, packed)
    return {"DGL": dgl_attention, "PyG": pyg_attention()}[tool](g, *packed.unbind(1))


def resident_bytes(name: str) -> int:
    """A line of the kernel's account of this process, such as VmRSS or VmHWM."""
    with open("/proc/self/status") as file:
        line = next(line for line in file if line.startswith(name))
    return int(line.split()[1]) * 1024


def measure(tool: str, name: str, heads: int, width: int) -> int:
    """Peak bytes of one tool beyond inputs, result and gradient."""
    small = to_dgl(graph_named("hub"))
    warm = torch.zeros(small.num_nodes(), 3, 1, 1, requires_grad=True)
    attend(tool, small, warm).sum().backward()  # loads code and starts threads
    g = to_dgl(graph_named(name))
    g.create_formats_()
    csc(g)
    packed = torch.randn(g.num_nodes(), 3, heads, width).requires_grad_()
    upstream = torch.randn(g.num_nodes(), heads, width)
    ctypes.CDLL(None).malloc_trim(0)  # memory that was freed, but is still resident, would hide as much of the peak
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    before = resident_bytes("VmRSS")
    out = attend(tool, g, packed)
    out.backward(upstream)
    return resident_bytes("VmHWM") - before - out.nbytes - packed.grad.nbytes


def main(argv=None) -> None:
    """Print the table, or JSON with ``--json``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", default="random", help="random, hub, or a file's stem in the data folder")
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--tool", choices=TOOLS, help=argparse.SUPPRESS)  # measure one, in this process
    args = parser.parse_args(argv)
    if args.tool:
        print(measure(args.tool, args.graph, args.heads, args.width))
        return
    shape = ["--graph", args.graph, "--heads", str(args.heads), "--width", str(args.width)]
    extra_bytes = {}
    for tool in TOOLS:
        command = [sys.executable, __file__, "--tool", tool, *shape]
        extra_bytes[tool] = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])
    if args.json:
        print(json.dumps({"graph": args.graph, "heads": args.heads, "width": args.width, "extra_bytes": extra_bytes}))
        return
    ours = extra_bytes["dgl-gt"]
    rows = [[tool, size(extra), f"{1 - ours / extra:.1%}"] for tool, extra in extra_bytes.items()]
    print(f"{args.graph}, H {args.heads}, D {args.width}, float32, forward + backward")
    print()
    print(table(["tool", "extra peak", "ours is lower by"], rows))


if __name__ == "__main__":
    main()
