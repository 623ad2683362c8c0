"""Clusters of bounded weight by label propagation over ranges of nodes, and the graph of these clusters.

A label is the number of a node, so it has a range, too. In a round half of the nodes ask to join the cluster to which
most of their edges go; the range of the cluster's label takes them in while there is room. Every node asks in every
second round, so two neighbours do not change places for ever (Sanders and Seemaier, "Distributed deep multilevel graph
partitioning", arXiv 2303.01417, split nodes for the same reason).
"""

from __future__ import annotations

from functools import partial

import numpy as np

from dgl_gt.partition.cuts import native
from dgl_gt.partition.errors import InputError

from .job import BASE_BYTES, COARSE_BYTES, USABLE, Job, distinct, mixed, places
from .stages import Arrays, Stages, by_key, gather
from .thinning import thin

_CLUSTERS_PER_PART = 64  # at least; METIS must be able to balance what they weigh
_MOST_ROUNDS = 10
_LEAST_SAVING = (
    0.95  # clusters and the edges between them, after two rounds over those before; with less gain, they end
)
_FAR = 3  # times the size that is wanted; it takes long to count the edges between clusters
_ALONE_FROM = 2  # the round from which nodes that no cluster takes come together; that costs some halo rows
_CLUSTER_BYTES = 80  # that METIS takes for each node


def coarsen(run: Stages, job: Job, ends: int) -> tuple[int, str]:
    """Find clusters until their graph is small enough; return the number of rounds, n, and the stage with the graph.

    The stage ``cluster-n`` has the cluster of each node. The more rounds, the more the cut loses, so there are no more than
    it takes.
    """
    mean = job.num_edges / job.num_nodes
    total = int(job.num_nodes * (1 + mean if job.cut == "vertex" else int(job.weights(np.array([mean]))[0])))
    heaviest, rounds = max(1, total // (_CLUSTERS_PER_PART * job.parts)), 0
    run.map("labels-0", partial(_labels, job, number=0), job.ranges)
    size, before = np.array([job.num_nodes, ends]), np.array([np.inf, np.inf])
    while size.sum() > job.sizes.coarse_ends and rounds < _MOST_ROUNDS:
        if rounds > _ALONE_FROM and size.sum() >= _LEAST_SAVING * before.sum():
            break
        if rounds:
            run.drop(f"cluster-{rounds}", f"coarse-{rounds}")
        at_once = 4 if size.sum() > _FAR * job.sizes.coarse_ends else 2  # every node asks once, or twice
        for _ in range(min(at_once, _MOST_ROUNDS - rounds)):
            _round(run, job, rounds, heaviest)
            rounds += 1
        size, before = _contract(run, job, rounds), size
    if not rounds:
        size = _contract(run, job, 0)
    run.drop(f"labels-{rounds}", f"weights-{rounds}")
    clusters, ends = size.tolist()
    share = _kept_share(job, clusters, ends)
    return rounds, f"coarse-{rounds}" if share >= 1 else thin(run, job, f"coarse-{rounds}", clusters, share)


def _kept_share(job: Job, clusters: int, ends: int) -> float:
    """The share of its edges that each cluster may keep in the memory of METIS, where either end keeps an edge.

    :class:`InputError` where even the clusters do not fit.
    """
    fixed = BASE_BYTES + clusters * (_CLUSTER_BYTES + 2 * COARSE_BYTES)  # with an edge of each
    if job.sizes.usable_bytes is None or fixed + (ends - 2 * clusters) * COARSE_BYTES <= job.sizes.usable_bytes:
        return 1.0
    share = (job.sizes.usable_bytes - fixed) / COARSE_BYTES / (2 * ends)
    if share <= 0:
        raise InputError(
            f"{job.coo.name} has no clear clusters: {clusters:,} are left, for which METIS needs a worker_memory (--worker-memory) of "
            f"about {int(fixed / USABLE) + (1 << 20) >> 20}MiB; give that much"
        )
    return share


def _round(run: Stages, job: Job, number: int, heaviest: int) -> None:
    run.map(f"weights-{number}", partial(_weights, job, number=number), job.ranges)
    run.map(f"moves-{number}", partial(_ask, job, number=number, heaviest=heaviest), job.ranges)
    run.map(f"joins-{number}", partial(_answer, job, number=number, heaviest=heaviest), job.ranges)
    run.map(f"labels-{number + 1}", partial(_labels, job, number=number + 1), job.ranges)
    run.drop(*(f"{stage}-{number}" for stage in ("labels", "weights", "moves", "joins")))


def _labels(job: Job, index: int, number: int) -> Arrays:
    """The label of each node of a range, and the weight that this range adds to each label."""
    nodes, (indptr,) = job.nodes(index), job.folder.load(f"ranges-sorted/{index}", "indptr")
    label = nodes
    if number:
        (label,) = job.folder.load(f"labels-{number - 1}/{index}", "label")
        node, joined = gather(job.folder, f"joins-{number - 1}", range(job.ranges), "to", index, "node", "label")
        label[node - nodes[0]] = joined
    labels, place = distinct(label, job.num_nodes)
    sums = np.bincount(place, job.weights(np.diff(indptr)), len(labels)).astype(np.int64)
    return {"label": label, **by_key("of", job.range_of(labels), job.ranges, label=labels, weight=sums)}


def _weights(job: Job, index: int, number: int) -> Arrays:
    """The weight of each label of a range."""
    nodes = job.nodes(index)
    label, weight = gather(job.folder, f"labels-{number}", range(job.ranges), "of", index, "label", "weight")
    return {"weight": np.bincount(label - nodes[0], weight, len(nodes)).astype(np.int64)}


def _ask(job: Job, index: int, number: int, heaviest: int) -> Arrays:
    """The clusters that half of the nodes of a range ask to join."""
    nodes, names = job.nodes(index), ("ptr", "neighbours", "others", "indptr")
    ptr, neighbours, others, indptr = job.folder.load(f"ranges-sorted/{index}", *names)
    (label,) = job.folder.load(f"labels-{number}/{index}", "label")
    turn, half = divmod(number, 2)
    asks = (mixed(nodes, job.seed + turn) & np.uint64(1)) == half
    of_others = job.lookup(f"labels-{number}", "label", others)
    labels, code = distinct(np.concatenate([of_others, label]), job.num_nodes)
    own_weight = job.weights(np.diff(indptr))
    joined, wished = native.choose_clusters(
        ptr,
        neighbours,
        of_neighbour=code[: len(others)],
        own=code[len(others) :],
        asks=asks,
        node_weights=own_weight,
        names=labels.astype(np.int64),
        room=heaviest - job.lookup(f"weights-{number}", "weight", labels),
        salt=job.seed + number,
    )
    to = np.where(joined < 0, -1, labels[joined])
    (weight,) = job.folder.load(f"weights-{number}/{index}", "weight")
    left = np.flatnonzero(asks & (number >= _ALONE_FROM) & (to < 0) & (label == nodes) & (weight == own_weight))
    to[left] = nodes[_leaders(left, wished[left], own_weight[left], heaviest)]
    row = np.flatnonzero((to >= 0) & (to != label))
    to = to[row].astype(nodes.dtype)
    return by_key("to", job.range_of(to), job.ranges, node=nodes[row], label=to, weight=own_weight[row])


def _leaders(single: np.ndarray, wished: np.ndarray, weight: np.ndarray, heaviest: int) -> np.ndarray:
    """Whom each node should join that is alone since no cluster takes it: one that wished to join the same cluster.

    So leaves of a hub come together, and isolated nodes (KaMinPar does the same: "two-hop clustering").
    """
    order = np.lexsort((single, wished))
    total = np.cumsum(weight[order])
    is_new = np.append(True, wished[order][1:] != wished[order][:-1])[: len(order)]
    within = total - (total - weight[order])[is_new][np.cumsum(is_new) - 1]
    batch = (within - 1) // heaviest
    is_new[1:] |= batch[1:] != batch[:-1]
    leaders = np.empty_like(single)
    leaders[order] = single[order][is_new][np.cumsum(is_new) - 1]
    return leaders


def _answer(job: Job, index: int, number: int, heaviest: int) -> Arrays:
    """Which nodes may join the clusters of a range: as many as there is room for, in an order by lot."""
    nodes, (weight,) = job.nodes(index), job.folder.load(f"weights-{number}/{index}", "weight")
    asked = gather(job.folder, f"moves-{number}", range(job.ranges), "to", index, "node", "label", "weight")
    order = np.lexsort((mixed(asked[0], job.seed + number), asked[1]))
    node, label, added = (each[order] for each in asked)
    total, first = np.cumsum(added), np.append(True, label[1:] != label[:-1])[: len(label)]
    before = (total - added)[first][np.cumsum(first) - 1]
    takes = weight[label - nodes[0]] + total - before <= heaviest
    node, label = node[takes], label[takes]
    return by_key("to", job.range_of(node), job.ranges, node=node, label=label)


# ---- the graph of clusters


def _contract(run: Stages, job: Job, number: int) -> np.ndarray:
    """Number the clusters and add up the edges between them; return how many clusters and ends of edges there are."""
    run.map(f"weights-{number}", partial(_weights, job, number=number), job.ranges)
    run.map(f"used-{number}", partial(_used, job, number=number), job.ranges)
    (ptr,) = run.reduce(f"clusters-{number}", partial(_cluster_ptr, job, number=number), "ptr")
    run.map(f"cluster-{number}", partial(_cluster, job, number=number, ptr=ptr), job.ranges)
    run.map(f"pieces-{number}", partial(_coarse_pieces, job, number=number, clusters=int(ptr[-1])), job.ranges)
    run.map(f"coarse-{number}", partial(_coarse, job, number=number, clusters=int(ptr[-1])), job.ranges)
    run.drop(f"pieces-{number}", f"used-{number}")
    (ends,) = run.reduce(f"coarse-ends-{number}", partial(_coarse_ends, job, number=number), "ends")
    return np.array([ptr[-1], ends[0]])


def _used(job: Job, index: int, number: int) -> Arrays:
    """The number of each label of a range that nodes have, counted from 0."""
    (weight,) = job.folder.load(f"weights-{number}/{index}", "weight")
    return {"number": np.cumsum(weight > 0) - 1, "count": np.array([np.count_nonzero(weight)])}


def _cluster_ptr(job: Job, _item: int, number: int) -> Arrays:
    """Where the clusters of each range begin, and their number."""
    counts = [int(job.folder.load(f"used-{number}/{index}", "count")[0][0]) for index in range(job.ranges)]
    return {"ptr": np.concatenate([[0], np.cumsum(counts)])}


def _cluster(job: Job, index: int, number: int, ptr: np.ndarray) -> Arrays:
    """The cluster of each node of a range."""
    (label,) = job.folder.load(f"labels-{number}/{index}", "label")
    labels, place = distinct(label, job.num_nodes)
    cluster = job.lookup(f"used-{number}", "number", labels) + ptr[job.range_of(labels)]
    return {"cluster": cluster.astype(job.node_type)[place]}


def _coarse_pieces(job: Job, index: int, number: int, clusters: int) -> Arrays:
    """The edges between clusters that a range adds, and the weights of clusters, by slices of all clusters."""
    names = ("ptr", "neighbours", "others", "indptr")
    ptr, neighbours, others, indptr = job.folder.load(f"ranges-sorted/{index}", *names)
    (cluster,) = job.folder.load(f"cluster-{number}/{index}", "cluster")
    of_others = job.lookup(f"cluster-{number}", "cluster", others)
    found, degree, neighbour, weight = _between(cluster, ptr, neighbours, of_others, None, clusters)
    loads = np.bincount(places(found, cluster, clusters), job.weights(np.diff(indptr)), len(found)).astype(np.int64)
    of_slice, is_own = found.astype(np.int64) * job.ranges // clusters, loads > 0
    own = {"cluster": found[is_own], "load": loads[is_own], "degree": degree[is_own]}
    return {
        **by_key(
            "edge", np.repeat(of_slice, degree), job.ranges, neighbour=neighbour, weight=weight.astype(job.edge_type)
        ),
        **by_key("load", of_slice[is_own], job.ranges, **own),
    }


def _coarse(job: Job, index: int, number: int, clusters: int) -> Arrays:
    """The rows of a slice of all clusters: neighbours, weights of edges, and the load of each cluster."""
    pieces = job.folder, f"pieces-{number}", range(job.ranges)
    cluster, load, degree = gather(*pieces, "load", index, "cluster", "load", "degree")
    neighbour, weight = gather(*pieces, "edge", index, "neighbour", "weight")
    begin, end = (-(-clusters * each // job.ranges) for each in (index, index + 1))
    columns, place = distinct(neighbour, clusters)
    ptr = np.concatenate([[0], np.cumsum(degree)])
    found, degree, neighbour, weight = _between(cluster, ptr, place, columns, weight.astype(np.int64), clusters)
    of_slice = slice(*np.searchsorted(found, [begin, end]))
    return {
        "degree": degree[of_slice],
        "neighbour": neighbour,
        "weight": weight,
        "load": np.bincount(cluster - begin, load, end - begin).astype(np.int64),
    }


def _between(row, ptr, neighbours, column, weights, clusters: int) -> tuple[np.ndarray, ...]:
    """Add up edges between the clusters of rows, which may be there several times, and those of columns.

    Returns all clusters, ascending, and the number of neighbours of each; and the neighbours and weights.
    """
    found, code = distinct(np.concatenate([column, row]), clusters)
    indptr = np.concatenate([np.zeros(len(column), np.int64), ptr])  # columns are nodes without edges
    begin, to, weight = native.contract(indptr, neighbours, weights, code)
    return found, np.diff(begin), found[to], weight


def _coarse_ends(job: Job, _item: int, number: int) -> Arrays:
    degrees = [job.folder.load(f"coarse-{number}/{index}", "degree")[0] for index in range(job.ranges)]
    return {"ends": np.array([sum(int(each.sum()) for each in degrees)])}
