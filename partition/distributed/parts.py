"""From an assignment to shards: the order of rows, the new ids, the halos, and the files of each part.

Every task holds one part. The arrays and their bytes are those of :mod:`dgl_gt.partition.shards`, which is given the
small graph of the rows that a part holds.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import fields, replace
from functools import partial
from secrets import token_hex

import numpy as np
from safetensors import SafetensorError

from dgl_gt.partition.cuts.clusters import order_of_part
from dgl_gt.partition.cuts.permutation import (
    PartCounts,
    columns_of,
    count_masked,
    count_part,
    edge_cut_figures,
    row_type,
    training_nodes,
)
from dgl_gt.partition.figures.figures import Figures, edge_cut_quality, vertex_cut_quality
from dgl_gt.partition.graph import Graph, symmetrised
from dgl_gt.partition.shards.layout import Part, count_mirrored, part_with_halo, part_with_mirrors, vertex_cut_figures
from dgl_gt.partition.shards.write import arrays_of_part, write_part
from dgl_gt.partition.sources.coo import COOGraph
from dgl_gt.partition.system.atomic_write import os_error
from dgl_gt.partition.system.distinct import unique
from dgl_gt.partition.system.mapped_arrays import take_rows
from dgl_gt.partition.system.output_checks import cannot_write

from .cut import part_cells
from .halo import fetch_halos, held_cells
from .job import Job, distinct, places
from .stages import Arrays, Stages, by_key, gather
from .typed import count_sources, count_structure, typed_counts
from .vertex_cut import PLACED

_COUNTS = tuple(each.name for each in fields(PartCounts))
PARTS = "parts"  # folder of the finished parts


def write_parts(run: Stages, job: Job, where: list) -> tuple[Figures, dict, np.ndarray, list]:
    """Write all parts into the work directory; return figures, quality, slice pointers and the entries of files."""
    run.map("order", partial(_order, job, where=where), job.parts)
    sizes = [len(job.folder.load(f"order/{part}", "nodes")[0]) for part in range(job.parts)]
    ptr = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    run.map("new-ids", partial(_new_ids, job, ptr=ptr), job.ranges)
    is_edge_cut = job.cut == "edge"
    rows = partial(_rows, job, where=where, ptr=ptr) if is_edge_cut else partial(_mirrored_rows, job, ptr=ptr)
    if is_edge_cut:
        fetch_halos(run, job, where)
    run.map("rows", rows, job.parts)
    run.drop(*(f"{stage}-{hop}" for stage in ("ring", "in-edges") for hop in range(1, job.halo_depth)))
    if job.coo.schema is not None:
        count_sources(run, job)
    run.map("write", partial(_write, job, ptr=ptr), job.parts)
    return _described(job, ptr)


def _order(job: Job, part: int, where: list) -> Arrays:
    """The nodes of a part in their final order, and the row of each node, by range."""
    node, degree, src, _ = part_cells(job, where[part])
    place = places(node, src, job.num_nodes)
    inside = place >= 0
    row = np.repeat(np.arange(len(node)), degree)[inside]
    indptr = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=len(node)))]).astype(np.int64)
    own = Graph(indptr, place[inside], np.zeros(0, np.int32))
    nodes = node[order_of_part(symmetrised(own), seed=job.seed)] if len(node) else node
    rows: np.ndarray = np.arange(len(nodes), dtype=job.node_type)
    if job.coo.schema is not None:
        nodes = nodes[np.argsort(job.coo.schema.type_of(nodes), kind="stable")]
    return {"nodes": nodes} | by_key("at", job.range_of(nodes), job.ranges, node=nodes, row=rows)


def _new_ids(job: Job, index: int, ptr: np.ndarray) -> Arrays:
    """The new id of each node of a range."""
    new = np.empty_like(nodes := job.nodes(index))
    for part, begin in enumerate(ptr[:-1]):
        node, row = gather(job.folder, "order", range(part, part + 1), "at", index, "node", "row")
        new[node - nodes[0]] = row + begin
    return {"new": new}


def _rows(job: Job, part: int, where: list, ptr: np.ndarray) -> Arrays:
    """The graph of the rows that a part holds, in the order of new ids, and what the part counts."""
    node, degree, src, ids = held_cells(job, part, where)
    touched, place = distinct(np.concatenate([node, src]), job.num_nodes)
    new = job.lookup("new-ids", "new", touched)
    order = np.argsort(new)
    held = new[order]
    local = np.empty(len(held), row_type(len(held)))
    local[order] = np.arange(len(held))
    row = local[place[: len(node)]]
    in_degrees: np.ndarray = np.zeros(len(held), np.int64)
    in_degrees[row] = degree
    indptr = np.concatenate([[0], np.cumsum(in_degrees)])
    at = np.empty(len(src), np.int64)
    at[np.repeat(indptr[row] - np.cumsum(degree) + degree, degree) + np.arange(len(src))] = np.arange(len(src))
    graph = Graph(indptr, local[place[len(node) :]][at], ids[at])
    local_ptr = np.searchsorted(held, ptr)
    counts, rings = count_part(graph, *_as_numbered(graph), local_ptr, part, job.halo_depth)
    found = {name: getattr(graph, name) for name in ("indptr", "indices", "edge_ids")}
    found |= {"user_ids": touched[order], "copies": np.concatenate(rings), "ptr": local_ptr}
    for hop, ring in enumerate(rings):
        found |= {f"ring{hop}": held[ring], f"ring{hop}.ptr": np.searchsorted(held[ring], ptr)}
    return found | {name: getattr(counts, name) for name in _COUNTS}


def _mirrored_rows(job: Job, part: int, ptr: np.ndarray) -> Arrays:
    """The structure of a part of a vertex cut, and what the part counts."""
    src, dst, ids = gather(job.folder, PLACED, range(job.ranges), "edge", part, "src", "dst", "ids")
    (nodes,) = job.folder.load(f"order/{part}", "nodes")
    begin, end = ptr[part : part + 2].tolist()
    touched = unique(np.concatenate([src, dst]))
    new = job.lookup("new-ids", "new", touched)
    held = unique(np.concatenate([np.arange(begin, end, dtype=new.dtype), new]))
    local = np.searchsorted(held, new).astype(row_type(len(held)))
    ends = [local[places(touched, each, job.num_nodes)] for each in (src, dst)]
    del src, dst
    slot = np.full(len(held), -1, row_type(len(held)))
    laid_out = part_with_mirrors(ends, ids, slot, *np.searchsorted(held, [begin, end]).tolist())
    ring, by_new = held[laid_out.copies], np.argsort(new)
    user_ids = touched[by_new][np.searchsorted(new[by_new], ring)]
    returns = np.diff(laid_out.indptr)[len(nodes) :] > 0
    return {
        "indptr": laid_out.indptr,
        "indices": laid_out.indices,
        "edge_ids": laid_out.edge_ids,
        "node_ids": np.concatenate([nodes, user_ids]),
        "ring0": ring,
        "ring0.ptr": np.searchsorted(ring, ptr),
        "returns": returns,
        "counts": count_mirrored(laid_out, len(nodes)),
        "received": np.diff(np.searchsorted(ring, ptr)),
        "returned": np.diff(np.searchsorted(ring[returns], ptr)),
    }


def _as_numbered(graph: Graph) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Order, new ids and scratch of a graph whose nodes are in the order of new ids."""
    same: np.ndarray = np.arange(graph.num_nodes, dtype=graph.indices.dtype)
    return same, same, np.full(graph.num_nodes, -1, row_type(graph.num_nodes))


def _structure(job: Job, part: int, ptr: np.ndarray) -> dict:
    """The structure of a part of an edge cut."""
    names = ("indptr", "indices", "edge_ids", "user_ids", "received", "copies", "ptr")
    *arrays, user_ids, received, copies, local_ptr = job.folder.load(f"rows/{part}", *names)
    local = Graph(*arrays)
    same, new_ids, slot = _as_numbered(local)
    rings = np.split(copies, np.cumsum(received.sum(axis=1))[:-1])
    laid_out = part_with_halo(local, same, new_ids, slot, local_ptr, part, rings)
    wanted = [each for hop in range(job.halo_depth) for each in _wanted(job, part, hop)]
    node_ids = np.concatenate([user_ids[slice(*local_ptr[part : part + 2])], user_ids[copies]])
    return arrays_of_part(laid_out, node_ids, [*received], wanted, int(ptr[part]))


def _wanted(job: Job, part: int, hop: int) -> list[np.ndarray]:
    """The new ids of a part's rows that each part copies in one hop of its halo."""
    ring = f"ring{hop}"
    return [job.folder.slices(f"rows/{other}", f"{ring}.ptr", part, ring)[0] for other in range(job.parts)]


def _mirrored_structure(job: Job, part: int, ptr: np.ndarray) -> dict:
    """The structure of a part of a vertex cut."""
    names = ("edge_ids", "indptr", "indices", "node_ids", "ring0", "received")
    edge_ids, indptr, indices, node_ids, ring, received = job.folder.load(f"rows/{part}", *names)
    keys = "ring0.ptr", part, "returns"
    returns = [job.folder.slices(f"rows/{other}", *keys)[0] for other in range(job.parts)]
    laid_out = Part(edge_ids, indptr, indices, [ring])
    arrays = arrays_of_part(laid_out, node_ids, [received], _wanted(job, part, 0), int(ptr[part]))
    return arrays | {"send_returns": np.concatenate(returns)}


def _write(job: Job, part: int, ptr: np.ndarray) -> Arrays:
    """Write the files of a part."""
    structure = (_structure if job.cut == "edge" else _mirrored_structure)(job, part, ptr)
    coo = job.graph()
    if coo.listed_once:
        (vars(coo)["loops"],) = job.folder.load("ranges/0", "loops")  # which it would read all edges for
    entries = _write_in_one_step(job, coo, part, structure)
    owned = structure["node_ids"][: ptr[part + 1] - ptr[part]]
    mask = {name: _rows_of(coo, name, owned) for name, value in coo.node_data.items() if value.dtype == bool}
    of_part = replace(coo, num_nodes=len(owned), node_data=mask)
    masked = count_masked(of_part, np.arange(len(owned)), np.array([0, len(owned)]))
    train = training_nodes(of_part)
    said = {
        "entries": entries,
        "masked": {name: int(each[0]) for name, each in masked.items()},
        "train": None if train is None else train.sum(axis=0).tolist(),
        "typed": None if coo.schema is None else count_structure(job, coo.schema, structure, len(owned)),
    }
    return {"said": np.frombuffer(json.dumps(said).encode(), np.uint8)}


def _rows_of(coo: COOGraph, name: str, nodes: np.ndarray) -> np.ndarray:
    """A mask of some nodes; false for those of other types than its own."""
    mask, ids = coo.node_data[name], coo.rows_of("node", name)
    is_of_type = (nodes >= ids.start) & (nodes < ids.stop)
    found = np.zeros((len(nodes), *mask.shape[1:]), bool)
    found[is_of_type] = take_rows(mask, nodes[is_of_type] - ids.start)
    return found


def _write_in_one_step(job: Job, coo: COOGraph, part: int, structure: dict) -> dict:
    """Write a part's folder under another name, and give it its own when it is complete."""
    place = job.folder.place(f"{PARTS}/part{part}")
    temporary = place.with_name(f".{place.name}.{token_hex(4)}")
    try:
        place.parent.mkdir(exist_ok=True)
        temporary.mkdir()
        entries = write_part(coo, temporary, part, structure)
        try:
            (temporary / place.name).rename(place)
        except OSError:
            if not place.is_dir():  # another worker, which seemed to be dead, may have written the same
                raise
    except (OSError, SafetensorError) as error:
        raise cannot_write(place, error if isinstance(error, OSError) else os_error(error)) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return entries


def _described(job: Job, ptr: np.ndarray) -> tuple[Figures, dict, np.ndarray, list]:
    """Figures, quality, slice pointers and the entries of files, from what the parts have counted."""
    coo = job.graph()
    said = [json.loads(job.folder.load(f"write/{part}", "said")[0].tobytes()) for part in range(job.parts)]
    masked = {name: np.array([each["masked"][name] for each in said], np.int64) for name in said[0]["masked"]}
    described = ptr, job.shares, masked, columns_of(coo)
    train = None if said[0]["train"] is None else np.array([each["train"] for each in said])
    if job.cut == "edge":
        loaded = [job.folder.load(f"rows/{part}", "ring0", *_COUNTS) for part in range(job.parts)]
        counts, rings = [PartCounts(*each[1:]) for each in loaded], [each[0] for each in loaded]
        figures = edge_cut_figures(counts, rings, *described)
        of_cut = figures.owned, figures.copies_by_hop.sum(axis=1), figures.edges, figures.cut_edges
        quality = edge_cut_quality(*of_cut, shares=figures.shares, train=train)
    else:
        loaded = [job.folder.load(f"rows/{part}", "counts", "received", "returned") for part in range(job.parts)]
        of_parts, received, returned = (np.stack(each) for each in zip(*loaded))
        figures = vertex_cut_figures(of_parts, received, returned, *described)
        of_cut = figures.owned, figures.copies_by_hop.sum(axis=1), figures.returned, figures.edges
        quality = vertex_cut_quality(*of_cut, shares=figures.shares, train=train)
    if coo.schema is not None:
        figures = replace(figures, schema=coo.schema, typed=typed_counts(job, [each["typed"] for each in said]))
    return figures, quality, ptr, [each["entries"] for each in said]
