"""What can spoil a long run, looked for on all ranks before it begins: versions, clocks, shards, memory, disks and links."""

from __future__ import annotations

import platform
import socket
import statistics
import time
from collections.abc import Callable
from itertools import permutations
from typing import Any, NamedTuple

import torch

from dgl_gt.comm.group import Comm
from dgl_gt.exchange.load import load
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.figures.strategies import AUTO
from dgl_gt.partition.shards.files import verify
from dgl_gt.partition.shards.manifest import check_joined, read_manifest
from dgl_gt.partition.system.output_checks import check_target, free_disk_bytes
from dgl_gt.partition.system.storage import Url, located
from dgl_gt.partition.system.units import format_bytes
from dgl_gt.run_files.run_directory import MODEL
from dgl_gt.train.config import TrainConfig

from .measure import available_rank_memory, link_speeds
from .planned_step import check_memory

MOST_CLOCK_S = 1.0  # by which clocks may differ: files and logs of hosts are compared by their times
LEAST_DISK_BYTES = 2**30
SLOW_LINK = 1 / 3  # of the median speed of the links between hosts, or within them
_CLOCK_RUNS = 5


class Examined(NamedTuple):
    """What :func:`examine` found: facts of each rank, the speed of links into rank i from rank j, and what is wrong."""

    ranks: list[dict[str, Any]]
    link_bytes_per_s: list[list[float]]
    problems: list[str]


def examine(
    comm: Comm,
    directory,
    config: TrainConfig,
    out=None,
    version: str = "",
    progress: Callable[[str], object] = lambda stage: None,
) -> Examined:
    """Look for what would spoil a run on these ranks; every rank calls it, and all get the same answer.

    Parameters
    ----------
    comm : Comm
    directory : path
        Shards; each rank reads its own part, as its host sees it.
    config : TrainConfig
        The run, whose memory is predicted and compared with what is free.
    out : path, optional
        Where rank 0 would write the run; the working directory by default.
    version : str
        That of dgl-gt on this rank.
    progress : callable, optional
        Called with each stage.
    """
    progress("comparing versions, clocks and disks")
    facts = {"dgl_gt": version, **_facts(comm), "clock_s": _clock_offset(comm)}
    if comm.rank == 0:
        facts |= _disk_of(out)
    progress("reading the shards")
    ranks = comm.gather_objects(facts | _shards(comm, directory))
    problems = [*_differences(ranks), *_clocks(ranks), *_disk(ranks[0]), *_unread(ranks)]
    if not any(each["unread"] for each in ranks) and len({each["shards"] for each in ranks}) == 1:
        progress("predicting the memory of a step")
        problems += _memory(comm, directory, config)
    progress("measuring links")
    links = link_speeds(comm).tolist() if comm.world_size > 1 else []
    return Examined(ranks, links, problems + _slow_links(ranks, links))


def _name(ranks: list[dict], number: int) -> str:
    return f"rank {number} ({ranks[number]['host']})"


def _facts(comm: Comm) -> dict[str, Any]:
    return {
        "host": socket.gethostname(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "memory_bytes": available_rank_memory(comm),
    }


def _disk_of(out) -> dict[str, Any]:
    """Where a run would be made, the bytes that are free there, None for a URL, and why it cannot be made there."""
    unwritten = ""
    try:
        if out is not None:
            check_target(out, MODEL, force=True, foreign=True)
    except InputError as error:
        unwritten = str(error)
    place = "." if out is None else located(out)
    free = None if isinstance(place, Url) or unwritten else free_disk_bytes(place)
    return {"disk": str(place), "disk_bytes": free, "unwritten": unwritten}


def _unread(ranks: list[dict]) -> list[str]:
    """What is wrong with the shards, each once, with the ranks that say it."""
    saying: dict[str, list[int]] = {}
    for number, each in enumerate(ranks):
        if each["unread"]:
            saying.setdefault(each["unread"], []).append(number)
    more = {text: f" and {len(numbers) - 1} more" if len(numbers) > 1 else "" for text, numbers in saying.items()}
    return [f"{_name(ranks, numbers[0])}{more[text]}: {text}" for text, numbers in saying.items()]


def _clock_offset(comm: Comm) -> float:
    """Seconds by which this rank's clock is ahead of rank 0's, as well as exchanges can tell."""
    found = []
    for _ in range(_CLOCK_RUNS):
        comm.all_reduce(torch.zeros(1))
        before = time.time()
        of_rank_0 = comm.broadcast_object(time.time())
        found.append(((before + time.time()) / 2 - of_rank_0, time.time() - before))
    return round(min(found, key=lambda each: each[1])[0], 3)


def _shards(comm: Comm, directory) -> dict[str, str]:
    """The checksum of the manifest that this rank sees, and what is wrong with its part."""
    seen, unread = "", ""
    try:
        manifest = read_manifest(directory)
        seen = str(manifest["checksum"])
        if manifest["parts"] < comm.world_size:
            raise InputError(
                f"{directory} has {manifest['parts']} parts for {comm.world_size} ranks; start as many, or partition again"
            )
        if manifest["parts"] > comm.world_size:
            check_joined(directory, manifest, comm.world_size)
            verify(directory, manifest)
        else:
            verify(directory, manifest, [comm.rank])
    except InputError as error:
        unread = str(error)
    return {"shards": seen, "unread": unread}


def _differences(ranks: list[dict]) -> list[str]:
    """What all ranks must have in common, where they do not."""
    advice = {"shards": "copy the same shards to every host"}
    found = []
    for what in ("dgl_gt", "torch", "python", "shards"):
        having = {each[what]: number for number, each in reversed([*enumerate(ranks)]) if each[what]}
        if len(having) > 1:
            listed = ", ".join(f"{value} on {_name(ranks, number)}" for value, number in having.items())
            found.append(f"{what} differs: {listed}; {advice.get(what, 'install the same version on every host')}")
    return found


def _clocks(ranks: list[dict]) -> list[str]:
    return [
        f"the clock of {_name(ranks, number)} is {each['clock_s']:+.1f} s from that of rank 0; set both by NTP"
        for number, each in enumerate(ranks)
        if abs(each["clock_s"]) > MOST_CLOCK_S
    ]


def _disk(first: dict) -> list[str]:
    if first["unwritten"]:
        return [f"rank 0 ({first['host']}): {first['unwritten']}"]
    if first["disk_bytes"] is not None and first["disk_bytes"] < LEAST_DISK_BYTES:
        free = format_bytes(first["disk_bytes"])
        return [
            f"{first['disk']} of rank 0 ({first['host']}) has {free} free for checkpoints; free some, or choose another --out"
        ]
    return []


def _memory(comm: Comm, directory, config: TrainConfig) -> list[str]:
    """Why the step of a run does not fit, or cannot run on these shards."""
    strategy, depth = config.exchange.choice
    strategy = None if strategy == AUTO else strategy
    try:
        with load(directory, strategy, depth, comm) as sg, comm.raising_together():
            check_memory(directory, sg, config)
    except InputError as error:
        return [str(error)]
    return []


def _slow_links(ranks: list[dict], links: list[list[float]]) -> list[str]:
    """Links that are much slower than the others of their kind."""
    found = []
    pairs = [*permutations(range(len(links)), 2)]
    for between in (False, True):
        kind = [(a, b) for a, b in pairs if (ranks[a]["host"] != ranks[b]["host"]) == between]
        median = statistics.median(links[b][a] for a, b in kind) if kind else 0.0
        found += [
            f"from {_name(ranks, a)} to {_name(ranks, b)} {format_bytes(links[b][a])} a second arrive, and "
            f"{format_bytes(median)} on the median link {'between hosts' if between else 'within a host'}; look at its network"
            for a, b in kind
            if links[b][a] < SLOW_LINK * median
        ]
    return found
