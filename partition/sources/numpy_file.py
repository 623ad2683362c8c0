"""Graphs and node data in numpy's .npz and .npy files; large uncompressed arrays are memory-mapped."""

from __future__ import annotations

import lzma
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import scipy  # imports its parts at their first use

from dgl_gt.partition.errors import InputError, first_line
from dgl_gt.partition.graph import SPLIT_MASKS, as_array
from dgl_gt.partition.system.mapped_arrays import SMALLEST_BYTES, map_npy, map_npz_member, read_header
from dgl_gt.partition.system.user_files import check_fits_memory, check_unpacked_size, reading
from dgl_gt.partition.transforms.node_split import SPLIT_IDS

from .coo import COOGraph
from .matrices import checked_matrix, from_array, from_scipy
from .node_data import NodeColumns, as_classes, as_names, class_note, unlabelled

_EDGE_DATA, NODE_DATA = "edge_data_", "node_data_"
_OF_ZIPFILE = (zipfile.BadZipFile, RuntimeError, NotImplementedError, lzma.LZMAError, struct.error)
_CSR = ("indptr", "indices", "data", "shape")
_SPARSE_KEYS, _ADJACENCY_KEYS = (tuple(f"{name}_{part}" for part in _CSR) for name in ("x", "adj"))
NODE_KEYS = ("x", "feat", "y", "label", "node_names", *_SPARSE_KEYS, *SPLIT_MASKS, *SPLIT_IDS)
MEANS = {"x": "feat", "y": "label"}  # two names of one array
_GRAPH_KEYS = ("edge_index", "num_nodes", "directed", "name", "node_type", *_ADJACENCY_KEYS)
# names that other projects give to these arrays
_SYNONYMS = {
    "edge_index": ("edges", "edge_list"),
    "feat": ("node_features", "node_feat", "features", "feats", "attr_matrix", "X"),
    "label": ("node_labels", "node_label", "labels", "Y"),
    "edge_data_feat": ("edge_feat", "edge_attr", "edge_features"),
    **{f"x_{part}": (f"attr_{part}",) for part in _CSR},
    **{key: (f"{key}s",) for key in SPLIT_MASKS},
    "train_idx": ("idx_train",),
    "val_idx": ("valid_idx", "idx_val"),  # OGB calls it valid
    "test_idx": ("idx_test",),
}


def read_npz(path: Path, keys: Mapping[str, str] | None = None) -> COOGraph:
    """Read a graph from the keys that :func:`dgl_gt.partition.sources.load.load_graph` lists."""
    archive = read_archive(path, (*_GRAPH_KEYS, *NODE_KEYS), keys or {})
    arrays = archive.arrays
    if "edge_index" in arrays:
        edges, name = arrays["edge_index"], archive.read_as.get("edge_index")
        is_pairs = name is not None and edges.ndim == 2 and edges.shape[1] == 2  # under another name than ours
        if is_pairs and (len(edges) != 2 or name in _SYNONYMS["edge_index"]):
            edges = np.ascontiguousarray(edges.T)
        coo = from_array(edges, f"{path}: edge_index")
    elif {*archive.keys} >= {"format", "shape", "data"}:
        coo = from_scipy(_scipy_matrix(path), path.name)
        archive = replace(archive, left_out=())
    elif any(key in arrays for key in _ADJACENCY_KEYS):
        coo = from_scipy(_csr(path, arrays, _ADJACENCY_KEYS))
    else:
        raise InputError(
            f"{path} has no edge_index; its keys are {', '.join(archive.keys) or 'none'}. Name the one that holds edges, "
            "whole numbers of shape (2, E), sources first, with keys (--keys edge_index=NAME)"
        )
    num_nodes = _value(path, arrays, "num_nodes", "iu", coo.num_nodes)
    columns = node_columns(path, archive, num_nodes)
    edge_data = {key.removeprefix(_EDGE_DATA): value for key, value in arrays.items() if key.startswith(_EDGE_DATA)}
    for key, value in edge_data.items():
        if value.shape[:1] != coo.src.shape:
            raise InputError(f"{path}: {_EDGE_DATA}{key} is {value.shape}; its first dimension must be {len(coo.src)}")
    notes = columns.notes
    if "edge_index" in archive.read_as and "directed" not in arrays:
        notes += (f"{path.name}: an edge from u to v is one direction; for both, choose undirected (--undirected)",)
    if columns.ids is not None:
        num_nodes = len(columns.ids) if num_nodes is None else num_nodes
        if len(columns.ids) != num_nodes:
            raise InputError(f"{path}: {len(columns.ids)} node_names for {num_nodes} nodes; give one for each")
    coo = replace(
        coo,
        num_nodes=num_nodes,
        node_data=columns.data,
        edge_data={**coo.edge_data, **edge_data},
        name=_value(path, arrays, "name", "U", path.name),
        listed_once=not _value(path, arrays, "directed", "biu", True),
        left_out=archive.left_out,
        notes=notes,
        node_names=columns.ids,
        class_names=columns.classes,
        used_keys=columns.used_keys,
        node_type=_value(path, arrays, "node_type", "U", coo.node_type),
        split_ids=columns.split_ids,
    )
    if coo.listed_once and (twice := coo.listed_reverse()) is not None:
        raise InputError(
            f"{path}: the edge between nodes {twice[0]} and {twice[1]} is listed both ways, but directed is false; "
            "list undirected edges once, or set directed to true"
        )
    return coo


def read_npy(path: Path) -> COOGraph:
    """Read a graph from a ``.npy`` file that holds its ``edge_index``, whole numbers of shape (2, E)."""
    return replace(from_array(read_array(path), f"{path}: edge_index"), name=path.name)


def read_npy_node_data(path: Path) -> NodeColumns:
    """Read one column, named after the file: ``feat.npy`` (or ``x.npy``, ``features.npy``, ...) holds ``feat``."""
    [key] = _names_in_file([path.stem], ("feat", "label", "x", "y", *SPLIT_MASKS, *SPLIT_IDS), {}) or [
        f"{NODE_DATA}{path.stem}"
    ]
    what = f"node data {path.stem}; features are feat.npy, and labels label.npy" if key.startswith(NODE_DATA) else key
    notes = () if key in (path.stem, MEANS.get(path.stem)) else (f"{path.name}: it is read as {what}",)
    return node_columns(path, Archive({key: read_array(path)}, notes=notes))


def read_npz_node_data(path: Path, keys: Mapping[str, str] | None = None) -> NodeColumns:
    """Read only the node keys."""
    archive = read_archive(path, NODE_KEYS, keys or {})
    columns = node_columns(path, archive)
    if not (columns.data or columns.split_ids):
        raise InputError(
            f"{path} holds no node data under the names {', '.join(NODE_KEYS)} and {NODE_DATA}NAME; its keys are "
            f"{', '.join(archive.keys) or 'none'}. Map them with keys (--keys x=NAME,y=NAME)"
        )
    return columns


def read_array(path: Path) -> np.ndarray:
    """Read the array of a ``.npy`` file; a large one is memory-mapped."""
    try:
        with reading(path):
            return map_npy(path)
    except InputError:  # from `reading`; it is a ValueError, too
        raise
    except ValueError as error:
        raise InputError(f"{path} is not a .npy array, or is damaged ({first_line(error)}); write it again") from error


@dataclass(frozen=True)
class Archive:
    """Arrays of a ``.npz``, by the names that are documented here."""

    arrays: dict[str, np.ndarray]
    read_as: dict[str, str] = field(default_factory=dict)  # name in the file of each array that has another one there
    keys: tuple[str, ...] = ()  # all names in the file
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    used_keys: frozenset[str] = frozenset()  # of those that the user gave


def _names_in_file(keys: list[str], wanted: tuple[str, ...], given: Mapping[str, str]) -> dict[str, str]:
    """Return the name in the file of each wanted key: as the user says, as it is documented, or as others call it."""
    prefixes = (NODE_DATA, _EDGE_DATA) if "edge_index" in wanted else (NODE_DATA,)
    documented = [key for key in keys if key in wanted or key.startswith(prefixes)]
    names = {MEANS[key]: key for key in documented if key in MEANS}
    names |= {key: key for key in documented if key not in MEANS}
    for key, synonyms in _SYNONYMS.items():
        other = next((name for name in synonyms if name in keys), None)
        if (key in wanted or key.startswith(prefixes)) and other is not None and key not in names:
            names[key] = other
    for key, name in given.items():
        if key not in (*_GRAPH_KEYS, *NODE_KEYS) and not key.startswith((_EDGE_DATA, NODE_DATA)):
            allowed = f"{', '.join((*_GRAPH_KEYS, *NODE_KEYS))}, {_EDGE_DATA}NAME and {NODE_DATA}NAME"
            raise InputError(f"keys (--keys) maps {key!r}; allowed are {allowed}")
        if name in keys and (key in wanted or key.startswith(prefixes)):
            names = {each: other for each, other in names.items() if other != name} | {MEANS.get(key, key): name}
    return names


def read_archive(path: Path, wanted: tuple[str, ...], given: Mapping[str, str]) -> Archive:
    """Read the arrays of these keys; also describe the other arrays, except single values such as a licence."""
    arrays, left_out = {}, []
    try:
        with reading(path), open(path, "rb") as stream, zipfile.ZipFile(stream) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            names = _names_in_file(list(members), wanted, given)
            read_as = {key: name for key, name in names.items() if MEANS.get(name, name) != key}
            infos = [members[name] for name in names.values()]
            packed = [info for info in infos if info.compress_type != zipfile.ZIP_STORED]
            check_unpacked_size(path, sum(info.file_size for info in packed))
            check_fits_memory(f"{path}: unpacking its arrays", sum(info.file_size for info in packed))
            for key, name in names.items():
                arrays[key] = _member(path, archive, members[name])
            for name, info in members.items():
                if name not in names.values() and not _is_single_value(archive, info):
                    left_out.append(f"{name} of {path.name} (unknown key)")
    except InputError:  # from `reading`; it is a ValueError, too
        raise
    except (ValueError, *_OF_ZIPFILE) as error:  # ValueError: not an array, or an array of Python objects
        raise InputError(
            f"{path} is not an .npz archive of plain arrays, or is damaged ({first_line(error)}); fetch it again or "
            "write it with numpy.savez"
        ) from error
    used = frozenset(key for key, name in given.items() if names.get(MEANS.get(key, key)) == name)
    said = {MEANS.get(key, key) for key in used}
    notes = tuple(f"{path.name}: {name} is read as {key}" for key, name in read_as.items() if key not in said)
    return Archive(arrays, read_as, tuple(members), tuple(left_out), notes, used)


def _member(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    if info.compress_type == zipfile.ZIP_STORED and info.file_size >= SMALLEST_BYTES:
        return map_npz_member(path, info)
    with archive.open(info) as packed:
        read_header(packed, info.file_size)  # checks the size before memory is allocated
    with archive.open(info) as packed:
        return np.lib.format.read_array(packed, allow_pickle=False)


def _is_single_value(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bool:
    try:
        with archive.open(info) as packed:
            return read_header(packed, info.file_size)[0] == ()
    except ValueError:  # not an array that could be read
        return False


def _value(path: Path, arrays: dict, key: str, kinds: str, default):
    if key not in arrays:
        return default
    if arrays[key].size != 1 or arrays[key].dtype.kind not in kinds:
        raise InputError(f"{path}: {key} must be one value, not {arrays[key].dtype} of shape {arrays[key].shape}")
    return arrays[key].item()


def node_columns(path: Path, archive: Archive, num_nodes: int | None = None) -> NodeColumns:
    arrays, classes, notes = archive.arrays, None, archive.notes
    data = {key.removeprefix(NODE_DATA): value for key, value in arrays.items() if key.startswith(NODE_DATA)}
    data |= {key: arrays[key] for key in ("feat", "label") if key in arrays}
    if any(key in arrays for key in _SPARSE_KEYS) and "feat" not in data:
        data["feat"] = as_array(_csr(path, arrays, _SPARSE_KEYS), f"{path}: x")
    if "label" in data and data["label"].dtype.kind == "U" and data["label"].ndim == 1:
        words = data["label"].tolist()
        data["label"], classes = as_classes(words)
        said = f"{path.name}: label" if classes is None else class_note(path.name, classes)
        none = unlabelled(data["label"], words)
        notes += (said + none,) if none or classes else ()
    rows = num_nodes or next((len(data[key]) for key in ("feat", "label") if key in data and data[key].ndim), None)
    for key in SPLIT_MASKS:
        if key in arrays:
            mask = arrays[key]
            is_turned = mask.ndim == 2 and mask.shape[1] == rows != mask.shape[0]  # (splits, N)
            data[key] = np.ascontiguousarray(mask.T) if is_turned else mask
    names = None if "node_names" not in arrays else as_names(arrays["node_names"], f"{path}: node_names")
    more = {"left_out": archive.left_out, "notes": notes, "used_keys": archive.used_keys}
    more["split_ids"] = {key: arrays[key] for key in SPLIT_IDS if key in arrays}
    return NodeColumns(data, path.name, ids=names, classes=classes, **more)


def _scipy_matrix(path: Path):
    """Return the matrix of a file of ``scipy.sparse.save_npz``."""
    read_archive(path, (*_CSR, "row", "col", "offsets"), {})  # checks sizes, and that no array holds objects
    try:
        with open(path, "rb") as file:
            matrix = scipy.sparse.load_npz(file)
    except (ValueError, TypeError, KeyError, OverflowError, NotImplementedError) as error:
        raise InputError(f"{path} is no matrix of scipy, or is damaged ({first_line(error)}); save it again") from error
    return checked_matrix(matrix, f"{path}: its matrix")


def _csr(path: Path, arrays: dict[str, np.ndarray], keys: tuple[str, ...]):
    """Return the sparse matrix of four arrays; the shape of a square one may be missing."""
    if keys == _ADJACENCY_KEYS and keys[0] in arrays:
        arrays = {keys[3]: np.full(2, arrays[keys[0]].size - 1), **arrays}
    if missing := [key for key in keys if key not in arrays]:
        raise InputError(f"{path}: a sparse matrix needs {', '.join(keys)}; add what is missing: {', '.join(missing)}")
    indptr, indices, data, shape = (arrays[key] for key in keys)
    kinds = "".join(array.dtype.kind for array in (indptr, indices, shape))
    try:
        if set(kinds) - {*"iu"} or data.dtype.kind not in "biuf" or shape.shape != (2,):
            raise ValueError(f"they are {indptr.dtype}, {indices.dtype}, {data.dtype} and {shape.dtype} {shape.shape}")
        sparse = scipy.sparse.csr_array((data, indices, indptr), shape=tuple(shape.tolist()))
        sparse.check_format(full_check=True)
    except (ValueError, TypeError, OverflowError) as error:
        raise InputError(f"{path}: {', '.join(keys)} are not a valid CSR matrix ({first_line(error)})") from error
    return sparse
