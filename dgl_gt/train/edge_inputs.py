"""Edge data that a model reads, as numbers or as kinds."""

from __future__ import annotations

import math
from typing import Any

import torch

from dgl_gt.exchange.sharded_graph import ShardedGraph
from dgl_gt.model_config import EDGE_KINDS
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.transforms.exphormer import EDGE_KIND

from .config import TrainConfig
from .required_data import learned_type
from .task_config import OnEdgesConfig
from .task_settings import Inputs


def edge_rows(sg: ShardedGraph, inputs: Inputs) -> dict[str, Any]:
    """The columns of edge data that a model reads, as numbers or as kinds: as stated, or else as is assumed.

    Of a typed graph, those of each relation that has some, by relation. ``InputError`` says that the shards have no such edge
    data, or that it has another dtype or shape, or other kinds.
    """
    meanings = _meanings(sg, inputs)
    if sg.schema is None:
        return _columns_of_edges(sg, meanings)
    found: dict[str, dict[str, torch.Tensor]] = {}
    for relation in map(str, sg.schema.relations):
        of_relation = {name: meaning for name, meaning in meanings.items() if f"{relation}/{name}" in sg.edata}
        for kind, columns in _columns_of_edges(sg, of_relation, f"{relation}/").items():
            found.setdefault(kind, {})[relation] = columns
    return found


def _columns_of_edges(sg: ShardedGraph, meanings: dict[str, str], prefix: str = "") -> dict[str, torch.Tensor]:
    numbers, kinds = [], []
    for column, meaning in meanings.items():
        name = prefix + column
        data = sg.edata[name]
        columns = data.reshape(len(data), math.prod(data.shape[1:]))
        if not columns.shape[1]:
            raise InputError(
                f"edge data {name!r} of {sg.manifest['source']} has row shape {tuple(data.shape[1:])}, which holds no number; "
                "leave it out of edge_features"
            )
        if meaning == "number":
            numbers.append(columns.to(torch.get_default_dtype()))
        else:
            kinds.append(_kinds(columns, name, sg.manifest["source"]))
    found = {"edge_feat": numbers, "edge_kind": kinds}
    return {name: torch.cat(columns, 1) for name, columns in found.items() if columns}


def _kinds(columns: torch.Tensor, name: str, source: str) -> torch.Tensor:
    column = name.rpartition("/")[2]
    if columns.is_floating_point():
        raise InputError(
            f"edge_features has {column}:kind, but edge data {name!r} of {source} is {columns.dtype}; kinds are whole numbers: "
            f"write {column}:number, or store whole numbers"
        )
    low, high = (int(bound) for bound in torch.aminmax(columns.long())) if columns.numel() else (0, 0)
    if low < 0 or high >= EDGE_KINDS:
        raise InputError(
            f"edge data {name!r} of {source} holds {low if low < 0 else high}; kinds are from 0 to {EDGE_KINDS - 1}: write "
            f"{column}:number in edge_features if it is an amount, or number its kinds from 0"
        )
    return columns.int()


def with_stated_meanings(sg: ShardedGraph, config: TrainConfig) -> TrainConfig:
    """The config with ``:number`` or ``:kind`` after each of its edge data, so that ``predict`` reads them as training does.

    Where edges of a typed graph are learned, it states their relation.
    """
    stated: dict[str, Any] = {
        "edge_features": ",".join(f"{name}:{meaning}" for name, meaning in _meanings(sg, config.task.inputs).items())
    }
    if sg.schema is not None and isinstance(config.task, OnEdgesConfig):
        stated["relation"] = learned_type(sg, config.task.relation, of_edges=True)
    flat = config.flat()
    return config if all(flat[name] == value for name, value in stated.items()) else config.changed(**stated)


def describe_assumed_meanings(sg: ShardedGraph, inputs: Inputs) -> str | None:
    """A sentence about edge data of whole numbers that might as well be kinds; None without such."""
    names = [
        name
        for name, meaning in _meanings(sg, inputs).items()
        if meaning == "number" and inputs.edge_features[name] is None and all(map(_is_whole, _named(sg, name)))
    ]
    if not names:
        return None
    kinds = ",".join(f"{name}:kind" for name in names)
    return f"read as numbers: edge data {', '.join(map(repr, names))}; if these are kinds, write {kinds} in --edge-features"


def _meanings(sg: ShardedGraph, inputs: Inputs) -> dict[str, str]:
    """Whether each column is a ``number`` or a ``kind``: as stated, or else a number unless this package numbers kinds in it."""
    meanings = {}
    for name, stated in inputs.edge_features.items():
        if not (having := _named(sg, name)):
            present = ", ".join(map(repr, sg.edata)) or "none"
            raise InputError(
                f"edge_features has {name!r}, but the shards of {sg.manifest['source']} have no such edge data (they have: "
                f"{present}); partition a graph that has it, or leave it out"
            )
        is_ours = name == EDGE_KIND or name in sg.manifest["encodings"]
        meanings[name] = stated or ("kind" if is_ours and all(map(_is_whole, having)) else "number")
    return meanings


def _named(sg: ShardedGraph, name: str) -> list[torch.Tensor]:
    """The edge data of this name, of a typed graph that of each relation that has it."""
    typed = sg.schema is not None
    return [data for key, data in sg.edata.items() if column_name(key, typed) == name]


def _is_whole(data: torch.Tensor) -> bool:
    return not (data.is_floating_point() or data.dtype == torch.bool)


def column_name(key: str, typed: bool) -> str:
    """The name of a column of data, which on a typed graph follows that of its type or relation."""
    return key.rpartition("/")[2] if typed else key
