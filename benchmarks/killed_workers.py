"""Workers and schedulers that are killed at random moments: whether the shards stay the same, and tasks that ran again.

    python benchmarks/killed_workers.py [--workers-killed 20] [--schedulers-killed 5] [--seed 0] [--json]

Each run has a scheduler and two workers of its own on the loopback, and cuts a generated graph of 20,000 nodes into four
parts by some hundred tasks. The moment is drawn from the time that a run takes which is left alone. A task is one that
ran again if it has begun twice; with a scheduler that was killed, both before and after ``resume``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from machine import processor

from dgl_gt.partition import DaskEngine, InputError, partition
from dgl_gt.partition.console import table
from dgl_gt.partition.distributed.engine import connected
from dgl_gt.partition.distributed.job import Sizes

SOURCE = "sample:communities?nodes=20000&degree=10&features=8&seed=0"
MEMORY = 1 << 30


class Logged(DaskEngine):
    """Writes down every task that begins on a worker."""

    log: Path

    def run(self, stage, task, items):
        """Call ``task`` with each item on some worker."""
        folder, _, computed = task.args
        return super().run(
            stage, partial(task.func, folder, stage, partial(_begun, str(self.log), stage, computed)), items
        )


def _begun(log: str, stage: str, task, item: int) -> dict:
    with open(log, "a") as file:  # a short line is appended in one step
        file.write(f"{stage} {item}\n")
    return task(item)


@contextmanager
def cluster(folder: Path) -> Iterator[tuple[str, list[subprocess.Popen]]]:
    """Give the address of a new scheduler, and its process and those of two workers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address, host = f"tcp://127.0.0.1:{port}", ["--host", "127.0.0.1", "--no-dashboard"]
    of_worker = ["--no-nanny", "--nthreads", "1", "--memory-limit", "1GiB", "--local-directory", str(folder)]
    commands = [["distributed.cli.dask_scheduler", "--port", str(port), *host]]
    commands += [["distributed.cli.dask_worker", address, *host, *of_worker]] * 2
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    processes = [subprocess.Popen([sys.executable, "-m", *command], **quiet) for command in commands]
    try:
        yield address, processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def cut(
    folder: Path, out: Path, *, after_s: float | None = None, victim: int = 0, resume: bool = False
) -> tuple[float, bool]:
    """Cut the graph on a cluster, one of whose processes is killed after some seconds; return how long it took, and if it was."""
    with cluster(folder) as (address, processes), connected(address) as engine:
        engine.client.wait_for_workers(2, timeout=60)
        logged = Logged(engine.client)
        logged.log = folder / "begun"
        kill = threading.Timer(after_s or 0, os.kill, (processes[victim].pid, signal.SIGKILL))
        started = time.monotonic()
        if after_s is not None:
            kill.start()
        try:
            partition(SOURCE, 4, out, engine=logged, worker_memory=MEMORY, resume=resume)
        finally:
            kill.cancel()
        return time.monotonic() - started, processes[victim].poll() is not None


def trial(draw: random.Random, whole_s: float, expected: str, tasks: int, *, of_scheduler: bool) -> dict | None:
    """One run in which a process is killed; None if the run ended before."""
    with tempfile.TemporaryDirectory() as made:
        folder, out = Path(made), Path(made) / "out"
        after_s, victim = draw.uniform(0, whole_s), 0 if of_scheduler else draw.choice((1, 2))
        resumed = False
        try:
            if not cut(folder, out, after_s=after_s, victim=victim)[1]:
                return None
        except InputError:
            if not of_scheduler:
                raise
            resumed = True
            cut(folder, out, resume=True)
        begun = (folder / "begun").read_text().splitlines()
        assert len(set(begun)) == tasks
        return {
            "killed": "scheduler" if of_scheduler else "worker",
            "after_s": round(after_s, 2),
            "resumed": resumed,
            "same_shards": digest(out) == expected,
            "ran_again": len(begun) - tasks,
        }


def digest(out: Path) -> str:
    """A digest of all files of shards."""
    found = hashlib.sha256()
    for path in sorted(each for each in out.rglob("*") if each.is_file()):
        found.update(f"{path.relative_to(out)}\n".encode() + path.read_bytes())
    return found.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workers-killed", type=int, default=20)
    parser.add_argument("--schedulers-killed", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    sizes = Sizes(chunk_edges=25_000, range_ends=50_000, coarse_ends=50_000, group_edges=1)
    Sizes.within = lambda *given: sizes  # so that there are many tasks
    with tempfile.TemporaryDirectory() as made:
        whole_s, _ = cut(Path(made), Path(made) / "out")
        expected, tasks = digest(Path(made) / "out"), len((Path(made) / "begun").read_text().splitlines())
    draw, rows = random.Random(args.seed), []
    while len(rows) < args.workers_killed + args.schedulers_killed:
        row = trial(draw, whole_s, expected, tasks, of_scheduler=len(rows) >= args.workers_killed)
        rows += [row] if row else []
    if args.json:
        print(json.dumps({"processor": processor(), "tasks": tasks, "seconds": whole_s, "rows": rows}))
        return
    print(f"{tasks} tasks, {whole_s:.1f} s where nothing is killed")
    print(table([*rows[0]], [[str(each) for each in row.values()] for row in rows]))


if __name__ == "__main__":
    main()
