"""The machine that a benchmark runs on: its data folder, its processor, and the memory of processes."""

from __future__ import annotations

import os
from pathlib import Path

import psutil

DATA = Path(os.environ.get("DGL_GT_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))


def processor() -> str:
    """The processor's name as it reports itself, with the number of its cores that this process may use."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    cores = len(os.sched_getaffinity(0))
    return f"{names[0] if names else 'unnamed processor'}, {cores} core{'s' * (cores != 1)}"


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
