"""Run hostile inputs and judge what comes of them.

    python tests/hostile/trial.py --cases 20000 --seed 0 --jobs 2
    python tests/hostile/trial.py --seed 0 --number 1234          # one case again; if it fails, its files are kept
    python tests/hostile/trial.py --arguments 1                   # every argument of the Python interface

A parent that has imported everything forks a child for each case, in a directory of its own, and watches exit code,
signal, time and memory. No case may end with a traceback, by a signal, after the time bound, or with an exit code that
is not right for it; write half of an output; touch its inputs; leave temporary files or processes; or write control
characters to stderr.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import resource
import shlex
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter, defaultdict
from pathlib import Path

from judge import HALF_WRITTEN, OWN, cause, is_own, judged, left, shell, snapshot

QUIET = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "DGLBACKEND": "pytorch", "MPLBACKEND": "agg"}
ROOM_BYTES = 2**33  # of address space
RESIDENT_BYTES = 3 * 2**29
TENSOR_CALLS = ("dgl_gt.merge", "dgl_gt.nn", "dgl_gt.csc", "dgl_gt.CSC", "dgl_gt.sparse_attention")


@dataclasses.dataclass
class Failure:
    number: int
    kind: str
    cause: str  # failures of one cause are one group
    command: str
    detail: str


class Trial:
    """Runs cases in directories below ``root``: at most ``jobs`` at a time, each within ``seconds``."""

    def __init__(self, root: Path, seed: int, jobs: int, seconds: float, keep: bool = False, kind: str | None = None):
        self.root, self.seed, self.jobs, self.seconds, self.keep, self.kind = root, seed, jobs, seconds, keep, kind
        self.material, self.running, self.durations = root / "material", {}, {}
        (root / "home").mkdir(parents=True)

    def run(self, numbers):
        """Yield a Failure for each case that fails."""
        from kinds import kind_of

        for number in numbers:
            while len(self.running) >= self.jobs:
                yield from self._reap()
            self._start(number, self.kind or kind_of(number))
        while self.running:
            yield from self._reap()

    def stop(self) -> None:
        for pid in self.running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)

    def _start(self, number: int, kind: str) -> None:
        folder = self.root / str(number)
        folder.mkdir()
        pid = os.fork()
        if not pid:
            _child(folder, self.seed, number, self.material, self.root / "home", kind)
        self.running[pid] = (number, kind, folder, time.monotonic())

    def _reap(self):
        for pid, (number, kind, folder, since) in list(self.running.items()):
            done, status, used = os.wait4(pid, os.WNOHANG)
            spent = time.monotonic() - since
            hung = not done and spent > self.seconds
            if hung:
                os.killpg(pid, signal.SIGKILL)
                done, status, used = os.wait4(pid, 0)
            if done:
                del self.running[pid]
                self.durations[number] = spent
                code = os.waitstatus_to_exitcode(status)
                failure = self._judge(number, kind, folder, pid, code, hung, used.ru_maxrss * 1024)
                if failure:
                    yield failure
                if not (failure and self.keep):
                    shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.003)

    def _judge(self, number, kind, folder, pid, code, hung, resident) -> Failure | None:
        if not (folder / "case.json").exists():
            text = (folder / "stderr").read_text(errors="replace") if (folder / "stderr").exists() else ""
            return Failure(number, kind, f"the trial itself: {cause(text)}", "", text[-1500:])
        case, before = (json.loads((folder / name).read_text()) for name in ("case.json", "before.json"))
        stderr = (folder / "stderr").read_bytes().decode(errors="replace")
        stdout = (folder / "stdout").read_bytes()
        what = "hangs" if hung else judged(case, code, stderr, stdout) or left(folder, case, before, code)
        what = what or ("takes too much memory" if resident > RESIDENT_BYTES else None)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
            what = what or "leaves processes running"
        return what and Failure(number, kind, what, shell(case), f"exit code {code}; stderr:\n{stderr[-1500:]}")


def _child(folder: Path, seed: int, number: int, material: Path, home: Path, kind: str) -> None:
    """Make the case and run it in this process, which then ends."""
    os.setsid()
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        os.dup2(os.open(folder / name, os.O_CREAT | os.O_WRONLY, 0o644), descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdout, sys.stderr = (open(d, "w", closefd=False, errors="backslashreplace") for d in (1, 2))
    case = None
    try:
        from kinds import make

        (folder / "cwd").mkdir()
        os.chdir(folder / "cwd")
        with warnings.catch_warnings():  # numpy and zipfile say what they think of such files
            warnings.simplefilter("ignore")
            case = make(seed, number, material, kind)
        environment = {"HOME": str(home), "TMPDIR": "tmp", "PYTHONPATH": str(OWN), **QUIET, **case.env}
        for key, value in environment.items():
            os.environ.pop(key, None) if value is None else os.environ.update({key: value})
        tempfile.tempdir = None
        (folder / "case.json").write_text(json.dumps(dataclasses.asdict(case)))
        (folder / "before.json").write_text(json.dumps(snapshot(Path("."))))
        resource.setrlimit(resource.RLIMIT_AS, (ROOM_BYTES, ROOM_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if case.room:
            code = _in_small_room(case)
        else:
            code = _call(case.call) if case.call else _fresh(case) if case.fresh else _command(case.argv)
    except BaseException:  # the interpreter would print it, too
        traceback.print_exc()
        code = 1
    sys.stdout.flush(), sys.stderr.flush()
    os._exit(code)


def _command(argv: list[str]) -> int:
    """``python -m dgl_gt ARGV`` without a new interpreter."""
    import runpy

    sys.argv = ["dgl-gt", *argv]
    try:
        runpy.run_module("dgl_gt", run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return 0


def _fresh(case) -> int:
    """Replace this process by a new interpreter, with the redirections of the case."""
    command = [sys.executable, "-m", "dgl_gt", *case.argv]
    if case.streams:
        words = " ".join(map(shlex.quote, command))
        command = [
            "bash",
            "-c",
            f"set -o pipefail; {words} {case.streams}" + ("" if "|" in case.streams else "; exit $?"),
        ]
    os.execvp(command[0], command)


def _call(expression: str) -> int:
    """Return 0 for a result and 2 for an exception that is meant for the user; let other exceptions pass."""
    from calls import NAMES

    names = {}
    exec(NAMES, names)
    try:
        eval(expression, names)
        return 0
    except Exception as error:
        if not _is_for_users(error, expression):
            raise
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2


def _is_for_users(error: Exception, expression: str) -> bool:
    """Return whether our code raised an error on purpose, or Python lets such an error pass by custom."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
    if not any(is_own(frame.filename) for frame in frames):  # no such argument; or the expression itself is wrong
        return True
    if expression.startswith(TENSOR_CALLS) and isinstance(error, (TypeError, AttributeError, RuntimeError)):
        return True  # what is no tensor or number at all shows when it is used
    if isinstance(error, TypeError) and frames[-1].filename.endswith("pathlib.py"):
        return True  # no path
    raises = is_own(frames[-1].filename) and (frames[-1].line or "").startswith("raise")
    return raises and isinstance(error, (ValueError, TypeError, NotImplementedError))


def _in_small_room(case) -> int:
    """The command where a file system, or every file, has a bound. What it leaves there only this process can see."""
    where, size = case.room
    if where == "file" or not _mounted(where, max(size, 4096)):
        size = max(size, 4096)  # stderr is a file, too
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    code = _forked(lambda: _command(case.argv))
    if code and os.listdir("out"):
        print(f"{HALF_WRITTEN}: {sorted(os.listdir('out'))}", file=sys.stderr)
    return code if code >= 0 else 128 - code


def _mounted(where: str, size: int) -> bool:
    """Whether a file system of so many bytes could be mounted for this process; only the superuser may."""
    import ctypes

    libc, new_namespace, private = ctypes.CDLL(None), 0x20000, 0x44000
    ready = libc.unshare(new_namespace) == 0 and libc.mount(b"none", b"/", None, private, None) == 0
    return ready and libc.mount(b"none", where.encode(), b"tmpfs", 0, f"size={size}".encode()) == 0


def warm_up() -> None:
    """Import everything, so that a forked case starts at once; no thread may have started."""
    import importlib
    import pkgutil

    os.environ.update(QUIET)
    sys.path.insert(0, str(OWN))
    for package in ("dgl", "networkx", "matplotlib.pyplot", "scipy.sparse", "safetensors.torch", "yaml"):
        importlib.import_module(package)
    for package in [importlib.import_module("dgl_gt")]:
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if (
                not module.name.endswith("__main__")
                and not module.name.startswith("dgl_gt.ops.gpu.")
                and "._" not in module.name
                and ".lib" not in module.name
            ):
                importlib.import_module(module.name)
    from calls import NAMES

    exec(NAMES, {})
    from options import option_names

    for command in ("partition", "inspect", "report", "export", "import", "train", "predict", "calibrate", "plan"):
        option_names(command)


def make_material(folder: Path, home: Path) -> None:
    """Make the good files in a child process, because threads may start there; each command has its own child."""
    from case import RANK
    from material import make

    def run(argv):
        assert _forked(lambda: _command(argv)) == 0, f"dgl-gt {' '.join(argv)} failed"

    def all_of_it():
        os.environ.update({"HOME": str(home), "PYTHONPATH": str(OWN), **RANK})
        sys.stdout = open(os.devnull, "w")
        make(folder, run)
        return 0

    assert _forked(all_of_it) == 0, "the good files could not be made"


def _forked(work) -> int:
    """Return the exit code of a child process that does the work."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code = 1
    try:
        code = work()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(code)


def main() -> int:
    parser = argparse.ArgumentParser(description="Hostile inputs for dgl-gt.")
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=int, default=0, help="number of the first case")
    parser.add_argument("--number", type=int, nargs="+", help="these cases alone, their files kept where they fail")
    parser.add_argument("--kind", action="append", help="of these cases those of a kind; may be given again")
    parser.add_argument("--arguments", type=int, metavar="N", help="instead, every N-th call that has one odd argument")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=20.0, help="that a case may take")
    parser.add_argument("--keep", metavar="DIR", help="keep the directories of failed cases here")
    parser.add_argument("--json", metavar="FILE", help="write counts and failures")
    args = parser.parse_args()
    warm_up()
    from calls import argument_calls
    from kinds import KINDS, kind_of

    kind = "argument" if args.arguments else None
    numbers = range(args.start, args.start + args.cases) if args.number is None else args.number
    numbers = [n for n in numbers if not args.kind or kind_of(n) in args.kind]
    if kind and args.number is None:
        numbers = range(0, len(argument_calls()), args.arguments)
    if {*(args.kind or ())} - {*KINDS}:
        parser.error(f"kinds are {', '.join(KINDS)}")
    keep = args.keep or (tempfile.gettempdir() if args.number is not None else None)
    root = Path(tempfile.mkdtemp(prefix="dgl-gt-hostile-", dir=keep)).resolve()
    trial = Trial(root, args.seed, args.jobs, args.seconds, keep=keep is not None, kind=kind)
    began = time.monotonic()
    try:
        make_material(trial.material, root / "home")
        failures = [told(failure, trial) for failure in trial.run(numbers)]
    finally:
        trial.stop()
        if not keep:
            shutil.rmtree(root, ignore_errors=True)
    summary(failures, trial, numbers, time.monotonic() - began)
    if args.json:
        counts = Counter(kind or kind_of(number) for number in numbers)
        Path(args.json).write_text(json.dumps({"cases": counts, "failures": [vars(f) for f in failures]}, indent=1))
    return int(bool(failures))


def told(failure: Failure, trial: Trial) -> Failure:
    print(f"{failure.kind} {failure.number}: {failure.cause}\n    {failure.command[:600]}", flush=True)
    if trial.keep:
        print(f"    in {trial.root}/{failure.number}/cwd; {failure.detail}", flush=True)
    return failure


def summary(failures: list[Failure], trial: Trial, numbers, seconds: float) -> None:
    groups = defaultdict(list)
    for failure in failures:
        groups[failure.cause].append(failure)
    print(
        f"\nseed {trial.seed}, {len(numbers)} cases, {seconds:.0f} s: {len(failures)} failures of {len(groups)} causes"
    )
    for what, group in sorted(groups.items(), key=lambda each: -len(each[1])):
        kinds = ", ".join(f"{kind} {count}" for kind, count in Counter(f.kind for f in group).items())
        which = "--arguments 1" if trial.kind else f"--seed {trial.seed}"
        print(f"{len(group):5}  {what}\n       {kinds}; for one: {which} --number {group[0].number}")
    slowest = sorted(trial.durations.items(), key=lambda each: -each[1])[:3]
    print("slowest:", ", ".join(f"{number} ({spent:.1f} s)" for number, spent in slowest))


if __name__ == "__main__":
    sys.exit(main())
