"""How much memory this process has needed, and what the system lets it have: memory and processors."""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from pathlib import Path

_ROOT = Path("/")


def peak_memory_bytes() -> int:
    """This process's peak resident memory; its children are not counted."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would start from the peak of whatever process started this one
        return 1024 * next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def resident_memory_bytes() -> int:
    """This process's resident memory now; its peak where the system does not say."""
    numbers = _lines(Path("/proc/self/statm"))
    return int(numbers[0].split()[1]) * resource.getpagesize() if numbers else peak_memory_bytes()


def give_freed_back() -> None:
    """Give memory that was freed back to the system, where glibc would keep it for later."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)


def available_memory_bytes(root: Path = _ROOT) -> int:
    """Memory that processes may still take without swapping: the machine's, or less where a control group has a limit.

    Parameters
    ----------
    root : path
        Directory that holds ``proc`` and ``sys``; tests give another one.
    """
    available = [_free_bytes(group) for group in _control_groups(root, "memory")]
    for line in _lines(root / "proc/meminfo"):
        if line.startswith("MemAvailable:"):
            available.append(1024 * int(line.split()[1]))
    if not available:  # not Linux
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(0, int(min(available)))


def available_cpus(root: Path = _ROOT) -> int:
    """Processors that this process may keep busy: those it may run on, or fewer where a control group has a quota.

    At least 1. A quota of 2.5 processors counts as 2, as a third thread would be stopped half of the time.

    Parameters
    ----------
    root : path
        Directory that holds ``proc`` and ``sys``; tests give another one.
    """
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min([cpus, *map(_quota, _control_groups(root, "cpu"))])))


def _control_groups(root: Path, controller: str) -> list[Path]:
    """Directories of this process's control group for a controller and of all groups around it, in both versions.

    Inside a container the kernel may name a path that only the host has: then the groups around it that exist count,
    of which the container's own is the outermost.
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
    """What a memory group's limit leaves; the cache of files that nobody uses counts as free, as in MemAvailable."""
    # beyond memory.high processes are slowed down until they hardly move
    limit = min(_number(group / name) for name in ("memory.max", "memory.high", "memory.limit_in_bytes"))
    used = min(_number(group / "memory.current"), _number(group / "memory.usage_in_bytes"))
    if limit == float("inf") or used == float("inf"):
        return limit
    counts = dict(line.split()[:2] for line in _lines(group / "memory.stat") if len(line.split()) > 1)
    return limit - used + int(counts.get("total_inactive_file", counts.get("inactive_file", 0)))


def _quota(group: Path) -> float:
    """Processors that a group's time quota amounts to."""
    quota, period = (_lines(group / "cpu.max") or ["max 1"])[0].split()
    if quota != "max":
        return int(quota) / int(period)
    quota, period = _number(group / "cpu.cfs_quota_us"), _number(group / "cpu.cfs_period_us")
    return quota / period if 0 < quota < float("inf") and 0 < period < float("inf") else float("inf")


def _number(path: Path) -> float:
    """The number in a file; infinite where there is no such file or it says ``max``."""
    text = (_lines(path) or ["max"])[0].strip()
    return float("inf") if text == "max" else int(text)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
