"""The progress of a run, its record, and the table that is printed at its end."""

from __future__ import annotations

import math
import os
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tqdm import tqdm

from dgl_gt.exchange.sharded_graph import ShardedGraph
from partition.console import table
from partition.system.units import size

from .config import METRIC_TITLES
from .run_state import TrainHistory
from .trainer import TrainResult

_PLAIN_LINES = 10
_SCREEN = {"ncols": 100, "nrows": 20}  # of a terminal that does not know its size


class Progress:
    """The progress of a run on stderr: a bar on a terminal, and ten lines elsewhere.

    Use it as a context. :meth:`start` and :meth:`after_epoch` are callbacks of a run, see
    :func:`dgl_gt.train.train_and_save`.
    """

    def __init__(self, epochs: int):
        self._epochs, self._first, self._best = epochs, 0, ""
        self._best_validation, self._started_s = -math.inf, time.monotonic()
        self._on_terminal = sys.stderr.isatty()

    def __enter__(self) -> Progress:
        has_width = self._on_terminal and os.get_terminal_size(sys.stderr.fileno()).columns > 0
        self._bar = tqdm(
            total=self._epochs,
            disable=not self._on_terminal,
            dynamic_ncols=has_width,
            **({} if has_width else _SCREEN),
            bar_format="epoch {n_fmt}/{total_fmt} |{bar:8}| {desc}",
        )
        return self

    def __exit__(self, *_) -> None:
        self._bar.close()

    def start(self, history: TrainHistory) -> None:
        """Begin where a run goes on: its earlier epochs say nothing about the time left."""
        self._first, self._started_s = len(history.losses), time.monotonic()
        if history.best_epoch >= 0:
            self._note(history.best_epoch, history.validation)

    def after_epoch(self, epoch: int, loss: float, validation: float, seconds: float) -> None:
        """Show an epoch, counted from 0; the validation metric is NaN before the first evaluation."""
        if validation > self._best_validation:
            self._note(epoch, validation)
        done = epoch + 1
        left_s = (time.monotonic() - self._started_s) / (done - self._first) * (self._epochs - done)
        left = f"{tqdm.format_interval(left_s)} left"
        text = f"loss {loss:.4f}  validation {validation:.4f}{self._best}  {seconds:.2f} s per step"
        self._bar.set_description_str(f"{left}  {text}", refresh=False)  # a narrow terminal shows the beginning
        self._bar.update(done - self._bar.n)
        if not self._on_terminal and done % max(1, self._epochs // _PLAIN_LINES) == 0:
            print(f"epoch {done}/{self._epochs}  {text}  {left}", file=sys.stderr, flush=True)

    def _note(self, epoch: int, validation: float) -> None:
        self._best_validation, self._best = validation, f"  best {validation:.4f} (epoch {epoch + 1})"


@contextmanager
def show_progress(epochs: int, is_shown: bool) -> Iterator[Progress | None]:
    """Give the :class:`Progress` of a run, or None where another rank shows it."""
    if not is_shown:
        yield None
        return
    with Progress(epochs) as progress:
        yield progress


def unfinished_record(history: TrainHistory, sg: ShardedGraph) -> dict:
    """The part of :func:`record` that is known before the run has finished; ``finished`` is false."""
    return {
        "finished": False,
        "strategy": sg.strategy.name,
        "depth": sg.depth,
        "ranks": sg.comm.world_size,
        "graph": described_graph(sg),
        "epochs": len(history.losses),
        "best_epoch": history.best_epoch + 1,
        "losses": history.losses,
        "validations": history.validations,
        "metric": {"name": history.metric_name, "validation": history.validation, "test": history.test},
    }


def described_graph(sg: ShardedGraph) -> dict:
    """The graph and its cut, as records name them."""
    return {key: sg.manifest[key] for key in ("source", "cut", "nodes", "edges", "checksum")}


def record(result: TrainResult, sg: ShardedGraph) -> dict:
    """The run as plain values: the documented keys of ``dgl-gt train --json``."""
    return {
        **unfinished_record(result, sg),
        "finished": True,
        "seconds_per_epoch": result.seconds_per_epoch,
        "exchange_share": result.exchange_share,
        "exchanged_bytes_per_epoch": result.exchanged_bytes_per_epoch,
        "policy": result.policy,
        "peak_memory_bytes": result.peak_memory_bytes,
    }


def record_of_runs(runs: list[dict]) -> dict:
    """Several records, each with its split and seed, and the mean and standard deviation of their metrics."""
    metrics = {"name": runs[0]["metric"]["name"]}
    for name in ("validation", "test"):
        values = [run["metric"][name] for run in runs]
        deviation = statistics.stdev(values) if len(values) > 1 else 0.0
        metrics[name] = {"mean": statistics.fmean(values), "deviation": deviation}
    return {"runs": runs, "metric": metrics}


def table_of_runs(record: dict) -> str:
    """Several runs as a table, with a line for the mean and the deviation."""
    title = METRIC_TITLES[record["metric"]["name"]]
    rows = [
        (
            run["split"],
            run["seed"],
            f"{run['metric']['validation']:.2%}",
            f"{run['metric']['test']:.2%}",
            run["best_epoch"],
        )
        for run in record["runs"]
    ]
    both = [
        f"{each['mean']:.2%} ± {each['deviation']:.2%}"
        for each in (record["metric"]["validation"], record["metric"]["test"])
    ]
    runs = table(
        ["split", "seed", f"validation {title}", f"test {title}", "best epoch"], [*rows, ("mean", "", *both, "")]
    )
    policy = record["runs"][0]["policy"]
    return runs if policy is None else f"{runs}\n\nexchanges were approximate, by the policy {_rules(policy)}"


def _rules(policy: dict) -> str:
    return "; ".join(f"{rule['mode']}{' (in part)' if len(rule) > 1 else ''}" for rule in policy["rules"])


def _exchanged(run: dict) -> str:
    sent = run["exchanged_bytes_per_epoch"]
    if not run["policy"]:
        return size(sent)
    exact = run["policy"]["exact_bytes_per_epoch"]
    if not exact:
        return f"{size(sent)}, as in exact steps"
    return f"{size(sent)}, {1 - sent / exact:.1%} less than the {size(exact)} of exact steps"


def final_table(run: dict) -> str:
    """The run as a table."""
    metric = run["metric"]
    title = METRIC_TITLES[metric["name"]]
    rows = [
        (f"test {title}", f"{metric['test']:.2%}"),
        (f"validation {title}", f"{metric['validation']:.2%}"),
        ("best epoch", f"{run['best_epoch']} of {run['epochs']}"),
        ("ranks", run["ranks"]),
        ("strategy", run["strategy"] + (f", depth {run['depth']}" if run["depth"] > 1 else "")),
        ("seconds per epoch", f"{run['seconds_per_epoch']:.3f}"),
        ("share spent exchanging", f"{run['exchange_share']:.1%}"),
        ("exchanged per epoch", _exchanged(run)),
        ("peak memory per rank", ", ".join(size(peak) for peak in run["peak_memory_bytes"])),
    ]
    if run["policy"]:
        rows.append(("policy, approximate", _rules(run["policy"])))
    if "plan" in run:
        choice = run["plan"]["choice"]
        rows.append(("predicted seconds per epoch", f"{choice['seconds']:.3f}"))
        rows.append(("predicted memory per rank with --rank-memory", size(choice["memory_bytes"])))
        rows += [
            (f"trial of {each['choice']}", f"{each['measured_seconds']:.3f} s per step")
            for each in run["plan"]["trials"]
        ]
    return table(["result", ""], rows)
