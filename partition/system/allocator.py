"""The memory allocator of ranks: tcmalloc or jemalloc where the system has one, else glibc's with settings of its own.

A training step frees large tensors and asks for the same sizes again. glibc gives them back to the system and takes them
again in pages of 4 KiB, which takes up to half of a step on a CPU. jemalloc and tcmalloc keep them, at little more memory;
glibc can be told to, but holes between tensors then take half as much again. So in ranks with a bound of their memory, or
that run part by part, glibc gives large blocks back, and jemalloc all after half a second. torch is not imported here.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
import sysconfig
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from dgl_gt.partition.errors import InputError, check_one_of

ALLOCATORS = ("auto", "jemalloc", "tcmalloc", "glibc")
_ROOT = Path("/")
_SMALL_BLOCK = 32 << 20  # older glibc keeps no larger ones
_LARGE_BLOCK = 128 << 10  # of ranks with a bound
_LIBRARIES = {  # in the order of choice, by their file names
    "tcmalloc": ("libtcmalloc_minimal.so.4", "libtcmalloc.so.4"),
    "jemalloc": ("libjemalloc.so.2",),
}
_PACKAGES = {"jemalloc": "libjemalloc2", "tcmalloc": "libtcmalloc-minimal4"}  # of Debian and Ubuntu
_KEEP = {
    "jemalloc": {"MALLOC_CONF": "oversize_threshold:0,metadata_thp:auto,dirty_decay_ms:-1,muzzy_decay_ms:-1"},
    "tcmalloc": {"TCMALLOC_RELEASE_RATE": "0"},
    # Without small chunks kept apart, a freed tensor and what lies before it are one piece, which the next tensor fits.
    "glibc": {
        "MALLOC_MMAP_MAX_": "0",
        "MALLOC_TRIM_THRESHOLD_": str(2**40),
        "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0:glibc.malloc.mxfast=0",
    },
}
_THRESHOLD = "MALLOC_MMAP_THRESHOLD_"
_GIVE_BACK = _KEEP | {
    "jemalloc": {"MALLOC_CONF": "oversize_threshold:0,metadata_thp:auto,dirty_decay_ms:500,muzzy_decay_ms:0"},
    "glibc": {name: value for name, value in _KEEP["glibc"].items() if name != "MALLOC_MMAP_MAX_"}
    | {_THRESHOLD: str(_LARGE_BLOCK)},  # a process then takes little more than its tensors
}
_MEMORY_FACTORS = {  # see docs/selector.md; mallopt cannot switch off the lists of small chunks
    "jemalloc": 1.13,
    "tcmalloc": 1.02,
    "glibc": 1.5,
    "glibc by mallopt": 2.4,
}
_M_MMAP_MAX, _M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD = -4, -3, -1  # of mallopt
_USUAL_MMAP_MAX, _KEPT_BYTES = 2**16, 256 << 20
_keeps_by_mallopt = False  # this process, see keep_for_reuse


def environment_of_ranks(
    asked: str = "auto", bounded: bool = False, environ: Mapping[str, str] = os.environ, root: Path = _ROOT
) -> dict[str, str]:
    """The variables with which ranks start, so that they have an allocator, one of :data:`ALLOCATORS`.

    With ``bounded`` memory, glibc and jemalloc give freed memory back. Where ``environ`` preloads libraries, ``auto`` leaves them
    alone, and another name comes before them. ``InputError`` if the system does not have the one that is asked for.
    """
    check_one_of("allocator", asked, ALLOCATORS)
    preloaded, theirs = environ.get("LD_PRELOAD", ""), _first_in(environ.get("LD_PRELOAD", ""))
    settings = _GIVE_BACK if bounded else _KEEP
    usual = settings["glibc"]  # does nothing to the others, and holds where the system does not preload them
    if asked == "glibc" or asked == "auto" and preloaded and not theirs:
        return usual
    if theirs and asked in ("auto", theirs):
        return settings[theirs] | usual
    for name in _LIBRARIES if asked == "auto" else (asked,):
        if path := _find(name, environ, root):
            return settings[name] | {"LD_PRELOAD": f"{path}:{preloaded}".rstrip(":")} | usual
    if asked == "auto":
        return usual
    raise InputError(
        f"allocator is {asked}, and {' or '.join(_LIBRARIES[asked])} is not in {', '.join(_folders(environ))}; install it "
        f"(apt install {_PACKAGES[asked]}), or choose auto or glibc"
    )


def _first_in(preloaded: str) -> str:
    """The first allocator among preloaded libraries, whose names stand between blanks or colons; empty without any."""
    files = [os.path.basename(each) for each in re.split("[ :]", preloaded)]
    return next((name for file in files for name in _LIBRARIES if file.startswith(f"lib{name}")), "")


def _folders(environ: Mapping[str, str]) -> list[str]:
    """Where libraries are looked for."""
    multiarch = sysconfig.get_config_var("MULTIARCH") or ""
    names = [*environ.get("LD_LIBRARY_PATH", "").split(":"), f"{sys.prefix}/lib", f"{sys.base_prefix}/lib"]
    names += ["/usr/local/lib", f"/usr/lib/{multiarch}", f"/lib/{multiarch}", "/usr/lib64", "/usr/lib"]
    return [each for each in dict.fromkeys(names) if each.startswith("/")]


def _find(name: str, environ: Mapping[str, str] = os.environ, root: Path = _ROOT) -> Path | None:
    found = (root / folder[1:] / file for file in _LIBRARIES[name] for folder in _folders(environ))
    return next((path for path in found if path.is_file()), None)


def running_allocator() -> str:
    """The allocator of this process: "jemalloc", "tcmalloc", or without them "glibc", or "system" where that is another."""
    try:
        loaded = Path("/proc/self/maps").read_text()
    except OSError:
        loaded = ""
    first = _first_in(os.environ.get("LD_PRELOAD", ""))
    name = next((each for each in (first, *_LIBRARIES) if each and f"/lib{each}" in loaded), "")
    return name or ("glibc" if hasattr(ctypes.CDLL(None), "gnu_get_libc_version") else "system")


def memory_factor() -> float:
    """Bytes of this process for each byte of its tensors."""
    name = running_allocator()
    if name == "glibc" and not set(_KEEP["glibc"]) <= set(os.environ):
        return _MEMORY_FACTORS["glibc by mallopt"] if _keeps_by_mallopt else 1.0
    return _MEMORY_FACTORS.get(name, 1.0)


def memory_factor_of_ranks() -> float:
    """The same of ranks that are started here."""
    name = _first_in(environment_of_ranks().get("LD_PRELOAD", os.environ.get("LD_PRELOAD", ""))) or running_allocator()
    return _MEMORY_FACTORS.get(name, 1.0)


def has_room(process, tensors, bound):
    """Whether ranks that keep freed memory stay within their bound; numbers or arrays (bytes)."""
    return process + tensors <= bound


def keep_if_room(process: float, tensors: float, bound: float) -> float:
    """Let glibc keep memory in this rank, where it is bounded, if twice its tensors would fit; return the factor (bytes)."""
    names = set(_GIVE_BACK["glibc"])
    is_bounded = names <= set(os.environ) and "MALLOC_MMAP_MAX_" not in os.environ and running_allocator() == "glibc"
    if not is_bounded or not has_room(process, tensors, bound):
        return 1.0
    ctypes.CDLL(None).mallopt(_M_MMAP_MAX, 0)
    return _MEMORY_FACTORS["glibc"]


def factor_with_bound(factor: float) -> float:
    """The factor of ranks whose memory is bounded: that of glibc is then 1, because it gives blocks back."""
    return 1.0 if factor in (_MEMORY_FACTORS["glibc"], _MEMORY_FACTORS["glibc by mallopt"]) else factor


def smallest_given_back(factor: float, bounded: bool, spilled: bool) -> float:
    """The smallest block (bytes) that ranks with this factor give back to the system as soon as it is free; infinite for none."""
    if spilled and factor_with_bound(factor) == 1.0:
        return _SMALL_BLOCK
    return _LARGE_BLOCK if bounded and not spilled and factor == 1.0 else float("inf")


def check_running(asked: str) -> None:
    """Raise :class:`InputError` in a rank that does not run with the allocator that was asked for by name."""
    running = running_allocator()
    if asked not in ("auto", running):
        path = _find(asked) if asked != "glibc" else None
        how = f"start torchrun with LD_PRELOAD={path}" if path else "start it without LD_PRELOAD"
        raise InputError(
            f"allocator is {asked}, but this rank runs with {running}: the system did not preload the other, or torchrun "
            f"started the rank; {how}, or choose auto"
        )


def keep_for_reuse() -> None:
    """Let glibc keep freed memory for the next tensor in this process, unless its settings are in the environment."""
    global _keeps_by_mallopt
    is_set = any(each.startswith("MALLOC_") for each in os.environ)
    is_set = is_set or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")
    libc = ctypes.CDLL(None)
    if not is_set and running_allocator() == "glibc" and hasattr(libc, "mallopt"):
        libc.mallopt(_M_MMAP_MAX, 0)
        libc.mallopt(_M_TRIM_THRESHOLD, -1)  # never
        _keeps_by_mallopt = True


@cache
def keep_small_blocks(most: int = _KEPT_BYTES) -> None:
    """Let glibc keep freed memory in blocks up to 32 MiB, ``most`` bytes (-1: any) at the end of its heap; once a process.

    Dask's workers start with a setting that gives nearly all of it back, and tasks then wait for pages half of the time;
    so do layers that run part by part in a rank with bounded memory.
    """
    libc = ctypes.CDLL(None)
    if running_allocator() == "glibc" and hasattr(libc, "mallopt"):
        libc.mallopt(_M_MMAP_MAX, _USUAL_MMAP_MAX)
        libc.mallopt(_M_MMAP_THRESHOLD, _SMALL_BLOCK)
        libc.mallopt(_M_TRIM_THRESHOLD, most)
