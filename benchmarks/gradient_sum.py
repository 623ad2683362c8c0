"""The sum of gradients over ranks: after backward, in buckets during it, and not at all; seconds of a training step.

    python benchmarks/gradient_sum.py [--graph cora] [--hidden 512] [--parts 2] [--links 0,1000,200,50] [--runs 9]

A step is forward, backward, gradient sum and optimiser of a 3-layer graph transformer with 8 heads, ``halo_h``,
float32. The three ways take turns, one step each, after an untimed one; medians of the slowest rank's seconds, and the
median of the ratios of neighbouring steps. A link of 0 Mbit/s is the loopback interface. With another rate, each rank
is in its own network namespace behind a token bucket (Linux, root, iproute2). Ranks have one thread each.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time

from links import run_ranks
from machine import DATA, processor

from dgl_gt.partition import load_graph, partition
from dgl_gt.partition.console import table
from dgl_gt.partition.system.units import format_bytes

WAYS = ("after", "during", "none")


def rank_main(folder: str, hidden: int, runs: int) -> None:
    """Take turns; rank 0 prints one JSON line."""
    import torch
    import torch.distributed as dist

    import dgl_gt
    from dgl_gt.nn import GraphTransformer

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    sg = dgl_gt.load(folder)
    comm, feat, label = sg.comm, sg.ndata["feat"].float(), sg.ndata["label"].long()
    torch.manual_seed(0)
    model = GraphTransformer(feat.shape[1], hidden, 40, 3, 8)
    optimizer = torch.optim.AdamW(model.parameters())

    def backward() -> None:
        loss = torch.nn.functional.cross_entropy(model(sg, feat), label, reduction="sum")
        (loss / sg.manifest["nodes"]).backward()

    def step(way: str) -> float:
        comm.all_reduce(torch.zeros(1))
        started = time.perf_counter()
        optimizer.zero_grad()
        if way == "during":
            with comm.summing_gradients(model.parameters()):
                backward()
        else:
            backward()
            if way == "after":
                comm.sum_gradients(model.parameters())
        optimizer.step()
        return float(comm.all_reduce(torch.tensor([time.perf_counter() - started]), "max")[0])

    for way in WAYS:
        step(way)
    taken = [[step(way) for way in WAYS] for _ in range(runs)]
    seconds = {way: statistics.median(column) for way, column in zip(WAYS, zip(*taken))}
    ratio = statistics.median(after / during for after, during, _ in taken)
    if comm.rank == 0:
        print(json.dumps({**seconds, "ratio": ratio, "bytes": sum(each.nbytes for each in model.parameters())}))
    dist.destroy_process_group()


def main() -> None:
    """Partition the graph, run every link, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", default="cora")
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--parts", type=int, default=2)
    parser.add_argument("--links", default="0,1000,200,50")
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank:
        rank_main(args.rank, args.hidden, args.runs)
        return
    results = []
    with tempfile.TemporaryDirectory() as folder:
        partition(load_graph(DATA / f"{args.graph}.npz"), args.parts, f"{folder}/shards")
        for link in map(float, args.links.split(",")):
            command = [sys.executable, __file__, "--rank", f"{folder}/shards"]
            command += ["--hidden", str(args.hidden), "--runs", str(args.runs)]
            found = json.loads(run_ranks(command, args.parts, link or None).splitlines()[-1])
            results.append({"link_mbit": link, "ranks": args.parts, "hidden": args.hidden, **found})
    if args.json:
        print(json.dumps({"processor": processor(), "results": results}))
        return
    rows = [
        [
            each["link_mbit"] or "loopback",
            format_bytes(each["bytes"]),
            *(f"{each[way]:.3f}" for way in WAYS),
            f"{each['ratio']:.2f}",
        ]
        for each in results
    ]
    print(processor())
    print(table(["link, Mbit/s", "gradients", "after, s", "during, s", "no sum, s", "after / during"], rows))


if __name__ == "__main__":
    main()
