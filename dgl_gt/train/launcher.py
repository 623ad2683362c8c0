"""What a launcher and the ranks that it starts both know: how they find each other, and what both say. No torch."""

from __future__ import annotations

import os
import sys
from typing import NamedTuple

from partition.system.memory import available_cpus

LAUNCHED = "DGL_GT_LAUNCHED"  # the environment variable that makes a process a rank of a launcher


class Launcher(NamedTuple):
    """What a rank that was started here knows of its launcher.

    Attributes
    ----------
    pid : int
    store, pipe : int
        File descriptors: of the file in which ranks meet, and of the pipe to the launcher.
    """

    pid: int
    store: int
    pipe: int


def launcher() -> Launcher | None:
    """The launcher that started this process as a rank, if one did."""
    words = os.environ.get(LAUNCHED)
    return Launcher(*map(int, words.split())) if words else None


def threads_per_rank(ranks: int) -> int:
    """Threads for each of so many ranks on this machine."""
    return max(1, available_cpus() // ranks)


def warn_of_threads(ranks: int) -> None:
    """Say on standard error where ``OMP_NUM_THREADS`` asks for more threads than this machine has processors."""
    wanted, cpus = os.environ.get("OMP_NUM_THREADS", ""), available_cpus()
    if wanted.isdecimal() and int(wanted) * ranks > max(cpus, ranks):
        who = "1 rank has" if ranks == 1 else f"{ranks} ranks share"
        print(
            f"dgl-gt: warning: OMP_NUM_THREADS is {wanted}, but {who} {cpus} processor{'s' * (cpus != 1)}, so that "
            f"threads wait for each other; set it to {threads_per_rank(ranks)}, or unset it",
            file=sys.stderr,
        )


def out_of_memory(rank: int, text: str, memory_advice) -> str:
    """The message of a rank that ran out of memory."""
    advice = memory_advice() if memory_advice else "free memory, or partition into more parts on more machines"
    return f"rank {rank} ran out of memory: {text}; {advice}"
