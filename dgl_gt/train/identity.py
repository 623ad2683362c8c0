"""What a run and the checkpoint that it goes on from must have in common: settings, data, and the shapes of the model."""

from __future__ import annotations

import zlib
from pathlib import Path

import torch
from torch import Tensor, nn

from dgl_gt.exchange.policy.policy import is_policy_file
from dgl_gt.exchange.sharded_graph import ShardedGraph
from dgl_gt.ops.reference import splitmix64
from dgl_gt.partition.errors import InputError

from .config import TrainConfig

FREE_SETTINGS = ("activation_checkpoint", "strategy", "depth", "checkpoint_every", "on_nan")
_SHOWN = 5  # differences in a message
_NUMBERS = 1 << 20  # hashed at a time
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def data_digest(sg: ShardedGraph, names, edge_names=()) -> dict[str, str | int]:
    """Digests of the edges and of node and edge data by name, and the numbers of nodes and edges; every rank calls it.

    Each node and each edge gives a number from its own id and contents, and the numbers are summed over all ranks: so
    every cut of a graph has the same digest. It finds data that were changed or mixed up, not forgeries.
    """
    held = sg.pull(sg.node_ids)
    source, destination = sg.edges()
    ends = torch.stack([held[source], held[destination]], 1).cpu()
    sums = [_sum_of_rows(sg.edge_ids.cpu(), ends, "edges")]
    sums += [_sum_of_rows(sg.node_ids.cpu(), sg.ndata[name].cpu(), name) for name in names]
    sums += [_sum_of_rows(sg.edge_ids.cpu(), sg.edata[name].cpu(), f"edge {name}") for name in edge_names]
    totals = sg.comm.all_reduce(torch.tensor(sums)).tolist()
    labels = ("edges", *names, *(f"edge data {name}" for name in edge_names))
    digests = {name: f"{total % 2**64:016x}" for name, total in zip(labels, totals)}
    return {"number of nodes": sg.manifest["nodes"], "number of edges": sg.manifest["edges"], **digests}


def _sum_of_rows(ids: Tensor, rows: Tensor, name: str) -> int:
    """The sum of a hash of each row with its id, in 64 bits with a sign."""
    rows = rows.reshape(len(ids), -1) if len(ids) else rows.reshape(0, 1)
    columns = splitmix64(torch.arange(rows.shape[1]) + zlib.crc32(name.encode())) | 1
    total = torch.zeros((), dtype=torch.int64)
    step = max(1, _NUMBERS // max(1, rows.shape[1]))
    for start in range(0, len(ids), step):
        some = rows[start : start + step].contiguous().view(_WORDS[rows.element_size()]).long()
        total += splitmix64((splitmix64(some) * columns).sum(1) + splitmix64(ids[start : start + step])).sum()
    return int(total)


def identity_of(config: TrainConfig, factory_name: str | None, data: dict, model: nn.Module) -> dict:
    """What makes a run the same, by name, as values that JSON can hold; ``data`` is a :func:`data_digest`."""
    settings = {name: value for name, value in config.flat().items() if name not in _free_settings(config)}
    if is_policy_file(config.exchange.policy):  # what the file says, not only its name
        settings["policy"] = str(config.exchange.rules.described())
    settings["model_factory"] = factory_name
    shapes = {name: [str(value.dtype), *value.shape] for name, value in model.state_dict().items()}
    return {"settings": settings, "data": data, "tensors": shapes}


def check_identity(path: Path, mine: dict, other: dict) -> None:
    """Raise :class:`InputError` that names what differs in a checkpoint."""
    differing = []
    for kind, label in (("settings", ""), ("data", "data: "), ("tensors", "model: ")):
        now, before = mine[kind], other[kind]
        differing += [
            f"{label}{name} was {before.get(name, 'absent')!r} and is now {now.get(name, 'absent')!r}"
            for name in now | before
            if now.get(name) != before.get(name)
        ]
    if differing:
        more = f" and {len(differing) - _SHOWN} more" if len(differing) > _SHOWN else ""
        raise InputError(
            f"{path} belongs to another run: {'; '.join(differing[:_SHOWN])}{more}. Use the settings and the data of that "
            "run, or start a new one in another directory"
        )


def _free_settings(config: TrainConfig) -> list[str]:
    """The settings that may change when a run is resumed, because they do not change how weights are updated."""
    free = [*FREE_SETTINGS]
    free += [] if config.optimizer.schedule == "cosine" else ["epochs"]
    free += [] if config.optimizer.schedule == "plateau" else ["patience", "evaluate_every"]
    return free
