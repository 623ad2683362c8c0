"""What the parts of a typed graph count by node type and relation."""

from __future__ import annotations

from functools import partial

import numpy as np

from dgl_gt.partition.figures.figures import TypedCounts
from dgl_gt.partition.schema import Schema
from dgl_gt.partition.shards.layout import Part, count_part_by_type
from dgl_gt.partition.system.distinct import unique

from .edges import edge_ids
from .job import Job
from .stages import Arrays, Stages, by_key, gather


def count_sources(run: Stages, job: Job) -> None:
    """Count the nodes that are sources of each relation, for :func:`typed_counts`."""
    run.map("sources", partial(_sources, job), job.ranges)
    run.map("whole-sources", partial(_count_sources, job), job.ranges)
    run.drop("sources")


def count_structure(job: Job, schema: Schema, structure: dict[str, np.ndarray], owned: int) -> list:
    """What a part counts by type, from the arrays of its structure, as lists."""
    rows = np.append(owned, np.diff(structure["recv_ptr"][:: job.parts]))  # owned, then of each hop
    last = np.cumsum(rows)[:-1] if job.cut == "edge" else np.array([rows.sum()])
    edges_by_hop = np.diff(structure["indptr"][np.append(0, last)])
    part = Part(structure["edge_ids"], structure["indptr"], structure["indices"], [])
    node_ids = np.split(structure["node_ids"], np.cumsum(rows)[:-1])
    return [each.tolist() for each in count_part_by_type(part, node_ids, edges_by_hop, schema)]


def typed_counts(job: Job, of_parts: list[list]) -> TypedCounts:
    """The counts of all parts, from what :func:`count_structure` has returned for each."""
    whole = sum(job.folder.load(f"whole-sources/{index}", "count")[0] for index in range(job.ranges))
    nodes, edges, sources, own_sources, cut_edges = (np.array(each, np.int64) for each in zip(*of_parts))
    return TypedCounts(nodes, edges, sources, own_sources, cut_edges, np.asarray(whole))


def _sources(job: Job, index: int) -> Arrays:
    """The pairs of a relation and a source of its edges into a range, by the range of the source."""
    (src,), schema = job.folder.load(f"ranges-sorted/{index}", "src"), job.coo.schema
    assert schema is not None
    pairs = unique(schema.relation_of(edge_ids(job, index)) * job.num_nodes + src)
    return by_key("of", job.range_of(pairs % job.num_nodes), job.ranges, pair=pairs)


def _count_sources(job: Job, index: int) -> Arrays:
    """How many nodes of a range are sources of each relation."""
    (pairs,), schema = gather(job.folder, "sources", range(job.ranges), "of", index, "pair"), job.coo.schema
    assert schema is not None
    return {"count": np.bincount(unique(pairs) // job.num_nodes, minlength=len(schema.edges))}
