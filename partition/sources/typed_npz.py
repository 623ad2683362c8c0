"""Typed graphs in numpy's .npz files: those of :func:`dgl_gt.partition.conversion.convert`, and flat names such as ``paper_x``."""

from __future__ import annotations

import re
import zipfile
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.graph import SPLIT_MASKS
from dgl_gt.partition.schema import Relation
from dgl_gt.partition.schema import relation as relation_of
from dgl_gt.partition.system.user_files import reading
from dgl_gt.partition.transforms.node_split import with_masks_of_ids

from .coo import COOGraph, nodes_alone
from .matrices import from_array
from .numpy_file import MEANS, NODE_DATA, NODE_KEYS, Archive, node_columns, read_archive
from .typed import typed_coo

PLAIN_NAME = "to"  # of a relation that a file calls by its two types alone, as PyG does
EDGES, NODES, EDGE_COLUMNS, NAMES = "edge_index/", "node_data/", "edge_data/", "node_names/"
_SPLIT = re.compile(rf"({'|'.join(SPLIT_MASKS)})_(\w+)")


@dataclass
class _Found:
    """The arrays of a file by what they are."""

    edges: dict[Relation, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    nodes: dict[str, dict[str, np.ndarray]] = field(
        default_factory=dict
    )  # by type, under the keys of files of one type
    edge_data: dict[Relation, dict[str, np.ndarray]] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def is_typed_npz(path: Path) -> bool:
    """Return whether a file is an archive with ``node_types``."""
    with reading(path):
        try:
            with zipfile.ZipFile(path) as archive:
                return "node_types.npy" in archive.namelist()
        except (zipfile.BadZipFile, NotImplementedError):  # the reader of other archives says what is wrong
            return False


def read_typed_npz(path: Path) -> COOGraph:
    """Read a graph with ``node_types`` and ``num_nodes``, as docs/cli.md describes it."""
    archive = read_archive(path, read_archive(path, (), {}).keys, {})
    arrays = {archive.read_as.get(key, key): value for key, value in archive.arrays.items()}
    num_nodes = _num_nodes(path, arrays)
    found = _sorted_out(path, arrays, num_nodes)
    data, node_names, classes = {}, {}, None
    for node_type, columns in found.nodes.items():
        count = num_nodes[node_type]
        read = node_columns(path, Archive(columns, keys=tuple(columns)), count)
        if read.classes is not None and classes is not None:
            raise InputError(f"{path}: labels of two types are text, {node_type!r} and another; give numbers to one")
        classes = classes if read.classes is None else read.classes
        alone = nodes_alone(count, read.data, f"{path}: {node_type}", read.ids)
        data[node_type] = with_masks_of_ids(alone, read.split_ids).node_data
        node_names[node_type] = read.ids
        if read.ids is not None and len(read.ids) != count:
            raise InputError(
                f"{path}: {len(read.ids)} node_names for {count} nodes of type {node_type!r}; give one each"
            )
        found.notes += read.notes
    name = arrays["name"].item() if "name" in arrays and arrays["name"].size == 1 else path.name
    more = {"class_names": classes, "left_out": tuple(found.left_out), "notes": tuple(found.notes)}
    coo = typed_coo(num_nodes, found.edges, data, found.edge_data, str(path), node_names, **more)
    return replace(coo, name=str(name))


def _num_nodes(path: Path, arrays: dict[str, np.ndarray]) -> dict[str, int]:
    types, counts = arrays["node_types"], arrays.get("num_nodes")
    if types.ndim != 1 or types.dtype.kind != "U" or not len(types):
        raise InputError(f"{path}: node_types is {types.dtype} {types.shape}; it must be the names of types, (T,)")
    if counts is None or counts.shape != types.shape or counts.dtype.kind not in "iu":
        shown = "missing" if counts is None else f"{counts.dtype} {counts.shape}"
        raise InputError(f"{path}: num_nodes is {shown}; it must be the number of nodes of each of {', '.join(types)}")
    names, times = np.unique(types, return_counts=True)
    if (times > 1).any():
        raise InputError(f"{path}: node_types names {str(names[times.argmax()])!r} twice; name each once")
    return dict(zip(types.tolist(), counts.tolist()))


def _sorted_out(path: Path, arrays: dict[str, np.ndarray], num_nodes: dict[str, int]) -> _Found:
    found = _Found()
    splits: dict[tuple[str, str], dict[str, np.ndarray]] = {}
    for key, value in arrays.items():
        if key in ("node_types", "num_nodes", "name"):
            continue
        if key.startswith(EDGES):
            _add_edges(path, found, relation_of(key.removeprefix(EDGES)), key, value)
        elif key.startswith(EDGE_COLUMNS):
            of, _, name = key.removeprefix(EDGE_COLUMNS).rpartition("/")
            found.edge_data.setdefault(relation_of(of), {})[name] = value
        elif key.startswith(NODES):
            of, _, name = key.removeprefix(NODES).rpartition("/")
            _add_column(path, found, num_nodes, key, of, name, value)
        elif key.startswith(NAMES):
            _add_column(path, found, num_nodes, key, key.removeprefix(NAMES), "node_names", value)
        elif (relation := _flat_relation(path, key, num_nodes)) is not None:
            _add_edges(path, found, relation, key, value)
        elif of := max((each for each in num_nodes if key.startswith(f"{each}_")), key=len, default=""):
            name = key[len(of) + 1 :]
            if split := _SPLIT.fullmatch(name):
                splits.setdefault((of, split[1]), {})[split[2]] = value
            else:
                _check_no_edges(path, key, value, num_nodes, of)
                _add_column(path, found, num_nodes, key, of, name, value)
        elif value.ndim:
            found.left_out.append(f"{key} of {path.name} (unknown key)")
    if not found.edges:
        raise InputError(
            f"{path} has no edges of a relation; name them edge_index/SOURCE,RELATION,DESTINATION, or SOURCE_DESTINATION"
        )
    for node_type in {of: None for of, _ in splits}:
        _join_splits(path, found, node_type, {mask: each for (of, mask), each in splits.items() if of == node_type})
    return found


def _add_edges(path: Path, found: _Found, relation: Relation, key: str, value: np.ndarray) -> None:
    if relation in found.edges:
        raise InputError(f"{path}: two arrays hold the relation {relation}, the second is {key}; rename one")
    edges = from_array(value, f"{path}: {key}")
    found.edges[relation] = (edges.src, edges.dst)


def _add_column(path: Path, found: _Found, num_nodes: dict, key: str, of: str, name: str, value: np.ndarray) -> None:
    if of not in num_nodes:
        raise InputError(f"{path}: {key} is of the type {of!r}, and node_types are {', '.join(num_nodes)}; correct one")
    name = MEANS.get(name, name)
    name = name if name in NODE_KEYS or name in MEANS.values() else f"{NODE_DATA}{name}"
    if name in found.nodes.setdefault(of, {}):
        raise InputError(f"{path}: {key} is node data {name!r} of {of!r} once more; leave one out")
    found.nodes[of][name] = value


def _flat_relation(path: Path, key: str, num_nodes: dict) -> Relation | None:
    """The relation that a key names by its types, with or without a name of its own between them; None for other keys."""
    pairs = [(s, d) for s in num_nodes for d in num_nodes if key == f"{s}_{d}"]
    named = pairs or [
        (s, d) for s in num_nodes for d in num_nodes if re.fullmatch(rf"{re.escape(s)}_\w+_{re.escape(d)}", key)
    ]
    if len(named) > 1:
        ends = " or ".join(f"{source} and {destination}" for source, destination in named)
        raise InputError(f"{path}: {key} may be of the types {ends}; call it {EDGES}SOURCE,RELATION,DESTINATION")
    if not named:
        return None
    ((source, destination),) = named
    return Relation(source, PLAIN_NAME if pairs else key[len(source) + 1 : -len(destination) - 1], destination)


def _check_no_edges(path: Path, key: str, value: np.ndarray, num_nodes: dict, of: str) -> None:
    """Raise :class:`InputError` for what looks like edges, whose destinations are of no type."""
    if value.ndim == 2 and len(value) == 2 != num_nodes[of] and value.dtype.kind in "iu":
        raise InputError(
            f"{path}: {key} {value.shape} looks like edges, but {key[len(of) + 1 :]!r} is none of the types "
            f"{', '.join(num_nodes)}; correct the name, or add the type"
        )


def _join_splits(path: Path, found: _Found, of: str, masks: dict[str, dict[str, np.ndarray]]) -> None:
    """Join masks of several splits, such as ``train_mask_20`` and ``train_mask_40``, to one with a column for each."""
    wanted = sorted({name for each in masks.values() for name in each}, key=lambda name: (len(name), name))
    for mask, columns in masks.items():
        if missing := [name for name in wanted if name not in columns]:
            raise InputError(f"{path}: {of}_{mask}_{missing[0]} is missing, and other masks have that split; add it")
        if len({each.shape for each in columns.values()}) > 1 or columns[wanted[0]].ndim != 1:
            raise InputError(f"{path}: {of}_{mask}_* differ in shape or are no lists; give each a row for each {of}")
        _add_column(
            path, found, {of: 0}, f"{of}_{mask}", of, mask, np.stack([columns[name] for name in wanted], axis=1)
        )
    found.notes.append(
        f"{path.name}: the masks of {of} have the splits {', '.join(f'{i} ({n})' for i, n in enumerate(wanted))}"
    )
