"""Graphs and node data in numpy's .npz and .npy files; large uncompressed arrays are memory-mapped."""

from __future__ import annotations

import lzma
import struct
import zipfile
from pathlib import Path

import numpy as np
import scipy  # imports its parts at their first use

from partition.errors import InputError
from partition.graph import SPLIT_MASKS, as_array
from partition.system.mapped_arrays import SMALLEST_BYTES, map_npy, map_npz_member, read_header
from partition.system.optional_packages import first_line
from partition.system.user_files import check_fits_memory, check_unpacked_size, reading

from .coo import COOGraph

_EDGE_DATA = "edge_data_"
_SPARSE_KEYS = ("x_indptr", "x_indices", "x_data", "x_shape")
_NODE_KEYS = ("x", "feat", "y", "label", *_SPARSE_KEYS, *SPLIT_MASKS)
_GRAPH_KEYS = ("edge_index", "num_nodes", "directed", "name")


def read_npz(path: Path) -> COOGraph:
    """Read a graph from the keys that :func:`partition.sources.load.load_graph` lists."""
    arrays, left_out = _arrays(path, (*_GRAPH_KEYS, *_NODE_KEYS))
    edge_index = arrays.get("edge_index")
    if edge_index is None:
        raise InputError(f"{path} has no edge_index; add whole numbers of shape (2, E), sources first, under that name")
    src, dst = _ends(path, edge_index)
    edge_data = {key.removeprefix(_EDGE_DATA): value for key, value in arrays.items() if key.startswith(_EDGE_DATA)}
    for key, value in edge_data.items():
        if value.shape[:1] != src.shape:
            raise InputError(
                f"{path}: {_EDGE_DATA}{key} has shape {value.shape}; its first dimension must be {len(src)}"
            )
    coo = COOGraph(
        src,
        dst,
        _value(path, arrays, "num_nodes", "iu", None),
        _node_data(path, arrays),
        edge_data,
        _value(path, arrays, "name", "U", path.name),
        listed_once=not _value(path, arrays, "directed", "biu", True),
        left_out=left_out,
    )
    if coo.listed_once:
        _check_listed_once(path, coo)
    return coo


def read_npy(path: Path) -> COOGraph:
    """Read a graph from a ``.npy`` file that holds its ``edge_index``, whole numbers of shape (2, E)."""
    return COOGraph(*_ends(path, _array(path)), name=path.name)


def read_npy_node_data(path: Path) -> dict[str, np.ndarray]:
    """Read one column, named after the file: ``feat.npy`` (or ``x.npy``) holds ``feat``."""
    return {{"x": "feat", "y": "label"}.get(path.stem, path.stem): _array(path)}


def _array(path: Path) -> np.ndarray:
    try:
        with reading(path):
            return map_npy(path)
    except InputError:  # from `reading`; it is a ValueError, too
        raise
    except ValueError as error:
        raise InputError(f"{path} is not a .npy array, or is damaged ({first_line(error)}); write it again") from error


def _ends(path: Path, edge_index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if edge_index.ndim != 2 or len(edge_index) != 2 or edge_index.dtype.kind not in "iu":
        raise InputError(
            f"{path}: edge_index is {edge_index.dtype} of shape {edge_index.shape}; it must be whole numbers of shape "
            "(2, E)"
        )
    return edge_index[0], edge_index[1]


def read_npz_node_data(path: Path) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Read only the node keys; return their columns and what is left out, as in a COOGraph."""
    arrays, left_out = _arrays(path, _NODE_KEYS)
    node_data = _node_data(path, arrays)
    if not node_data:
        raise InputError(f"{path} holds no node data; allowed keys are {', '.join(_NODE_KEYS)}")
    return node_data, left_out


def _arrays(path: Path, keys: tuple[str, ...]) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Read the arrays of these keys; also describe the other arrays, except single values such as a licence."""
    arrays, left_out = {}, []
    try:
        with reading(path), open(path, "rb") as stream, zipfile.ZipFile(stream) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            wanted = {
                key: info
                for key, info in members.items()
                if key in keys or (key.startswith(_EDGE_DATA) and "edge_index" in keys)
            }
            packed = [info for info in wanted.values() if info.compress_type != zipfile.ZIP_STORED]
            check_unpacked_size(path, sum(info.file_size for info in packed))
            check_fits_memory(f"{path}: unpacking its arrays", sum(info.file_size for info in packed))
            for key, info in members.items():
                if key in wanted:
                    arrays[key] = _member(path, archive, info)
                elif not _is_single_value(archive, info):
                    left_out.append(f"{key} of {path.name} (unknown key)")
    except InputError:  # from `reading`; it is a ValueError, too
        raise
    # ValueError: not an array, or an array of Python objects; zipfile raises the others
    except (
        zipfile.BadZipFile,
        ValueError,
        RuntimeError,
        NotImplementedError,
        lzma.LZMAError,
        struct.error,
    ) as error:
        raise InputError(
            f"{path} is not an .npz archive of plain arrays, or is damaged ({first_line(error)}); fetch it again or "
            "write it with numpy.savez"
        ) from error
    return arrays, tuple(left_out)


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


def _check_listed_once(path: Path, coo: COOGraph) -> None:
    twice = coo.listed_reverse()
    if twice is not None:
        raise InputError(
            f"{path}: the edge between nodes {twice[0]} and {twice[1]} is listed both ways, but directed is false; "
            "list undirected edges once, or set directed to true"
        )


def _node_data(path: Path, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    node_data = {key: arrays[key] for key in SPLIT_MASKS if key in arrays}
    for key, other in (("feat", "x"), ("label", "y")):
        if key in arrays or other in arrays:
            node_data[key] = arrays[key] if key in arrays else arrays[other]
    present = [key for key in _SPARSE_KEYS if key in arrays]
    if not present or "feat" in node_data:
        return node_data
    missing = [key for key in _SPARSE_KEYS if key not in arrays]
    if missing:
        raise InputError(
            f"{path}: sparse features need {', '.join(_SPARSE_KEYS)}; add what is missing: {', '.join(missing)}"
        )
    indptr, indices, data, shape = (arrays[key] for key in _SPARSE_KEYS)
    kinds = "".join(array.dtype.kind for array in (indptr, indices, shape))
    try:
        if set(kinds) - {*"iu"} or data.dtype.kind not in "biuf" or shape.shape != (2,):
            raise ValueError(f"they are {indptr.dtype}, {indices.dtype}, {data.dtype} and {shape.dtype} {shape.shape}")
        sparse = scipy.sparse.csr_array((data, indices, indptr), shape=tuple(shape.tolist()))
        sparse.check_format(full_check=True)
    except (ValueError, TypeError, OverflowError) as error:
        keys = ", ".join(_SPARSE_KEYS)
        raise InputError(
            f"{path}: {keys} are not a valid CSR matrix ({first_line(error)}); write them again"
        ) from error
    return {**node_data, "feat": as_array(sparse, f"{path}: x")}
