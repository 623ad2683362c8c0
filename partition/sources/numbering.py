"""From the ids of a source to nodes 0..N-1, and which row of the node data belongs to each node."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.graph import Graph
from dgl_gt.partition.system.distinct import unique

from .coo import COOGraph
from .node_data import NodeColumns, quoted
from .text_table import FLOAT32_EXACT, are_whole

_MAX_NODES_PER_EDGE, _ALWAYS_ALLOWED_NODES = 64, 1_000_000  # beyond them a number of nodes must be stated
_ID = re.compile(r"(?:^|[\W_])(?i:id|index)_?$|[a-z]I[dD]$")  # ends the name of a column of ids: not paid, grid
_FEWEST_IDS = 3  # of two nodes, any flag has the ids
_MAX_MARKED_PER_EDGE = 8  # largest id that is marked in a table of all ids, and not sorted


def numbered(
    source: Graph | COOGraph, columns: Sequence[NodeColumns], num_nodes: int | None, ids: str | None
) -> tuple[Graph | COOGraph, list[NodeColumns], str | None]:
    """Give the nodes of a source their numbers, and order the rows of node data by them.

    Ids stay as they are where they can: a number of nodes is stated, or at least half of the ids up to the largest are
    used, or ``ids`` says so. Otherwise the ids that are used are numbered in ascending order. A table of nodes with ids
    names all nodes. ``node_names`` then holds the user's id of each node; it is None where ids stay as they are.

    Returns the source, with ``num_nodes`` and ``node_names``; the columns, with a row for each node, in node order; and
    what was assumed of the ids, with how to say otherwise.
    """
    tables = [each for each in columns if each.ids is not None]
    by_place = [each for each in columns if each.ids is None and each.rows is not None]
    note = None
    for each in columns:
        _check_no_ids(source, each)
    if isinstance(source, Graph):
        if ids is not None:
            raise InputError(f"{source.name} is numbered already; leave ids (--ids) out")
    elif (names := source.node_names) is not None:
        if by_place and source.num_nodes is not None:
            first = ", ".join(map(str, names[:3].tolist()))
            note = f"{by_place[0].name}: rows are taken in the order of the nodes of {source.name}, which begins with {first}"
        source = _with_names(source, names, tables, by_place, num_nodes, ids)
    elif (
        tables
        and ids != "as-they-are"
        and (source.num_nodes, num_nodes) == (None, None)
        and (ids is not None or not _is_range(tables[0]))
    ):
        source, note = _with_ids_of(source, tables[0], ids)
    elif ids in ("compact", "names"):
        if num_nodes is not None:
            raise InputError(f"num_nodes is {num_nodes}, though ids are to be numbered; leave it or ids (--ids) out")
        _check_none_by_place(by_place)
        source = _compacted(source)
    else:
        source, note = _as_they_are(source, columns, num_nodes, ids)
    return source, [_in_node_order(source, each, tables) for each in columns], note


def _check_none_by_place(columns: list[NodeColumns]) -> None:
    for each in columns:
        raise InputError(f"{each.name} has no ids, though ids are not places of rows; give it a column of ids (id)")


def _check_no_ids(source: Graph | COOGraph, table: NodeColumns) -> None:
    """Raise :class:`InputError` for a column that names nodes: without it, rows would be taken for those of other nodes.

    It holds the id of each node or, under such a name, another whole number in each row; float32 holds large ones roughly.
    """
    used = np.arange(source.num_nodes) if isinstance(source, Graph) else source.node_names
    for name, values in table.maybe_ids.items() if used is None or used.dtype.kind != "U" else ():
        if values.shape[1] > 1 or (values < 0).any() or (values != np.floor(values)).any():
            continue
        distinct = unique(values)
        are_ids = _ID.search(name) is not None and len(values) > 1
        are_ids &= len(distinct) == len(values) or distinct[-1] >= FLOAT32_EXACT
        if not are_ids and len(distinct) >= _FEWEST_IDS:
            used = used_ids(source) if used is None else used
            are_ids = len(used) >= _FEWEST_IDS and bool(np.isin(used.astype(np.float32), distinct).all())
        if are_ids:
            raise InputError(
                f"{table.name}: column {name!r} has whole numbers as ids of nodes are; call it id; or, if rows are in node order, "
                f"leave it out with skip (--skip {quoted(name)}), or list it among features (--features)"
            )


def _is_range(table: NodeColumns) -> bool:
    numbers = _whole(table.ids)
    return numbers is not None and np.array_equal(np.sort(numbers), np.arange(len(numbers)))


def _whole(ids: np.ndarray) -> np.ndarray | None:
    """Return ids as int64; None where one is not a whole number from 0."""
    if ids.dtype.kind != "U":
        return ids.astype(np.int64) if not len(ids) or ids.max() < 2**63 else None
    if np.char.isdecimal(ids).all():
        numbers = list(map(int, ids.tolist()))
        return np.array(numbers, np.int64) if max(numbers, default=0) < 2**63 else None
    return ids.astype(np.float64).astype(np.int64) if are_whole(ids.tolist()) else None


# ---- nodes with names


def _with_names(
    coo: COOGraph,
    names: np.ndarray,
    tables: list[NodeColumns],
    by_place: list[NodeColumns],
    num_nodes: int | None,
    ids: str | None,
) -> COOGraph:
    """Number named nodes as the first table lists them, or as the source does."""
    if ids in ("as-they-are", "compact"):
        raise InputError(f"{coo.name}: nodes have names, such as {names[0]!s:.40}, so ids (--ids) cannot be {ids!r}")
    if coo.num_nodes is not None:  # the source lists its nodes
        return coo
    if num_nodes is not None:
        raise InputError(f"num_nodes is {num_nodes}, though nodes have names; leave it out, or list all in a table")
    _check_none_by_place(by_place)
    if not tables:
        return replace(coo, num_nodes=len(names))
    listed = tables[0].ids.astype(np.str_)
    row = _rows_of(names, listed, tables[0].name, coo.name)
    return replace(coo, src=row[coo.src], dst=row[coo.dst], node_names=listed, num_nodes=len(listed))


def _rows_of(wanted: np.ndarray, listed: np.ndarray, table: str, source: str) -> np.ndarray:
    """Return the row of each wanted id in a table; :class:`InputError` names an id that it lacks or lists twice."""
    order = np.argsort(listed, kind="stable")
    twice = listed[order[1:]] == listed[order[:-1]]
    if twice.any():
        raise InputError(f"{table}: node {listed[order[twice.argmax()]]} has several lines; list each node once")
    rows = order[np.minimum(np.searchsorted(listed, wanted, sorter=order), len(listed) - 1)]
    absent = listed[rows] != wanted
    if absent.any():
        raise InputError(f"{table} has no row for node {wanted[absent.argmax()]}, which {source} has; add its row")
    return rows


# ---- nodes with numbers


def _with_ids_of(coo: COOGraph, table: NodeColumns, ids: str | None) -> tuple[COOGraph, str | None]:
    """Number the nodes of a table: in ascending order of ids, or as it lists them where an id is no number."""
    numbers, used = _whole(table.ids), used_ids(coo)
    listed = table.ids.astype(np.str_) if numbers is None else np.sort(numbers)
    rows = _rows_of(used if numbers is not None else used.astype(np.str_), listed, table.name, coo.name)
    coo = replace(_renumbered(coo, used, rows), node_names=listed, num_nodes=len(listed))
    if ids is not None or numbers is None:
        return coo, None
    return coo, (
        f"{coo.name}: the ids of {table.name} are not 0 to {len(listed) - 1}; its nodes are numbered from 0, and the ids are kept"
    )


def _as_they_are(
    coo: COOGraph, columns: Sequence[NodeColumns], num_nodes: int | None, ids: str | None
) -> tuple[COOGraph, str | None]:
    """Keep the ids; but number those that are used where no number of nodes is stated and most ids are unused."""
    low, high = coo.id_range
    stated = num_nodes if coo.num_nodes is None else coo.num_nodes
    stating = next((each for each in columns if each.rows is not None), None)
    if stated is None and stating is not None:
        has_gaps = stating.ids is not None and not _is_range(stating)  # then the rows that it lacks are named below
        stated = high + 1 if has_gaps else stating.rows or 0
        if high >= stated:
            present = used_ids(coo)
            hint = "add its row" if stating.ids is not None else "add its row, or give the table a column of ids (id)"
            raise InputError(
                f"{stating.name} ends at node {stated - 1}, but {coo.name} names node {present[np.searchsorted(present, stated)]}; {hint}"
            )
    from_one = f"{coo.name}: ids begin at 1, so node 0 has no edge; " if low == 1 and ids is None else None
    compact = "to number nodes from 0, and to keep the ids beside them, choose ids='compact' (--ids compact)"
    if stated is not None:
        if num_nodes is None and stating is not None and stating.ids is None:
            compact = f"if the first row of {stating.name} is the row of node 1, give the table a column of ids (id)"
        note = from_one + compact if from_one and coo.num_nodes is None else None
        return replace(coo, num_nodes=stated), note
    used = None
    if ids is None and low >= 0 and len(coo.src):
        seen = _seen(coo)  # takes less memory than the ids
        used = len(used_ids(coo)) if seen is None else int(np.count_nonzero(seen))
    if used is not None and 2 * used < high + 1:
        note = f"{coo.name}: of the ids up to {high}, {used} are used; nodes are numbered from 0 to {used - 1}, and the ids are kept"
        if _is_plausible(coo, high + 1):
            note += ". For a node for each unused id, choose ids='as-they-are' (--ids as-they-are)"
        return _compacted(coo), note
    check_plausible_nodes(coo, high + 1, f"the largest node id is {high}")
    return replace(coo, num_nodes=high + 1), from_one + compact if from_one else None


def _compacted(coo: COOGraph) -> COOGraph:
    """Number the ids that are used in ascending order; rows of node data that no edge names are dropped."""
    used = used_ids(coo)
    if not len(used):
        raise InputError(f"{coo.name}: there is no edge, so no id is used; leave ids (--ids) out")
    if coo.num_nodes is not None and used[-1] >= coo.num_nodes:
        raise InputError(f"{coo.name} states {coo.num_nodes} nodes, but names node {used[-1]}; correct one of them")
    for key, value in coo.node_data.items():
        if value.ndim and len(value) <= used[-1]:
            raise InputError(f"{coo.name}: node data {key!r} ends at node {len(value) - 1}, edges at node {used[-1]}")
    node_data = {key: value[used] if value.ndim else value for key, value in coo.node_data.items()}
    coo = _renumbered(coo, used, np.arange(len(used)))
    return replace(coo, node_data=node_data, node_names=used, num_nodes=len(used))


def _renumbered(coo: COOGraph, used: np.ndarray, number: np.ndarray) -> COOGraph:
    """Give the i-th used id the number ``number[i]``."""
    dtype = np.int32 if len(number) < 2**31 else np.int64
    ends = [np.empty(len(coo.src), dtype) for _ in range(2)]
    for start, *slices in coo.slices():
        for new, ids in zip(ends, slices):
            new[start : start + len(ids)] = number[np.searchsorted(used, ids.astype(used.dtype, copy=False))]
    return replace(coo, src=ends[0], dst=ends[1])


def used_ids(coo: COOGraph) -> np.ndarray:
    """Return the ids that edges name, ascending, int64 where they fit, else uint64."""
    seen = _seen(coo)
    if seen is not None:
        return np.flatnonzero(seen)
    dtype = np.int64 if coo.id_range[1] < 2**63 else np.uint64  # of both, numpy would make floats
    pieces = [unique(ends.astype(dtype, copy=False)) for _, *both in coo.slices() for ends in both]
    return unique(np.concatenate([np.zeros(0, dtype), *pieces]))


def _seen(coo: COOGraph) -> np.ndarray | None:
    """Return whether each id up to the largest is used; None where that table would be far larger than the edges."""
    low, high = coo.id_range
    if low < 0 or high >= _MAX_MARKED_PER_EDGE * len(coo.src) + _ALWAYS_ALLOWED_NODES:
        return None
    seen = np.zeros(high + 1, bool)
    for _, src, dst in coo.slices():
        seen[src] = seen[dst] = True
    return seen


def _is_plausible(coo: COOGraph, num_nodes: int) -> bool:
    return num_nodes <= _MAX_NODES_PER_EDGE * len(coo.src) + _ALWAYS_ALLOWED_NODES


def check_plausible_nodes(coo: COOGraph, num_nodes: int, evidence: str) -> None:
    """Raise :class:`InputError` for a huge number of nodes that may be an error, before memory is allocated for it."""
    if not _is_plausible(coo, num_nodes):
        raise InputError(
            f"{coo.name}: {evidence}, but the number of edges is {len(coo.src)}; number the nodes from 0 without "
            "gaps, or pass num_nodes (--num-nodes) if that many nodes have no edge"
        )


# ---- rows of node data


def _in_node_order(source: Graph | COOGraph, columns: NodeColumns, tables: list[NodeColumns]) -> NodeColumns:
    """Return the columns with a row for each node, in node order."""
    if columns.ids is None:
        if columns.rows not in (None, source.num_nodes):
            raise InputError(
                f"{columns.name} has {columns.rows} rows, but {source.name} has {source.num_nodes} nodes; give it one row for "
                "each node"
            )
        return columns
    names, listed = source.node_names, columns.ids
    if names is None:
        names = np.arange(source.num_nodes)
    if names.dtype.kind == "U" or (numbers := _whole(listed)) is None:
        names, listed = names.astype(np.str_), listed.astype(np.str_)
    else:
        listed = numbers
    origin = source.name if columns is tables[0] else tables[0].name
    rows = _rows_of(names, listed, columns.name, origin)
    if len(listed) > len(names):
        extra = np.setdiff1d(listed, names)[0]
        raise InputError(f"{columns.name} has a row for node {extra}, which {origin} does not have; remove the row")
    return columns.ordered(rows)
