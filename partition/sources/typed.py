"""What readers of typed graphs share: from relations, or from columns that say the type of each node and edge, to a COOGraph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.graph import SPLIT_MASKS
from dgl_gt.partition.relations import union_of
from dgl_gt.partition.schema import Relation

from .coo import COOGraph


def typed_coo(
    num_nodes: Mapping[str, int],
    edges: Mapping,
    node_data: Mapping | None = None,
    edge_data: Mapping | None = None,
    name: str = "graph",
    node_names: Mapping[str, np.ndarray | None] | None = None,
    **more,
) -> COOGraph:
    """Make a COOGraph of the arguments of :func:`dgl_gt.partition.from_relations`, and of the user's ids by type.

    A graph of one node type and at most one relation has no schema: its node type is kept as ``node_type``. ``more`` are
    other fields of the COOGraph.
    """
    names = {} if node_names is None else node_names
    if len(num_nodes) == 1 and len(edges) <= 1:
        ((node_type, count),) = num_nodes.items()
        src, dst = next(iter(edges.values()), np.zeros((2, 0), np.int32))
        of_nodes, of_edges = (dict(next(iter((each or {}).values()), {})) for each in (node_data, edge_data))
        made = COOGraph(src, dst, count, of_nodes, of_edges, name, node_type=node_type, node_names=names.get(node_type))
    else:
        whole = union_of(num_nodes, edges, node_data, edge_data, name)
        made = COOGraph(whole.src, whole.dst, int(whole.schema.node_ptr[-1]), whole.node_data, whole.edge_data, name)
        all_names = _joined({each: names.get(each) for each in num_nodes}, num_nodes)
        made = replace(made, schema=whole.schema, node_names=all_names)
    return replace(made, **more)


def _joined(names: dict[str, np.ndarray | None], num_nodes: Mapping[str, int]) -> np.ndarray | None:
    """The ids of the nodes of all types, which are numbers within the type where it has none; None if no type has any."""
    if all(each is None for each in names.values()):
        return None
    pieces = [np.arange(num_nodes[key]) if each is None else each for key, each in names.items()]
    is_text = any(each.dtype.kind == "U" for each in pieces)
    return np.concatenate([each.astype(np.str_) if is_text else each.astype(np.int64) for each in pieces])


def by_columns(
    coo: COOGraph,
    node_type,
    edge_type,
    node_types: Sequence[str] | None = None,
    relations: Sequence[Sequence[str]] | None = None,
) -> COOGraph:
    """Return a graph of one type, whose columns tell the type of each node, (N,), and edge, (E,), with these types.

    Types are numbers from 0, and places in the lists of names; without names, they are called by their numbers. Nodes and
    edges are put in the order of their types where they are not. Data are divided by type, without what only fills
    rows of a type that has none: NaN, no label, empty masks.
    """
    what, node_type, edge_type = coo.name, np.asarray(node_type), np.asarray(edge_type)
    for kind, numbers, rows in (("node", node_type, coo.num_nodes), ("edge", edge_type, len(coo.src))):
        if numbers.shape != (rows,) or numbers.dtype.kind not in "iu" or (len(numbers) and numbers.min() < 0):
            raise InputError(
                f"{what}: the types of {kind}s are {numbers.dtype} {numbers.shape}; give a number from 0 each"
            )
    found = int(node_type.max(initial=-1)) + 1
    names = [str(number) for number in range(found)] if node_types is None else [*node_types]
    if found > len(names):
        raise InputError(
            f"{what}: a node has the type {found - 1}, and there are the types {', '.join(names)}; name it"
        )
    nodes, node_ptr = _in_order(node_type, len(names))
    counts = int(edge_type.max(initial=-1)) + 1
    if relations is not None and counts > len(relations):
        raise InputError(
            f"{what}: an edge has the type {counts - 1}, and {len(relations)} relations have names; name it"
        )
    edges, edge_ptr = _in_order(edge_type, counts if relations is None else len(relations))
    new_ids = np.empty(coo.num_nodes, np.int64)
    new_ids[nodes] = np.arange(coo.num_nodes)
    number = {name: index for index, name in enumerate(names)}
    ends, of_edges = {}, {}
    for relation, at, to in zip(range(len(edge_ptr) - 1), edge_ptr, edge_ptr[1:]):
        given = None if relations is None else Relation(*relations[relation])
        if given is None and at == to:
            continue  # nothing says what its ends are
        pair = [each[edges[at:to]] for each in (coo.src, coo.dst)]
        key = _relation(what, relation, given, names, [node_type[each] for each in pair])
        begins = [node_ptr[number[end]] for end in (key.source, key.destination)]
        if key in ends:
            raise InputError(f"{what}: two relations are called {key}; rename one")
        ends[key] = [new_ids[each] - begin for each, begin in zip(pair, begins)]
        of_edges[key] = _filled({column: value[edges[at:to]] for column, value in coo.edge_data.items()})
    slices = dict(zip(names, zip(node_ptr, node_ptr[1:])))
    of_nodes = {
        name: _filled({column: value[nodes[at:to]] for column, value in coo.node_data.items()})
        for name, (at, to) in slices.items()
    }
    is_sorted = bool((np.diff(nodes) == 1).all())
    ids = np.arange(coo.num_nodes) if coo.node_names is None else coo.node_names
    node_names = (
        None if is_sorted and coo.node_names is None else {n: ids[nodes[at:to]] for n, (at, to) in slices.items()}
    )
    made = typed_coo({n: int(to - at) for n, (at, to) in slices.items()}, ends, of_nodes, of_edges, what, node_names)
    return replace(made, left_out=coo.left_out, notes=coo.notes)


def _in_order(types: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The rows of each type, one type after the other, and where those of each begin and end."""
    return np.argsort(types, kind="stable"), np.concatenate([[0], np.cumsum(np.bincount(types, minlength=count))])


def _relation(what: str, number: int, given: Relation | None, names: list[str], ends: list[np.ndarray]) -> Relation:
    """The relation with a number; :class:`InputError` if an edge has ends of other types than the first, or the name, says."""
    first = [names[each[0]] for each in ends] if len(ends[0]) else []
    relation = Relation(first[0], str(number), first[1]) if given is None else given
    for side, end, types in zip(("source", "destination"), (relation.source, relation.destination), ends):
        if end not in names:
            raise InputError(f"{what}: the relation {relation} names {end!r}, and the types are {', '.join(names)}")
        if (wrong := types != names.index(end)).any():
            edge = int(wrong.argmax())
            raise InputError(
                f"{what}: edge {edge} of the relation {relation} has a {side} of type {names[types[edge]]!r}, not {end!r}; correct "
                "its type, or give such edges a relation of their own"
            )
    return relation


def _filled(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The columns of a type that hold something for it."""
    masks = [value for key, value in columns.items() if key in SPLIT_MASKS]
    has_masks = any(each.any() for each in masks)
    return {
        key: value
        for key, value in columns.items()
        if (has_masks if key in SPLIT_MASKS else not _is_padding(key, value))
    }


def _is_padding(key: str, values: np.ndarray) -> bool:
    if values.dtype.kind == "f":
        return bool(np.isnan(values).all())
    return key == "label" and values.dtype.kind == "i" and bool((values == -1).all())
