"""The order of rows: each part owns a slice of the new node ids, and neighbours lie near each other inside it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from dgl_gt.partition.errors import InputError, whole_number
from dgl_gt.partition.figures.mapping import Mapping

NEAR_ROWS = 1024  # rows less than this far apart are near: a processor's caches hold what lies between them


@dataclass(frozen=True)
class Permutation:
    """A permutation of the nodes with slice pointers: part i owns the new ids ``ptr[i]:ptr[i + 1]``."""

    order: np.ndarray  # the user's node id of each new id, (N,)
    ptr: np.ndarray  # slice pointers, int64, (P + 1,)
    mapping: Mapping | None = field(
        default=None, kw_only=True
    )  # how parts were given to ranks; None: as they were made

    @property
    def parts(self) -> int:
        """The number of parts, P."""
        return len(self.ptr) - 1

    def mapped(self, mapping: Mapping) -> Permutation:
        """Return the cut with every part renumbered to its rank."""
        rank_of_part = np.array(mapping.rank_of_part)
        parts = np.argsort(rank_of_part)  # the part of each rank
        order = np.concatenate([self.order[self.ptr[part] : self.ptr[part + 1]] for part in parts])
        ptr = np.concatenate([[0], np.cumsum(np.diff(self.ptr)[parts])])
        return replace(self, order=order, ptr=ptr, mapping=mapping, **self._renumbered(rank_of_part, parts))

    def _renumbered(self, rank_of_part: np.ndarray, parts: np.ndarray) -> dict:
        """The other fields that have one entry per part or name parts, renumbered; ``parts`` is the part of each rank."""
        return {}

    def new_ids(self) -> np.ndarray:
        """Return the new id of each of the user's node ids, (N,)."""
        new = np.empty_like(self.order)
        new[self.order] = np.arange(len(self.order), dtype=self.order.dtype)
        return new


def slice_pointers(owner: np.ndarray, parts: int) -> np.ndarray:
    """Return where the rows of each part begin and end, int64, (P + 1,), from the part of each node, (N,)."""
    return np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=parts))]).astype(np.int64)


def check_parts(num_nodes: int, parts) -> int:
    """Return the number of parts as an int; raise :class:`InputError` unless every part can have a node."""
    number = whole_number("parts", parts)
    if not 1 <= number <= num_nodes:
        raise InputError(f"cannot split {num_nodes} nodes into {parts} parts; choose 1 to {num_nodes} parts")
    return number
