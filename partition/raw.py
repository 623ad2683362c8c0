"""What every reader hands over: edges as listed and columns as named. Here they become a checked Graph."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from .errors import InputError
from .graph import SPLIT_MASKS, Graph, from_edges


@dataclass
class RawGraph:
    """Edges and columns as a reader found them.

    Attributes
    ----------
    src, dst : ndarray of integers, (E,)
    num_nodes : int or None
        None where the source does not say.
    node_data, edge_data : dict of str to ndarray, (N, ...) and (E, ...)
    name : str
    """

    src: np.ndarray
    dst: np.ndarray
    num_nodes: int | None = None
    node_data: dict[str, np.ndarray] = field(default_factory=dict)
    edge_data: dict[str, np.ndarray] = field(default_factory=dict)
    name: str = "graph"


def to_graph(raw: RawGraph) -> Graph:
    """Build the Graph; :class:`InputError` where the edges or the columns cannot be used."""
    node_data = customary(raw.node_data, raw.name)
    return from_edges(raw.src, raw.dst, raw.num_nodes, node_data, raw.edge_data, raw.name)


def both_ways(
    src: np.ndarray, dst: np.ndarray, edge_data: dict[str, np.ndarray]
) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Store undirected edges in both directions.

    Edge ``e`` keeps its id and its reverse gets ``E + e``. A self-loop is stored once; where there are any, the
    reverses are numbered in order without them. Edge data are the same both ways.
    """
    apart = src != dst
    if apart.all():
        back_src, back_dst, back = dst, src, slice(None)
    else:
        back = np.flatnonzero(apart)
        back_src, back_dst = dst[back], src[back]
    data = {key: np.concatenate([value, value[back]]) for key, value in edge_data.items()}
    return np.concatenate([src, back_src]), np.concatenate([dst, back_dst]), data


def customary(node_data: dict[str, np.ndarray], name: str) -> dict[str, np.ndarray]:
    """Bring masks and labels to the one form that Graph knows; all else passes as it is, without a copy.

    Masks of 0 and 1 of any type become bool; where one mask has a column for each split and another has none, the
    latter stands for every split. Labels become int64 (N,), with -1 for NaN.
    """
    node_data = dict(node_data)
    masks = {key: _bool_mask(node_data[key], key, name) for key in SPLIT_MASKS if key in node_data}
    splits = {mask.shape[1] for mask in masks.values() if mask.ndim == 2}
    for key, mask in masks.items():
        one_for_all = len(splits) == 1 and mask.ndim == 1
        node_data[key] = np.repeat(mask[:, None], min(splits), axis=1) if one_for_all else mask
    if "label" in node_data:
        node_data["label"] = _integer_label(node_data["label"])
    return node_data


def _bool_mask(mask: np.ndarray, key: str, name: str) -> np.ndarray:
    if mask.dtype == bool:
        return mask
    as_bool = mask == 1
    other = ~as_bool & (mask != 0)
    if mask.dtype.kind not in "iuf" or other.any():
        found = mask[other].ravel()[0] if mask.dtype.kind in "iuf" else mask.dtype
        raise InputError(f"{name}: {key} holds {found}; a mask is bool, or 0 and 1")
    return as_bool


def _integer_label(label: np.ndarray) -> np.ndarray:
    """Labels as int64 (N,) where that is what they mean; others are left for the Graph's own check to refuse."""
    if label.ndim == 2 and label.shape[1] == 1:
        label = label[:, 0]
    if label.dtype.kind in "biu":
        return label.astype(np.int64, copy=False)
    if label.dtype.kind == "f":
        whole = np.where(np.isnan(label), -1, label)
        if np.isfinite(whole).all() and (whole == np.floor(whole)).all():
            return whole.astype(np.int64)
    return label
