"""Break training runs in random moments, and count which of them end with the numbers of an undisturbed run.

    python tests/hostile/faults.py --faults 200

A rank is killed or frozen, once or twice in a row, in the middle of a step or while a checkpoint is written; the latest
checkpoint is truncated between two parts of a run; the disk is full for a while. The tests inject a few.
"""

import argparse
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from kills import ROOT, children, left_over, send

KINDS = ("kill", "freeze", "kill twice", "kill while writing", "truncate", "full disk")
EPOCHS, LIMIT_S, TIMEOUT_S = 40, 300.0, 45
MODEL = ["--layers", "1", "--hidden", "16", "--heads", "2", "--patience", "0", "--epochs", str(EPOCHS)]
SURVIVE = ["--checkpoint-every", "2", "--max-restarts", "3", "--timeout", str(TIMEOUT_S)]


@dataclass(frozen=True)
class Fault:
    kind: str
    rank: int
    epoch: int  # after which it comes: as soon as a checkpoint of that epoch or a later one is there

    def __str__(self) -> str:
        return f"{self.kind}, rank {self.rank}, after epoch {self.epoch}"


def draw(seed: int, count: int) -> list[Fault]:
    """The same faults for the same seed, every kind as often."""
    dice = random.Random(seed)
    return [
        Fault(KINDS[number % len(KINDS)], dice.randrange(2), dice.randrange(2, EPOCHS // 2)) for number in range(count)
    ]


class Trial:
    """A graph in two parts, an undisturbed run on it, and runs that are disturbed."""

    def __init__(self, folder: Path):
        self.folder, self.out = folder, folder / "run"
        words = ["partition", "sample:communities?nodes=1500&seed=3", "--parts", "2", "--out", str(folder / "shards")]
        assert self._start(words).wait(LIMIT_S) == 0, self._stderr()
        started = time.monotonic()
        assert self._start(self._words()).wait(LIMIT_S) == 0, self._stderr()
        self.seconds, self.expected = time.monotonic() - started, self._record()

    def run(self, fault: Fault) -> tuple[list[str], float]:
        """Train with a fault; what was not as it should be, and the seconds that it cost."""
        shutil.rmtree(self.out, ignore_errors=True)
        started = time.monotonic()
        process = self._start(self._words())
        try:
            injected = self._inject(fault, process)
            code = process.wait(LIMIT_S)
            if fault.kind == "truncate":
                process = self._start([*self._words(), "--resume"])
                code = process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            return [f"still running after {LIMIT_S:.0f} s"], 0.0
        finally:
            for each in children(process.pid):
                send(each, signal.SIGCONT)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        wrong = [] if injected else ["the run ended before the fault"]
        wrong += [f"processes left: {left}"] if (left := left_over(process.pid, time.monotonic() + 10)) else []
        return wrong + self._judge(code), time.monotonic() - started - self.seconds

    def _judge(self, code: int) -> list[str]:
        if code:
            return [f"exit code {code}\n{self._stderr()}"]
        found = self._record()
        same = found["finished"] and all(found[name] == self.expected[name] for name in ("losses", "metric"))
        return [] if same else ["the metric or the losses differ"]

    def _inject(self, fault: Fault, process: subprocess.Popen) -> bool:
        """Wait for the moment of the fault and bring it about; False if the run has ended before that."""
        if not self._wait_for(process, lambda: self._latest() >= fault.epoch):
            return False
        ranks = children(process.pid)
        number = signal.SIGSTOP if fault.kind == "freeze" else signal.SIGKILL
        if fault.kind == "full disk":
            self._fill_disk(ranks[0], process)
        elif fault.kind == "truncate":
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(LIMIT_S)
            path = max(self.out.glob("checkpoint-*"))
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        elif fault.kind == "kill while writing":
            if not self._wait_for(process, lambda: any(self.out.glob(".checkpoint-*")), poll_s=0.0):
                return False
            send(ranks[0], number)
        else:
            send(ranks[fault.rank], number)
            if fault.kind == "kill twice":
                if not self._wait_for(process, lambda: len(set(children(process.pid)) - set(ranks)) == 2):
                    return False
                time.sleep(random.Random(fault.epoch).uniform(0, self.seconds / 2))  # while it starts, or trains again
                send((children(process.pid) or ranks)[0], number)
        return True

    def _fill_disk(self, rank: int, process: subprocess.Popen) -> None:
        """For the time of a few checkpoints, rank 0 can write no large file; standard error stays small."""
        before = resource.prlimit(rank, resource.RLIMIT_FSIZE, (8000, resource.RLIM_INFINITY))
        self._wait_for(process, lambda: "warning: no checkpoint" in self._stderr())
        try:
            resource.prlimit(rank, resource.RLIMIT_FSIZE, before)
        except ProcessLookupError:
            pass

    def _latest(self) -> int:
        return max([int(each.name[11:17]) for each in self.out.glob("checkpoint-*")], default=-1)

    def _wait_for(self, process: subprocess.Popen, is_so, poll_s: float = 0.002) -> bool:
        deadline = time.monotonic() + LIMIT_S
        while not is_so():
            if process.poll() is not None or time.monotonic() > deadline:
                return False
            time.sleep(poll_s)
        return True

    def _words(self) -> list[str]:
        return ["train", str(self.folder / "shards"), *MODEL, *SURVIVE, "--out", str(self.out)]

    def _start(self, words: list[str]) -> subprocess.Popen:
        clean = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
        clean |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        with open(self.folder / "stderr", "wb") as stderr:
            return subprocess.Popen(
                [sys.executable, "-m", "dgl_gt", *words],
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                env=clean,
                start_new_session=True,
            )

    def _stderr(self) -> str:
        return (self.folder / "stderr").read_text(errors="replace")

    def _record(self) -> dict:
        return json.loads((self.out / "record.json").read_text())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    injected, survived, lost, wrong = Counter(), Counter(), {kind: [] for kind in KINDS}, Counter()
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial(Path(folder))
        print(f"undisturbed: {trial.seconds:.1f} s", flush=True)
        for number, fault in enumerate(draw(args.seed, args.faults)):
            found, seconds = trial.run(fault)
            injected[fault.kind] += 1
            survived[fault.kind] += not found
            lost[fault.kind].append(seconds)
            wrong.update(each.splitlines()[0] for each in found)
            print(f"{number + 1:4} {fault}: {'; '.join(found) or 'survived'}, {seconds:.1f} s", flush=True)
    for kind in KINDS:
        seconds = sorted(lost[kind])
        print(
            f"{kind}: {survived[kind]} of {injected[kind]}, {seconds[len(seconds) // 2] if seconds else 0:.1f} s lost"
        )
    print(f"{sum(survived.values())} of {args.faults} survived with the same losses and metric")
    for text, count in wrong.most_common():
        print(f"{count:4} {text}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
