"""What ranks of a machine share: how many threads each gets, and what is said where memory runs out."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from dgl_gt.partition.system.memory import available_cpus
from dgl_gt.partition.system.units import format_count


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


_GENERAL = "free memory, or partition into more parts on more machines"


def out_of_memory_message(rank: int, problem: str, memory_advice: Callable[[], str] | None = None) -> str:
    """The message for a rank that ran out of memory; ``memory_advice()`` gives its last part, unless it fails."""
    try:
        advice = memory_advice() if memory_advice else _GENERAL
    except Exception:  # for instance because the shards are gone, or memory is short here, too
        advice = _GENERAL
    return f"rank {rank} ran out of memory: {problem}; {advice}"
