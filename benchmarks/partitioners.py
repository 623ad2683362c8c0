"""Wall time and peak memory of ``dgl_gt.partition.partition`` compared with ``dgl.distributed.partition_graph``.

    python benchmarks/partitioners.py [--source SOURCE ...] [--parts 4] [--runs 3] [--json]

Each tool runs in a fresh process, which first loads the same graph (ours as a ``Graph``, DGL's as a ``DGLGraph`` with
the same node data) and imports what it needs. From there on counts: the seconds of one call, writing to disk
included, and the memory that this process and all its children hold together. Memory is the proportional set size
(PSS), which counts a page that several processes map once; it is polled, so peaks shorter than ``--interval`` can be
missed, by every tool alike. As a look at a process's memory holds it up, a run calls each tool twice: once on the
clock, once watched. Tools take turns within a run, and the table shows medians over runs. Cut, halo and balances are
computed by the same code from each tool's assignment of nodes to parts, and checked against the halo that the tool
wrote. Linux only.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path

import numpy as np
from machine import DATA, memory_bytes, processor

from dgl_gt.partition.console import table
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.system.units import format_bytes

GENERATED = "sample:communities?nodes=500000&degree=20&features=32&seed=0"
REAL = "ogbn_arxiv_nofeat.npz"
OURS, PEER = "dgl-gt", "DGL"
_MIB = 1 << 20


# What runs in the measured process.


def _prepare(connection, source: str, folder: Path) -> None:
    """Write a graph as plain arrays, so that loading it leaves nothing behind in the measured process."""
    from dgl_gt.partition import load_graph

    try:
        graph = load_graph(source)
    except InputError as error:
        return connection.send(error)
    src, dst = np.empty(graph.num_edges, np.int64), np.empty(graph.num_edges, np.int64)
    src[graph.edge_ids], dst[graph.edge_ids] = graph.indices, graph.destinations()
    arrays = {"src": src, "dst": dst, "indptr": graph.indptr, "indices": graph.indices, "edge_ids": graph.edge_ids}
    arrays |= {f"node_data {key}": value for key, value in graph.node_data.items()}
    arrays |= {f"edge_data {key}": value for key, value in graph.edge_data.items()}
    for key, value in arrays.items():
        np.save(folder / f"{key}.npy", value)
    node_data = {key: f"{value.dtype}{list(value.shape[1:]) or ''}" for key, value in graph.node_data.items()}
    connection.send({"name": graph.name, "nodes": graph.num_nodes, "edges": graph.num_edges, "node_data": node_data})


def _data(folder: Path, kind: str) -> dict[str, np.ndarray]:
    return {path.stem.removeprefix(f"{kind} "): np.load(path) for path in sorted(folder.glob(f"{kind} *.npy"))}


class _Ours:
    """``dgl_gt.partition.partition``, with METIS or in the memory that another way of cutting needs."""

    def __init__(self, method: str = "metis", **options):
        self._method, self._options = method, options

    def load(self, folder: Path) -> None:
        from dgl_gt.partition import pipeline
        from dgl_gt.partition.graph import Graph

        self._partition = pipeline.partition
        structure = {key: np.load(folder / f"{key}.npy") for key in ("indptr", "indices", "edge_ids")}
        self._graph = Graph(**structure, node_data=_data(folder, "node_data"), edge_data=_data(folder, "edge_data"))

    def cut(self, parts: int, out: Path) -> None:
        memory = {}
        if self._method != "metis":
            from dgl_gt.partition.config import PartitionConfig
            from dgl_gt.partition.memory_bound import estimate_needs, measure_source

            sizes = measure_source(self._graph, PartitionConfig(parts=parts))
            memory = {"memory": estimate_needs(sizes, self._method).memory_bytes}
        self._manifest = self._partition(self._graph, parts, out / "shards", **self._options, **memory)
        if self._manifest["method"] != self._method:
            raise RuntimeError(f"the cut was made by {self._manifest['method']}, not by {self._method}")

    def vertex_cut(self) -> dict | None:
        """The figures of a vertex cut, which has no owner of nodes to judge; None of an edge cut."""
        return self._manifest["quality"] if self._manifest["cut"] == "vertex" else None

    def owner(self, out: Path) -> np.ndarray:
        from safetensors.numpy import load_file

        owner = np.empty(self._graph.num_nodes, np.int64)
        for index, part in enumerate(self._manifest["per_part"]):
            owner[load_file(out / "shards" / f"part{index}" / "structure.safetensors")["node_ids"][: part["owned"]]] = (
                index
            )
        return owner

    def halo(self, out: Path) -> int:
        return self._manifest["quality"]["halo"]


class _DGL:
    """``dgl.distributed.partition_graph``, one hop of halo."""

    def __init__(self, **options):
        self._options = options

    def load(self, folder: Path) -> None:
        import dgl
        import torch

        ends = tuple(torch.from_numpy(np.load(folder / f"{key}.npy")) for key in ("src", "dst"))
        nodes = len(np.load(folder / "indptr.npy", mmap_mode="r")) - 1
        self._dgl, self._graph = dgl, dgl.graph(ends, num_nodes=nodes)
        for data, kind in ((self._graph.ndata, "node_data"), (self._graph.edata, "edge_data")):
            data.update({key: torch.from_numpy(value) for key, value in _data(folder, kind).items()})

    def cut(self, parts: int, out: Path) -> None:
        # the mapping is computed and held to the end whether it is asked for or not
        self._original, _ = self._dgl.distributed.partition_graph(
            self._graph, "g", parts, str(out), num_hops=1, part_method="metis", return_mapping=True, **self._options
        )

    def vertex_cut(self) -> None:
        """DGL makes edge cuts alone."""

    def owner(self, out: Path) -> np.ndarray:
        owner = np.empty(self._graph.num_nodes(), np.int64)
        for index, (begin, end) in enumerate(json.loads((out / "g.json").read_text())["node_map"]["_N"]):
            owner[self._original[begin:end].numpy()] = index
        return owner

    def halo(self, out: Path) -> int:
        graphs = (self._dgl.load_graphs(str(path))[0][0] for path in out.glob("part*/graph.dgl"))
        return sum(int((graph.ndata["inner_node"] == 0).sum()) for graph in graphs)


TOOLS = {
    OURS: _Ours(),
    "dgl-gt, vertex cut, expansion": _Ours("expansion", cut="vertex"),
    PEER: _DGL(),
    "DGL, balance_edges": _DGL(balance_edges=True),
}


def _work(connection, name: str, folder: Path, parts: int, out: Path) -> None:
    """Load, wait, cut, wait, judge: the parent reads this process's memory between the messages."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # DGL tells its progress on stdout, where --json goes
    os.chdir(out)  # a METIS child looks for `partition` in its working directory first: not in this script's folder
    tool = TOOLS[name]
    tool.load(folder)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # freed memory is no part of the loaded graph
    connection.send("loaded")
    connection.recv()
    started, busy_before = time.perf_counter(), _busy_s()
    tool.cut(parts, out)
    connection.send({"seconds": time.perf_counter() - started, "cpu_seconds": _busy_s() - busy_before})
    connection.recv()
    connection.send(_figures(folder, tool, parts, out))


def _busy_s() -> float:
    """CPU seconds of this process, all its threads and the children that have ended."""
    return sum(os.times()[:4])


def _figures(folder: Path, tool, parts: int, out: Path) -> dict:
    """Quality from the assignment, the same way for every tool, and bytes on disk."""
    from dgl_gt.partition.figures.figures import edge_cut_quality

    disk_bytes = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    if tool.vertex_cut():
        return {"disk_bytes": disk_bytes, **tool.vertex_cut()}
    owner = tool.owner(out)
    src, dst = np.load(folder / "src.npy"), np.load(folder / "dst.npy")
    crossing = np.flatnonzero(owner[src] != owner[dst])
    source, part = src[crossing], owner[dst[crossing]]
    halo = [len(np.unique(source[part == index])) for index in range(parts)]
    edges = np.bincount(owner[dst], minlength=parts)
    quality = edge_cut_quality(np.bincount(owner, minlength=parts), halo, edges, len(crossing))
    if quality["halo"] != tool.halo(out):
        raise RuntimeError(f"{tool.halo(out)} halo rows were written, but the assignment makes {quality['halo']}")
    return {"disk_bytes": disk_bytes, **quality}


# What runs in the measuring process.


class _Process:
    """A fresh process with a pipe to it; ended on leaving the block."""

    def __init__(self, target, *args):
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=target, args=(theirs, *args))
        self._process.start()
        theirs.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.terminate()
        self._process.join()

    @property
    def pid(self) -> int:
        return self._process.pid

    def go_on(self) -> None:
        self._pipe.send("go on")

    def says_within(self, seconds: float | None) -> bool:
        return self._pipe.poll(seconds)

    def answer(self):
        try:
            said = self._pipe.recv()
        except EOFError:
            self._process.join()
            raise RuntimeError(f"the measured process ended with status {self._process.exitcode}") from None
        if isinstance(said, InputError):
            raise said
        return said


def measure(tool: str, folder: Path, parts: int, interval_s: float) -> dict:
    """One run of one tool.

    Returns
    -------
    dict
        ``seconds`` of the call; ``cpu_seconds``, children counted; ``graph_bytes``, the memory before it, interpreter
        and libraries included; ``peak_bytes`` over that; ``disk_bytes``; the figures of
        :func:`dgl_gt.partition.figures.figures.edge_cut_quality`.
    """
    times, _, _ = _call(tool, folder, parts, None)
    _, memory, figures = _call(tool, folder, parts, interval_s)
    return {**times, **memory, **figures}


def _call(tool: str, folder: Path, parts: int, interval_s: float | None) -> tuple[dict, dict, dict]:
    """Times, memory and figures of one call in a fresh process, watched every ``interval_s`` seconds or not at all."""
    os.sync()  # what the last call wrote shall not wait in this one's way
    with tempfile.TemporaryDirectory() as out, _Process(_work, tool, folder, parts, Path(out)) as process:
        process.answer()
        graph_bytes = peak_bytes = memory_bytes(process.pid)
        process.go_on()
        while not process.says_within(interval_s):
            peak_bytes = max(peak_bytes, memory_bytes(process.pid))
        times = process.answer()
        process.go_on()
        return times, {"graph_bytes": graph_bytes, "peak_bytes": peak_bytes - graph_bytes}, process.answer()


def compare(source: str, parts: int, runs: int, interval_s: float) -> dict:
    """All tools on one graph, taking turns.

    Returns
    -------
    dict
        ``graph``, and per tool the medians and the ``runs`` they come from.
    """
    with tempfile.TemporaryDirectory() as folder:
        with _Process(_prepare, source, Path(folder)) as process:
            graph = process.answer()
        results = {tool: [] for tool in TOOLS}
        for run in range(runs):
            for tool in TOOLS:
                results[tool].append(measure(tool, Path(folder), parts, interval_s))
                last = results[tool][-1]
                note = (
                    f"run {run + 1}, {tool}: {last['seconds']:.2f} s, {format_bytes(last['peak_bytes'])} over the graph"
                )
                print(note, file=sys.stderr, flush=True)
    medians = {
        tool: {key: statistics.median(run[key] for run in each) for key in each[0] if each[0][key] is not None}
        for tool, each in results.items()
    }
    return {"graph": graph, "tools": {tool: {**medians[tool], "runs": results[tool]} for tool in TOOLS}}


def _report(result: dict) -> str:
    graph, tools = result["graph"], result["tools"]
    header = ["tool", "seconds", "x DGL", "CPU s", "peak MiB", "x DGL", "graph MiB"]
    header += ["cut", "copies", "node bal.", "edge bal.", "disk MiB"]
    rows = []
    for tool, figures in tools.items():
        times, memory = (figures[key] / tools[PEER][key] for key in ("seconds", "peak_bytes"))
        row = [tool, f"{figures['seconds']:.2f}", f"{times:.2f}", f"{figures['cpu_seconds']:.2f}"]
        row += [f"{figures['peak_bytes'] / _MIB:,.0f}", f"{memory:.2f}"]
        row += [f"{figures['graph_bytes'] / _MIB:,.0f}"]
        vertex = "mirrors" in figures
        row += (
            ["", f"{figures['mirrors']:,.0f}"] if vertex else [f"{figures['cut_ratio']:.2%}", f"{figures['halo']:,.0f}"]
        )
        row += [
            f"{figures['node_balance']:.3f}",
            f"{figures['edge_balance']:.3f}",
            f"{figures['disk_bytes'] / _MIB:,.0f}",
        ]
        rows.append(row)
    node_data = ", ".join(f"{key} {shape}" for key, shape in graph["node_data"].items()) or "no node data"
    title = f"{graph['name']}: {graph['nodes']:,} nodes, {graph['edges']:,} edges; {node_data}"
    return f"{title}\n\n{table(header, rows)}"


def _conditions(args) -> dict:
    versions = {name: metadata.version(name) for name in ("numpy", "scipy", "pymetis", "torch", "dgl")}
    threads = os.environ.get("OMP_NUM_THREADS")
    machine = {"cores": len(os.sched_getaffinity(0)), "omp_num_threads": threads, "versions": versions}
    return {"parts": args.parts, "runs": args.runs, "interval_s": args.interval, **machine}


def main() -> int:
    """Run the comparison; 2 where a source cannot be read."""
    real = DATA / REAL
    parser = argparse.ArgumentParser(
        description="Partition, compared with dgl.distributed.partition_graph: seconds, memory, cut."
    )
    text = f"as for `dgl-gt partition`; may be given again (default: {GENERATED} and {real})".replace("%", "%%")
    parser.add_argument("--source", action="append", metavar="SOURCE", help=text)
    parser.add_argument("--parts", type=int, default=4, metavar="K", help="parts (default: 4)")
    parser.add_argument("--runs", type=int, default=3, help="runs of each tool; medians are shown (default: 3)")
    parser.add_argument(
        "--interval", type=float, default=0.05, metavar="S", help="seconds between looks at memory (default: 0.05)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout, the table on stderr")
    args = parser.parse_args()
    sources = args.source or [GENERATED, str(real)]
    if not args.source and not real.is_file():
        print(f"skipped {real}: no such file; $DGL_GT_DATA names the folder", file=sys.stderr)
        sources.remove(str(real))
    conditions = _conditions(args)
    stream = sys.stderr if args.json else sys.stdout
    threads = conditions["omp_num_threads"] or "unset"
    versions = ", ".join(f"{name} {version}" for name, version in conditions["versions"].items())
    print(f"{args.parts} parts, {processor()}, OMP_NUM_THREADS {threads}, runs: {args.runs}; {versions}", file=stream)
    results = []
    for source in sources:
        try:
            results.append({"source": source, **compare(source, args.parts, args.runs, args.interval)})
        except InputError as error:
            print(f"{parser.prog}: error: {error}", file=sys.stderr)
            return 2
        print(f"\n{_report(results[-1])}", file=stream, flush=True)
    if args.json:
        print(json.dumps({**conditions, "results": results}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
