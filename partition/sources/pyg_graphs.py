"""Graphs from PyG: a ``Data``, or a ``.pt`` file that holds one, from ``torch.save`` or of a data set that PyG has processed."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from dgl_gt.partition.errors import INSTALL_PYG, InputError, first_line, import_optional
from dgl_gt.partition.graph import as_array, named_arrays
from dgl_gt.partition.system.user_files import reading

from .coo import COOGraph
from .typed import by_columns, typed_coo

_NAMES = {"x": "feat", "y": "label"}
_TYPE_NAMES = ("_node_type_names", "_edge_type_names")  # that to_homogeneous() keeps


def from_pyg(data, name: str = "Data") -> COOGraph:
    """Make a COOGraph of a ``Data`` or ``HeteroData``: edges in their order, ``x`` as ``feat``, ``y`` as ``label``, others under
    their names.

    A ``Data`` of ``to_homogeneous()`` gets back the types that its ``node_type`` and ``edge_type`` number.
    """
    if hasattr(data, "edge_types"):
        return _from_hetero(data, name)
    columns: dict[str, dict[str, Any]] = {"node": {}, "edge": {}}
    left_out = []
    for key, value in data.items():
        kind = "edge" if data.is_edge_attr(key) else "node" if data.is_node_attr(key) else "graph"
        if key in ("edge_index", "num_nodes", *_TYPE_NAMES):
            continue
        if kind not in columns or not hasattr(value, "dtype"):
            left_out.append(f"{key} (neither a row for each node nor for each edge)")
        else:
            columns[kind][key] = value
    node_data, edge_data = (_named(each, f"{name}: {kind} data") for kind, each in columns.items())
    types = node_data.get("node_type"), edge_data.get("edge_type")
    has_types = all(each is not None and each.dtype.kind in "iu" and each.ndim == 1 for each in types)
    names = [getattr(data, key, None) for key in _TYPE_NAMES]
    has_types = has_types and all(each is not None for each in names)  # else they are columns of the user's
    if has_types:
        del node_data["node_type"], edge_data["edge_type"]
    src, dst = _ends(data, name)
    coo = COOGraph(src, dst, data.num_nodes, node_data, edge_data, name, left_out=tuple(left_out))
    return by_columns(coo, *types, *names) if has_types else coo


def _from_hetero(data, name: str) -> COOGraph:
    counts, of_nodes, of_edges, ends = {}, {}, {}, {}
    left_out = [f"{key} (of no type)" for key in data._global_store]
    for node_type, store in zip(data.node_types, data.node_stores):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it guesses from the edges
            counts[node_type] = store.num_nodes
        if counts[node_type] is None:
            raise InputError(
                f"{name} does not say how many nodes of type {node_type!r} there are; set data[{node_type!r}].num_nodes"
            )
        of_nodes[node_type] = _columns(store, ("num_nodes",), node_type, counts[node_type], name, left_out)
    for relation, store in zip(data.edge_types, data.edge_stores):
        ends[relation] = _ends(store, f"{name}: {','.join(relation)}")
        of_edges[relation] = _columns(
            store, ("edge_index",), ",".join(relation), len(ends[relation][0]), name, left_out
        )
    return typed_coo(counts, ends, of_nodes, of_edges, name, left_out=tuple(left_out))


def _ends(store, name: str) -> np.ndarray:
    if store.get("edge_index") is None:
        raise InputError(f"{name} has no edge_index (it has {', '.join(store.keys()) or 'nothing'}); give it one")
    edge_index = as_array(store.edge_index, f"{name}: edge_index")
    if edge_index.ndim != 2 or len(edge_index) != 2:
        raise InputError(f"{name}: edge_index is {edge_index.shape}; it must be (2, E), sources first: transpose it")
    return edge_index


def _columns(store, skip: tuple[str, ...], of: str, rows: int, name: str, left_out: list[str]) -> dict[str, np.ndarray]:
    """The columns of a type that have a row for each of its nodes or edges; others are noted in ``left_out``."""
    columns = {}
    for key, value in store.items():
        if key in skip:
            continue
        if getattr(value, "shape", ())[:1] == (rows,):
            columns[key] = value
        else:
            left_out.append(f"{of}/{key} (it has no row for each)")
    return _named(columns, f"{name}: data of {of}")


def _named(columns: dict[str, Any], what: str) -> dict[str, np.ndarray]:
    for key, other in _NAMES.items():
        if key in columns and other in columns:
            raise InputError(f"{what} are {key} and {other}, which are one here; rename one of them")
    return named_arrays({_NAMES.get(key, key): value for key, value in columns.items()}, what)


def read_pyg_file(path: Path, name: str | None = None) -> COOGraph:
    """Read a file with a ``Data``, from ``torch.save`` or of a data set that PyG has processed, and nothing that would run code."""
    torch = import_optional("torch", str(path), INSTALL_PYG)
    home = import_optional("torch_geometric.data", str(path), INSTALL_PYG)
    with reading(path), open(path, "rb"):
        pass
    classes = [home.Data, home.HeteroData, *(getattr(home.data, name) for name in ("DataEdgeAttr", "DataTensorAttr"))]
    classes += [getattr(home.storage, name) for name in ("GlobalStorage", "NodeStorage", "EdgeStorage", "BaseStorage")]
    try:
        with torch.serialization.safe_globals([*classes, home.EdgeAttr, home.TensorAttr, home.graph_store.EdgeLayout]):
            found = torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:  # a damaged file can raise anything
        other = re.search(r"GLOBAL (\S+)", str(error))
        found = f"it holds a {other[1]}" if other else "it may be damaged"
        raise InputError(
            f"{path} is no Data of PyG that can be read safely: {found}; save a Data of tensors with torch.save"
        ) from error
    match found:
        case (dict() as columns, slices, home.Data | home.HeteroData as kind):  # as data sets of PyG are stored
            found = (kind.from_dict(columns), slices)
    match found:
        case (home.data.BaseData(), dict() as slices) if len(next(iter(slices.values()), ())) > 2:
            raise InputError(f"{path} holds several graphs of a data set; save the one you want alone with torch.save")
        case (home.data.BaseData() as first,) | (home.data.BaseData() as first, _):
            found = first
    if not isinstance(found, home.data.BaseData):
        raise InputError(f"{path} holds a {type(found).__name__}; it must hold one Data of PyG: save that alone")
    try:
        return from_pyg(found, name or path.name)
    except RuntimeError as error:
        raise InputError(
            f"{path} was written by another version of PyG ({first_line(error)}); save it with this one"
        ) from error
