"""The types of a graph's nodes and edges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from .errors import InputError

MAX_NODE_TYPES, MAX_RELATIONS = 255, 65535


class Relation(NamedTuple):
    """The edges of one kind: the type of their sources, their own name, and the type of their destinations."""

    source: str
    name: str
    destination: str

    def __str__(self):
        return ",".join(self)


@dataclass(frozen=True)
class Schema:
    """Types of nodes and relations, in the order of ids: nodes of a type have ids in a row, and so have a relation's edges.

    Node and edge data of a typed graph are called ``paper/feat`` and ``author,writes,paper/weight``, and have a row for
    each node of the type, or each edge of the relation. Data without a type have a row for each node or edge.

    Attributes
    ----------
    nodes : dict of str to int
        How many nodes each type has.
    edges : dict of Relation to int
        How many edges each relation has.

    Raises
    ------
    InputError
        A name is empty, or holds "/" or ","; there is no type, or there are too many; or a relation has ends of a type
        that is not listed.
    """

    nodes: Mapping[str, int]
    edges: Mapping[Relation, int]

    def __post_init__(self):
        for what, names, most in (
            ("node types", self.nodes, MAX_NODE_TYPES),
            ("relations", self.edges, MAX_RELATIONS),
        ):
            if len(names) > most:
                raise InputError(f"the graph has {len(names)} {what}; at most {most} are allowed: merge some")
        if not self.nodes:
            raise InputError("the graph has no node type; name one")
        for name in (*self.nodes, *(part for relation in self.edges for part in relation)):
            if not isinstance(name, str) or not name.strip() or any(each in name for each in "/,\n\0"):
                raise InputError(f"{name!r} cannot name a type; use some other characters than '/', ',' and line ends")
        for relation in self.edges:
            for end in (relation.source, relation.destination):
                if end not in self.nodes:
                    raise InputError(
                        f"the relation {relation} has ends of type {end!r}, and the node types are {', '.join(self.nodes)}; "
                        "correct the name, or add the type"
                    )

    @property
    def node_types(self) -> tuple[str, ...]:
        """The names of the node types."""
        return tuple(self.nodes)

    @property
    def relations(self) -> tuple[Relation, ...]:
        """The relations, each with its source and destination type."""
        return tuple(self.edges)

    @cached_property
    def node_ptr(self) -> np.ndarray:
        """Where the ids of each type begin and end, int64, (T + 1,)."""
        return np.concatenate([[0], np.cumsum([*self.nodes.values()], dtype=np.int64)])

    @cached_property
    def edge_ptr(self) -> np.ndarray:
        """Where the ids of each relation's edges begin and end, int64, (relations + 1,)."""
        return np.concatenate([[0], np.cumsum([*self.edges.values()], dtype=np.int64)]).astype(np.int64)

    @cached_property
    def ends(self) -> np.ndarray:
        """Numbers of the source type and of the destination type of each relation, int64, (relations, 2)."""
        number = {name: index for index, name in enumerate(self.nodes)}
        return np.array([(number[each.source], number[each.destination]) for each in self.edges], np.int64).reshape(
            -1, 2
        )

    def type_of(self, node_ids: np.ndarray) -> np.ndarray:
        """Return the number of each node's type, int64."""
        return np.searchsorted(self.node_ptr, node_ids, "right") - 1

    def relation_of(self, edge_ids: np.ndarray) -> np.ndarray:
        """Return the number of each edge's relation, int64."""
        return np.searchsorted(self.edge_ptr, edge_ids, "right") - 1

    def node_type(self, name) -> int:
        """Return the number of a node type; :class:`InputError` names it if there is none."""
        if name not in self.nodes:
            raise InputError(f"there is no node type {name!r}; the types are {', '.join(self.nodes)}")
        return self.node_types.index(name)

    def relation(self, name) -> int:
        """Return the number of a relation, given as three names, as ``"user,rates,item"``, or by a name that is its alone."""
        wanted = tuple(name.split(",")) if isinstance(name, str) else tuple(name)
        found = [index for index, each in enumerate(self.edges) if wanted in (each, (each.name,))]
        if len(found) == 1:
            return found[0]
        listed = " ".join(map(str, self.edges)) or "none"
        if found:
            raise InputError(
                f"{len(found)} relations are called {name!r}; name the types, too: one of {listed}, as SOURCE,NAME,DESTINATION"
            )
        raise InputError(f"there is no relation {','.join(wanted)!r}; the relations are {listed}")

    def having(self, columns: Iterable[str]) -> list[int]:
        """Return the relations of whose edges there are data, from the names of edge data; of all, where one has no type."""
        prefixes = {name.rpartition("/")[0] for name in columns}
        return [index for index, each in enumerate(self.edges) if "" in prefixes or str(each) in prefixes]

    def rows_of(self, kind: str, column: str) -> slice:
        """Return the ids that a column of ``"node"`` or ``"edge"`` data has rows of; all of them without a type in its name."""
        prefix, slash, _ = column.partition("/")
        names = self.node_types if kind == "node" else tuple(map(str, self.edges))
        ptr = self.node_ptr if kind == "node" else self.edge_ptr
        if not slash:
            return slice(0, int(ptr[-1]))
        if prefix not in names:
            what = "node type" if kind == "node" else "relation"
            raise InputError(f"{kind} data {column!r}: there is no {what} {prefix!r}; there are {' '.join(names)}")
        number = names.index(prefix)
        return slice(int(ptr[number]), int(ptr[number + 1]))


def relation(name) -> Relation:
    """Return a relation from three names; :class:`InputError` for anything else."""
    parts = tuple(name.split(",")) if isinstance(name, str) else tuple(name)
    if len(parts) != 3:
        raise InputError(f"{name!r} is no relation; it must be three names: source type, relation, destination type")
    return Relation(*parts)


def columns_by_type(data: Mapping[str, np.ndarray]) -> dict[str, dict[str, np.ndarray]]:
    """Return columns by the type in their names, "" where there is none, and then by the rest of the names."""
    found: dict[str, dict[str, np.ndarray]] = {}
    for key, value in data.items():
        prefix, slash, name = key.partition("/")
        found.setdefault(prefix if slash else "", {})[name if slash else key] = value
    return found
