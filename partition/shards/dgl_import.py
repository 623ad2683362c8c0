"""Makes shards of a partition directory of ``dgl.distributed``: reads its json, then its parts, then joins them."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from dgl_gt.partition.cuts.edge_cut import make_edge_cut
from dgl_gt.partition.cuts.metis import check_seed
from dgl_gt.partition.errors import INSTALL_DGL, InputError, first_line, import_optional
from dgl_gt.partition.graph import Graph, from_edges
from dgl_gt.partition.schema import Schema
from dgl_gt.partition.sources.coo import COOGraph, standard_by_type
from dgl_gt.partition.system.atomic_write import new_directory
from dgl_gt.partition.system.child_process import bound_memory, read_in_child, serve, with_prefix
from dgl_gt.partition.system.user_files import reading, regular_file

from .dgl_types import TypeRanges, schema_of
from .layout import Layout
from .manifest import SHARDS
from .write import write_shards

NODE_TYPE, EDGE_TYPE = "_N", "_N:_E:_N"  # DGL's names of the types of a homogeneous graph
_AGAIN = "write it again with dgl.distributed.partition_graph or `dgl-gt export`"


def import_dgl(config_json, out, *, seed: int = 0, force: bool = False, progress=None) -> dict:
    """Make shards of a DGL partition directory; every node keeps its owner, and its type if there are several.

    Where :func:`export_dgl` wrote the directory, the graph gets the user's ids back, and the same ``seed`` gives the
    same shards. ``dgl.distributed.partition_graph`` stores only its new ids, so the graph has those, within each type;
    masks of 0 and 1 become bool and labels int64, as with every source.

    Parameters
    ----------
    config_json : path
        The json file that ``dgl.distributed.load_partition`` takes.
    out : path
        Shard directory to make. It appears when it is complete.
    seed : int
        Seed of the order of rows inside parts.
    force : bool
        Whether to replace ``out`` where it holds shards.
    progress : callable, optional
        Called as ``progress(stage)``.

    Returns
    -------
    dict
        The manifest, see docs/format.md.

    Raises
    ------
    InputError
        Files are missing, damaged, outside the json's directory or do not fit it; parts are not ranges of ids; data cannot be trained on; ``out`` cannot be written; or DGL is not installed.
    """
    seed = check_seed(seed)
    with new_directory(out, SHARDS, force=force) as folder:
        if progress:
            progress("reading the partition")
        described = read_config(Path(config_json).absolute())
        graph, owner = read_graph(described, progress)
        cut = make_edge_cut(graph, described.parts, seed=seed, owner=owner, progress=progress)
        return write_shards(Layout(graph, cut), folder, seed=seed, progress=progress)


@dataclass(frozen=True)
class DGLPartition:
    """The checked json of a partition directory, for its nodes ("node") and edges ("edge")."""

    path: Path  # the json file
    types: dict[str, TypeRanges]  # the ids of each part and type
    schema: Schema | None  # None where there is one type of each
    bools: dict[str, list]  # names of the data that were bool before DGL stored them as uint8
    files: list[dict[str, Path]]  # of each part, by the json's keys; "original_ids" is in all or in none

    @property
    def parts(self) -> int:
        """Number of parts."""
        return len(self.files)


def read_config(path: Path) -> DGLPartition:
    """Read and check a partition's json; raise :class:`InputError` where it or a file that it names cannot be used."""
    try:
        with reading(regular_file(path)):
            config = json.loads(path.read_text(encoding="utf-8"))
        parts = config["num_parts"]
        types, bools = {}, {}
        for kind, default in (("node", NODE_TYPE), ("edge", EDGE_TYPE)):
            ranges = config[f"{kind}_map"]
            ranges = ranges if isinstance(ranges, dict) else {default: ranges}
            numbers = config.get(f"{kind[0]}types", {}) or {name: number for number, name in enumerate(ranges)}
            names = sorted(numbers, key=numbers.get)
            if {*names} != {*ranges}:
                raise InputError(
                    f"{path}: {kind}_map has {', '.join(ranges)}, and {kind[0]}types {', '.join(names)}; {_AGAIN}"
                )
            bounds = _bounds(path, f"{kind}_map", [ranges[name] for name in names], parts, config[f"num_{kind}s"])
            types[kind] = TypeRanges(tuple(names), bounds)
            bools[kind] = [str(key) for key in config.get(f"bool_{kind}_data", ())]
        schema = schema_of(types["node"], types["edge"])
        files = [_part_files(path, config[f"part-{index}"]) for index in range(parts)]
    except InputError:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise InputError(
            f"{path} is not the json of a partition, or is damaged ({first_line(error)}); {_AGAIN}"
        ) from error
    if len({"original_ids" in names for names in files}) > 1:
        raise InputError(f"{path}: some parts have original_ids and some have none; give all of them or none")
    return DGLPartition(path, types, schema, bools, files)


def _bounds(path: Path, key: str, lists: list, parts, count) -> np.ndarray:
    """Return the bounds of the ranges of each type, (P T + 1,): ``[begin, end]`` each, or the end alone in old directories."""
    pairs = []
    for ranges in lists:
        if not isinstance(ranges, list):
            raise InputError(
                f"{path}: {key} is {str(ranges)[:80]!r}, not a list of ranges of ids, and DGL itself loads only those; "
                "partition the graph with reshuffle=True"
            )
        ends = [pair[1] if isinstance(pair, list) else pair for pair in ranges]
        pairs.append(
            [
                (pair[0] if isinstance(pair, list) else before, end)
                for pair, before, end in zip(ranges, [0, *ends], ends)
            ]
        )
    if any(
        type(each) is not int or not 0 <= each < 2**62 for each in (parts, count, *np.ravel(np.array(pairs, object)))
    ):
        raise InputError(
            f"{path}: num_parts, num_nodes, num_edges and the ranges of {key} must be whole numbers from 0; {_AGAIN}"
        )
    whole = [pair for of_part in zip(*pairs) for pair in of_part]  # part by part, and type by type
    begins, ends = [begin for begin, _ in whole], [end for _, end in whole]
    bounds = [0, *ends]
    is_tiling = begins == bounds[:-1] and bounds == sorted(bounds) and bounds[-1] == count
    if parts < 1 or any(len(each) != parts for each in pairs) or not is_tiling:
        raise InputError(f"{path}: {key} does not split 0..{count} into {parts} ranges, one after the other; {_AGAIN}")
    return np.array(bounds, np.int64)


def _part_files(path: Path, entry: dict) -> dict[str, Path]:
    """Return the files of a part: ``original_ids`` may be absent, the others must be named; all must exist."""
    files = {}
    for key in ("part_graph", "node_feats", "edge_feats", *{"original_ids"}.intersection(entry)):
        name = os.path.normpath(entry[key])
        if os.path.isabs(name) or name.split(os.sep)[0] == os.pardir:
            raise InputError(f"{path}: {key} is {entry[key]!r}, outside the json's directory; move the file into it")
        files[key] = path.parent / name
        if not os.path.isfile(files[key]):  # also false of names that no file can have
            raise InputError(f"{files[key]}: no such file, though {path.name} names it; copy all files, or {_AGAIN}")
    return files


def read_graph(described: DGLPartition, progress=None) -> tuple[Graph, np.ndarray]:
    """Read the whole graph, in the user's ids where the directory keeps them and in DGL's ids otherwise.

    Also returns the part of every node, int64 (N,).
    """
    parts = []
    for header, part in read_in_child("dgl_gt.partition.shards.dgl_import", described.path, "DGL"):
        if progress and "reading" in header:
            progress(f"reading {header['reading']} of {described.parts}")
        if part:
            parts.append(part)
    src, dst = (np.concatenate([part[key] for part in parts]) for key in ("src", "dst"))
    data = {
        kind: _joined(described, kind, [with_prefix(f"{kind}/", part) for part in parts]) for kind in ("node", "edge")
    }
    owner = np.repeat(np.arange(described.parts), np.diff(described.types["node"].ptr))
    ids = {kind: _ids(described, kind) for kind in ("node", "edge")}
    src, dst = (_placed(ids["node"][ends], ids["edge"]) for ends in (src, dst))
    owner, schema = _placed(owner, ids["node"]), described.schema
    data = {
        kind: {key: _placed_column(described, kind, key, value, ids[kind]) for key, value in data[kind].items()}
        for kind in ids
    }
    if schema is not None:
        _check_ends(described, schema, src, dst)
    if "original_ids" not in described.files[0]:
        coo = COOGraph(src, dst, len(owner), name=described.path.name, schema=schema)
        data["node"] = standard_by_type(data["node"], coo)
    return from_edges(src, dst, len(owner), data["node"], data["edge"], described.path.name, schema), owner


def _ids(described: DGLPartition, kind: str) -> np.ndarray:
    """The id in the graph of each of DGL's ids of nodes or edges: the user's, or the place among those of its type."""
    by_type = described.types[kind].by_type()
    if "original_ids" not in described.files[0]:
        return by_type
    ids, schema = _original_ids(described, kind), described.schema
    type_of = None if schema is None else schema.type_of if kind == "node" else schema.relation_of
    if type_of is not None and not np.array_equal(type_of(ids), type_of(by_type)):
        raise InputError(f"{described.path}: original_ids give a {kind} the id of another type; {_AGAIN}")
    return ids


def _placed_column(described: DGLPartition, kind: str, key: str, value: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """A column in the order of the graph, whose rows come in that of DGL's ids."""
    if described.schema is None:
        return _placed(value, ids)
    of_type, types = described.schema.rows_of(kind, key), described.types[kind]
    number = types.names.index(key.partition("/")[0].replace(",", ":"))
    return _placed(value, ids[types.types_of(np.arange(len(ids))) == number] - of_type.start)


def _check_ends(described: DGLPartition, schema: Schema, src: np.ndarray, dst: np.ndarray) -> None:
    """Raise :class:`InputError` for an edge whose ends are of other types than its relation."""
    wanted = schema.ends[np.repeat(np.arange(len(schema.edges)), np.diff(schema.edge_ptr))]
    found = np.stack([schema.type_of(src), schema.type_of(dst)], axis=1)
    if (wrong := (found != wanted).any(axis=1)).any():
        edge = int(wrong.argmax())
        relation = schema.relations[int(schema.relation_of(np.array([edge]))[0])]
        ends = " to ".join(schema.node_types[each] for each in found[edge])
        raise InputError(f"{described.path}: an edge of the relation {relation} goes from {ends}; {_AGAIN}")


def records(path: Path) -> Iterator[tuple[dict, dict[str, np.ndarray]]]:
    """Yield the arrays of each part, in a child process that :func:`dgl_gt.partition.system.child_process.serve` runs."""
    described, dgl = read_config(path), import_optional("dgl", str(path), INSTALL_DGL)
    bound_memory(sum(file.stat().st_size for names in described.files for file in names.values()))
    for index in range(described.parts):
        yield {"reading": f"part {index + 1}"}, {}
        yield {}, _read_part(dgl, described, index)


def _read_part(dgl, described: DGLPartition, index: int) -> dict[str, np.ndarray]:
    """Return ``src`` and ``dst`` of a part's inner edges, in order of edge ids, and its ``node/`` and ``edge/`` data."""
    files = described.files[index]
    path = files["part_graph"]
    graphs, _ = _loaded(dgl.load_graphs, path)
    if len(graphs) != 1 or not graphs[0].is_homogeneous:
        raise InputError(f"{path} does not hold one homogeneous graph; {_AGAIN}")
    inner, global_ids = {}, np.zeros(0, np.int64)  # at last those of nodes
    for kind, data in (("edge", graphs[0].edata), ("node", graphs[0].ndata)):
        if not {"_ID", f"inner_{kind}"} <= set(data) or data["_ID"].is_floating_point():
            raise InputError(f"{path} lacks the {kind} data '_ID' or 'inner_{kind}'; {_AGAIN}")
        global_ids = data["_ID"].numpy()
        rows = np.flatnonzero(data[f"inner_{kind}"].numpy())
        inner[kind] = rows[np.argsort(global_ids[rows], kind="stable")]
        begin, end = described.types[kind].ptr[index : index + 2]
        if not np.array_equal(global_ids[inner[kind]], np.arange(begin, end)):
            raise InputError(f"{path}: its inner {kind}s differ from those that {described.path.name} lists; {_AGAIN}")
    src, dst = (ends.numpy() for ends in graphs[0].edges(order="eid"))
    for ids, limit in (
        (src, len(global_ids)),
        (dst, len(global_ids)),
        (global_ids, described.types["node"].bounds[-1]),
    ):
        if len(ids) and not 0 <= ids.min() <= ids.max() < limit:
            raise InputError(f"{path} holds a node id outside 0..{limit - 1}; {_AGAIN}")
    part = {"src": global_ids[src[inner["edge"]]], "dst": global_ids[dst[inner["edge"]]]}
    for kind in ("node", "edge"):
        path = files[f"{kind}_feats"]
        tensors = _loaded(dgl.data.utils.load_tensors, path)
        if path.stat().st_size < _stored_bytes(tensors):  # DGL would fill what is missing with whatever is in memory
            raise InputError(f"{path} is cut short, so it is damaged; {_AGAIN}")
        columns = _columns(path, tensors, described, kind, index)
        part |= {f"{kind}/{key}": value for key, value in columns.items()}
    return part


def _stored_bytes(tensors: dict) -> int:
    """Return the size of a file of ``dgl.data.utils.save_tensors``, which has a header, and one before each tensor."""
    sizes = (
        48 + len(key.encode()) + 8 * each.ndim + each.numel() * each.element_size() for key, each in tensors.items()
    )
    return 24 + sum(sizes)


def _loaded(load, path: Path):
    with reading(path), open(path, "rb"):  # DGL's own message for a missing file is a C++ stack trace
        pass
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return load(str(path))
    except MemoryError:
        raise
    except Exception as error:  # a damaged file may hold any names and sizes
        raise InputError(f"{path} cannot be read ({first_line(error)}), so it is damaged; {_AGAIN}") from error


def _columns(path: Path, tensors: dict, described: DGLPartition, kind: str, part: int) -> dict[str, np.ndarray]:
    """Return the data of a part's inner rows; their names are without the type where there is one."""
    types, columns = described.types[kind], {}
    short = {name.split(":")[1]: name for name in types.names if ":" in name}  # so DGL before 1.0 names an edge type
    short = short if len(short) == len(types.names) else {}
    for key, tensor in tensors.items():
        of, slash, name = key.partition("/")
        of = of if slash else types.names[0]
        of = of if of in types.names else short.get(of, of)
        if of not in types.names:
            raise InputError(f"{path}: {key!r} belongs to the type {of!r}, not to {', '.join(types.names)}; {_AGAIN}")
        rows = types.counts[part, types.names.index(of)]
        if tensor.ndim < 1 or len(tensor) != rows:
            raise InputError(f"{path}: {key!r} has shape {tuple(tensor.shape)} for {rows} inner rows; {_AGAIN}")
        try:
            ours = name if slash else key
            columns[ours if described.schema is None else f"{of.replace(':', ',')}/{ours}"] = tensor.numpy()
        except TypeError:
            raise InputError(
                f"{path}: {key!r} is {tensor.dtype}, which numpy does not have; convert it before partitioning, for "
                "example with .float()"
            ) from None
    return columns


def _joined(described: DGLPartition, kind: str, parts: list[dict]) -> dict[str, np.ndarray]:
    """Join the columns of all parts."""
    shapes = [{key: (value.dtype, value.shape[1:]) for key, value in part.items()} for part in parts]
    for index, shape in enumerate(shapes):
        other = sorted(key for key in {*shape, *shapes[0]} if shape.get(key) != shapes[0].get(key))
        if other:
            path = described.files[index][f"{kind}_feats"]
            raise InputError(
                f"{path}: {other[0]!r} differs from part 0 in dtype or shape, or is in only one of the two; {_AGAIN}"
            )
    columns = {}
    for key in shapes[0]:
        columns[key] = np.concatenate([part.pop(key) for part in parts])
        if key in described.bools[kind]:
            columns[key] = columns[key].astype(bool)
    return columns


def _original_ids(described: DGLPartition, kind: str) -> np.ndarray:
    """Return the user's id of every node or edge, in the order of DGL's ids."""
    found = []
    for names, rows in zip(described.files, np.diff(described.types[kind].ptr)):
        path, key = names["original_ids"], f"{kind}_ids"
        try:
            with reading(path):
                ids = load_file(path)[key]
        except (SafetensorError, KeyError) as error:
            raise InputError(f"{path} cannot be read ({first_line(error)}), so it is damaged; {_AGAIN}") from error
        if ids.dtype != np.int64 or ids.shape != (rows,):
            raise InputError(f"{path}: {key} is {ids.dtype} {ids.shape}, not int64 ({rows},); {_AGAIN}")
        found.append(ids)
    ids = np.concatenate(found)
    if not np.array_equal(np.sort(ids), np.arange(len(ids))):
        raise InputError(
            f"{described.path}: {kind}_ids in original_ids do not name every {kind} exactly once; {_AGAIN}"
        )
    return ids


def _placed(values: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Return an array with ``values[i]`` at ``ids[i]``; ``ids`` is a permutation."""
    placed = np.empty_like(values)
    placed[ids] = values
    return placed


if __name__ == "__main__":
    serve(sys.argv[2], records(Path(sys.argv[1])))
