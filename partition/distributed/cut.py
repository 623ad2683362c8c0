"""The cut: METIS on the graph of clusters, and then the local search, by groups of parts.

A move from one part to another changes halo rows of these two alone. So tasks that hold all in-edges of disjoint groups
of parts search at the same time, and each counts exactly what the search of the whole graph would: no move has to be
taken back, and no bound is exceeded. Round after round, every two parts are in one group once.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import scipy  # imports its parts at their first use

from dgl_gt.partition.cuts import native
from dgl_gt.partition.cuts.balance import NODES_BOUND, Balance, fill_empty_parts
from dgl_gt.partition.cuts.clusters import k_way
from dgl_gt.partition.cuts.local_search import TEMPERATURE, sweeps_for
from dgl_gt.partition.cuts.permutation import row_type

from .edges import edge_ids
from .job import BASE_BYTES, EDGE_BYTES, SEARCH_BYTES, Job, Sizes, distinct, edge_bytes, places, search_bytes
from .stages import Arrays, Stages, gather

_MOST_ROUNDS = 16
_STEP_BOUND = 1.03
_INDEX = ("node", "degree")
_EDGES = ("src", "ids")


def cut_coarse(job: Job, _item: int, stage: str, attempts: int) -> Arrays:
    """The part of each cluster in the best of several cuts of the graph of clusters, and what bounds parts."""
    names = ("degree", "neighbour", "weight", "load")
    pieces = [job.folder.load(f"{stage}/{index}", *names) for index in range(job.ranges)]
    degree, neighbour, weight, load = (np.concatenate(each) for each in zip(*pieces))
    indptr = np.concatenate([[0], np.cumsum(degree)])
    undirected = scipy.sparse.csr_array((weight, neighbour, indptr), shape=(len(load), len(load)))
    undirected.sort_indices()  # in place
    of_types = [] if job.coo.schema is None else np.diff(job.coo.schema.node_ptr)[job.of_types].tolist()
    kinds, bounds = ("step", *["types"] * len(of_types)), np.array([_STEP_BOUND, *[NODES_BOUND] * len(of_types)])
    totals = np.array([[load.sum(), *of_types]])  # all that capacities depend on
    balance = Balance(kinds, totals, job.shares, bounds, is_strict=False, step=load)
    best, least = np.zeros(len(load), np.int32), np.inf
    between = np.zeros((job.parts, job.parts))
    for attempt in range(attempts if job.parts > 1 else 0):
        owner = k_way(undirected, job.parts, load, shares=job.shares, seed=job.seed + attempt)
        fill_empty_parts(owner, job.parts)
        row = np.repeat(owner, degree)
        cut = float(weight[row != owner[neighbour]].sum())
        if cut < least:
            best, least = owner, cut
            between[:] = scipy.sparse.coo_array((weight, (row, owner[neighbour])), shape=between.shape).toarray()
    return {"owner": best, "between": between, "capacities": balance.capacities(), "floors": balance.floors()}


def project(job: Job, index: int, rounds: int) -> Arrays:
    """The nodes of a range and their in-edges, by part."""
    if "owner" in job.arrays:
        owner = job.arrays["owner"].open()[slice(*job.range_ptr[index : index + 2])].astype(np.int32)
    else:
        (of_cluster,) = job.folder.load("coarse-cut/0", "owner")
        owner = of_cluster[job.folder.load(f"cluster-{rounds}/{index}", "cluster")[0]]
    indptr, src = job.folder.load(f"ranges-sorted/{index}", "indptr", "src")
    return by_part(owner, job.parts, job.nodes(index), np.diff(indptr), src, edge_ids(job, index))


def by_part(owner, parts: int, node, degree, src, ids) -> Arrays:
    """Nodes with their in-edges, by part; in each part ascending."""
    order = np.lexsort((node, owner))
    begin, degree = (np.cumsum(degree) - degree)[order], degree[order]
    end = np.append(0, np.cumsum(degree))
    at = np.repeat(begin - end[:-1], degree)
    at += np.arange(len(at))
    ptr = np.append(0, np.cumsum(np.bincount(owner, minlength=parts)))
    nodes = {"node.ptr": ptr, "node.node": node[order], "node.degree": degree}
    return nodes | {"edge.ptr": end[ptr], "edge.src": src[at], "edge.ids": ids[at]}


def refine(run: Stages, job: Job, clustered: int) -> list[tuple[str, range, int]]:
    """Search in rounds of groups; return for each part in which files its nodes and edges are, and under which key."""
    run.map("cells-0", partial(project, job, rounds=clustered), job.ranges)
    where = [("cells-0", range(job.ranges), part) for part in range(job.parts)]
    chosen: list = []
    if job.parts > 1 and "owner" not in job.arrays:
        (between,) = job.folder.load("coarse-cut/0", "between")
        chosen = rounds(
            job.parts, group_size(job.parts, job.num_nodes, job.num_edges, job.sizes, len(job.of_types)), between
        )
    for number, groups in enumerate(chosen, start=1):
        stage = f"cells-{number}"
        run.map(stage, partial(_search, job, number=number, groups=groups, where=where), len(groups))
        run.drop(f"cells-{number - 1}")
        for item, group in enumerate(groups):
            for place, part in enumerate(group):
                where[part] = stage, range(item, item + 1), place
    return where


def group_size(parts: int, num_nodes: int, num_edges: int, sizes: Sizes, types: int = 0) -> int:
    """How many parts one task searches, at most, where so many ``types`` are kept even."""
    room = sizes.group_edges * EDGE_BYTES

    def fits(group: int) -> bool:
        nodes, edges = (group / parts * each for each in (num_nodes, num_edges))
        return search_bytes(group, num_nodes, nodes, edges, types=types) <= room

    return max((group for group in range(2, parts + 1) if fits(group)), default=2)


def rounds(parts: int, per_group: int, between: np.ndarray) -> list[list[list[int]]]:
    """Rounds of disjoint groups of at most ``per_group`` parts, in which every two parts are together in some round.

    Each round reads and writes all edges, so there are at most 16. If that is too few for every two parts, those meet that
    have most edges ``between`` them, (P, P).
    """
    size = max(1, per_group // 2)
    if parts <= 2 * size:
        return [[[*range(parts)]]]
    blocks = [each.tolist() for each in np.array_split(np.arange(parts), -(-parts // size))]
    if len(blocks) > _MOST_ROUNDS + 1:
        return _heaviest_rounds(blocks, between)
    blocks += [[]] * (len(blocks) % 2)
    found = []
    for _ in range(len(blocks) - 1):  # a tournament: the first stays, and the others go round
        half = len(blocks) // 2
        found.append([one + other for one, other in zip(blocks[:half], blocks[: half - 1 : -1])])
        blocks = [blocks[0], blocks[-1], *blocks[1:-1]]
    return found


def _heaviest_rounds(blocks: list[list[int]], between: np.ndarray) -> list[list[list[int]]]:
    """Rounds of two blocks each: those that have not met yet, in the order of the edges between them."""
    first = [block[0] for block in blocks]
    weight = np.add.reduceat(np.add.reduceat(between, first, 0), first, 1)
    one, other = np.triu_indices(len(blocks), 1)
    order = np.argsort(-weight[one, other], kind="stable")
    pairs, found = list(zip(one[order].tolist(), other[order].tolist())), []
    for _ in range(_MOST_ROUNDS):
        free, groups, later = set(range(len(blocks))), [], []
        for pair in pairs:
            if free.issuperset(pair):
                free.difference_update(pair)
                groups.append(blocks[pair[0]] + blocks[pair[1]])
            else:
                later.append(pair)
        found.append(groups + [blocks[each] for each in sorted(free)])
        pairs = later
    return found


def part_cells(job: Job, where: tuple[str, range, int]) -> list[np.ndarray]:
    """The nodes of a part, ascending, their in-degrees, and the sources and ids of their in-edges."""
    stage, items, key = where
    return [
        *gather(job.folder, stage, items, "node", key, *_INDEX),
        *gather(job.folder, stage, items, "edge", key, *_EDGES),
    ]


def _search(job: Job, index: int, number: int, groups: list[list[int]], where: list) -> Arrays:
    """Move nodes between the parts of a group."""
    group = groups[index]
    cells = [part_cells(job, where[part]) for part in group]
    owner = np.repeat(np.arange(len(group), dtype=np.int32), [len(each[0]) for each in cells])
    node, degree, src, ids = (np.concatenate(each) for each in zip(*cells))
    del cells
    of_edge = edge_bytes(job.num_nodes, job.num_edges, SEARCH_BYTES)
    needed = BASE_BYTES + search_bytes(len(group), job.num_nodes, len(node), len(src), of_edge, len(job.of_types))
    fits = job.sizes.usable_bytes is None or needed <= job.sizes.usable_bytes  # parts may be larger than was planned
    if len(group) > 1 and fits:
        capacities, floors = job.folder.load("coarse-cut/0", "capacities", "floors")
        _move(job, node, degree, src, owner, capacities[group], floors[group], job.seed + number)
    return by_part(owner, len(group), node, degree, src, ids)


def _move(job: Job, node, degree, src, owner, capacities, floors, seed: int) -> None:
    """The search of a group; sources in other parts stay where they are, all in one part that has no room."""
    order = np.argsort(node)
    place = places(node[order], src, job.num_nodes)
    is_outside = place < 0
    outside, place_outside = distinct(src[is_outside], job.num_nodes)
    local = order.astype(row_type(len(node) + len(outside)))[place]
    local[is_outside] = len(node) + place_outside
    del place, is_outside, place_outside
    indptr = np.concatenate([[0], np.cumsum(degree), np.full(len(outside), len(src))]).astype(np.int64)
    weights = job.loads(node, degree, others=len(outside))
    everyone = np.append(owner, np.full(len(outside), len(capacities), np.int32))
    none = np.zeros((1, weights.shape[1]), np.int64)
    native.refine(
        indptr,
        local,
        weights=weights,
        floors=np.concatenate([floors, none]),
        capacities=np.concatenate([capacities, none]),
        owner=everyone,
        sweeps=sweeps_for(job.num_edges),
        temperature=TEMPERATURE,
        seed=seed,
        movable=len(node),
    )
    owner[:] = everyone[: len(node)]
