"""Peak memory of sparse attention, forward and backward, compared with DGL's operators and PyG's gather and scatter.

    python benchmarks/attention_memory.py [--graph random] [--heads 8] [--width 16] [--json]

Each tool runs in a process of its own, on the same graph and the same packed projection (N, 3, H, D) in float32, of
which q, k and v are views; ours takes the packed tensor itself. `structure` is what the sparse formats of the graph
take (DGL's, and for ours the CSC with its reverse index in addition to DGL's own). `pass` is the peak of the resident memory
over what was there before the pass, less the result and the gradient of the packed tensor. The last column compares
sums. Linux alone keeps a peak that can be reset.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import sys
from importlib.util import find_spec

import torch
from attention import dgl_attention, graph_named, pyg_attention, to_dgl
from machine import processor

from dgl_gt import csc, sparse_attention
from dgl_gt.partition.console import table
from dgl_gt.partition.system.units import format_bytes

TOOLS = ("DGL", "PyG", "dgl-gt") if find_spec("torch_geometric") else ("DGL", "dgl-gt")


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


def trim() -> None:
    """Give freed memory back to the system: while it is resident it would hide as much of the peak."""
    ctypes.CDLL(None).malloc_trim(0)


def measure(tool: str, name: str, heads: int, width: int) -> dict[str, int]:
    """Bytes of one tool: of the structure that it reads, and at the peak beyond inputs, result and gradient."""
    small = to_dgl(graph_named("hub"))
    warm = torch.zeros(small.num_nodes(), 3, 1, 1, requires_grad=True)
    attend(tool, small, warm).sum().backward()  # loads code and starts threads
    g = to_dgl(graph_named(name))
    trim()
    without = resident_bytes("VmRSS")
    if tool == "dgl-gt":
        csc(g)
    else:
        g.create_formats_()
    trim()
    structure = resident_bytes("VmRSS") - without
    packed = torch.randn(g.num_nodes(), 3, heads, width).requires_grad_()
    upstream = torch.randn(g.num_nodes(), heads, width)
    trim()
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    before = resident_bytes("VmRSS")
    out = attend(tool, g, packed)
    out.backward(upstream)
    extra = resident_bytes("VmHWM") - before - out.nbytes - packed.grad.nbytes
    return {"structure_bytes": structure, "pass_bytes": extra}


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
        print(json.dumps(measure(args.tool, args.graph, args.heads, args.width)))
        return
    shape = ["--graph", args.graph, "--heads", str(args.heads), "--width", str(args.width)]
    found = {}
    for tool in TOOLS:
        command = [sys.executable, __file__, "--tool", tool, *shape]
        printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        found[tool] = json.loads(printed.splitlines()[-1])
    if args.json:
        print(json.dumps({"graph": args.graph, "heads": args.heads, "width": args.width, "tools": found}))
        return
    ours = sum(found["dgl-gt"].values())
    rows = [
        [tool, *map(format_bytes, each.values()), f"{1 - ours / sum(each.values()):.1%}"]
        for tool, each in found.items()
    ]
    print(f"{args.graph}, H {args.heads}, D {args.width}, float32, forward + backward; {processor()}")
    print()
    print(table(["tool", "structure", "pass", "ours is lower by"], rows))


if __name__ == "__main__":
    main()
