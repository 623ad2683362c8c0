"""Full-graph training of an attention network by dgl-gt, by SAR over DGL's operators, and by DGL in one process.

    python benchmarks/sar.py --sar CHECKOUT [--parts 2] [--epochs 3] [--turns 2] [--model dotgat,qkv] [--json]

CHECKOUT is github.com/IntelLabs/SAR at 5309fed (Mostafa, MLSys 2022), with its ``import ifaddr`` in sar/comm.py moved
into ``get_socket``, which is not called here; or as it is, with ifaddr installed.

The network has 3 layers of dot-product attention over in-edges, 8 heads of 16, then ReLU each, and a linear head.
Projections have no bias; ``dotgat`` (``dgl.nn.DotGatConv``) has one for queries, keys and values, ``qkv`` has three.
Weights, features (random, 128 wide), labels (of 40 classes), loss and Adam are the same for all, and so is the
partition: SAR reads the shards as exported to DGL's format, DGL alone has the whole graph in the same node order. Ranks
have one thread each and talk through gloo on the loopback. The benchmark stops unless losses and first gradients agree.

SAR runs in each of the modes of its documentation; its fastest, one-shot, takes turns with dgl-gt, and the others run
once. Each run has processes of its own and drops its first epoch; seconds are the slowest rank's, the median of all.
Every run is made with the allocator as it is and with freed memory kept (as ``dgl-gt train`` sets it):
the ratio is of each one's better time to dgl-gt's better time. Bytes are the node rows that a rank sends in an epoch,
without the sum of parameter gradients; memory is the whole process; both are the largest rank's.
The last columns say how many cores other processes had meanwhile; ``--quiet`` waits before each run until they rest.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from exchange import CLASSES, HEADS, HIDDEN, LAYERS, WIDTH
from machine import DATA, processor

import psutil  # isort: skip
import torch
import torch.distributed as dist
from torch import nn

from dgl_gt.partition import partition
from dgl_gt.partition.console import table
from dgl_gt.partition.shards.dgl_export import export_dgl
from dgl_gt.partition.system.allocator import environment_of_ranks
from dgl_gt.partition.system.units import format_bytes

MODELS = {"dotgat": 1, "qkv": 3}  # and their projections
STRATEGIES = {"dotgat": "halo_h", "qkv": "halo_kv"}  # of dgl-gt: in dotgat, keys and values are the same row
MODES = {"one-shot": "SAR one-shot", "disable_sr": "SAR sequential", "sar": "SAR rematerialised"}  # by sar.Config
TOLERANCE = 1e-4  # relative
RUN_S = 600

# ---- a rank -------------------------------------------------------------------------------------------------------


class Net(nn.Module):
    """The network; ``attend(graph, h, projections)`` is the tool's."""

    def __init__(self, kind: str, attend):
        super().__init__()
        widths = [WIDTH] + [HIDDEN] * (LAYERS - 1)
        linears = [[nn.Linear(width, HIDDEN, bias=False) for _ in range(MODELS[kind])] for width in widths]
        self.layers = nn.ModuleList(map(nn.ModuleList, linears))
        self.head = nn.Linear(HIDDEN, CLASSES)
        self.attend = attend

    def forward(self, graph, h):
        for projections in self.layers:
            h = self.attend(graph, h, projections).relu()
        return self.head(h)


def over_dgl(edge_softmax):
    """Attention as a DGL user writes it, which SAR takes as it is."""
    import dgl.function as fn

    def attend(graph, h, projections):
        rows = [projection(h).unflatten(1, (HEADS, -1)) for projection in projections]
        with graph.local_scope():
            value = "v" if len(rows) == 3 else "k"  # what is put into srcdata travels: once where keys are values
            graph.srcdata["k"] = rows[len(rows) // 2]
            if len(rows) == 3:
                graph.srcdata["v"] = rows[2]
            graph.dstdata["q"] = rows[0]
            graph.apply_edges(fn.u_dot_v("k", "q", "score"))
            scores = graph.edata.pop("score") / math.sqrt(HIDDEN // HEADS)
            graph.edata["weight"] = edge_softmax(graph, scores)
            graph.update_all(fn.u_mul_e(value, "weight", "message"), fn.sum("message", "out"))
            return graph.dstdata["out"].flatten(1)

    return attend


def over_view(view, h, projections):
    """Attention of dgl-gt; one projection in three roles is a view of itself."""

    def project(rows, which):
        if len(projections) == 1:
            made = projections[0](rows).unflatten(1, (1, HEADS, -1)).expand(-1, len(which), -1, -1)
        else:
            weights = [projections["qkv".index(letter)].weight for letter in which]
            made = nn.functional.linear(rows, torch.cat(weights)).unflatten(1, (len(which), HEADS, -1))
        return made.squeeze(1) if len(which) == 1 else made

    return view.attend(h, project).flatten(1)


class OnDglGt:
    """A rank of dgl-gt: its graph, features, user's node ids, attention, and bytes of node rows sent."""

    def __init__(self, args):
        import dgl_gt

        sg = dgl_gt.load(args.rank_of / "shards", args.option)
        self.graph, self.feat, self.node_ids, self.attend = sg.view, sg.ndata["feat"], sg.node_ids, over_view
        self.sum_gradients = lambda model: sg.comm.sum_gradients(model.parameters())
        self.sent_bytes = lambda: sg.comm.sent_bytes


class OnSar:
    """A rank of SAR; with gloo it sends node rows by isend alone."""

    def __init__(self, args):
        sys.path.insert(0, str(args.sar))  # before this file, which has the same name
        import sar

        rank, isend, sent = dist.get_rank(), dist.isend, []

        def counted(tensor, *arguments, **options):
            sent.append(tensor.nbytes)
            return isend(tensor, *arguments, **options)

        dist.isend, self.sent_bytes = counted, lambda: sum(sent)
        sar.initialize_comms(rank, dist.get_world_size(), os.environ["MASTER_ADDR"], "gloo")  # keeps the group at hand
        sar.Config.disable_sr = args.option == "disable_sr"
        book = args.rank_of / "dgl" / "graph.json"
        data = sar.load_dgl_partition_data(str(book), rank, torch.device("cpu"))
        self.feat, self.node_ids = sar.suffix_key_lookup(data.node_features, "feat"), user_ids(book, rank)
        manager = sar.construct_full_graph(data)
        self.graph = manager.get_full_partition_graph() if args.option == "one-shot" else manager
        self.attend, self.sum_gradients = over_dgl(sar.patched_edge_softmax), sar.gather_grads


class OnDgl:
    """DGL in one process, with the whole graph in the order of the parts."""

    def __init__(self, args):
        import dgl

        book = args.rank_of / "dgl" / "graph.json"
        edges, feat, node_ids = [], [], []
        for part in range(json.loads(book.read_text())["num_parts"]):
            graph, data, *_ = dgl.distributed.load_partition(str(book), part)
            inner = graph.edata["inner_edge"].bool()
            edges.append(graph.ndata[dgl.NID][torch.stack(graph.edges())[:, inner]])
            feat.append(data["_N/feat"])
            node_ids.append(user_ids(book, part))
        self.feat, self.node_ids = torch.cat(feat), torch.cat(node_ids)
        self.graph = dgl.graph(tuple(torch.cat(edges, 1)), num_nodes=len(self.feat))
        self.attend = over_dgl(dgl.nn.functional.edge_softmax)
        self.sum_gradients, self.sent_bytes = lambda model: None, lambda: 0


def user_ids(book: Path, part: int) -> torch.Tensor:
    """The user's ids of a part's nodes, which the export keeps."""
    from safetensors.torch import load_file

    return load_file(book.parent / f"part{part}" / "original_ids.safetensors")["node_ids"]


def rank_main(args) -> None:
    """Train; rank 0 prints one JSON line."""
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    dist.init_process_group("gloo")
    side = {"dgl-gt": OnDglGt, "SAR": OnSar, "DGL": OnDgl}[args.tool](args)
    torch.manual_seed(0)
    model = Net(args.model, side.attend)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    label, nodes = side.node_ids % CLASSES, int(over_ranks(len(side.node_ids)))
    figures = {"seconds": [], "losses": [], "norms": []}
    for _ in range(args.epochs):
        over_ranks(0.0)  # all start together
        before, started = side.sent_bytes(), time.perf_counter()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(side.graph, side.feat), label, reduction="sum") / nodes
        loss.backward()
        side.sum_gradients(model)
        optimizer.step()
        figures["seconds"].append(over_ranks(time.perf_counter() - started, "MAX"))
        figures["losses"].append(over_ranks(loss.item()))
        figures["norms"].append(float(torch.cat([each.grad.flatten() for each in model.parameters()]).norm()))
        del loss
    figures["sent_bytes"] = int(over_ranks(side.sent_bytes() - before, "MAX"))
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    figures["rss_bytes"] = int(over_ranks(1024 * int(peak.split()[1]), "MAX"))
    if dist.get_rank() == 0:
        print(json.dumps(figures), flush=True)
    dist.destroy_process_group()


def over_ranks(value: float, op: str = "SUM") -> float:
    """Sum or maximum over ranks."""
    total = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(total, getattr(dist.ReduceOp, op))
    return float(total[0])


# ---- starting ranks -----------------------------------------------------------------------------------------------


def run(folder: Path, args, model: str, name: str, tool: str, option: str, ranks: int, threads: int, keep: bool):
    """One run's figures."""
    command = [sys.executable, __file__, "--rank-of", folder, "--tool", tool, "--option", option, "--model", model]
    command += ["--epochs", args.epochs, "--sar", args.sar]
    kept = environment_of_ranks()
    env = {key: value for key, value in os.environ.items() if key not in kept} | (kept if keep else {})
    env |= {"OMP_NUM_THREADS": str(threads), "DGLBACKEND": "pytorch", "GLOO_SOCKET_IFNAME": "lo"}
    env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(29500 + os.getpid() % 1000), "WORLD_SIZE": str(ranks)}
    deadline = time.monotonic() + args.quiet
    while time.monotonic() < deadline and psutil.cpu_percent(3) > 10 / psutil.cpu_count():
        pass
    before, started = (busy_s(), children_s()), time.perf_counter()
    processes = []
    try:
        for rank in range(ranks):
            env["RANK"] = str(rank)
            processes.append(subprocess.Popen(list(map(str, command)), env=env, stdout=subprocess.PIPE, text=True))
        output, _ = processes[0].communicate(timeout=RUN_S)
        if any(process.wait(timeout=60) for process in processes):
            raise RuntimeError(f"{name}: ranks ended with {[process.returncode for process in processes]}")
    finally:
        for process in processes:
            process.kill()
    wall = time.perf_counter() - started
    others = (busy_s() - before[0] - children_s() + before[1]) / wall
    made = {"model": model, "name": name, "tool": tool, "ranks": ranks, "threads": threads, "keep": keep}
    made |= {"others_cores": others, "wall_s": wall, **json.loads(output)}
    print(f"{model}, {name}{', memory kept' if keep else ''}: {made['seconds']}, others {others:.2f}", file=sys.stderr)
    return made


def busy_s() -> float:
    """CPU seconds of all processes of the machine."""
    times = psutil.cpu_times()
    return sum(times) - times.idle - times.iowait - times.guest - times.guest_nice  # guests are users, too


def children_s() -> float:
    """Those of this benchmark's runs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def check(runs: list[dict]) -> None:
    """Raise unless losses are the same in all runs of a network, and so is the first gradient's norm.

    Adam divides each gradient by its size, so that later ones differ by more than rounding.
    """
    for each in runs:
        for figure in ("losses", "norms"):
            pairs = list(zip(runs[0][figure], each[figure]))[: 1 if figure == "norms" else None]
            if not all(math.isclose(*pair, rel_tol=TOLERANCE) for pair in pairs):
                raise RuntimeError(f"{figure} of {runs[0]['name']} and {each['name']} differ: {pairs}")


def measure(folder: Path, args, model: str) -> list[dict]:
    """All runs of one network."""
    ours = ("dgl-gt", "dgl-gt", args.strategy or STRATEGIES[model], args.parts, 1)
    once = [(MODES[mode], "SAR", mode, args.parts, 1) for mode in MODES if mode != "one-shot"]
    once += [(f"DGL alone, {threads} thread{'s'[: threads - 1]}", "DGL", "", 1, threads) for threads in (1, 2)]
    turn = [(MODES["one-shot"], "SAR", "one-shot", args.parts, 1), ours]
    runs = [run(folder, args, model, *case, keep) for case in turn * args.turns + once for keep in (False, True)]
    check(runs)
    return runs


def summary(runs: list[dict]) -> list[dict]:
    """One row a network and tool."""
    rows = []
    for model, name in dict.fromkeys((each["model"], each["name"]) for each in runs):
        row = {"model": model, "name": name}
        for keep, key in ((False, "as_is"), (True, "kept")):
            mine = [each for each in runs if (each["model"], each["name"], each["keep"]) == (model, name, keep)]
            seconds = statistics.median(value for each in mine for value in each["seconds"][1:])
            most = {figure: max(each[figure] for each in mine) for figure in ("rss_bytes", "others_cores")}
            row[key] = {"seconds": seconds, **most}
            row |= {"sent_bytes": mine[0]["sent_bytes"], "ranks": mine[0]["ranks"]}
        rows.append({**row, "better_s": min(row["as_is"]["seconds"], row["kept"]["seconds"])})
    for row in rows:
        ours = next(each for each in rows if (each["model"], each["name"]) == (row["model"], "dgl-gt"))
        row["of_ours"] = row["better_s"] / ours["better_s"]
    return rows


def report(rows: list[dict]) -> str:
    """One table."""
    header = ["network", "training", "ranks", "s / epoch", "kept", "better / ours", "sent / rank", "RSS / rank", "kept"]
    cells = []
    for row in rows:
        both = row["as_is"], row["kept"]
        cell = [row["model"], row["name"], row["ranks"], *(f"{each['seconds']:.2f}" for each in both)]
        cell += [f"{row['of_ours']:.2f}", format_bytes(row["sent_bytes"]) if row["ranks"] > 1 else ""]
        cell += [format_bytes(each["rss_bytes"]) for each in both]
        cells.append([*cell, *(f"{each['others_cores']:.2f}" for each in both)])
    return table([*header, "others' cores", "kept"], cells)


def main() -> None:
    parser = argparse.ArgumentParser(description="dgl-gt compared with SAR and with DGL alone.")
    parser.add_argument("--sar", type=Path, required=True, help="a checkout of IntelLabs/SAR, see the top of this file")
    parser.add_argument("--graph", default="ogbn_arxiv_nofeat", help="of the data folder, without features")
    parser.add_argument("--parts", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3, help="of each run; the first is dropped")
    parser.add_argument("--turns", type=int, default=2, help="of SAR one-shot and dgl-gt")
    parser.add_argument("--model", default=",".join(MODELS))
    parser.add_argument("--strategy", help="of dgl-gt, on an edge cut (default: halo_kv, for dotgat halo_h)")
    parser.add_argument("--quiet", type=float, default=0, metavar="S", help="wait so long for others to be idle")
    parser.add_argument("--json", action="store_true")
    for hidden, kind in (("--tool", str), ("--option", str), ("--rank-of", Path)):
        parser.add_argument(hidden, type=kind, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank_of:
        return rank_main(args)
    if not (args.sar / "sar" / "comm.py").is_file():
        parser.error(f"{args.sar} is no checkout of IntelLabs/SAR")
    os.environ["DGLBACKEND"] = "pytorch"
    real = DATA / f"{args.graph}.npz"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = str(real) if real.is_file() else args.graph
        partition(source, args.parts, folder / "shards", cut="edge", random_features=WIDTH)
        export_dgl(folder / "shards", folder / "dgl", graph_name="graph")
        runs = [each for model in args.model.split(",") for each in measure(folder, args, model)]
    rows = summary(runs)
    print(json.dumps({"rows": rows, "runs": runs}) if args.json else f"{processor()}\n\n{report(rows)}")


if __name__ == "__main__":
    main()
