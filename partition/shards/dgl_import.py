"""Reading the partition directory of ``dgl.distributed``: its json, then a part at a time, then the whole graph."""

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

from partition.errors import InputError
from partition.graph import Graph, from_edges
from partition.sources.coo import with_standard_masks_and_labels
from partition.system.guarded_read import bound_memory, read_in_child, serve, with_prefix
from partition.system.optional_packages import INSTALL_DGL, first_line, need
from partition.system.user_files import reading, regular_file

NODE_TYPE, EDGE_TYPE = "_N", "_N:_E:_N"  # DGL's names of the types of a homogeneous graph
_AGAIN = "write it again with dgl.distributed.partition_graph or `dgl-gt export`"


@dataclass(frozen=True)
class Book:
    """A checked json.

    Attributes
    ----------
    path : Path
    ptr : dict of str to ndarray, int64, (K + 1,)
        Part i has the ids ``ptr["node"][i]:ptr["node"][i + 1]`` of nodes, and of edges ``ptr["edge"]``.
    types : dict of str to tuple of str
        The prefixes that names of ``"node"`` and ``"edge"`` data may have.
    bools : dict of str to list of str
        The data that were bool before DGL stored them.
    files : list of dict of str to Path, K
        Of each part, by the json's keys; ``original_ids`` in all or none.
    """

    path: Path
    ptr: dict[str, np.ndarray]
    types: dict[str, tuple]
    bools: dict[str, list]
    files: list[dict[str, Path]]


def read_book(path: Path) -> Book:
    """Read and check a partition's json; :class:`InputError` where it, or a file that it names, cannot be used."""
    try:
        with reading(regular_file(path)):
            config = json.loads(path.read_text(encoding="utf-8"))
        parts = config["num_parts"]
        ptr, types, bools = {}, {}, {}
        for kind, default in (("node", NODE_TYPE), ("edge", EDGE_TYPE)):
            ranges = config[f"{kind}_map"]
            ranges = ranges if isinstance(ranges, dict) else {default: ranges}
            names = sorted({*ranges, *config.get(f"{kind[0]}types", ())})
            if len(names) != 1:
                raise InputError(
                    f"{path}: a graph of {kind} types {', '.join(names)}; only homogeneous graphs can be imported: "
                    "partition dgl.to_homogeneous of it"
                )
            types[kind] = (*names, *names[0].split(":")[1:2])  # DGL before 1.0 left the ends out of edge types
            ptr[kind] = _bounds(path, f"{kind}_map", ranges[names[0]], parts, config[f"num_{kind}s"])
            bools[kind] = [str(key) for key in config.get(f"bool_{kind}_data", ())]
        files = [_part_files(path, config[f"part-{index}"]) for index in range(parts)]
    except InputError:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise InputError(f"{path} is no partition's json, or is damaged ({first_line(error)}); {_AGAIN}") from error
    if len({"original_ids" in names for names in files}) > 1:
        raise InputError(f"{path}: some parts have original_ids and some have none; give all of them or none")
    return Book(path, ptr, types, bools, files)


def _bounds(path: Path, key: str, ranges, parts, count) -> np.ndarray:
    """The K + 1 bounds of a map of ranges, each ``[begin, end]`` or, in old directories, its end alone."""
    if not isinstance(ranges, list):
        raise InputError(
            f"{path}: {key} is {str(ranges)[:80]!r}, not a list of ranges; DGL itself loads only partitions whose "
            "parts are ranges of ids: partition the graph with reshuffle=True"
        )
    ends = [pair[1] if isinstance(pair, list) else pair for pair in ranges]
    begins = [pair[0] if isinstance(pair, list) else before for pair, before in zip(ranges, [0, *ends])]
    if any(type(number) is not int or not 0 <= number < 2**62 for number in (parts, count, *begins, *ends)):
        raise InputError(f"{path}: num_parts, the number of nodes or edges or {key} hold no proper numbers; {_AGAIN}")
    bounds = [0, *ends]
    if parts < 1 or len(ends) != parts or begins != bounds[:-1] or bounds != sorted(bounds) or bounds[-1] != count:
        raise InputError(f"{path}: {key} does not split 0..{count} into {parts} ranges, one after the other; {_AGAIN}")
    return np.array(bounds, np.int64)


def _part_files(path: Path, entry: dict) -> dict[str, Path]:
    """The files of a part; all but ``original_ids`` must be named, all that are named must exist."""
    files = {}
    for key in ("part_graph", "node_feats", "edge_feats", *{"original_ids"}.intersection(entry)):
        name = os.path.normpath(entry[key])
        if os.path.isabs(name) or name.split(os.sep)[0] == os.pardir:
            raise InputError(f"{path}: {key} is {entry[key]!r}, outside the json's directory; move the file into it")
        files[key] = path.parent / name
        if not os.path.isfile(files[key]):  # also false of names that no file can have
            raise InputError(f"{files[key]}: no such file, though {path.name} names it; copy all files, or {_AGAIN}")
    return files


def read_whole(book: Book, progress=None) -> tuple[Graph, np.ndarray]:
    """Read the graph, in the user's ids where the directory keeps them, else in DGL's.

    Returns
    -------
    (Graph, ndarray of int64, (N,))
        The graph and the part of every node.

    Raises
    ------
    InputError
        Files that are damaged or at odds with the json; data that cannot be trained on; no DGL.
    """
    parts = []
    for header, part in read_in_child("partition.shards.dgl_import", book.path):
        if progress and "reading" in header:
            progress(f"reading {header['reading']} of {len(book.files)}")
        if part:
            parts.append(part)
    src, dst = (np.concatenate([part[key] for part in parts]) for key in ("src", "dst"))
    data = {kind: _joined(book, kind, [with_prefix(f"{kind}/", part) for part in parts]) for kind in ("node", "edge")}
    owner = np.repeat(np.arange(len(book.files)), np.diff(book.ptr["node"]))
    if "original_ids" in book.files[0]:
        ids = {kind: _original_ids(book, kind) for kind in ("node", "edge")}
        src, dst = (_placed(ids["node"][ends], ids["edge"]) for ends in (src, dst))
        owner = _placed(owner, ids["node"])
        data = {kind: {key: _placed(value, ids[kind]) for key, value in data[kind].items()} for kind in ids}
    else:
        data["node"] = with_standard_masks_and_labels(data["node"], book.path.name)
    return from_edges(src, dst, len(owner), data["node"], data["edge"], book.path.name), owner


def records(path: Path) -> Iterator[tuple[dict, dict[str, np.ndarray]]]:
    """The arrays of each part, for :func:`partition.system.guarded_read.serve`."""
    book, dgl = read_book(path), need("dgl", str(path), INSTALL_DGL)
    bound_memory(sum(file.stat().st_size for names in book.files for file in names.values()))
    for index in range(len(book.files)):
        yield {"reading": f"part {index + 1}"}, {}
        yield {}, _read_part(dgl, book, index)


def _read_part(dgl, book: Book, index: int) -> dict[str, np.ndarray]:
    """``src`` and ``dst`` of a part's inner edges in global ids, in order of edge ids; ``node/`` and ``edge/`` data."""
    files = book.files[index]
    path = files["part_graph"]
    graphs, _ = _loaded(dgl.load_graphs, path)
    if len(graphs) != 1 or not graphs[0].is_homogeneous:
        raise InputError(f"{path} does not hold one homogeneous graph; {_AGAIN}")
    inner, global_ids = {}, None
    for kind, data in (("edge", graphs[0].edata), ("node", graphs[0].ndata)):
        if not {"_ID", f"inner_{kind}"} <= set(data) or data["_ID"].is_floating_point():
            raise InputError(f"{path} lacks the {kind} data '_ID' or 'inner_{kind}'; {_AGAIN}")
        global_ids = data["_ID"].numpy()
        rows = np.flatnonzero(data[f"inner_{kind}"].numpy())
        inner[kind] = rows[np.argsort(global_ids[rows], kind="stable")]
        begin, end = book.ptr[kind][index : index + 2]
        if not np.array_equal(global_ids[inner[kind]], np.arange(begin, end)):
            raise InputError(f"{path}: its inner {kind}s are not those that {book.path.name} gives it; {_AGAIN}")
    src, dst = (ends.numpy() for ends in graphs[0].edges(order="eid"))
    for ids, limit in ((src, len(global_ids)), (dst, len(global_ids)), (global_ids, book.ptr["node"][-1])):
        if len(ids) and not 0 <= ids.min() <= ids.max() < limit:
            raise InputError(f"{path} holds a node id outside 0..{limit - 1}; {_AGAIN}")
    part = {"src": global_ids[src[inner["edge"]]], "dst": global_ids[dst[inner["edge"]]]}
    for kind in ("node", "edge"):
        path = files[f"{kind}_feats"]
        tensors = _loaded(dgl.data.utils.load_tensors, path)
        if path.stat().st_size < _stored_bytes(tensors):  # DGL takes what is missing from wherever its memory lies
            raise InputError(f"{path} is cut short, so it is damaged; {_AGAIN}")
        columns = _columns(path, tensors, book.types[kind], len(inner[kind]))
        part |= {f"{kind}/{key}": value for key, value in columns.items()}
    return part


def _stored_bytes(tensors: dict) -> int:
    """The size of a file by ``dgl.data.utils.save_tensors``: a header, and one before each tensor."""
    sizes = (
        48 + len(key.encode()) + 8 * each.ndim + each.numel() * each.element_size() for key, each in tensors.items()
    )
    return 24 + sum(sizes)


def _loaded(load, path: Path):
    with reading(path), open(path, "rb"):  # DGL's own words for these errors are a C++ stack trace
        pass
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return load(str(path))
    except MemoryError:
        raise
    except Exception as error:  # whatever a damaged file makes of names and sizes
        raise InputError(f"{path} cannot be read ({first_line(error)}), so it is damaged; {_AGAIN}") from error


def _columns(path: Path, tensors: dict, types: tuple, rows: int) -> dict[str, np.ndarray]:
    """Data of a part's inner rows under their names without the type."""
    columns = {}
    for key, tensor in tensors.items():
        kind, slash, name = key.partition("/")
        if slash and kind not in types:
            raise InputError(f"{path}: {key!r} is data of the type {kind!r}, not of {types[0]!r}; {_AGAIN}")
        if tensor.ndim < 1 or len(tensor) != rows:
            raise InputError(f"{path}: {key!r} has shape {tuple(tensor.shape)} for {rows} inner rows; {_AGAIN}")
        try:
            columns[name if slash else key] = tensor.numpy()
        except TypeError:
            raise InputError(
                f"{path}: {key!r} is {tensor.dtype}, which numpy does not have; convert it before partitioning, say "
                "with .float()"
            ) from None
    return columns


def _joined(book: Book, kind: str, parts: list[dict]) -> dict[str, np.ndarray]:
    """Each column of all parts, one after the other."""
    shapes = [{key: (value.dtype, value.shape[1:]) for key, value in part.items()} for part in parts]
    for index, shape in enumerate(shapes):
        other = sorted(key for key in {*shape, *shapes[0]} if shape.get(key) != shapes[0].get(key))
        if other:
            path = book.files[index][f"{kind}_feats"]
            raise InputError(
                f"{path}: {other[0]!r} differs in dtype or shape from part 0, or is in one alone; {_AGAIN}"
            )
    columns = {}
    for key in shapes[0]:
        columns[key] = np.concatenate([part.pop(key) for part in parts])
        if key in book.bools[kind]:
            columns[key] = columns[key].astype(bool)
    return columns


def _original_ids(book: Book, kind: str) -> np.ndarray:
    """The user's id of every node or edge of the directory."""
    found = []
    for names, rows in zip(book.files, np.diff(book.ptr[kind])):
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
        raise InputError(f"{book.path}: {kind}_ids in original_ids do not name every {kind} once; {_AGAIN}")
    return ids


def _placed(values: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """``values`` in the order of ``ids``, a permutation."""
    placed = np.empty_like(values)
    placed[ids] = values
    return placed


if __name__ == "__main__":
    serve(sys.argv[2], records(Path(sys.argv[1])))
