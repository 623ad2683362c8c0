"""Break training runs in random moments, and count which of them end with the numbers of an undisturbed run.

    python tests/hostile/faults.py --faults 200

Each run meets several faults, one after the other: a rank is killed or frozen, once or twice in a row, in the middle of
a step or while a checkpoint is written; the latest checkpoint is truncated between two parts of a run; the disk is full
for a while. The tests inject a few.
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
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kills import ROOT, children, left_over, send

KINDS = ("kill", "freeze", "kill twice", "kill while writing", "truncate", "full disk")
LIMIT_S, TIMEOUT_S = 300.0, 25
A_RUN, APART = 5, 20  # faults of one run, and the epochs between two of them
EPOCHS = (A_RUN + 1) * APART
MODEL = ["--layers", "2", "--hidden", "32", "--heads", "2", "--patience", "0", "--epochs", str(EPOCHS)]
SURVIVE = ["--checkpoint-every", "2", "--max-restarts", str(2 * A_RUN), "--timeout", str(TIMEOUT_S)]


@dataclass(frozen=True)
class Fault:
    kind: str
    rank: int
    epoch: int  # after which it comes: as soon as a checkpoint of that epoch or a later one is there
    delay_s: float = 0.0  # from then on, so that it comes at any moment of a step

    def __str__(self) -> str:
        return f"{self.kind}, rank {self.rank}, after epoch {self.epoch}"


def draw(seed: int, count: int) -> list[list[Fault]]:
    """The faults of each run: the same for the same seed, and every kind as often."""
    dice, runs = random.Random(seed), []
    for number in range(count):
        if number % A_RUN == 0:
            runs.append([])
        first = 2 + APART * len(runs[-1])
        epoch = dice.randrange(first, first + APART // 2)
        runs[-1].append(Fault(KINDS[number % len(KINDS)], dice.randrange(2), epoch, dice.uniform(0, 0.1)))
    return runs


class Trial:
    """A graph in two parts, an undisturbed run on it, and runs that are disturbed."""

    def __init__(self, folder: Path):
        self.folder, self.out = folder, folder / "run"
        words = ["partition", "sample:communities?nodes=1500&seed=3", "--parts", "2", "--out", str(folder / "shards")]
        assert self._start(words).wait(LIMIT_S) == 0, self._stderr()
        started = time.monotonic()
        assert self._start(self._words()).wait(LIMIT_S) == 0, self._stderr()
        self.seconds, self.expected = time.monotonic() - started, self._record()

    def run(self, faults: list[Fault]) -> tuple[list[str], list[float]]:
        """Train with faults; what was not as it should be, and the seconds that each fault cost.

        A fault costs the time until there is a checkpoint of a later epoch than it left, or the run has ended.
        """
        shutil.rmtree(self.out, ignore_errors=True)
        lost, processes = [], [self._start(self._words())]
        try:
            for fault in faults:
                if not self._wait_for(processes[-1], lambda: self._latest() >= fault.epoch):
                    return [f"the run ended before the fault: {fault}\n{self._stderr()}"], lost
                time.sleep(fault.delay_s)
                started = time.monotonic()
                if not self._inject(fault, processes):
                    return [f"the run ended within the fault: {fault}\n{self._stderr()}"], lost
                before = self._latest()
                has_gone_on = self._wait_for(processes[-1], lambda: self._latest() > before)
                if not has_gone_on and processes[-1].poll() is None:  # else it has ended, and is judged
                    return [f"no progress after the fault: {fault}\n{self._stderr()}"], lost
                lost.append(time.monotonic() - started)
            code = processes[-1].wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            return [f"still running after {LIMIT_S:.0f} s"], lost
        finally:
            for process in processes:
                self._end(process)
        left = [each for process in processes for each in left_over(process.pid, time.monotonic() + 10)]
        return ([f"processes left: {left}"] if left else []) + self._judge(code), lost

    def _judge(self, code: int) -> list[str]:
        if code:
            return [f"exit code {code}\n{self._stderr()}"]
        found = self._record()
        same = found["finished"] and all(found[name] == self.expected[name] for name in ("losses", "metric"))
        return [] if same else ["the metric or the losses differ"]

    def _inject(self, fault: Fault, processes: list[subprocess.Popen]) -> bool:
        """Bring a fault about; False if the run ends before that. A run that is started again is added to ``processes``."""
        process = processes[-1]
        if not self._wait_for(process, lambda: len(children(process.pid)) == 2):  # they may just start again
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
            processes.append(self._start([*self._words(), "--resume"]))
        elif fault.kind == "kill while writing":
            if not self._wait_for(process, lambda: self._stops_while_writing(ranks[0]), poll_s=0.0005):
                return False
            send(ranks[0], number)
        else:
            send(ranks[fault.rank], number)
            if fault.kind == "kill twice":
                if not self._wait_for(process, lambda: len(set(children(process.pid)) - set(ranks)) == 2):
                    return False
                time.sleep(random.Random(fault.epoch).uniform(0, 8))  # seconds in which it starts, or trains again
                send((children(process.pid) or ranks)[0], number)
        return True

    def _stops_while_writing(self, rank: int) -> bool:
        """Freeze a rank; if it is not writing a checkpoint just then, let it go on, and return False."""
        send(rank, signal.SIGSTOP)
        with suppress(OSError):  # it has ended
            while Path(f"/proc/{rank}/stat").read_text().rpartition(")")[2].split()[0] not in "TZX":
                pass
        if any(self.out.glob(".checkpoint-*")):
            return True
        send(rank, signal.SIGCONT)
        return False

    @staticmethod
    def _end(process: subprocess.Popen) -> None:
        """Wake what a fault has frozen, and end what still runs."""
        for each in children(process.pid):
            send(each, signal.SIGCONT)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

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
    parser.add_argument("--first", type=int, default=1, help="number of the first run; those before it are left out")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    lost, broken, wrong = {kind: [] for kind in KINDS}, Counter(), Counter()
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial(Path(folder))
        print(f"undisturbed: {trial.seconds:.1f} s", flush=True)
        for number, faults in enumerate(draw(args.seed, args.faults), 1):
            if number < args.first:
                continue
            found, seconds = trial.run(faults)
            for fault, each in zip(faults, seconds):
                lost[fault.kind].append(each)
            broken.update(fault.kind for fault in faults if found)
            wrong.update(each.splitlines()[0] for each in found)
            done = ", ".join(f"{fault} ({each:.1f} s)" for fault, each in zip(faults, seconds))
            print(f"{number:4} {'; '.join(found) or 'survived'}: {done}", flush=True)
    for kind, each in lost.items():
        print(
            f"{kind}: {len(each)} injected, {broken[kind]} in runs that went wrong, "
            f"{sorted(each)[len(each) // 2] if each else 0:.1f} s lost (median), {max(each, default=0):.1f} at most"
        )
    print(f"{sum(map(len, lost.values()))} faults, {sum(wrong.values())} findings")
    for text, count in wrong.most_common():
        print(f"{count:4} {text}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
