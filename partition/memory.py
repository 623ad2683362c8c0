"""How much memory this process has needed."""

from __future__ import annotations

import resource
import sys
from pathlib import Path


def peak_memory_bytes() -> int:
    """This process's peak resident memory; its children are not counted."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would start from the peak of whatever process started this one
        return 1024 * next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
