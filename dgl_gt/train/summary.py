"""The progress of a run, its record, and the table that is printed at its end."""

from __future__ import annotations

import statistics
import sys
from contextlib import contextmanager

from tqdm import tqdm

from dgl_gt.exchange.sharded_graph import ShardedGraph
from partition.console import table
from partition.system.units import size

from .run_state import TrainHistory
from .trainer import TrainResult

_PLAIN_LINES = 10


@contextmanager
def show_progress(epochs: int, is_shown: bool):
    """Give an ``on_epoch`` callback that draws a bar on a terminal or prints ten lines elsewhere, both on stderr."""
    if not is_shown:
        yield None
        return
    terminal = sys.stderr.isatty()
    with tqdm(total=epochs, unit="epoch", disable=not terminal, dynamic_ncols=True) as bar:

        def on_epoch(epoch: int, loss: float, validation: float, seconds: float) -> None:
            bar.set_postfix_str(f"loss {loss:.4f}, validation {validation:.4f}, {seconds:.2f} s per step")
            bar.update(epoch + 1 - bar.n)  # a run that goes on does not begin at 0
            if not terminal and (epoch + 1) % max(1, epochs // _PLAIN_LINES) == 0:
                text = f"epoch {epoch + 1}/{epochs}  loss {loss:.4f}  validation {validation:.4f}  {seconds:.2f} s per step"
                print(text, file=sys.stderr, flush=True)

        yield on_epoch


def unfinished_record(history: TrainHistory, sg: ShardedGraph) -> dict:
    """The part of :func:`record` that is known before the run has finished; ``finished`` is false."""
    return {
        "finished": False,
        "strategy": sg.strategy.name,
        "depth": sg.depth,
        "ranks": sg.comm.world_size,
        "epochs": len(history.losses),
        "best_epoch": history.best_epoch + 1,
        "losses": history.losses,
        "validations": history.validations,
        "metric": {"name": history.metric_name, "validation": history.validation, "test": history.test},
    }


def record(result: TrainResult, sg: ShardedGraph) -> dict:
    """The run as plain values: the documented keys of ``dgl-gt train --json``."""
    return {
        **unfinished_record(result, sg),
        "finished": True,
        "seconds_per_epoch": result.seconds_per_epoch,
        "exchange_share": result.exchange_share,
        "exchanged_bytes_per_epoch": result.exchanged_bytes_per_epoch,
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
    title = record["metric"]["name"].replace("roc_auc", "ROC-AUC")
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
    return table(
        ["split", "seed", f"validation {title}", f"test {title}", "best epoch"], [*rows, ("mean", "", *both, "")]
    )


def final_table(run: dict) -> str:
    """The run as a table."""
    metric = run["metric"]
    title = metric["name"].replace("roc_auc", "ROC-AUC")
    rows = [
        (f"test {title}", f"{metric['test']:.2%}"),
        (f"validation {title}", f"{metric['validation']:.2%}"),
        ("best epoch", f"{run['best_epoch']} of {run['epochs']}"),
        ("ranks", run["ranks"]),
        ("strategy", run["strategy"] + (f", depth {run['depth']}" if run["depth"] > 1 else "")),
        ("seconds per epoch", f"{run['seconds_per_epoch']:.3f}"),
        ("share spent exchanging", f"{run['exchange_share']:.1%}"),
        ("exchanged per epoch", size(run["exchanged_bytes_per_epoch"])),
        ("peak memory per rank", ", ".join(size(peak) for peak in run["peak_memory_bytes"])),
    ]
    if "plan" in run:
        choice = run["plan"]["choice"]
        rows.append(("predicted seconds per epoch", f"{choice['seconds']:.3f}"))
        rows.append(("predicted memory per rank with --rank-memory", size(choice["memory_bytes"])))
        rows += [
            (f"trial of {each['choice']}", f"{each['measured_seconds']:.3f} s per step")
            for each in run["plan"]["trials"]
        ]
    return table(["result", ""], rows)
