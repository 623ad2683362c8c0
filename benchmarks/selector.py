"""How good the selector's choices are: every strategy timed on a grid of graphs, ranks and links.

    python benchmarks/selector.py [--models gt] [--graphs tolokers,mesh] [--settings 2,4,2@200] [--runs 3] [--json]

A setting is a number of ranks of one thread each, over the loopback or, with @, over links of this many Mbit/s between
network namespaces (Linux, root, iproute2). For each, ranks and links are measured once (`dgl-gt calibrate`). In each
cell every strategy of both cuts takes training steps in the same processes, in turn: an untimed one, then this many timed
ones, of which the median of the slowest rank's seconds counts. The selector's pick, and its pick after trying its two
best (their first timed steps), are then timed again in turn with the quickest, in pairs; the ratios are medians of five. The
quickest is the least of noisy medians, so a pick may come out ahead of it in the pairs: that pick is the best, and its
ratio counts as 1.

Models: `gt` is the graph transformer with 3 layers, 8 heads and a feed-forward network of twice the width; `post_norm`
has 4 layers, width 64, norms after each residual and attention dropout; `gat` is two of DGL's GATConv over `sg.pull`;
`sage` is one of DGL's SAGEConv with a head of three linear layers. Labels of 40 classes, AdamW, float32. `tensors` are
the most that a rank has alive in a step, with features, structure, parameters and optimiser.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import yaml
from links import run_ranks
from machine import DATA, processor

from dgl_gt.partition import from_edges, load_graph, partition, read_manifest
from dgl_gt.partition.console import table
from dgl_gt.partition.shards.counts import read_figures
from dgl_gt.plan import Tracer, choose, read_profile

LAYERS, HEADS, CLASSES, WIDTH = 3, 8, 40, 64
HIDDEN = {"ogbn_arxiv_nofeat": 64, "tolokers": 64}  # else 128
MODELS = ("gt", "post_norm", "gat", "sage")
GRAPHS = ("tolokers", "amazon_computer", "ogbn_arxiv_nofeat", "email_enron", "mesh", "regular")
SETTINGS = ("2", "4", "2@200")
PAIRS = 5


def graph_of(name: str, seed: int = 0):
    """A real graph's file, a mesh of 150 x 200 nodes, or a random regular one of 20,000 nodes of degree 16."""
    if name == "mesh":
        node = np.arange(150 * 200).reshape(150, 200)
        ends = [(node[:, 1:], node[:, :-1]), (node[1:], node[:-1])]
    elif name == "regular":
        rng = np.random.default_rng(seed)
        ends = [(np.arange(20_000), rng.permutation(20_000)) for _ in range(8)]
    else:
        return load_graph(DATA / f"{name}.npz")
    source, target = (np.concatenate([pair[i].ravel() for pair in ends]) for i in (0, 1))
    return from_edges(np.concatenate([source, target]), np.concatenate([target, source]), int(source.max()) + 1)


def shards(name: str, parts: int, folder: Path) -> None:
    graph = graph_of(name)
    missing = {} if "feat" in graph.node_data else {"random_features": WIDTH}
    partition(graph, parts, folder / "edge", halo_depth=LAYERS, **missing)
    partition(graph, parts, folder / "vertex", cut="vertex", **missing)


# ---- a rank -------------------------------------------------------------------------------------------------------


def _models(sg, in_dim: int, hidden: int) -> dict:
    """Functions that make a model, and a function from features to logits."""
    from torch import nn

    from dgl_gt.nn import GraphTransformer

    def gt(layers=LAYERS, **options):
        model = GraphTransformer(in_dim, hidden, CLASSES, layers, HEADS, **options)
        return model, lambda feat: model(sg.taking_held_rows(), feat)

    def gat():
        from dgl.nn import GATConv

        first = GATConv(in_dim, hidden // HEADS, HEADS, allow_zero_in_degree=True)
        second = GATConv(hidden, CLASSES, 1, allow_zero_in_degree=True)

        def logits(feat):
            h = first(sg.block, sg.pull(feat)).flatten(1).relu()
            return second(sg.block, sg.pull(h)).mean(1)

        return nn.ModuleList([first, second]), logits

    def sage():
        from dgl.nn import SAGEConv

        conv = SAGEConv(in_dim, hidden, "mean")
        wide = [nn.ReLU(), nn.Linear(hidden, hidden)]
        head = nn.Sequential(*wide, *wide[:1], nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, CLASSES))
        return nn.ModuleList([conv, head]), lambda feat: head(conv(sg.block, sg.pull(feat)))

    return {"gt": gt, "post_norm": lambda: gt(4, norm_first=False, attention_dropout=0.1), "gat": gat, "sage": sage}


class Runner:
    """One candidate's graph, model and optimiser on this rank."""

    def __init__(self, sg, model: str, hidden: int):
        import torch

        self.sg = sg
        torch.manual_seed(0)
        feat = sg.srcdata["feat"] if sg.depth > 1 else sg.ndata["feat"]
        self.feat, self.label = feat.float(), sg.node_ids[: sg.num_nodes()] % CLASSES
        self.model, self.logits = _models(sg, feat.shape[1], hidden)[model]()
        self.model.train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, fused=True)

    def step(self) -> None:
        import torch

        self.optimizer.zero_grad()
        logits = self.logits(self.feat)
        loss = torch.nn.functional.cross_entropy(logits, self.label, reduction="sum") / self.sg.manifest["nodes"]
        loss.backward()
        self.sg.comm.sum_gradients(self.model.parameters())
        self.optimizer.step()

    def seconds(self) -> float:
        """Of one step, on the slowest rank; all ranks start together."""
        import torch

        comm = self.sg.comm
        comm.all_reduce(torch.zeros(1))
        started = time.perf_counter()
        self.step()
        return float(comm.all_reduce(torch.tensor([time.perf_counter() - started], dtype=torch.float64), "max")[0])

    def tensor_bytes(self) -> int:
        from dgl_gt.plan.watch import step_peak_bytes

        return step_peak_bytes(self.sg, self.model, self.feat, self.step)


def cell_on_rank(candidates: list[dict], tried: list[int], model: str, hidden: int, runs: int) -> None:
    """Time all candidates, then the picks in turn with the quickest; rank 0 prints one JSON line."""
    import torch

    import dgl_gt

    graphs = [dgl_gt.load(each["directory"], each["strategy"], each["depth"]) for each in candidates]
    runners = [Runner(sg, model, hidden) for sg in graphs]
    for runner in runners:
        runner.step()
    times = [[] for _ in runners]
    for _ in range(runs):
        for runner, taken in zip(runners, times):
            taken.append(runner.seconds())
    measured = [statistics.median(taken) for taken in times]
    comm, sent, tensors = runners[0].sg.comm, [], []
    for runner in runners:
        before = runner.sg.comm.sent_bytes
        most = runner.tensor_bytes()
        sent.append(int(comm.all_reduce(torch.tensor([runner.sg.comm.sent_bytes - before]))[0]))
        tensors.append(int(comm.all_reduce(torch.tensor([most]), "max")[0]))
    best = measured.index(min(measured))
    after_trial = min(tried, key=lambda number: measured[number])
    ratios = {}
    for number in {tried[0], after_trial}:
        pairs = [(runners[number].seconds(), runners[best].seconds()) for _ in range(PAIRS)] if number != best else []
        ratios[number] = max(1.0, statistics.median(mine / other for mine, other in pairs)) if pairs else 1.0
    if comm.rank == 0:
        figures = {"seconds": measured, "sent_bytes": sent, "tensor_bytes": tensors, "best": best}
        print(json.dumps(figures | {"pick": ratios[tried[0]], "after_trial": ratios[after_trial]}), flush=True)


def calibrate_on_rank() -> None:
    from dgl_gt.comm.group import Comm
    from dgl_gt.plan.measure import measure

    profile = measure(Comm())
    if int(os.environ["RANK"]) == 0:
        print(json.dumps(profile.as_dict()), flush=True)


def rank_main(task: dict) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    cell_on_rank(**task) if task else calibrate_on_rank()
    dist.destroy_process_group()


def on_ranks(setting: str, task: dict) -> dict:
    """Start the ranks of a setting; what rank 0 prints."""
    ranks, _, link = setting.partition("@")
    command = [sys.executable, __file__, "--task", json.dumps(task)]
    output = run_ranks(command, int(ranks), float(link) if link else None)
    return json.loads(output.splitlines()[-1])


def restore_keys(figures: dict) -> None:
    """Of a profile, numbers that JSON made text."""
    for where, key in ((figures, "products"), (figures["attention"], "far_column_s")):
        where[key] = {int(number): value for number, value in where[key].items()}


# ---- the grid -----------------------------------------------------------------------------------------------------


def cell(setting: str, model: str, name: str, profile_path: Path, folder: Path, runs: int) -> dict:
    ranks, hidden = int(setting.partition("@")[0]), 64 if model == "post_norm" else HIDDEN.get(name, 128)
    if not folder.exists():
        shards(name, ranks, folder)
    cuts = [(str(folder / cut), read_figures(read_manifest(folder / cut))) for cut in ("edge", "vertex")]
    traces = Tracer(lambda sg: Runner(sg, model, hidden).step, LAYERS if model in ("gt", "post_norm") else 1)
    started = time.perf_counter()
    plan = choose(cuts, traces, read_profile(profile_path))
    seconds_to_plan = time.perf_counter() - started
    fitting = [each for each in plan.candidates if not each.refused]
    asked = [
        {key: getattr(each, key) for key in ("directory", "strategy", "depth", "activation_checkpoint")}
        for each in fitting
    ]
    tried = list(range(min(2, len(fitting))))
    found = on_ranks(setting, {"candidates": asked, "tried": tried, "model": model, "hidden": hidden, "runs": runs})
    predicted = [each.sent_bytes for each in fitting]
    if predicted != found["sent_bytes"]:
        raise RuntimeError(f"{name} on {setting}: sent {found['sent_bytes']} bytes, {predicted} predicted")
    rows = [
        {
            "title": each.title,
            "predicted_seconds": each.seconds,
            "seconds": seconds,
            "sent_bytes": each.sent_bytes,
            "predicted_bytes": each.peak_bytes,
            "tensor_bytes": held,
        }
        for each, seconds, held in zip(fitting, found["seconds"], found["tensor_bytes"])
    ]
    ratios = {key: found[key] for key in ("pick", "after_trial")}
    ratios["seconds_to_plan"] = seconds_to_plan
    return {
        "setting": setting,
        "model": model,
        "graph": name,
        "hidden": hidden,
        "rows": rows,
        "best": found["best"],
        **ratios,
    }


def _error(row: dict) -> float:
    return abs(row["predicted_seconds"] / row["seconds"] - 1)


def summary(cells: list[dict]) -> str:
    lines = []
    for each in cells:
        rows, best = each["rows"], each["rows"][each["best"]]
        worst = max(rows, key=lambda row: row["seconds"])
        lines.append(
            [
                each["model"], each["graph"], each["setting"], each["hidden"], rows[0]["title"], f"{rows[0]['predicted_seconds']:.3f}",
                f"{rows[0]['seconds']:.3f}", best["title"], f"{best['seconds']:.3f}", f"{worst['seconds']:.3f}",
                f"{each['pick']:.3f}", f"{each['after_trial']:.3f}",
            ]
        )  # fmt: skip
    header = "model|graph|ranks|C|pick|predicted|measured|quickest|measured|slowest|pick / best|with trial".split("|")
    rows = [row for each in cells for row in each["rows"]]
    errors = [_error(row) for row in rows]
    memory = [row["predicted_bytes"] / row["tensor_bytes"] - 1 for row in rows]
    text = [table(header, lines), ""]
    for key, title in (("pick", "pick / best"), ("after_trial", "with trial")):
        ratios = [each[key] for each in cells]
        mean = math.exp(statistics.fmean(math.log(ratio) for ratio in ratios))
        text.append(f"{title}: geometric mean {mean:.3f}, worst {max(ratios):.3f}")
    text.append(f"predicted seconds: median error {statistics.median(errors):.1%} over {len(rows)} rows")
    for setting in dict.fromkeys(each["setting"] for each in cells):
        those = [row for each in cells if each["setting"] == setting for row in each["rows"]]
        errors = [row["predicted_seconds"] / row["seconds"] - 1 for row in those]
        text.append(
            f"  ranks {setting}: {statistics.median(map(abs, errors)):.1%}, signed {statistics.median(errors):+.1%}"
        )
    text.append(f"seconds to plan: median {statistics.median(each['seconds_to_plan'] for each in cells):.1f}")
    text.append(f"predicted tensors: error {min(memory):+.1%} to {max(memory):+.1%}; bytes sent: exact")
    return "\n".join(text)


def main() -> None:
    parser = argparse.ArgumentParser(description="How good the selector's choices are.")
    parser.add_argument("--models", type=lambda text: text.split(","), default=["gt"], help=", ".join(MODELS))
    parser.add_argument("--graphs", type=lambda text: text.split(","), default=list(GRAPHS))
    parser.add_argument("--settings", type=lambda text: text.split(","), default=list(SETTINGS))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--task", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.task is not None:
        return rank_main(args.task)
    cells = []
    with tempfile.TemporaryDirectory() as folder:
        for setting in args.settings:
            profile = Path(folder) / f"{setting}.yaml"
            figures = on_ranks(setting, {})
            restore_keys(figures)
            profile.write_text(yaml.safe_dump(figures))
            for name, model in itertools.product(args.graphs, args.models):
                cells.append(cell(setting, model, name, profile, Path(folder) / f"{name}-{setting}", args.runs))
                print(json.dumps(cells[-1]), file=sys.stderr, flush=True)
    print(json.dumps({"processor": processor(), "cells": cells}) if args.json else f"{processor()}\n\n{summary(cells)}")


if __name__ == "__main__":
    main()
