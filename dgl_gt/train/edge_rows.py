"""What a model reads of the edge data: columns of numbers, and columns of kinds."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from dgl_gt.exchange.sharded_graph import ShardedGraph
from dgl_gt.model_limits import EDGE_KINDS
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.transforms import EDGE_KIND

from .config import Inputs, TrainConfig


@dataclass(frozen=True)
class EdgeRows:
    """What a model reads of the edge data of this rank's edges; None for nothing."""

    feat: torch.Tensor | None = None  # float32 (E, F)
    kind: torch.Tensor | None = None  # int32 (E, K), in range(EDGE_KINDS)

    @property
    def widths(self) -> dict[str, int]:
        """Widths of the edge data, as arguments of the model."""
        return {
            "edge_feats": 0 if self.feat is None else self.feat.shape[1],
            "edge_kinds": 0 if self.kind is None else self.kind.shape[1],
        }


NO_EDGES = EdgeRows()


def edge_rows(sg: ShardedGraph, inputs: Inputs) -> EdgeRows:
    """The columns of edge data that a model reads, as numbers or as kinds: as stated, or else as is assumed.

    ``InputError`` says that the shards have no such edge data, or that it has another dtype or shape, or other kinds.
    """
    numbers, kinds = [], []
    for name, meaning in _meanings(sg, inputs).items():
        data = sg.edata[name]
        columns = data.reshape(len(data), math.prod(data.shape[1:]))
        if not columns.shape[1]:
            raise InputError(
                f"edge data {name!r} of {sg.manifest['source']} has row shape {tuple(data.shape[1:])}, which holds no number; "
                "leave it out of edge_features"
            )
        if meaning == "number":
            numbers.append(columns.float())
        else:
            kinds.append(_kinds(columns, name, sg.manifest["source"]))
    return EdgeRows(torch.cat(numbers, 1) if numbers else None, torch.cat(kinds, 1) if kinds else None)


def _kinds(columns: torch.Tensor, name: str, source: str) -> torch.Tensor:
    if columns.is_floating_point():
        raise InputError(
            f"edge_features has {name}:kind, but edge data {name!r} of {source} is {columns.dtype}; kinds are whole numbers: "
            f"write {name}:number, or store whole numbers"
        )
    low, high = (int(bound) for bound in torch.aminmax(columns.long())) if columns.numel() else (0, 0)
    if low < 0 or high >= EDGE_KINDS:
        raise InputError(
            f"edge data {name!r} of {source} holds {low if low < 0 else high}; kinds are from 0 to {EDGE_KINDS - 1}: write "
            f"{name}:number in edge_features if it is an amount, or number its kinds from 0"
        )
    return columns.int()


def with_stated_meanings(sg: ShardedGraph, config: TrainConfig) -> TrainConfig:
    """The config with ``:number`` or ``:kind`` after each of its edge data, so that ``predict`` reads them as training does."""
    stated = ",".join(f"{name}:{meaning}" for name, meaning in _meanings(sg, config.inputs).items())
    return config if stated == config.edge_features else replace(config, edge_features=stated)


def describe_assumed_meanings(sg: ShardedGraph, inputs: Inputs) -> str | None:
    """A sentence about edge data of whole numbers that might as well be kinds; None without such."""
    names = [
        name
        for name, meaning in _meanings(sg, inputs).items()
        if meaning == "number" and inputs.edge_features[name] is None and _is_whole(sg.edata[name])
    ]
    if not names:
        return None
    kinds = ",".join(f"{name}:kind" for name in names)
    return f"read as numbers: edge data {', '.join(map(repr, names))}; if these are kinds, write {kinds} in --edge-features"


def _meanings(sg: ShardedGraph, inputs: Inputs) -> dict[str, str]:
    """Whether each column is a ``number`` or a ``kind``: as stated, or else a number unless this package numbers kinds in it."""
    meanings = {}
    for name, stated in inputs.edge_features.items():
        if name not in sg.edata:
            present = ", ".join(map(repr, sg.edata)) or "none"
            raise InputError(
                f"edge_features has {name!r}, but the shards of {sg.manifest['source']} have no such edge data (they have: "
                f"{present}); partition a graph that has it, or leave it out"
            )
        is_ours = name == EDGE_KIND or name in sg.manifest["encodings"]
        meanings[name] = stated or ("kind" if is_ours and _is_whole(sg.edata[name]) else "number")
    return meanings


def _is_whole(data: torch.Tensor) -> bool:
    return not (data.is_floating_point() or data.dtype == torch.bool)
