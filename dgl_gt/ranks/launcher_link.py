"""What a launcher and its ranks share: how a rank finds its launcher, what it reports, and what both say of a machine.

This module does not import torch: the launcher has no use for it.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import NamedTuple

from dgl_gt.partition.notebook import Bar, in_notebook
from dgl_gt.partition.system.memory import available_cpus
from dgl_gt.partition.system.output_checks import process_name
from dgl_gt.partition.system.units import format_count

LAUNCHED = "DGL_GT_LAUNCHED"  # the environment variable that makes a process a rank of a launcher
LATE_AFTER_S = 60.0  # a rank that has not joined by then is named in a message
SETS_A_LIMIT = " (--timeout SECONDS sets a limit)"  # said of waiting by the commands that have the option
_GENERAL = "free memory, or partition into more parts on more machines"


class Launcher(NamedTuple):
    """The launcher of this process: its process id, and file descriptors that this process has inherited."""

    pid: int
    store: int  # of the file in which ranks meet
    pipe: int  # to the launcher
    restarts: int  # how often it has started the ranks again

    def report(self, **message) -> None:
        """Send one message: ``state=...``, ``progress=[...]`` of a bar, or the fields of a :class:`Failure`."""
        with suppress(OSError):  # the launcher has ended, and this rank ends with it
            os.write(self.pipe, json.dumps(message).encode() + b"\n")


def find_launcher() -> Launcher | None:
    """The launcher that started this process as a rank, if there is one."""
    words = os.environ.get(LAUNCHED)
    return Launcher(*map(int, words.split())) if words else None


@contextmanager
def notebook_bar() -> Iterator[Callable | None]:
    """Give the :class:`Bar` of the cell that runs this, or that launched this rank; None outside of notebooks.

    A rank cannot tell whether its launcher is in a notebook, which shows the bar there and nothing elsewhere.
    """
    launcher, bar = find_launcher(), Bar()
    if launcher:
        yield lambda *progress: launcher.report(progress=progress)
    else:
        try:
            yield bar if in_notebook() else None
        finally:
            bar.close()


def restarts() -> int:
    """How often the ranks of this run have been started again after a failure, by a launcher or by torchrun."""
    launcher, by_torchrun = find_launcher(), os.environ.get("TORCHELASTIC_RESTART_COUNT", "")
    if launcher:
        return launcher.restarts
    return int(by_torchrun) if re.fullmatch("[0-9]{1,9}", by_torchrun) else 0


def starter_name() -> str:
    """A unique name of the process that starts and restarts the ranks: a launcher or torchrun."""
    launcher = find_launcher()
    return process_name(launcher.pid if launcher else os.getppid())


@dataclass(frozen=True)
class Failure:
    """Why a rank ended early.

    The kind is ``input`` where the user can fix the cause, ``memory`` where memory ran out, ``signal``, ``error`` for a
    bug, ``relayed`` for another rank's failure of any kind, or ``exit`` where the rank did not say why.
    """

    kind: str
    text: str  # the message; for an error the traceback, for a signal the number, for an exit the exit code
    at_s: float  # by time.monotonic, which is the same in all processes of a machine
    is_input: bool = False  # whether the user can fix the cause of a relayed failure
    trace: str = ""  # the traceback, which an error of the user's does not show on the command line

    @property
    def exit_code(self) -> int:
        """The exit code of a run that fails for this reason."""
        if self.kind == "signal":
            return 128 + int(self.text)
        if self.kind == "exit":
            return int(self.text)
        return 2 if self.kind in ("input", "memory") or self.is_input else 1


def threads_per_rank(ranks: int) -> int:
    """Number of threads for each of the ranks on this machine."""
    return max(1, available_cpus() // ranks)


def warn_of_too_many_threads(ranks: int) -> None:
    """Warn on standard error if ``OMP_NUM_THREADS`` gives ranks more threads than this machine has processors."""
    wanted, processors = os.environ.get("OMP_NUM_THREADS", ""), available_cpus()
    if wanted.isdecimal() and int(wanted) * ranks > max(processors, ranks):
        who = "1 rank has" if ranks == 1 else f"{ranks} ranks share"
        print(
            f"dgl-gt: warning: OMP_NUM_THREADS is {wanted}, but {who} {format_count(processors, 'processor')}, so threads "
            f"wait for each other; set it to {threads_per_rank(ranks)}, or unset it",
            file=sys.stderr,
        )


def out_of_memory_message(rank: int, problem: str, memory_advice: Callable[[], str] | None = None) -> str:
    """The message for a rank that ran out of memory; ``memory_advice()`` gives its last part, unless it fails."""
    try:
        advice = memory_advice() if memory_advice else _GENERAL
    except Exception:  # for instance because the shards are gone, or memory is short here, too
        advice = _GENERAL
    return f"rank {rank} ran out of memory: {problem}; {advice}"
