"""Feed damaged files to every reader, in one process for many of them, so that a hundred thousand fit into an hour.

    python tests/hostile/readers.py --inputs 100000

The files are those of ``trial.py``, which runs whole commands on them; here the function that reads such a file is
called. An input passes where the reader returns, or raises an error that is meant for users. It fails with any other
exception, by a signal, after the time bound, with too much memory, or where it leaves or changes a file.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path

import trial
from judge import cause

BLOCK, LIMIT_S = 100, 120  # inputs of one process, and the seconds of one input
RARE = ("dgl_file", "dgl_directory")  # each starts DGL or METIS in a process of its own, which takes seconds


def readers() -> dict:
    """For each kind of damaged file the function that reads it, from ``in`` in the working directory."""
    import dgl_gt
    from dgl_gt.partition import load_graph, read_manifest, verify
    from dgl_gt.partition.shards.dgl_import import import_dgl
    from dgl_gt.plan import read_profile
    from dgl_gt.run_files.run_record import compare_with_prediction
    from dgl_gt.run_files.tensor_file import CHECKPOINT_FILE, read_bytes
    from dgl_gt.train.config import read_config
    from dgl_gt.train.saved_model import load_model

    def graph(case):
        if case.call:
            return eval(case.call, {"dgl_gt": sys.modules["dgl_gt"]})
        words = case.argv
        table = words[words.index("--node-data") + 1] if "--node-data" in words else None
        return load_graph(words[1], node_data=table)

    def shards(case):
        (path,) = (each for each in Path("in").iterdir() if (each / "manifest.json").exists() or each.name != "model")
        verify(path, read_manifest(path))
        return dgl_gt.load(path) if path.name == "shards1" else None

    def model(case):
        return compare_with_prediction("in/model") if "plan" in case.argv else load_model("in/model")

    def checkpoint(case):
        return [CHECKPOINT_FILE.unpack(read_bytes(path)) for path in sorted(Path("out/run").glob("checkpoint-*"))]

    graphs = ("npz", "npy", "text", "node_table", "metis", "dgl_file")
    return dict.fromkeys(graphs, graph) | {
        "manifest": shards,
        "shard_file": shards,
        "model": model,
        "checkpoint": checkpoint,
        "config": lambda case: read_config("in/config.yaml"),
        "profile": lambda case: read_profile("in/p.yaml"),
        "dgl_directory": lambda case: import_dgl("in/dgl/dgl.json", "out/shards"),
    }


class Block:
    """The inputs ``numbers`` of a seed, in a process of its own with a directory of its own."""

    def __init__(self, root: Path, seed: int, numbers, wheel: list[str]):
        self.folder, self.seed, self.numbers, self.wheel = root / str(numbers[0]), seed, numbers, wheel
        self.folder.mkdir()
        self.progress = self.folder / "progress"  # a line for each input that begins, and one for each that fails
        self.pid = os.fork()
        if not self.pid:
            self._work(root / "material")

    def outcome(self, status: int) -> tuple[list[tuple[int, str]], range]:
        """The numbers that failed and why, and those that were not read because the process ended with ``status``."""
        lines = [json.loads(line) for line in self.progress.read_text().splitlines()]
        found = [(each["number"], each["cause"]) for each in lines if "cause" in each]
        code = os.waitstatus_to_exitcode(status)
        last = max((each["number"] for each in lines), default=self.numbers[0])
        if code:
            kind = self.wheel[last % len(self.wheel)]
            found.append((last, f"{kind}: ends by signal {-code}" if code < 0 else f"{kind}: exit code {code}"))
        return found, range(last + 1, self.numbers[-1] + 1)

    def _work(self, material: Path) -> None:
        """Read all inputs; this process then ends."""
        code = 1
        try:
            for descriptor in (1, 2):
                os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
            os.environ.update({"TMPDIR": str(self.folder / "tmp")})
            tempfile.tempdir = None
            (self.folder / "tmp").mkdir()
            resource.setrlimit(resource.RLIMIT_AS, (trial.ROOM_BYTES, trial.ROOM_BYTES))
            by_kind = readers()
            with self.progress.open("w", buffering=1) as progress:
                for number in self.numbers:
                    print(json.dumps({"number": number}), file=progress)
                    here = self.folder / "cwd"
                    here.mkdir()
                    os.chdir(here)
                    if what := self._failure(number, here, material, by_kind):
                        print(json.dumps({"number": number, "cause": what}), file=progress)
                        break  # what it left would count against the inputs that follow; a new process reads them
                    os.chdir(self.folder)
                    shutil.rmtree(here)
            code = 0
        finally:
            os._exit(code)

    def _failure(self, number: int, here: Path, material: Path, by_kind: dict) -> str | None:
        from kinds import make

        kind = self.wheel[number % len(self.wheel)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            case = make(self.seed, number, material, kind)
            if kind == "text" and any(each.is_symlink() for each in Path("in").iterdir()):
                return None  # gigabytes from a small file take long; trial.py reads them
            before = _names(here)
            signal.alarm(LIMIT_S)  # its default is to end the process
            try:
                by_kind[kind](case)
                what = None
            except Exception as error:
                is_meant = trial._is_for_users(error, case.call)
                what = None if is_meant else f"{kind}: {cause(traceback.format_exc())}"
            signal.alarm(0)
        if not what and kind != "dgl_directory" and _names(here) != before:
            what = f"{kind}: left or changed a file"
        if not what and (any((self.folder / "tmp").iterdir()) or len(os.listdir(self.folder)) > 3):
            what = f"{kind}: left a file outside its directory"
        if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 > trial.RESIDENT_BYTES:
            what = what or f"{kind}: takes too much memory"
        return what


def _names(folder: Path) -> dict[str, tuple]:
    """What is in a directory, with sizes and times of change."""
    found = {}
    for where, folders, files in os.walk(folder):
        for name in (*folders, *files):
            status = os.lstat(os.path.join(where, name))
            found[os.path.join(where, name)] = (status.st_mode, status.st_size, status.st_mtime_ns)
    return found


def run(root: Path, seed: int, count: int, jobs: int) -> list[tuple[int, str]]:
    """Read ``count`` inputs, and say on stderr how far it is; the failures."""
    from kinds import WHEEL

    known = readers()
    wheel = [kind for kind in WHEEL if kind in known and kind not in RARE] * 10 + list(RARE)
    waiting = [range(first, min(first + BLOCK, count)) for first in range(0, count, BLOCK)]
    running, failures, done, began = {}, [], 0, time.monotonic()
    while waiting or running:
        while waiting and len(running) < jobs:
            block = Block(root, seed, waiting.pop(0), wheel)
            running[block.pid] = block
        pid, status = os.wait()
        if block := running.pop(pid, None):
            found, unread = block.outcome(status)
            waiting += [unread] if unread else []
            done += len(block.numbers) - len(unread)
            failures += found
            shutil.rmtree(block.folder, ignore_errors=True)
            for number, what in found:
                print(f"{number}: {what}", flush=True)
            if done % (50 * BLOCK) == 0:
                print(f"{done} inputs, {time.monotonic() - began:.0f} s", flush=True)
    print(f"{done} inputs, seed {seed}, {time.monotonic() - began:.0f} s: {len(failures)} failures")
    return failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    trial.warm_up()
    root = Path(tempfile.mkdtemp(prefix="dgl-gt-hostile-")).resolve()
    try:
        (root / "home").mkdir()
        trial.make_material(root / "material", root / "home")
        failures = run(root, args.seed, args.inputs, args.jobs)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    for what, count in Counter(what for _, what in failures).most_common():
        print(f"{count:5}  {what}")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
