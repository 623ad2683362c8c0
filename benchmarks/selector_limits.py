"""The selector where machines are tight or unequal, and a look ahead.

    python benchmarks/selector_limits.py limit      the pick and the run's memory as the limit of a rank is tightened
    python benchmarks/selector_limits.py unequal    a partition for ranks of unequal speed against an even one
    python benchmarks/selector_limits.py ahead      speed-up at 8 ranks from each part's step, run alone

`limit`: `dgl-gt train --strategy auto --rank-memory SIZE` on two ranks with both cuts of a graph at hand, from what is
plenty down to what is refused; the process's peak resident memory must stay below SIZE.

`unequal`: two ranks, each with a core of its own; another process is busy on the core of the second. Ranks
are measured as they are, the graph is partitioned evenly and by the weights that follow, and both are trained in turn.
Needs Linux and two cores.

`ahead`: of a graph in 8 parts, the best of several attempts, each part's training step runs alone on one core, what
others would send being there at once, and so does the whole graph's. To the slowest part's seconds come exchanges, as
far as the preset says that computation does not hide them, and the sum of gradients, over the links of that preset.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

from machine import DATA, processor

from dgl_gt.partition import partition, read_manifest
from dgl_gt.partition.console import table
from dgl_gt.partition.figures.strategies import strategy_of
from dgl_gt.partition.shards.counts import read_figures
from dgl_gt.partition.system.allocator import environment_of_ranks
from dgl_gt.partition.system.units import format_bytes
from dgl_gt.plan import Tracer, read_profile
from dgl_gt.plan.trace import traced_time

LAYERS, HIDDEN, HEADS, WIDTH = 3, 128, 8, 128


def command(*arguments, check: bool = True) -> subprocess.CompletedProcess:
    """Run ``dgl-gt``."""
    line = [sys.executable, "-m", "dgl_gt", *map(str, arguments)]
    done = subprocess.run(line, capture_output=True, text=True)
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(map(str, arguments))}: {done.stderr}")
    return done


def source(args) -> Path:
    return DATA / f"{args.graph}.npz"


# ---- a limit -----------------------------------------------------------------------------------------------------


def limit(args) -> str:
    """Tighten the limit until nothing fits."""
    model = ["--layers", LAYERS, "--hidden", args.hidden, "--heads", HEADS]
    with tempfile.TemporaryDirectory() as folder:
        edge, vertex, profile = (Path(folder) / name for name in ("edge", "vertex", "profile.yaml"))
        partition(source(args), 2, edge, halo_depth=LAYERS)
        partition(source(args), 2, vertex, cut="vertex")
        command("calibrate", "--nproc", 2, "--out", profile)
        plan = json.loads(command("plan", edge, vertex, *model, "--profile", profile, "--json").stdout)
        bound, rows = plan["choice"]["predicted_memory_bytes"], []
        for _ in range(args.steps):
            auto = ["--strategy", "auto", "--profile", profile, "--rank-memory", int(bound), "--other-cut", vertex]
            done = command("train", edge, *auto, *model, "--epochs", 3, "--dropout", 0, "--json", check=False)
            if done.returncode:
                rows.append(
                    [format_bytes(bound), f"exit {done.returncode}: {done.stderr.splitlines()[-1][:60]}...", "", "", ""]
                )
                break
            run = json.loads(done.stdout)
            choice, peak = run["plan"]["chosen"], max(run["peak_memory_bytes"])
            predicted = run["plan"]["choice"]["memory_bytes"]
            fits = "yes" if peak <= bound else "NO"
            rows.append([format_bytes(bound), choice, format_bytes(predicted), format_bytes(peak), fits])
            print(rows[-1], file=sys.stderr, flush=True)
            bound = predicted - 2**20
    return table(["limit of a rank", "choice", "predicted", "resident", "below"], rows)


# ---- unequal ranks ------------------------------------------------------------------------------------------------


@contextmanager
def busy(core: int):
    """Another process on a core."""
    spinning = subprocess.Popen(["taskset", "-c", str(core), sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        spinning.kill()
        spinning.wait()


def on_cores(task: dict) -> str:
    """Two ranks, each on its own core; what rank 0 prints last."""
    ranks = []
    for rank in range(2):
        env = {
            **os.environ,
            **environment_of_ranks(),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(29500 + os.getpid() % 1000),
        }
        env |= {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
        line = ["taskset", "-c", str(rank), sys.executable, __file__, "rank", "--task", json.dumps(task)]
        ranks.append(subprocess.Popen(line, env=env, stdout=subprocess.PIPE, text=True))
    output, _ = ranks[0].communicate(timeout=1800)
    if any(rank.wait() for rank in ranks):
        raise RuntimeError(f"ranks ended with {[rank.returncode for rank in ranks]}")
    return output.splitlines()[-1]


def unequal(args) -> str:
    """Even and weighted partitions, one rank at half speed."""
    import yaml
    from selector import restore_keys

    with tempfile.TemporaryDirectory() as folder, busy(1):
        figures = json.loads(on_cores({"folders": []}))
        restore_keys(figures)
        path = Path(folder) / "profile.yaml"
        path.write_text(yaml.safe_dump(figures))
        weights = read_profile(path).target_weights()
        folders = [str(Path(folder) / name) for name in ("even", "weighted")]
        for each, target in zip(folders, (None, weights)):
            partition(source(args), 2, each, target_weights=target, **features(args))
        seconds = json.loads(on_cores({"folders": folders, "runs": args.runs, "hidden": args.hidden}))
        rows = []
        for name, each, taken in zip(("even", "weighted"), folders, seconds):
            owned, edges = ([part[key] for part in read_manifest(each)["per_part"]] for key in ("owned", "edges"))
            rows.append([name, *(", ".join(f"{each:,}" for each in counts) for counts in (owned, edges))])
            rows[-1] += [f"{statistics.median(taken):.3f}"]
        ratio = statistics.median(even / weighted for even, weighted in zip(*seconds))
    shown = ", ".join(f"{weight:.2f}" for weight in weights)
    return table(["partition", "nodes", "edges", "s / step"], rows) + f"\n\nweights {shown}; weighted is {ratio:.2f}x"


def features(args) -> dict:
    from dgl_gt.partition import load_graph

    return {} if "feat" in load_graph(source(args)).node_data else {"random_features": WIDTH}


def rank_main(task: dict) -> None:
    import torch
    import torch.distributed as dist
    from selector import Runner

    import dgl_gt
    from dgl_gt.comm.group import Comm
    from dgl_gt.plan.measure import measure

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    if not task["folders"]:
        profile = measure(Comm())
        if dist.get_rank() == 0:
            print(json.dumps(profile.as_dict()), flush=True)
        dist.destroy_process_group()
        return
    runners = [Runner(dgl_gt.load(folder, "halo_kv"), "gt", task["hidden"]) for folder in task["folders"]]
    for runner in runners:
        runner.step()
    seconds = [[] for _ in runners]
    for _ in range(task["runs"]):
        for runner, taken in zip(runners, seconds):
            taken.append(runner.seconds())
    if dist.get_rank() == 0:
        print(json.dumps(seconds), flush=True)
    dist.destroy_process_group()


# ---- ahead --------------------------------------------------------------------------------------------------------


def part_seconds(folder: Path, rank: int, args) -> float:
    """Seconds of one part's training step on this process alone, whatever arrives."""
    import torch
    import torch.distributed as dist
    from selector import Runner
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from dgl_gt.comm.group import Comm
    from dgl_gt.exchange.halo import Halo
    from dgl_gt.exchange.load import complete
    from dgl_gt.exchange.shard import read_shard
    from dgl_gt.exchange.sharded_graph import ShardedGraph

    torch.set_num_threads(1)
    parts = read_manifest(folder)["parts"]
    dist.init_process_group("fake", rank=rank, world_size=parts, store=FakeStore())  # moves nothing
    comm = Comm()
    shard = complete(read_shard(folder, rank), comm)
    rules = strategy_of(args.strategy)
    graph = ShardedGraph(shard, comm, rules, lambda on: Halo(on, comm, rules))
    runner = Runner(graph, "gt", args.hidden)
    for _ in range(2):
        runner.step()
    taken = []
    for _ in range(args.runs):
        started = time.perf_counter()
        runner.step()
        taken.append(time.perf_counter() - started)
    dist.destroy_process_group()
    return statistics.median(taken)


def ahead(args) -> str:
    """Each part alone, then what a trace says of the links."""
    from selector import Runner

    seconds = {}
    with tempfile.TemporaryDirectory() as folder:
        for parts in (1, args.parts):
            shards = Path(folder) / str(parts)
            partition(source(args), parts, shards, attempts=args.attempts if parts > 1 else 1, **features(args))
            seconds[parts] = [part_seconds(shards, rank, args) for rank in range(parts)]
        figures = read_figures(read_manifest(shards))
    trace = Tracer(lambda sg: Runner(sg, "gt", args.hidden).step).of(figures, strategy_of(args.strategy), 1)
    time_of = traced_time(trace, figures, read_profile(preset=args.preset))
    alone, slowest = seconds[1][0], max(seconds[args.parts])
    total = slowest + time_of.exchange_s - time_of.hidden_s + time_of.gradients_s
    mean = statistics.fmean(seconds[args.parts])
    rows = [
        ["one rank, whole graph", f"{alone:.3f}"],
        [f"slowest of {args.parts} parts", f"{slowest:.3f}"],
        ["mean of the parts", f"{mean:.3f}"],
        ["exchange", f"{time_of.exchange_s:.4f}"],
        ["of it hidden behind computation", f"{time_of.hidden_s:.4f}"],
        ["sum of gradients", f"{time_of.gradients_s:.4f}"],
        [f"{args.parts} ranks", f"{total:.3f}"],
    ]
    limits = {"unequal parts": slowest - mean, "work that parts repeat or add": mean - alone / args.parts}
    limits |= {"exchange and gradients": total - slowest}
    lost = ", ".join(f"{name} {value / total:.0%}" for name, value in limits.items())
    return table(["seconds of a step", ""], rows) + f"\n\nspeed-up {alone / total:.2f}; of the step: {lost}"


def main() -> None:
    parser = argparse.ArgumentParser(description="The selector where machines are tight or unequal, and a look ahead.")
    parser.add_argument("question", choices=["limit", "unequal", "ahead", "rank"])
    parser.add_argument("--graph", default="ogbn_arxiv_nofeat", help="of the data folder (limit: tolokers)")
    parser.add_argument("--hidden", type=int, default=HIDDEN)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=6, help="limits to try")
    parser.add_argument("--parts", type=int, default=8)
    parser.add_argument("--attempts", type=int, default=12, help="at the cut into parts (ahead)")
    parser.add_argument("--strategy", default="halo_kv", choices=["halo_h", "halo_kv"], help="default: halo_kv (ahead)")
    parser.add_argument("--preset", default="cpu-10GbE")
    parser.add_argument("--task", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.question == "rank":
        return rank_main(args.task)
    if args.question == "ahead" and "MALLOC_MMAP_MAX_" not in os.environ:  # read when a process starts
        os.execve(
            sys.executable,
            [sys.executable, *sys.argv],
            {**os.environ, **environment_of_ranks(), "OMP_NUM_THREADS": "1"},
        )
    print(f"{processor()}\n\n" + {"limit": limit, "unequal": unequal, "ahead": ahead}[args.question](args))


if __name__ == "__main__":
    main()
