"""The order of rows: each part owns a slice of the new node ids, and neighbours lie near each other inside it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from partition.errors import InputError

CLUSTER_NODES = 1000  # rows of one cluster stay in a core's cache while attention reads them
NEAR_ROWS = 1024  # rows less than this far apart are near: a processor's caches hold what lies between them


@dataclass(frozen=True)
class Permutation:
    """A permutation of the nodes with slice pointers: part i owns the new ids ``ptr[i]:ptr[i + 1]``.

    Attributes
    ----------
    order : ndarray of integers, (N,)
        The user's node id of each new id.
    ptr : ndarray, int64, (K + 1,)
        The slice pointers.
    """

    order: np.ndarray
    ptr: np.ndarray

    @property
    def parts(self) -> int:
        """The number of parts, K."""
        return len(self.ptr) - 1

    def new_ids(self) -> np.ndarray:
        """Return the new id of each of the user's node ids, (N,)."""
        new = np.empty_like(self.order)
        new[self.order] = np.arange(len(self.order), dtype=self.order.dtype)
        return new


def slice_pointers(owner: np.ndarray, parts: int) -> np.ndarray:
    """Return where the rows of each part begin and end, int64, (K + 1,), from the part of each node, (N,)."""
    return np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=parts))]).astype(np.int64)


def check_parts(num_nodes: int, parts: int) -> None:
    """Raise :class:`InputError` unless every part can have a node."""
    if not 1 <= parts <= num_nodes:
        raise InputError(f"cannot split {num_nodes} nodes into {parts} parts; choose 1 to {num_nodes} parts")
