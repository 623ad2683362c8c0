"""Signals at random times: what is left of a run, how long it takes to end, and with which exit code.

    python tests/hostile/kills.py --kills 300 --seed 0

starts partition, train, predict and calibrate, and sends SIGTERM, SIGINT or SIGKILL to the command, to one of its child
processes (a rank, or METIS) or to all of them at once. The exit code is 1 where something was not as it should be.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml

from dgl_gt.partition import InputError, read_manifest, verify
from dgl_gt.train import saved_model

ROOT = Path(__file__).parents[2]
LIMIT_S = 15.0  # no measure of speed: how long a run may take to end after a signal
UNDISTURBED_S = 300.0
MODEL = ["--hidden", "16", "--heads", "2", "--layers", "1", "--epochs", "60"]
_OF_A_STOP = (
    "dgl-gt: (the best model so far|stopped after epoch|waiting for the ranks to stop)"  # said beside the reason
)
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGKILL)
TARGETS = ("command", "child", "all")
COMMANDS = ("partition", "train", "predict", "calibrate")


@dataclass(frozen=True)
class Kill:
    """One signal: to whom, and after which share of the time that an undisturbed run takes."""

    command: str
    target: str
    number: signal.Signals
    share: float

    def __str__(self) -> str:
        return f"{self.command}: {self.number.name} to {self.target} at {self.share:.0%}"


def draw(seed: int, count: int, commands=COMMANDS) -> list[Kill]:
    """The kills of a seed; the first ones are the same however many are drawn."""
    rng = random.Random(seed)
    return [Kill(rng.choice(commands), rng.choice(TARGETS), rng.choice(SIGNALS), rng.random()) for _ in range(count)]


class Trial:
    """Inputs for the commands, and runs of them.

    Parameters
    ----------
    folder : path
        Where inputs are made; each run has a folder for temporary files and one for its output inside.

    Attributes
    ----------
    seconds : dict of str to float
        Of undisturbed runs, by command.
    longest_wait_s : float
        From a signal to the end of the command.
    """

    def __init__(self, folder: Path):
        self.folder, self.seconds, self.longest_wait_s = folder, {}, 0.0
        for name in ("partition", "train"):
            self.undisturbed(name)
            (folder / "out" / "result").rename(folder / name)

    def arguments(self, command: str) -> list[str]:
        made, out = self.folder, str(self.folder / "out" / "result")
        return {
            "partition": ["partition", "sample:communities?nodes=3000&seed=3", "--parts", "2", "--out", out],
            "train": ["train", str(made / "partition"), *MODEL, "--out", out],
            "predict": ["predict", str(made / "partition"), "--model", str(made / "train"), "--out", out + ".npz"],
            "calibrate": ["calibrate", "--nproc", "2", "--out", out + ".yaml"],
        }[command]

    def start(self, command: str) -> subprocess.Popen:
        for name in ("out", "tmp"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
            (self.folder / name).mkdir()
        clean = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
        clean |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TMPDIR": str(self.folder / "tmp")}
        words = [sys.executable, "-m", "dgl_gt", *self.arguments(command)]
        with open(self.folder / "stderr", "wb") as stderr:
            return subprocess.Popen(
                words,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                env=clean,
                start_new_session=True,
                # a shell starts this trial with SIGINT ignored if it runs in the background, and children inherit that
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
            )

    def undisturbed(self, command: str) -> None:
        """Run a command to its end, and note how long it takes."""
        started = time.monotonic()
        code = self.start(command).wait(UNDISTURBED_S)
        assert code == 0 and is_complete(self.folder / "out"), (self.folder / "stderr").read_text()
        self.seconds[command] = time.monotonic() - started

    def kill(self, kill: Kill) -> list[str]:
        """Run a command and send the signal; what was not as it should be."""
        if kill.command not in self.seconds:
            self.undisturbed(kill.command)
        process = self.start(kill.command)
        try:
            return self._send_and_judge(kill, process)
        finally:
            if process.poll() is None:  # this trial has been interrupted, or the command hangs
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def _send_and_judge(self, kill: Kill, process: subprocess.Popen) -> list[str]:
        time.sleep(kill.share * self.seconds[kill.command])
        targets = [process.pid]
        if kill.target == "child":
            targets = [random.Random(kill.share).choice(children(process.pid) or targets)]
        if process.poll() is None:
            if kill.target == "all":
                os.killpg(process.pid, kill.number)
            else:
                send(targets[0], kill.number)
        sent = time.monotonic()
        try:
            process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            return [f"still running {LIMIT_S:.0f} s after the signal"]
        self.longest_wait_s = max(self.longest_wait_s, time.monotonic() - sent)
        wrong = [f"processes left: {left}"] if (left := left_over(process.pid, sent + LIMIT_S)) else []
        return wrong + self.judge(kill, process.returncode, has_hit_command=targets == [process.pid])

    def judge(self, kill: Kill, code: int, has_hit_command: bool) -> list[str]:
        wrong, text = [], (self.folder / "stderr").read_text(errors="replace")
        code = 128 - code if code < 0 else code  # as a shell shows it
        expected = {0, 128 + kill.number}
        if kill.command == "partition" and not has_hit_command:
            expected.add(2)  # METIS was ended: one line says so
        if code not in expected:
            wrong.append(f"exit code {code}, expected one of {sorted(expected)}")
        # before its first line of ours runs, Python itself shows where an interruption has come
        if "Traceback" in text and ("signals.py" in text or kill.number != signal.SIGINT):
            wrong.append("traceback")
        others = [each for each in re.findall("^dgl-gt: .*", text, re.MULTILINE) if not re.match(_OF_A_STOP, each)]
        if len(others) > 1:
            wrong.append("more than one message")
        if any((self.folder / "tmp").iterdir()):
            wrong.append(f"temporary files left: {sorted(each.name for each in (self.folder / 'tmp').iterdir())}")
        is_killed = kill.number == signal.SIGKILL and (has_hit_command or kill.target == "all")
        hidden = [each.name for each in (self.folder / "out").iterdir() if each.name.startswith(".")]
        if hidden and not (is_killed or kill.command in ("train", "predict") and kill.number == signal.SIGKILL):
            wrong.append(f"half-written files left: {hidden}")
        if not is_complete(self.folder / "out"):
            wrong.append("the output is not complete")
        return [f"{each}\n{text.rstrip()}" if text else each for each in wrong]


def is_complete(folder: Path) -> bool:
    """Whether what is in an output folder can be read; nothing there is complete, too."""
    for path in folder.glob("result*"):
        try:
            if path.suffix == ".npz":
                np.load(path)["probability"]
            elif path.suffix == ".yaml":
                yaml.safe_load(path.read_text())["link_bytes_per_s"]
            elif (path / "manifest.json").exists():
                verify(path, read_manifest(path))
            else:
                saved_model.load_model(path)
        except (InputError, OSError, KeyError, ValueError):
            return False
    return True


def send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def status(pid: str) -> list[str]:
    """State, parent, group and session of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:4]
    except OSError:
        return []


def children(pid: int) -> list[int]:
    found = [each for each in os.listdir("/proc") if each.isdigit() and status(each)[1:2] == [str(pid)]]
    return sorted(map(int, found))


def left_over(session: int, deadline: float) -> list[int]:
    """Processes of a session that are still there when time is up."""
    while True:
        found = [int(each) for each in os.listdir("/proc") if each.isdigit() and is_in(each, session)]
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.05)


def is_in(pid: str, session: int) -> bool:
    found = status(pid)
    return found[3:4] == [str(session)] and found[0] != "Z"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--commands", type=lambda text: text.split(","), default=COMMANDS)
    args = parser.parse_args()
    wrong = Counter()
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial(Path(folder))
        for number, kill in enumerate(draw(args.seed, args.kills, args.commands)):
            found = trial.kill(kill)
            print(f"{number + 1:4} {kill}: {'; '.join(found) or 'as it should be'}", flush=True)
            wrong.update(each.splitlines()[0] for each in found)
    print(f"{args.kills} kills, {sum(wrong.values())} findings, longest wait {trial.longest_wait_s:.1f} s")
    for text, count in wrong.most_common():
        print(f"{count:4} {text}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
