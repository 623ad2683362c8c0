"""Memory that this process and its children have used, and the memory and processors that the system allows."""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from pathlib import Path

_ROOT = Path("/")


_most_with_children = 0  # bytes that were in use while child processes ran


def record_children(peak_bytes: int) -> None:
    """Note the peak memory of children that ran side by side, with what this process holds beside them."""
    global _most_with_children
    _most_with_children = max(_most_with_children, peak_bytes + resident_memory_bytes())


def peak_with_children_bytes() -> int:
    """Return the peak memory of this process and those children together that :func:`record_children` was told of."""
    return max(peak_memory_bytes(), _most_with_children)


def peak_memory_bytes() -> int:
    """Return this process's peak resident memory; its children are not counted."""
    for line in _lines(Path("/proc/self/status")):
        if line.startswith("VmHWM"):  # getrusage would start from the peak of the process that started this one
            return 1024 * int(line.split()[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def resident_memory_bytes() -> int:
    """Return this process's resident memory now, or its peak if the system does not tell."""
    numbers = _lines(Path("/proc/self/statm"))
    return int(numbers[0].split()[1]) * resource.getpagesize() if numbers else peak_memory_bytes()


def return_freed_memory() -> None:
    """Return freed memory to the system, which glibc would otherwise keep for later."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)


def available_memory_bytes(root: Path = _ROOT) -> int:
    """Return how much memory processes may still take without swapping; limits of control groups count."""
    available = [_free_bytes(group) for group in _control_groups(root, "memory")]
    for line in _lines(root / "proc/meminfo"):
        if line.startswith("MemAvailable:"):
            available.append(1024 * int(line.split()[1]))
    if not available:  # not Linux
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(0, int(min(available)))


def available_cpus(root: Path = _ROOT) -> int:
    """Return how many processors this process may keep busy, at least 1; quotas of control groups count.

    A quota of 2.5 processors counts as 2, because a third thread would be stopped half of the time.
    """
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min([cpus, *map(_quota, _control_groups(root, "cpu"))])))


def _control_groups(root: Path, controller: str) -> list[Path]:
    """List the directories of this process's control group for a controller and of its parents, cgroup v1 and v2.

    Inside a container the kernel may name a path that exists on the host only. Then those of its parents that exist
    are listed; the outermost is the container's own.
    """
    found = []
    for line in _lines(root / "proc/self/cgroup"):
        controllers, _, path = line.partition(":")[2].partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / (controller if controllers else "")
        group = mount / path.lstrip("/")
        found += [each for each in (group, *group.parents) if each.is_relative_to(mount) and each.is_dir()]
    return found


def _free_bytes(group: Path) -> float:
    """Return what a control group's memory limit leaves; the cache of inactive files is free, as in MemAvailable."""
    # beyond memory.high the kernel slows processes down until they hardly progress
    limit = min(_number(group / name) for name in ("memory.max", "memory.high", "memory.limit_in_bytes"))
    used = min(_number(group / "memory.current"), _number(group / "memory.usage_in_bytes"))
    if limit == float("inf") or used == float("inf"):
        return limit
    counts = dict(line.split()[:2] for line in _lines(group / "memory.stat") if len(line.split()) > 1)
    return limit - used + int(counts.get("total_inactive_file", counts.get("inactive_file", 0)))


def _quota(group: Path) -> float:
    """Return the number of processors that a control group's time quota amounts to."""
    text, period_text = (_lines(group / "cpu.max") or ["max 1"])[0].split()
    if text != "max":
        return int(text) / int(period_text)
    quota, period = _number(group / "cpu.cfs_quota_us"), _number(group / "cpu.cfs_period_us")
    return quota / period if 0 < quota < float("inf") and 0 < period < float("inf") else float("inf")


def _number(path: Path) -> float:
    """Read the number in a file; it is infinite if there is no such file or the file says ``max``."""
    text = (_lines(path) or ["max"])[0].strip()
    return float("inf") if text == "max" else int(text)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
