"""From a source to shards over many workers: the stages, one after the other, and what may be asked of them."""

from __future__ import annotations

import os
import reprlib
import shutil
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path

import numpy as np

from dgl_gt.partition.cuts import native
from dgl_gt.partition.cuts.balance import check_types, shares
from dgl_gt.partition.cuts.edge_cut import checked_owner
from dgl_gt.partition.cuts.permutation import check_parts
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.graph import Graph, check_data, checked_num_nodes
from dgl_gt.partition.shards.layout import check_memory
from dgl_gt.partition.shards.manifest import SHARDS, write_manifest
from dgl_gt.partition.shards.write import add_node_names, described_counts
from dgl_gt.partition.sources.coo import COOGraph, standard_by_type
from dgl_gt.partition.system.atomic_write import new_directory
from dgl_gt.partition.system.output_checks import check_room, check_target
from dgl_gt.partition.system.storage import Url, cache_folder, short_name, upload

from .clusters import coarsen
from .cut import cut_coarse, refine
from .edges import add_degrees, bucket_chunk, choose_ranges, chunks, count_chunk, number_added, sort_range
from .engine import MEMORY_BYTES, version
from .estimate import check_worker_memory, disk_bytes, most_edges
from .files import Folder, array_file, identity
from .hops import add_hops
from .job import Job, Sizes
from .parts import PARTS, write_parts
from .stages import Engine, Stages
from .vertex_cut import place_edges
from .work import begun, held

_REFUSED = (  # options that change the graph or the cut in ways that no task knows
    *("max_imbalance", "cut_weights", "node_weights", "profile", "memory"),
    *("reverse_kind", "self_loop_fill", "random_features", "expander", "virtual_nodes"),
    *("link_split", "like", "assignment_only"),
)
_OPTIONS = (
    "parts",
    "cut",
    "seed",
    "attempts",
    "target_weights",
    "costs",
    "encode",
    "undirected",
    "self_loops",
    "halo_depth",
    "balance",
)  # of a plan


def check_options(config) -> None:
    """Raise :class:`InputError` for an option that the distributed cut does not have."""
    defaults = {each.name: each.default for each in fields(config)}
    for name in _REFUSED:
        value = getattr(config, name)
        if value not in (defaults[name], None):
            raise InputError(
                f"{name} (--{name.replace('_', '-')}) is {reprlib.repr(value)}, which an engine (--engine) does not have yet; "
                "leave it out, or partition in one process"
            )
    if config.cut == "auto":
        raise InputError(
            "cut (--cut) is 'auto', and an engine (--engine) makes one cut, edge or vertex; choose one, or partition in one process"
        )
    native.check_available()
    other = [each.name for each in config.encodings if each.name not in ("degree", "hops")]
    if other:
        raise InputError(
            f"encode (--encode) names {other[0]}, which needs the whole graph, and an engine (--engine) computes degree and hops; "
            "leave it out, or partition in one process"
        )


def partition_on(
    engine: Engine,
    opened: Graph | COOGraph,
    config,
    out,
    *,
    force: bool = False,
    resume: bool = False,
    progress=lambda stage: None,
    id_map: bool = False,
    sizes: Sizes | None = None,
    memory_bytes: int | None = None,
) -> dict:
    """Partition an opened source by the tasks of an engine; arguments as for :func:`dgl_gt.partition.partition`."""
    memory_bytes = MEMORY_BYTES if memory_bytes is None else memory_bytes
    coo = checked(opened, config, memory_bytes)
    sizes = Sizes.within(memory_bytes, coo.num_nodes, most_edges(coo, config)) if sizes is None else sizes
    check_room(out, disk_bytes(coo, config, memory_bytes))
    target = check_target(out, SHARDS, force=force)
    is_url = isinstance(target, Url)
    work = cache_folder("work") / short_name(target) if is_url else target.parent / f".{target.name}.work"
    with held(work):
        arrays = _arrays(coo, config)
        with begun(work, _plan(coo, config, sizes, arrays), resume=resume) as place:
            job = _prepared(place, coo, config, sizes, arrays)
            engine.check(str(place), memory_bytes)
        progress(f"files of this run are in {place}")
        try:
            made = place / "shards" if is_url else out
            manifest = _run(engine, job, config, coo, made, force=force or is_url, progress=progress, id_map=id_map)
            if is_url:
                progress(f"uploading to {target}")
                check_target(out, SHARDS, force=force)  # again, as another process may have written there
                upload(made, target, SHARDS.record)
        except InputError as error:
            raise InputError(f"{error}. The files of this run are in {place}") from error
        shutil.rmtree(place, ignore_errors=True)
    return manifest


def _run(engine: Engine, job: Job, config, coo: COOGraph, out, *, force: bool, progress, id_map: bool) -> dict:
    """All stages, and the shards from what they have written."""
    run = Stages(engine, job.folder, progress)
    job = _ranges(run, job, config.encodings)
    where = _cut(run, job, config)
    figures, quality, ptr, entries = write_parts(run, job, where)
    check_memory(figures, config.costs, config.rank_memory, is_only=True)
    with new_directory(out, SHARDS, force=force) as new:
        for part in range(job.parts):
            shutil.copytree(job.folder.place(f"{PARTS}/part{part}"), new / f"part{part}", copy_function=_link)
        files = {name: entry for of_part in entries for name, entry in of_part.items()}
        part_bytes = [sum(entry["bytes"] for entry in of_part.values()) for of_part in entries]
        made = {
            "seed": config.seed,
            "choice": None,
            "method": "metis",
            "isolated_nodes": _isolated(job),
            "mapping": None,
        }
        described = described_counts(job.graph(), figures, quality, ptr, part_bytes) | made
        names = add_node_names(new, coo.node_names, files, id_map=id_map)
        return write_manifest(new, {**described, "node_names": names, "links": None, "files": files})


def _link(source: str, target: str) -> None:
    """Give a file a second name, or copy it where the file system has no such thing; a run that dies now can go on."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def checked(opened: Graph | COOGraph, config, memory_bytes: int) -> COOGraph:
    """The source as listed edges, with standard masks and labels; :class:`InputError` where it cannot be used."""
    check_options(config)
    if opened.link_split is not None or opened.links is not None:
        raise InputError(
            f"{opened.name} has links that are split off, which an engine (--engine) does not take yet; partition it in one process"
        )
    if opened.schema is not None and (config.undirected or config.self_loops):
        name = "undirected" if config.undirected else "self_loops"
        raise InputError(
            f"{name} (--{name.replace('_', '-')}) adds edges to relations of {opened.name}, which an engine (--engine) does not do "
            "yet; give it the graph that load_graph returns with that option, or partition in one process"
        )
    check_types(opened, config.balance)
    if opened.transforms and config.encodings:
        raise InputError(
            f"{opened.name} has {' and '.join(opened.transforms)} (edges that were added), which the encoding {config.encodings[0].name} "
            "must not count, as an engine (--engine) would; leave encode (--encode) out, or compute it first (encode)"
        )
    if opened.edge_data and (config.undirected or config.self_loops):
        raise InputError(
            f"{opened.name} has edge data {', '.join(opened.edge_data)}, which edges that are added would need, and an engine "
            "(--engine) does not add them yet; leave undirected (--undirected) and self_loops (--self-loops) out"
        )
    if isinstance(opened, Graph):
        kept = (
            "num_nodes",
            "node_data",
            "edge_data",
            "name",
            "left_out",
            "notes",
            "node_names",
            "class_names",
            "encodings",
            "schema",
        )
        opened = COOGraph(
            *opened.edges(), **{name: getattr(opened, name) for name in (*kept, "transforms", "node_type")}
        )
    low, high = opened.id_range
    coo = replace(opened, num_nodes=checked_num_nodes(opened.num_nodes, low, high, opened.name))
    coo = replace(coo, node_data=standard_by_type(coo.node_data, coo), edge_data=standard_by_type(coo.edge_data, coo))
    check_data(replace(coo, listed_once=False))  # edge data have a row for each listed edge
    check_parts(coo.num_nodes, config.parts)
    check_worker_memory(coo, config, memory_bytes)
    return coo


def _arrays(coo: COOGraph, config) -> dict[str, np.ndarray]:
    """The arrays that workers read, by the names of :class:`Job`."""
    arrays = {"src": coo.src, "dst": coo.dst}
    for kind, data in (("node", coo.node_data), ("edge", coo.edge_data)):
        arrays |= {f"{kind}/{name}": each for name, each in data.items()}
    if config.owner is not None:
        arrays["owner"] = checked_owner(config.owner, coo.num_nodes, config.parts)
    return arrays


def _plan(coo: COOGraph, config, sizes: Sizes, arrays: dict[str, np.ndarray]) -> dict:
    """All that decides what tasks write."""
    return {
        "version": version(),
        "options": {name: repr(getattr(config, name)) for name in _OPTIONS},
        "sizes": asdict(sizes),
        "nodes": coo.num_nodes,
        "listed_once": coo.listed_once,
        "names": [coo.name, coo.node_type, coo.class_names],
        "schema": repr(coo.schema),
        "node_names": None if coo.node_names is None else identity(coo.node_names),
        "arrays": {name: identity(each) for name, each in arrays.items()},
    }


def _prepared(place: Path, coo: COOGraph, config, sizes: Sizes, arrays: dict[str, np.ndarray]) -> Job:
    """The job, with arrays that workers can map."""
    source = place / "source"
    source.mkdir(exist_ok=True)
    described = {name: array_file(each, source / f"{i}.npy") for i, (name, each) in enumerate(arrays.items())}
    none = np.zeros(0, np.int32)
    bare = replace(coo, src=none, dst=none, node_data={}, edge_data={}, node_names=None, split_ids={})
    of_parts = shares(config.parts, config.target_weights)
    added = {"cut": config.cut or "edge", "undirected": config.undirected, "self_loops": config.self_loops}
    added |= {"halo_depth": config.halo_depth, "balances_types": config.balance is not None}
    return Job(Folder(str(place)), bare, described, config.parts, config.seed, config.costs, of_parts, sizes, **added)


def _ranges(run: Stages, job: Job, encodings) -> Job:
    """Sort the edges into ranges of nodes, and compute encodings."""
    run.map("count", partial(count_chunk, job), chunks(job))
    ptr, num_edges = run.reduce("ranges", partial(choose_ranges, job), "ptr", "num_edges")
    job = replace(job, range_ptr=ptr, num_edges=int(num_edges[0]), listed_edges=int(num_edges[0]))
    run.map("edges", partial(bucket_chunk, job), chunks(job))
    run.map("ranges-sorted", partial(sort_range, job), job.ranges)
    (num_edges,) = run.reduce("added", partial(number_added, job), "num_edges")
    run.drop("count", "edges")
    job = replace(job, num_edges=int(num_edges[0]))
    for each in encodings:
        job = add_hops(run, job, each) if each.name == "hops" else add_degrees(run, job)
    return job


def _cut(run: Stages, job: Job, config) -> list:
    """Cut the graph; return where the nodes and edges of each part are."""
    clustered = 0
    if config.owner is None:
        ends = sum(len(job.folder.load(f"ranges-sorted/{index}", "neighbours")[0]) for index in range(job.ranges))
        clustered, coarse = coarsen(run, job, ends)
        run.map("coarse-cut", partial(cut_coarse, job, stage=coarse, attempts=config.attempts), 1)
        run.drop(coarse)
    return refine(run, job, clustered) if job.cut == "edge" else place_edges(run, job, clustered)


def _isolated(job: Job) -> int:
    return sum(int(job.folder.load(f"ranges-sorted/{index}", "isolated")[0][0]) for index in range(job.ranges))
