"""The kinds of hostile cases, and how many of a hundred each gets; a seed and a number determine a case."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import graph_sources
import own_files
import surroundings
from calls import argument_calls
from case import Case, take
from damage import Dice

# Kind: what makes a case of it, and how many of a hundred are.
KINDS = {
    "npz": (graph_sources.npz_source, 10),
    "npy": (graph_sources.npy_source, 4),
    "text": (graph_sources.text_source, 9),
    "node_table": (graph_sources.node_table, 4),
    "metis": (graph_sources.metis_source, 4),
    "dgl_file": (graph_sources.dgl_file, 2),
    "named": (graph_sources.named_source, 2),
    "options": (surroundings.options, 9),
    "paths": (surroundings.paths, 6),
    "outputs": (surroundings.outputs, 4),
    "manifest": (own_files.manifests, 11),
    "shard_file": (own_files.shard_files, 6),
    "model": (own_files.model_files, 4),
    "checkpoint": (own_files.checkpoints, 2),
    "config": (own_files.config_files, 4),
    "profile": (own_files.profiles, 4),
    "dgl_directory": (own_files.dgl_directories, 2),
    "environment": (surroundings.environment, 2),
    "streams": (surroundings.streams, 2),
    "full_disk": (surroundings.full_disks, 2),
    "call": (surroundings.calls, 5),
    "control": (surroundings.controls, 1),
    "ranks": (surroundings.ranks, 1),
}
_SHARES = [name for name, (_, share) in KINDS.items() for _ in range(share)]
WHEEL = [
    _SHARES[37 * i % len(_SHARES)] for i in range(len(_SHARES))
]  # kinds in turn, so that any span has most of them


def kind_of(number: int) -> str:
    return WHEEL[number % len(WHEEL)]


def make(seed: int, number: int, material: Path, kind: str) -> Case:
    """Make the case's files in the working directory, and return it; an ``argument`` case needs no seed."""
    for folder in ("in", "out", "tmp"):
        Path(folder).mkdir()
    if kind == "argument":
        for shards in ("shards1", "shards2"):
            take(material, shards)
        return Case(kind=kind, call=argument_calls()[number])
    return dataclasses.replace(KINDS[kind][0](Dice(seed, number), material), kind=kind)
