"""The message for a rank that has run out of memory."""

from __future__ import annotations

from collections.abc import Callable

_GENERAL = "free memory, or partition into more parts on more machines"


def out_of_memory_message(rank: int, problem: str, memory_advice: Callable[[], str] | None = None) -> str:
    """The message for a rank that ran out of memory; ``memory_advice()`` gives its last part, unless it fails."""
    try:
        advice = memory_advice() if memory_advice else _GENERAL
    except Exception:  # for instance because the shards are gone, or memory is short here, too
        advice = _GENERAL
    return f"rank {rank} ran out of memory: {problem}; {advice}"
