"""A graph that has grown is cut like its old shards: nodes stay where they are, and new ones go to their neighbours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from heapq import heapify, heapreplace

import numpy as np

from dgl_gt.partition.cuts.attempts import best_assignment
from dgl_gt.partition.cuts.balance import Balance, make_balance
from dgl_gt.partition.cuts.local_search import refine
from dgl_gt.partition.cuts.permutation import check_parts, count_assignment
from dgl_gt.partition.shards.counts import read_schema, user_node_count
from dgl_gt.partition.shards.files import ShardReader, read_node_names, verify
from dgl_gt.partition.shards.manifest import read_manifest
from dgl_gt.partition.system.distinct import unique

from .config import PartitionConfig
from .errors import InputError
from .graph import Graph, symmetrised

_ROOM = 1.03  # the most that new nodes fill a part, over its share of the time that ranks compute


def grown(graph: Graph, config: PartitionConfig, progress: Callable) -> tuple[Graph, PartitionConfig]:
    """Return the graph with a note on its growth, and the config with the ``owner`` of each node.

    Old nodes keep their parts. But if the local search from there lowers the predicted step by more than the share
    ``config.move``, they may move.
    """
    manifest = read_manifest(config.like)
    verify(config.like, manifest)
    check_parts(graph.num_nodes, config.parts)
    before = _old_owner(graph, config, manifest)
    weights = manifest["shares"] if config.target_weights is None else config.target_weights
    balance = make_balance(graph, config.parts, None, weights, config.costs)
    undirected = symmetrised(graph)
    progress("placing new nodes")
    owner = _placed(undirected, before, balance)

    def step_s(owner: np.ndarray) -> float:
        return config.costs.step_seconds(count_assignment(graph, owner, balance.shares))

    kept_s, moved = step_s(owner), 0
    if config.move is not None and config.parts > 1:
        progress("edge cut, local search")
        trial = owner.copy()
        refine(graph, trial, balance, config.seed)
        if step_s(trial) < (1 - config.move) * kept_s:
            owner, moved = trial, int(((trial != before) & (before >= 0)).sum())
    new, gone = int((before[: _user_nodes(graph)] < 0).sum()), user_node_count(manifest) - int((before >= 0).sum())
    note = f"like {config.like}: {new} nodes are new, {gone} are gone, {moved} have moved"
    if config.parts > 1:
        fresh_s = step_s(best_assignment(graph, config.parts, undirected, balance, 1, step_s, config.seed, progress))
        note += f"; predicted step {step_s(owner):.3g} s, that of a fresh cut {fresh_s:.3g} s"
    return replace(graph, notes=(*graph.notes, note)), replace(
        config, like=None, move=None, owner=owner, target_weights=weights
    )


def check_like(config: PartitionConfig) -> None:
    """Raise :class:`InputError` unless the shards that ``config.like`` names can be followed."""
    manifest = read_manifest(config.like)
    if manifest["cut"] != "edge":
        raise InputError(
            f"like (--like) is {config.like}, which holds a vertex cut; nodes stay in edge cuts alone: cut the graph anew"
        )
    if manifest["parts"] != config.parts:
        raise InputError(
            f"parts (--parts) is {config.parts}, but like (--like) {config.like} has {manifest['parts']} parts; give that number"
        )


def _old_owner(graph: Graph, config: PartitionConfig, manifest: dict) -> np.ndarray:
    """Return the old part of each node, int32 (N,), -1 for a new one. Nodes are the same that have the same id."""
    names = read_node_names(config.like, manifest)
    owner = np.full(user_node_count(manifest), -1, np.int32)
    shards = ShardReader(config.like, manifest)
    for part in range(manifest["parts"]):
        ids = shards.structure(part, "node_ids")["node_ids"][: shards.rows(part)[0]]
        owner[ids[ids < len(owner)]] = part  # virtual nodes have the last numbers
    before = np.full(graph.num_nodes, -1, np.int32)
    for old, new in _same_types(graph, config, manifest, len(owner)):
        ids = [None if each is None else each[rows] for each, rows in ((names, old), (graph.node_names, new))]
        before[new] = _matched(graph, config, owner[old], new.stop - new.start, *ids)
    return before


def _same_types(graph: Graph, config: PartitionConfig, manifest: dict, old_nodes: int) -> list[tuple[slice, slice]]:
    """The nodes of each type in the old shards, and in the graph."""
    old, new = read_schema(manifest), graph.schema
    if (old is None) != (new is None):
        which = graph.name if old is None else config.like
        raise InputError(
            f"{which} has node types, and {graph.name if old is not None else config.like} has one type alone; like (--like) takes "
            "an earlier state of the same graph"
        )
    if old is None or new is None:
        return [(slice(0, old_nodes), slice(0, _user_nodes(graph)))]
    return [
        (old.rows_of("node", f"{each}/"), new.rows_of("node", f"{each}/")) for each in new.nodes if each in old.nodes
    ]


def _matched(
    graph: Graph,
    config: PartitionConfig,
    owner: np.ndarray,
    count: int,
    names: np.ndarray | None,
    new_names: np.ndarray | None,
) -> np.ndarray:
    """The old part of each of some nodes, -1 for a new one; ``owner`` and ``names`` are of the old nodes."""
    before = np.full(count, -1, np.int32)
    if names is None and new_names is None:
        before[: len(owner)] = owner[:count]
        return before
    old = np.arange(len(owner)) if names is None else names
    new = np.arange(count) if new_names is None else new_names
    if not len(old) or not len(new):
        return before
    if (old.dtype.kind == "U") != (new.dtype.kind == "U"):
        raise InputError(
            f"{graph.name} has {_kind(new)} as ids, such as {new[0]!s:.40}, and like (--like) {config.like} has {_kind(old)}, such "
            f"as {old[0]!s:.40}; read both graphs with the same ids (--ids)"
        )
    if old.dtype != new.dtype and old.dtype.kind in "iu":  # numpy compares int64 and uint64 as floats
        old, new = old.astype(np.str_), new.astype(np.str_)
    order = np.argsort(old)
    at = order[np.minimum(np.searchsorted(old, new, sorter=order), len(old) - 1)]
    before[:] = np.where(old[at] == new, owner[at], -1)
    return before


def _kind(ids: np.ndarray) -> str:
    return "text" if ids.dtype.kind == "U" else "whole numbers"


def _user_nodes(graph: Graph) -> int:
    virtual = graph.transforms.get("virtual_nodes", {}).get("nodes", 0)
    return graph.num_nodes - virtual


def _placed(undirected, before: np.ndarray, balance: Balance) -> np.ndarray:
    """Return the part of each node, int32 (N,): new nodes go where most of their neighbours are, while there is room.

    Those next to old nodes come first, then those next to these. Nodes without a way to any go to the emptiest parts.
    """
    owner, parts = before.copy(), len(balance.shares)
    room = balance.shares * balance.step.sum() * _ROOM
    room -= np.bincount(owner[owner >= 0], balance.step[owner >= 0], minlength=parts)
    new = np.flatnonzero(owner < 0)
    votes, row_of = np.zeros((len(new), parts), np.int64), np.full(len(owner), -1)
    row_of[new] = np.arange(len(new))
    nodes, near = _neighbours(undirected, new)
    old = owner[near] >= 0
    np.add.at(votes, (row_of[nodes[old]], owner[near[old]]), 1)
    waiting = new
    while True:
        open_votes = np.where(room > 0, votes[row_of[waiting]], 0)
        best = open_votes.argmax(axis=1)
        strength = open_votes[np.arange(len(waiting)), best]
        order = np.argsort(-strength, kind="stable")
        order = order[strength[order] > 0]
        if not len(order):
            break
        accepted = [_that_fit(order[best[order] == part], waiting, balance.step, room, part) for part in range(parts)]
        for part, those in enumerate(accepted):
            owner[waiting[those]] = part
        placed, near = _neighbours(undirected, waiting[np.concatenate(accepted)])
        touched = owner[near] < 0
        np.add.at(votes, (row_of[near[touched]], owner[placed[touched]]), 1)
        left = waiting[order]  # others of those that wait have no neighbour with room yet
        waiting = unique(np.concatenate([left[owner[left] < 0], near[touched]]))
    _deal(owner, np.flatnonzero(owner < 0), balance.step, room)
    return owner


def _neighbours(undirected, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the edges from nodes as two arrays: the nodes, and their neighbours."""
    begin, count = undirected.indptr[nodes], np.diff(undirected.indptr)[nodes]
    at = np.repeat(begin - np.concatenate([[0], np.cumsum(count)[:-1]]), count) + np.arange(count.sum())
    return np.repeat(nodes, count), undirected.indices[at]


def _that_fit(rows: np.ndarray, waiting: np.ndarray, step: np.ndarray, room: np.ndarray, part: int) -> np.ndarray:
    """Return the first rows that fit into a part, at least one, and take their load from its room."""
    loads = np.cumsum(step[waiting[rows]])
    count = max(1, int(np.searchsorted(loads, room[part], side="right"))) if len(rows) else 0
    room[part] -= loads[count - 1] if count else 0
    return rows[:count]


def _deal(owner: np.ndarray, nodes: np.ndarray, step: np.ndarray, room: np.ndarray) -> None:
    """Give each of the nodes, heavy ones first, to the part that is emptiest then."""
    heap = [(-free, part) for part, free in enumerate(room)]
    heapify(heap)
    for node in nodes[np.argsort(-step[nodes], kind="stable")]:
        filled, part = heap[0]
        owner[node] = part
        heapreplace(heap, (filled + step[node], part))
