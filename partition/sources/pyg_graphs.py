"""Graphs from PyG: a ``Data``, or a ``.pt`` file that holds one, from ``torch.save`` or of a data set that PyG has processed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dgl_gt.partition.errors import INSTALL_PYG, InputError, first_line, import_optional
from dgl_gt.partition.graph import as_array, named_arrays
from dgl_gt.partition.system.user_files import reading

from .coo import COOGraph

_NAMES = {"x": "feat", "y": "label"}


def from_pyg(data, name: str = "Data") -> COOGraph:
    """Make a COOGraph of a ``Data``: edges in their order, ``x`` as ``feat``, ``y`` as ``label``, others under their names.

    A ``HeteroData`` will do if it has one node type and one relation.
    """
    edges = data
    if hasattr(data, "edge_types"):
        if len(data.edge_types) != 1 or {*data.node_types, *data.edge_types[0][::2]} != {*data.node_types[:1]}:
            raise InputError(
                f"{name} has types {data.node_types}, {data.edge_types}; convert it with data.to_homogeneous() first"
            )
        (edges,) = data.edge_stores
    if edges.get("edge_index") is None:
        raise InputError(f"{name} has no edge_index (it has {', '.join(edges.keys()) or 'nothing'}); give it one")
    edge_index = as_array(edges.edge_index, f"{name}: edge_index")
    if edge_index.ndim != 2 or len(edge_index) != 2:
        raise InputError(f"{name}: edge_index is {edge_index.shape}; it must be (2, E), sources first: transpose it")
    src, dst = edge_index
    columns: dict[str, dict[str, Any]] = {"node": {}, "edge": {}}
    left_out = []
    for kind, key, value in _columns(data):
        if key in ("edge_index", "num_nodes"):
            continue
        if kind not in columns or not hasattr(value, "dtype"):
            left_out.append(f"{key} (neither a row for each node nor for each edge)")
        elif _NAMES.get(key, key) in columns[kind]:
            raise InputError(f"{name} has {key} and {_NAMES.get(key, key)}, which are one here; rename one of them")
        else:
            columns[kind][_NAMES.get(key, key)] = value
    node_data, edge_data = (named_arrays(each, f"{name}: {kind} data") for kind, each in columns.items())
    return COOGraph(src, dst, data.num_nodes, node_data, edge_data, name, left_out=tuple(left_out))


def _columns(data) -> Iterator[tuple[str, str, Any]]:
    """Give what each column has a row for, its name, and its rows."""
    if hasattr(data, "edge_types"):
        for kind, store in zip(("graph", "node", "edge"), data.stores):
            yield from ((kind, *each) for each in store.items())
        return
    for key, value in data.items():
        yield "edge" if data.is_edge_attr(key) else "node" if data.is_node_attr(key) else "graph", key, value


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
