"""Train for long, and look at the memory and the open files of every rank: both must stay as they are.

    python tests/hostile/long_haul.py --epochs 500 --ranks 4

Rank processes are looked at from outside, at several moments of each epoch. After the first fifth of the epochs,
nothing may grow any more: what a rank holds in the last fifth is compared with what it held in the second. The tests
run a short form.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from kills import ROOT, children

MODEL = ["--layers", "2", "--hidden", "32", "--heads", "4", "--patience", "0", "--checkpoint-every", "20"]
GROWTH = 0.02  # of the memory, which an allocator may keep


@dataclass(frozen=True)
class Sight:
    """What one look at a rank has found."""

    epoch: int
    memory_bytes: int  # resident
    files: int  # open descriptors


def look_at(pid: int, epoch: int) -> Sight | None:
    """Memory and open files of a process; None if it has ended."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return Sight(epoch, pages * os.sysconf("SC_PAGE_SIZE"), len(os.listdir(f"/proc/{pid}/fd")))
    except OSError:
        return None


def train(folder: Path, nodes: int, ranks: int, epochs: int) -> dict[int, list[Sight]]:
    """Make shards, train on them, and return what was seen of each rank, by process id."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command, shards, out = [sys.executable, "-m", "dgl_gt"], str(folder / "shards"), folder / "run"
    made = ["partition", f"sample:communities?nodes={nodes}&seed=3", "--parts", str(ranks), "--out", shards]
    subprocess.run([*command, *made], env=environment, check=True, stdout=subprocess.DEVNULL)
    words = ["train", shards, *MODEL, "--epochs", str(epochs), "--out", str(out)]
    process = subprocess.Popen([*command, *words], env=environment, stdout=subprocess.DEVNULL)
    sights: dict[int, list[Sight]] = {}
    while process.poll() is None:
        epoch = _lines_of(out / "metrics.jsonl")
        for pid in children(process.pid) if epoch else []:
            if sight := look_at(pid, epoch):
                sights.setdefault(pid, []).append(sight)
        time.sleep(0.05)
    if process.returncode:
        raise SystemExit(f"training ended with exit code {process.returncode}")
    return sights


def middle(sights: list[Sight], first: float, end: float) -> Sight:
    """The medians of what was seen from one epoch to another; a median is not that of a moment in which a file is written."""
    some = [each for each in sights if first <= each.epoch < end]
    return Sight(
        some[-1].epoch,
        round(statistics.median(each.memory_bytes for each in some)),
        statistics.median_low(each.files for each in some),
    )


def growth(sights: list[Sight], epochs: int) -> tuple[float, int]:
    """By which share the memory of a rank, and by how many its open files, grew from the second to the last fifth."""
    early, late = middle(sights, epochs / 5, 2 * epochs / 5), middle(sights, 4 * epochs / 5, epochs + 1)
    return late.memory_bytes / early.memory_bytes - 1, late.files - early.files


def _lines_of(path: Path) -> int:
    try:
        return path.read_bytes().count(b"\n")
    except OSError:
        return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=500)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--nodes", type=int, default=20_000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sights = train(Path(folder), args.nodes, args.ranks, args.epochs)
    grew = False
    for rank, seen in enumerate(sights[pid] for pid in sorted(sights)):
        memory, files = growth(seen, args.epochs)
        grew |= memory > GROWTH or files > 0
        last = middle(seen, 4 * args.epochs / 5, args.epochs + 1)
        print(
            f"rank {rank}: looked at {len(seen)} times; in the last fifth {last.memory_bytes / 2**20:.0f} MiB ({memory:+.1%}) "
            f"and {last.files} open files ({files:+d})"
        )
    print("something grew" if grew else f"flat over {args.epochs} epochs on {len(sights)} ranks")
    return int(grew)


if __name__ == "__main__":
    sys.exit(main())
