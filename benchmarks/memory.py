"""How much memory a process and its children need, for the benchmarks that ask."""

from __future__ import annotations

from pathlib import Path

import psutil


def memory_bytes(pid: int) -> int:
    """Proportional set size of a process and all its children, in bytes; those that end meanwhile count nothing."""
    total = 0
    try:
        processes = [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    except psutil.NoSuchProcess:
        return 0
    for process in processes:
        try:
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue
        total += sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total
