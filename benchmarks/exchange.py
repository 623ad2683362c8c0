"""Every exchange strategy on one graph: seconds, bytes and memory of a training step, on ranks of one thread each.

    python benchmarks/exchange.py [--graph ogbn_arxiv_nofeat] [--parts 1,2,4] [--runs 5] [--link-mbit 200] [--json]

A step is forward, backward, gradient sum and optimiser of a 3-layer graph transformer (hidden 128, 8 heads, feed-
forward of twice that), float32, without dropout, on the graph's features, or random ones of width 128, and labels of
40 classes. Four strategies at a time run in the same processes and take turns, one step each, after an
untimed step of their own; medians of the slowest rank's seconds. Cuts are the partitioner's, one attempt. Ranks keep
freed memory, as under ``dgl-gt train``.

Bytes are the most that a rank sends in a step; the benchmark stops if those of all ranks are not what a trace of the
step says.
Tensors are the most that a rank has alive at once in a step, features and structure included, model and optimiser
aside; buffers, in the attention of a layer of one hop, what is alive beyond what owned rows alone need. Neither is
measured with ``--link-mbit``. That puts each rank into its own network namespace behind a token bucket of such a rate
(Linux, root, iproute2); else ranks talk over the loopback.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from links import run_ranks
from machine import DATA, processor

from dgl_gt.partition import load_graph, partition, read_manifest
from dgl_gt.partition.console import table
from dgl_gt.partition.figures.strategies import strategy_of
from dgl_gt.partition.shards.counts import read_figures
from dgl_gt.partition.system.units import format_bytes
from dgl_gt.plan.tracing import record_trace

WIDTH, CLASSES, LAYERS, HIDDEN, HEADS = 128, 40, 3, 128, 8
EDGE = [("halo_h", 1), ("halo_kv", 1), ("halo_h", 2), ("halo_h", 3), ("gather", 1), ("heads", 1), ("ring", 1)]


def cases(parts: int, overlaps: list[bool]) -> list[tuple[str, int, bool]]:
    """Strategy, depth and overlap of each row."""
    if parts == 1:
        return [("local", 1, True)]
    rows = [(name, depth, overlap) for name, depth in [*EDGE, ("mirror", 1)] for overlap in overlaps]
    return [
        row for row in rows if row[2] is overlaps[0] or (row[0] != "heads" and (row[1] == 1 or LAYERS % row[1] == 1))
    ]


# ---- a rank -------------------------------------------------------------------------------------------------------


class Runner:
    """One strategy's graph, model and optimiser on this rank."""

    def __init__(self, sg):
        import torch

        from dgl_gt.nn import GraphTransformer

        self.sg = sg
        torch.manual_seed(0)
        self.feat = sg.srcdata["feat"] if sg.depth > 1 else sg.ndata["feat"]
        self.feat = self.feat.float()
        self.label = sg.node_ids[: sg.num_nodes()] % CLASSES
        self.model = GraphTransformer(self.feat.shape[1], HIDDEN, CLASSES, LAYERS, HEADS)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def step(self) -> tuple[float, int]:
        """Seconds and bytes sent; all ranks start together."""
        import torch

        comm = self.sg.comm
        comm.all_reduce(torch.zeros(1))
        before, started = comm.sent_bytes, time.perf_counter()
        self.optimizer.zero_grad()
        logits = self.model(self.sg.taking_held_rows(), self.feat)
        loss = torch.nn.functional.cross_entropy(logits, self.label, reduction="sum") / self.sg.manifest["nodes"]
        loss.backward()
        comm.sum_gradients(self.model.parameters())
        self.optimizer.step()
        return time.perf_counter() - started, comm.sent_bytes - before

    def live_bytes(self) -> int:
        """Peak of live tensors in a step, with features and structure."""
        from dgl_gt.plan.watch import LiveTensors, storage_bytes

        with LiveTensors() as live:
            self.step()
        return live.peak_bytes + storage_bytes(self.sg, self.feat)

    def buffer_bytes(self) -> int:
        """Peak of live tensors in one layer's attention, forward and backward, beyond that of owned rows alone."""
        import torch

        from dgl_gt.exchange.local import Local
        from dgl_gt.plan.watch import LiveTensors
        from dgl_gt.structure import CSC

        def project(h, which):
            packed = h.unflatten(1, (HEADS, -1)).unsqueeze(1)
            return packed.squeeze(1) if which == "q" else packed.repeat(1, len(which), 1, 1)

        rows = self.sg.view.num_owned
        nothing = torch.zeros(rows + 1, dtype=torch.int64), torch.empty(0, dtype=torch.int32)
        peaks = []
        for view in (self.sg.view, Local(CSC.build(*nothing, rows))):
            h = torch.randn(rows, HIDDEN, requires_grad=True)
            with LiveTensors() as live:
                view.attend(h, project).sum().backward()
            peaks.append(live.peak_bytes)
        return peaks[0] - peaks[1]


def rank_main(folder: Path, rows: list, runs: int, with_memory: bool) -> None:
    """Take turns; rank 0 prints one JSON line a row."""
    import torch
    import torch.distributed as dist

    import dgl_gt

    torch.set_num_threads(1)
    world = int(os.environ["WORLD_SIZE"])
    if world > 1:
        dist.init_process_group("gloo")
    runners = [
        Runner(dgl_gt.load(cut_for(folder, name), name, depth, overlap=overlap)) for name, depth, overlap in rows
    ]
    for runner in runners:
        runner.step()
    timed, sent_bytes = [[] for _ in runners], [0] * len(runners)
    for _ in range(runs):
        for number, (runner, times) in enumerate(zip(runners, timed)):
            seconds, sent_bytes[number] = runner.step()
            slowest = runner.sg.comm.all_reduce(torch.tensor([seconds], dtype=torch.float64), "max")
            times.append(float(slowest[0]))
    for row, runner, times, sent in zip(rows, runners, timed, sent_bytes):
        comm = runner.sg.comm
        memory = [0, 0]
        if with_memory:  # sg.view is of one hop, whatever the depth
            memory = [runner.live_bytes(), runner.buffer_bytes() if row[1] == 1 else 0]
        most = comm.all_reduce(torch.tensor([sent, *memory]), "max").tolist()
        of_all = int(comm.all_reduce(torch.tensor([sent]))[0])
        if comm.rank == 0:
            figures = {"seconds": statistics.median(times), "sent_bytes": most[0], "sent_by_all": of_all}
            figures |= {"live_bytes": most[1], "buffer_bytes": most[2]}
            print(
                json.dumps({"strategy": row[0], "depth": row[1], "overlap": row[2], "ranks": world, **figures}),
                flush=True,
            )
    if world > 1:
        dist.destroy_process_group()


def cut_for(folder: Path, strategy: str) -> Path:
    """The shards on which a strategy runs."""
    return folder / ("vertex" if strategy == "mirror" else "edge")


def traced_bytes(folder: Path, strategy: str, depth: int, overlap: bool) -> int:
    """What all ranks together send in a step, from a trace of it."""
    figures = read_figures(read_manifest(cut_for(folder, strategy)))
    columns = figures.node_data, figures.edge_data
    trace = record_trace(
        lambda sg: Runner(sg).step, strategy_of(strategy), depth, figures.parts, *columns, overlap=overlap
    )
    return trace.sent_bytes(figures)


# ---- starting ranks -----------------------------------------------------------------------------------------------


def run(parts: int, folder: Path, args) -> list[dict]:
    """The rows of one number of ranks."""
    rows = [row for row in cases(parts, [True, False]) if not args.strategies or row[0] in args.strategies]
    return [row for begin in range(0, len(rows), 4) for row in _start(parts, folder, rows[begin : begin + 4], args)]


def _start(parts: int, folder: Path, rows: list, args) -> list[dict]:
    """A few rows, so that few graphs and models are in memory at once."""
    command = [sys.executable, __file__, "--rank-of", str(folder), "--rows", json.dumps(rows), "--runs", str(args.runs)]
    command += ["--link-mbit", str(args.link_mbit)] if args.link_mbit else []
    output = run_ranks(command, parts, args.link_mbit)
    print(output, end="", file=sys.stderr, flush=True)  # as it comes: the table waits for the last row
    found = [json.loads(line) for line in output.splitlines()]
    for row, figures in zip(rows, found, strict=True):
        expected = traced_bytes(folder, *row)
        if figures["sent_by_all"] != expected:
            raise RuntimeError(f"{row} sent {figures['sent_by_all']} bytes a step; the trace says {expected}")
    return found


def shards(graph: str, parts: int, folder: Path) -> None:
    """Both cuts."""
    missing = {} if "feat" in load_graph(graph).node_data else {"random_features": WIDTH}
    partition(graph, parts, folder / "edge", halo_depth=3 if parts > 1 else 1, **missing)
    if parts > 1:
        partition(graph, parts, folder / "vertex", cut="vertex", **missing)


def report(rows: list[dict]) -> str:
    """One table."""
    alone = next((row for row in rows if row["ranks"] == 1), None)
    cells = []
    for row in rows:
        name = row["strategy"] + (f", depth {row['depth']}" if row["depth"] > 1 else "")
        cell = [row["ranks"], name, "yes" if row["overlap"] else "no", f"{row['seconds']:.3f}"]
        cell += [f"{alone['seconds'] / row['seconds']:.2f}" if alone else "", format_bytes(row["sent_bytes"])]
        if row["live_bytes"]:
            share = f"{row['live_bytes'] / alone['live_bytes']:.2f}" if alone else ""
            cell += [
                format_bytes(row["live_bytes"]),
                share,
                format_bytes(max(row["buffer_bytes"], 0)) if row["depth"] == 1 else "",
            ]
        cells.append(cell)
    header = "ranks|strategy|overlap|s / step|speed-up|sent / rank|tensors / rank|of one|buffers".split("|")
    return table(header[: len(cells[-1])], cells)


def main() -> None:
    parser = argparse.ArgumentParser(description="Every exchange strategy on one graph.")
    parser.add_argument("--graph", default="ogbn_arxiv_nofeat", help="of the data folder, or any source")
    parser.add_argument("--parts", default="1,2,4")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--link-mbit", type=float, help="of each rank, in network namespaces")
    parser.add_argument("--strategies", type=lambda text: text.split(","), help="some alone")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rank-of", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--rows", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank_of:
        return rank_main(args.rank_of, args.rows, args.runs, not args.link_mbit)
    real = DATA / f"{args.graph}.npz"
    rows = []
    for parts in map(int, args.parts.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            shards(str(real) if real.is_file() else args.graph, parts, Path(folder))
            rows += run(parts, Path(folder), args)
    print(json.dumps({"processor": processor(), "rows": rows}) if args.json else f"{processor()}\n\n{report(rows)}")


if __name__ == "__main__":
    main()
