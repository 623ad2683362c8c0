"""From chunks of the source to ranges of nodes: each range has the in-edges and the neighbours of its nodes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import scipy  # imports its parts at their first use

from dgl_gt.partition.system.distinct import unique

from .files import array_file, write_rows
from .job import Job, distinct
from .stages import Arrays, Stages, by_key, gather

_DEGREE = "source/degree.npy"
_BLOCKS = 1 << 16  # of nodes, whose edges are counted to choose the ranges


def chunks(job: Job) -> int:
    """The number of chunks that the listed edges are read in."""
    return max(1, -(-job.arrays["src"].shape[0] // job.sizes.chunk_edges))


def count_chunk(job: Job, index: int) -> Arrays:
    """Count the ends of a chunk's edges by blocks of nodes, and list its self-loops."""
    src, dst = _chunk(job, index)
    block, blocks = _blocks(job)
    ends = np.bincount(src // block, minlength=blocks) + np.bincount(dst // block, minlength=blocks)
    return {"ends": ends, "loops": np.flatnonzero(src == dst) + index * job.sizes.chunk_edges}


def choose_ranges(job: Job, _item: int) -> Arrays:
    """Choose ranges of nodes with about as many ends of edges, from the counts of all chunks."""
    block, blocks = _blocks(job)
    ends, all_loops = np.zeros(blocks, np.int64), [np.zeros(0, np.int64)]
    for index in range(chunks(job)):
        of_chunk, of_loops = job.folder.load(f"count/{index}", "ends", "loops")
        ends += of_chunk
        all_loops.append(of_loops)
    load = np.cumsum(ends + block)  # a node without edges takes room, too
    count = -(-int(load[-1]) // job.sizes.range_ends)
    first = np.searchsorted(load, load[-1] * np.arange(1, count) / count)
    ptr = np.unique(np.concatenate([[0], np.minimum(first * block, job.num_nodes), [job.num_nodes]]))
    listed, loops = job.arrays["src"].shape[0], np.concatenate(all_loops)
    num_edges = 2 * listed - len(loops) if job.coo.listed_once else listed
    return {"ptr": ptr.astype(np.int64), "loops": loops, "num_edges": np.array([num_edges])}


def bucket_chunk(job: Job, index: int) -> Arrays:
    """Give each edge of a chunk to the range of its destination; and each but self-loops to that of its source."""
    src, dst = _chunk(job, index)
    start = index * job.sizes.chunk_edges
    ids: np.ndarray = np.arange(start, start + len(src), dtype=job.edge_type)
    apart = src != dst
    if job.coo.listed_once:
        (loops,) = job.folder.load("ranges/0", "loops")
        first = job.arrays["src"].shape[0] + start - np.searchsorted(loops, start)
        reverse = np.arange(first, first + np.count_nonzero(apart), dtype=ids.dtype)
        src, dst, ids = np.concatenate([src, dst[apart]]), np.concatenate([dst, src[apart]]), np.append(ids, reverse)
        return by_key("in", job.range_of(dst), job.ranges, src=src, dst=dst, ids=ids)
    found = by_key("in", job.range_of(dst), job.ranges, src=src, dst=dst, ids=ids)
    return found | by_key("out", job.range_of(src[apart]), job.ranges, src=src[apart], dst=dst[apart])


def sort_range(job: Job, index: int) -> Arrays:
    """The in-edges of a range's nodes, in the order of edge ids, and the neighbours of each node, ascending.

    ``others`` are the nodes that are neighbours, ascending, and ``neighbours`` are places among them.
    """
    items, (begin, end) = range(chunks(job)), job.range_ptr[index : index + 2].tolist()
    src, dst, ids = gather(job.folder, "edges", items, "in", index, "src", "dst", "ids")
    if job.coo.listed_once:
        order = np.argsort(ids, kind="stable")
        src, dst, ids = src[order], dst[order], ids[order]
    shape = end - begin, job.num_nodes
    tail, head = dst[:0], src[:0]
    if not job.coo.listed_once:
        tail, head = gather(job.folder, "edges", items, "out", index, "src", "dst")
    added, leaving = [], [dst[src == dst], tail if not job.coo.listed_once else dst[src != dst]]
    if job.undirected and not job.coo.listed_once:  # whose reverses are all there
        added.append(_missing_reverses(job, index, src, dst, tail, head))
        leaving.append(_missing_reverses(job, index, head, tail, dst[src != dst], src[src != dst])[1])
    if job.self_loops:
        alone = np.setdiff1d(job.nodes(index), dst[src == dst])
        added.append((alone, alone))
        leaving.append(alone)
    out_degrees = sum(np.bincount(each - begin, minlength=end - begin) for each in leaving)
    counts = [len(each[0]) for each in added]
    ids = np.append(ids, np.arange(job.num_edges, job.num_edges + sum(counts), dtype=ids.dtype))
    src = np.concatenate([src, *(each[0] for each in added)])
    dst = np.concatenate([dst, *(each[1] for each in added)])
    in_edges = scipy.sparse.coo_array((ids, (dst - begin, src)), shape=shape)
    in_edges.has_canonical_format = True  # keeps parallel edges: tocsr would add up their ids
    in_edges = in_edges.tocsr()
    row, other = np.concatenate([dst, tail]) - begin, np.concatenate([src, head])
    del src, dst, ids, tail, head
    apart = row + begin != other
    row, other = row[apart], other[apart]
    pairs = scipy.sparse.coo_array((np.ones(len(row), bool), (row, other)), shape=shape).tocsr()
    pairs.sum_duplicates()
    neighbours = pairs.indices.astype(job.node_type, copy=False)
    others, neighbours = distinct(neighbours, job.num_nodes)
    return {
        "indptr": in_edges.indptr.astype(np.int64),
        "src": in_edges.indices.astype(job.node_type, copy=False),
        "ids": in_edges.data,
        "ptr": pairs.indptr.astype(np.int64),
        "neighbours": neighbours,
        "others": others,
        "out_degrees": out_degrees,
        "added": np.array(counts, np.int64),
        "isolated": np.array([np.count_nonzero(np.diff(pairs.indptr) == 0)]),
    }


def add_degrees(run: Stages, job: Job) -> Job:
    """Compute the node data ``degree`` of :func:`dgl_gt.partition.encode`; return the job with them."""
    run.map("degree", partial(_encode_degrees, job), 1)
    path = job.folder.place(_DEGREE)
    arrays = job.arrays | {"node/degree": array_file(np.load(path, mmap_mode="r"), path)}
    return replace(job, arrays=arrays, coo=replace(job.coo, encodings={**job.coo.encodings, "degree": {"columns": 2}}))


def _encode_degrees(job: Job, _item: int) -> Arrays:
    """Write the degrees as a file that workers map."""
    loaded = (job.folder.load(f"ranges-sorted/{index}", "indptr", "out_degrees") for index in range(job.ranges))
    rows = (np.log1p(np.stack([np.diff(indptr), out], axis=1)).astype(np.float32) for indptr, out in loaded)
    write_rows(job.folder.place(_DEGREE), np.dtype(np.float32), (job.num_nodes, 2), rows)
    return {}


def _missing_reverses(job: Job, index: int, src, dst, tail, head) -> tuple[np.ndarray, np.ndarray]:
    """Sources and destinations of the reverses that edges from this range lack, in the order of their ids."""
    begin = int(job.range_ptr[index])
    there = unique((dst.astype(np.int64) - begin) * job.num_nodes + src)
    wanted = np.sort((tail.astype(np.int64) - begin) * job.num_nodes + head)
    if len(there):
        wanted = wanted[there[np.searchsorted(there, wanted).clip(max=len(there) - 1)] != wanted]
    return (wanted % job.num_nodes).astype(src.dtype), (wanted // job.num_nodes + begin).astype(dst.dtype)


def number_added(job: Job, _item: int) -> Arrays:
    """The first id of the reverses and of the self-loops that each range adds: all reverses come before all self-loops."""
    counts = np.stack([job.folder.load(f"ranges-sorted/{index}", "added")[0] for index in range(job.ranges)])
    first = job.num_edges + np.cumsum(np.append(0, counts.T)).reshape(-1)
    return {"first": first[:-1].reshape(counts.T.shape), "num_edges": first[-1:]}


def edge_ids(job: Job, index: int) -> np.ndarray:
    """The final ids of the in-edges of a range."""
    ids, counts = job.folder.load(f"ranges-sorted/{index}", "ids", "added")
    (first,) = job.folder.load("added/0", "first")
    listed, final = job.listed_edges, ids.copy()
    for count, begin in zip(counts.tolist(), first[:, index].tolist()):
        is_of_kind = (ids >= listed) & (ids < listed + count)
        final[is_of_kind] += begin - listed
        listed += count
    return final


def _chunk(job: Job, index: int) -> tuple[np.ndarray, np.ndarray]:
    rows = slice(index * job.sizes.chunk_edges, (index + 1) * job.sizes.chunk_edges)
    return tuple(job.arrays[name].open()[rows].astype(job.node_type) for name in ("src", "dst"))  # type: ignore[return-value]


def _blocks(job: Job) -> tuple[int, int]:
    """How many nodes a block has, and how many blocks there are."""
    block = -(-job.num_nodes // _BLOCKS)
    return block, -(-job.num_nodes // block)
