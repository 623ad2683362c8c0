"""The vertex cut: each edge goes to a part of one of its ends, and each node to a master among the parts that hold it.

As in 2PS-L (Mayer et al., arXiv 2203.12721), the clusters of its ends say which two parts an edge may go to. (The local
search saves halo rows; in most trials on three graphs, it made more mirrors.) Where the two differ, the end that has more
neighbours in the other's part gets a mirror there, as it serves more edges; 2PS-L asks what the stream has placed before,
and tasks would wait for each other. If a part would hold too many edges, some of its nodes, by lot, give their edges to
the parts of the other ends. What is still too much, as around a hub, goes to the parts that hold least, also by lot.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from dgl_gt.partition.cuts import native
from dgl_gt.partition.cuts.vertex_cut import capacities_of
from dgl_gt.partition.system.distinct import unique

from .cut import by_part
from .edges import edge_ids
from .job import Job, mixed, places
from .stages import Arrays, Stages, by_key, gather

_MOST_BINS, _COUNTS = 256, 1 << 13  # of edges of a range and a part; and counts of a range
PLACED = "placed"  # the stage whose files hold the edges of each part


def place_edges(run: Stages, job: Job, clustered: int) -> list[tuple[str, range, int]]:
    """Give edges and masters to parts; return, as for an edge cut, where the nodes of each part and their in-edges are."""
    run.map("owner", partial(_owner, job, rounds=clustered), job.ranges)
    run.map("reach", partial(_reach, job), job.ranges)
    run.map("sides", partial(_sides, job), job.ranges)
    (shifted,) = run.reduce("shifted", partial(_shifted, job), "shifted")
    run.map("loads", partial(_loads, job, shifted=shifted), job.ranges)
    run.map("levelled", partial(_levelled, job), 1)
    run.map(PLACED, partial(_placed, job, shifted=shifted), job.ranges)
    run.drop("owner", "reach", "sides", "loads", "levelled")
    run.map("masters", partial(_masters, job), job.ranges)
    return [("masters", range(job.ranges), part) for part in range(job.parts)]


def _owner(job: Job, index: int, rounds: int) -> Arrays:
    """The part of each node of a range: that of its cluster."""
    (of_cluster,) = job.folder.load("coarse-cut/0", "owner")
    return {"owner": of_cluster[job.folder.load(f"cluster-{rounds}/{index}", "cluster")[0]]}


def _reach(job: Job, index: int) -> Arrays:
    """How many neighbours each node of a range has in each part; also for the ranges of those in other parts."""
    ptr, neighbours, others = job.folder.load(f"ranges-sorted/{index}", "ptr", "neighbours", "others")
    (owner,) = job.folder.load(f"owner/{index}", "owner")
    row, begin = np.repeat(np.arange(len(owner)), np.diff(ptr)), int(job.range_ptr[index])
    pairs = row * job.parts + job.lookup("owner", "owner", others)[neighbours]
    key, count = np.unique(pairs, return_counts=True)
    apart = pairs % job.parts != owner[row]
    told = unique(job.range_of(others)[neighbours[apart]] * (len(owner) * job.parts) + pairs[apart])
    to, pairs = np.divmod(told, max(len(owner) * job.parts, 1))
    sent = {"pair": pairs + begin * job.parts, "count": count[np.searchsorted(key, pairs)]}
    return {"key": key + begin * job.parts, "count": count} | by_key("to", to, job.ranges, **sent)


def _sides(job: Job, index: int) -> Arrays:
    """For each in-edge of a range, the parts of its ends, and whether it goes to its source's; and the counts of both, (P, P)."""
    src, dst = _in_edges(job, index)
    (owner,) = job.folder.load(f"owner/{index}", "owner")
    sources = unique(src)
    of_src = job.lookup("owner", "owner", sources)[places(sources, src, job.num_nodes)]
    of_dst = owner[dst - job.range_ptr[index]]
    apart = np.flatnonzero(of_src != of_dst)
    src, dst = src[apart].astype(np.int64), dst[apart].astype(np.int64)
    key, count = job.folder.load(f"reach/{index}", "key", "count")
    by_dst = count[np.searchsorted(key, dst * job.parts + of_src[apart])]
    key, count = gather(job.folder, "reach", range(job.ranges), "to", index, "pair", "count")
    by_src = count[np.searchsorted(key, src * job.parts + of_dst[apart])]
    tie = mixed(src, job.seed) < mixed(dst, job.seed)  # the same for both directions of an edge
    to_src = np.zeros(len(of_src), bool)
    to_src[apart] = (by_dst > by_src) | ((by_dst == by_src) & tie)
    first, other = np.where(to_src, of_src, of_dst), np.where(to_src, of_dst, of_src)
    counts = np.bincount(first.astype(np.int64) * job.parts + other, minlength=job.parts**2)
    return {"of_src": of_src, "of_dst": of_dst, "to_src": to_src, "counts": counts.reshape(job.parts, job.parts)}


def _shifted(job: Job, _item: int) -> Arrays:
    """The share of the edges at each two parts that the first leaves to the second, as it would hold too many; (P, P)."""
    counts = np.sum([job.folder.load(f"sides/{index}", "counts")[0] for index in range(job.ranges)], axis=0)
    capacity, load = capacities_of(job.num_edges, job.shares), counts.sum(axis=1).astype(np.float64)
    moved = np.zeros(counts.shape)
    for part in np.argsort(-load / job.shares, kind="stable"):
        taken = np.minimum(counts[part], np.maximum(capacity - load, 0))
        taken[part] = 0
        taken *= np.clip((load[part] - capacity[part]) / max(taken.sum(), 1), 0, 1)
        moved[part], load = taken, load + taken
        load[part] -= taken.sum()
    return {"shifted": moved / np.maximum(counts, 1)}


def _bins(job: Job) -> int:
    return max(1, min(_MOST_BINS, _COUNTS // job.parts))


def _wished(
    job: Job, index: int, shifted: np.ndarray, src: np.ndarray, dst: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The part that each in-edge of a range goes to unless that becomes too full, and the edge's bin, by lot of one end.

    Both directions of an edge have the same bin, so that they leave a full part together.
    """
    of_src, of_dst, to_src = job.folder.load(f"sides/{index}", "of_src", "of_dst", "to_src")
    lot = mixed(np.where(to_src, src, dst), job.seed + 1) / 2.0**64
    first, other = np.where(to_src, of_src, of_dst), np.where(to_src, of_dst, of_src)
    by_src = np.where(of_src == of_dst, mixed(src, job.seed) < mixed(dst, job.seed), to_src)
    bins = mixed(np.where(by_src, src, dst), job.seed + 2) % np.uint64(_bins(job))
    return np.where(lot < shifted[first, other], other, first), bins.astype(np.int64)


def _loads(job: Job, index: int, shifted: np.ndarray) -> Arrays:
    """How many in-edges of a range go to each part, by bin."""
    part, bins = _wished(job, index, shifted, *_in_edges(job, index))
    return {"count": np.bincount(part * _bins(job) + bins, minlength=job.parts * _bins(job))}


def _levelled(job: Job, _item: int) -> Arrays:
    """How many edges of each range, part and bin leave a part that would hold too many, and the number of the first of them.

    ``room``, (P,), is how many edges each part can take. Bin after bin leaves, and these edges are numbered in this order.
    """
    counts = np.stack([job.folder.load(f"loads/{index}", "count")[0] for index in range(job.ranges)])
    counts = counts.reshape(job.ranges, job.parts, -1).transpose(2, 1, 0)
    room = capacities_of(job.num_edges, job.shares) - counts.sum(axis=(0, 2))
    of_part = counts.transpose(1, 0, 2).reshape(job.parts, -1)
    leaving = np.clip(-room[:, None] - np.cumsum(of_part, axis=1) + of_part, 0, of_part)
    leaving = leaving.reshape(job.parts, -1, job.ranges).transpose(1, 0, 2)
    first = (np.cumsum(leaving) - leaving.ravel()).reshape(leaving.shape)
    by_range = {
        name: each.transpose(2, 1, 0).reshape(job.ranges, -1) for name, each in (("leaving", leaving), ("first", first))
    }
    return {**by_range, "room": np.maximum(room, 0)}


def _placed(job: Job, index: int, shifted: np.ndarray) -> Arrays:
    """The in-edges of a range by part; and the parts that hold each of their ends, by the ranges of these."""
    src, dst = _in_edges(job, index)
    part, bins = _wished(job, index, shifted, src, dst)
    leaving, first = (job.folder.rows("levelled/0", name, index, index + 1)[0] for name in ("leaving", "first"))
    (room,) = job.folder.load("levelled/0", "room")
    key = part * _bins(job) + bins
    moved = np.flatnonzero(leaving[key] > 0)
    moved = moved[np.argsort(key[moved], kind="stable")]
    key = key[moved]
    within = np.arange(len(key)) - np.searchsorted(key, key)  # number among the edges of a part and bin
    leaves = within < leaving[key]
    emptiest = np.argsort(-room, kind="stable")
    number = (first[key] + within)[leaves]
    part[moved[leaves]] = emptiest[np.searchsorted(np.cumsum(room[emptiest]), number, "right")]
    node, of_copy = np.divmod(
        unique(np.concatenate([each.astype(np.int64) * job.parts + part for each in (src, dst)])), job.parts
    )
    held = {"node": node.astype(job.node_type), "part": of_copy.astype(np.int32)}
    found = by_key("edge", part, job.parts, src=src, dst=dst, ids=edge_ids(job, index))
    return found | by_key("copy", job.range_of(node), job.ranges, **held)


def _masters(job: Job, index: int) -> Arrays:
    """The nodes of a range with their in-edges, by the part that is their master."""
    nodes = job.nodes(index)
    node, part = gather(job.folder, PLACED, range(job.ranges), "copy", index, "node", "part")
    copies = native.no_copies(len(nodes), job.parts)
    np.bitwise_or.at(copies, (node - nodes[0], part // 64), np.uint64(1) << (part % 64).astype(np.uint64))
    master = native.choose_masters(copies, job.parts, capacities_of(job.num_edges, job.shares))
    indptr, src = job.folder.load(f"ranges-sorted/{index}", "indptr", "src")
    return by_part(master, job.parts, nodes, np.diff(indptr), src, edge_ids(job, index))


def _in_edges(job: Job, index: int) -> tuple[np.ndarray, np.ndarray]:
    """Sources and destinations of the in-edges of a range."""
    indptr, src = job.folder.load(f"ranges-sorted/{index}", "indptr", "src")
    return src, np.repeat(job.nodes(index), np.diff(indptr))
