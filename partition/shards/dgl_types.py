"""The ids of nodes and edges in a partition directory of DGL: part by part, and in a part type by type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.schema import Relation, Schema


@dataclass(frozen=True)
class TypeRanges:
    """Ranges of ids by part and type, of P parts and T types; a graph without types has one.

    Attributes
    ----------
    names : tuple of str
        What DGL calls the types, ``paper`` or ``author:writes:paper``.
    bounds : ndarray, int64, (P T + 1,)
        Where the ids of each type in each part begin and end.
    """

    names: tuple[str, ...]
    bounds: np.ndarray

    @classmethod
    def of_counts(cls, names: Sequence[str], counts) -> TypeRanges:
        """Make them of the number of nodes or edges of each part and type, (P, T)."""
        return cls(tuple(names), np.concatenate([[0], np.cumsum(np.asarray(counts, np.int64).reshape(-1))]))

    @cached_property
    def ptr(self) -> np.ndarray:
        """Where the ids of each part begin and end, int64, (P + 1,)."""
        return self.bounds[:: len(self.names)]

    @cached_property
    def counts(self) -> np.ndarray:
        """How many nodes or edges each part has of each type, int64, (P, T)."""
        return np.diff(self.bounds).reshape(-1, len(self.names))

    def ranges(self) -> dict[str, list[list[int]]]:
        """Return the ids of each type in each part, as DGL's json has them."""
        pairs = np.stack([self.bounds[:-1], self.bounds[1:]], axis=1).reshape(-1, len(self.names), 2)
        return {name: pairs[:, number].tolist() for number, name in enumerate(self.names)}

    def types_of(self, ids: np.ndarray) -> np.ndarray:
        """Return the number of each id's type, int64."""
        return (np.searchsorted(self.bounds, ids, side="right") - 1) % len(self.names)

    def by_type(self) -> np.ndarray:
        """Return the place of each id in the order of types, and of parts in each type, int64."""
        begins = (np.cumsum(self.counts.T.reshape(-1)) - self.counts.T.reshape(-1)).reshape(self.counts.T.shape).T
        return np.arange(self.bounds[-1]) + np.repeat(begins.reshape(-1) - self.bounds[:-1], np.diff(self.bounds))


def schema_of(nodes: TypeRanges, edges: TypeRanges) -> Schema | None:
    """The types of a directory's graph; None where there is one of each."""
    if len(nodes.names) == len(edges.names) == 1:
        return None
    for name in edges.names:
        if name.count(":") != 2:
            raise InputError(
                f"the edge type {name!r} does not name its ends; write the directory with DGL 1.0 or later"
            )
    relations = {Relation(*name.split(":")): int(count) for name, count in zip(edges.names, edges.counts.sum(axis=0))}
    return Schema(dict(zip(nodes.names, map(int, nodes.counts.sum(axis=0)))), relations)


def checked_names(schema: Schema) -> tuple[list[str], list[str]]:
    """The names of types as DGL writes them; :class:`InputError` where it could not read one."""
    for name in (*schema.nodes, *(part for each in schema.edges for part in each)):
        if ":" in name:
            raise InputError(f"{name!r} names a type, and DGL takes ':' for the end of a name; rename the type")
    return [*schema.nodes], [":".join(each) for each in schema.edges]
