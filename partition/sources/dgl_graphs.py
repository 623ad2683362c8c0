"""Graphs from DGL: a DGLGraph, a file of ``dgl.save_graphs``, or a data set of ``dgl.data``."""

from __future__ import annotations

import contextlib
import difflib
import inspect
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from dgl_gt.partition.errors import INSTALL_DGL, InputError, first_line, import_optional
from dgl_gt.partition.graph import as_array, named_arrays
from dgl_gt.partition.schema import Relation, Schema
from dgl_gt.partition.system.child_process import bound_memory, read_in_child, serve, with_prefix
from dgl_gt.partition.system.user_files import reading

from .coo import COOGraph
from .options import split_source_name
from .typed import by_columns, typed_coo

# columns in which DGL stores where the rows of a subgraph or converted graph came from
_DGL_COLUMNS = ("_ID", "_TYPE", "__orig__")


def from_dgl(graph, name: str = "DGLGraph") -> COOGraph:
    """Make a COOGraph of a DGLGraph: edges in edge-id order, node and edge data under their own names, by type if it has types.

    A graph of ``dgl.to_homogeneous`` gets back the types that its column ``_TYPE`` numbers. Other columns that DGL adds
    for its own use (``_ID``, ``__orig__``) are left out and listed in ``left_out``. Tensors on the CPU are shared, not
    copied.
    """
    if graph.is_block:
        raise InputError(f"{name}: a DGL block is not a whole graph; load the graph that it was sampled from")
    any_format = graph.formats(["coo", "csr", "csc"])  # a graph that allows only CSC cannot list its edges by id
    ends, left_out = {}, list[str]()
    for relation in graph.canonical_etypes:
        pair = any_format.edges(order="eid", etype=relation)
        ends[relation] = tuple(as_array(ids, f"{name}: the node ids of {','.join(relation)}") for ids in pair)
    counts = {each: graph.num_nodes(each) for each in graph.ntypes}
    of_nodes = {each: _own_columns(graph.nodes[each].data, f"{name}: node data", left_out) for each in counts}
    of_edges = {each: _own_columns(graph.edges[each].data, f"{name}: edge data", left_out) for each in ends}
    kept = [data["_TYPE"] for data in (graph.ndata, graph.edata) if graph.is_homogeneous and "_TYPE" in data]
    has_types = len(kept) == 2 and any(len(each) and int(each.max()) for each in kept)
    if has_types:
        left_out = [note for note in left_out if "_TYPE" not in note]
    coo = typed_coo(counts, ends, of_nodes, of_edges, name, left_out=tuple(left_out))
    if not has_types:
        return coo
    node_type, edge_type = (as_array(each, f"{name}: _TYPE") for each in kept)
    note = (
        f"{name}: dgl.to_homogeneous keeps no names of types, so node types and relations are called by their numbers"
    )
    return by_columns(replace(coo, notes=(note,)), node_type, edge_type)


def _own_columns(data, what: str, left_out: list[str]) -> dict[str, np.ndarray]:
    """The columns of a type as arrays, without those of DGL, which are noted in ``left_out``."""
    kind = what.partition(": ")[2]
    own = [key for key in data if key in _DGL_COLUMNS]
    left_out += [f"{kind} {key} (used by DGL; copy it to another name to keep it)" for key in own]
    return named_arrays({key: data[key] for key in data if key not in own}, what)


def read_dgl_file(path: Path) -> COOGraph:
    """Read a file of ``dgl.save_graphs``; raise :class:`InputError` unless it holds exactly one graph."""
    with reading(path), open(path, "rb"):
        pass
    ((header, arrays),) = read_in_child("dgl_gt.partition.sources.dgl_graphs", path, "DGL")
    data = with_prefix("node/", arrays), with_prefix("edge/", arrays)
    coo = COOGraph(arrays["src"], arrays["dst"], header["num_nodes"], data[0], data[1], path.name)
    more: dict = {key: tuple(header[key]) for key in ("left_out", "notes")}
    if header["schema"] is not None:
        more["schema"] = Schema(header["schema"][0], {Relation(*names): count for *names, count in header["schema"][1]})
    return replace(coo, node_type=header["node_type"], node_names=arrays.get("node_names"), **more)


def records(path: Path) -> Iterator[tuple[dict, dict[str, np.ndarray]]]:
    """Yield the graph of a DGL file as the one record of :func:`dgl_gt.partition.system.child_process.serve`."""
    dgl = import_optional("dgl", str(path), INSTALL_DGL)
    bound_memory(path.stat().st_size)
    try:
        graphs, labels = dgl.load_graphs(str(path))
        coo = from_dgl(_only_graph(graphs, str(path)), path.name)
    except (InputError, MemoryError):
        raise
    except Exception as error:  # a damaged file can raise anything
        raise InputError(f"{path} was not written by dgl.save_graphs, or is damaged ({first_line(error)})") from error
    left_out = [*coo.left_out, *(f"{key} (a label of the whole graph)" for key in labels)]
    data = {f"node/{key}": value for key, value in coo.node_data.items()}
    data |= {f"edge/{key}": value for key, value in coo.edge_data.items()}
    header: dict = {"num_nodes": coo.num_nodes, "left_out": left_out, "node_type": coo.node_type, "notes": coo.notes}
    schema, names = coo.schema, coo.node_names
    relations = [] if schema is None else [[*each, count] for each, count in schema.edges.items()]
    header["schema"] = None if schema is None else [dict(schema.nodes), relations]
    more = {} if names is None else {"node_names": names}
    yield header, {"src": coo.src, "dst": coo.dst, **more, **data}


def dgl_dataset(source: str) -> COOGraph:
    """Load ``dgl:NAME?raw_dir=DIR``; NAME is, for example, ``cora``, ``amazon_co_buy_computer`` or ``CoraGraphDataset``.

    ``raw_dir`` is the directory of DGL's data sets, by default ``$DGL_DOWNLOAD_DIR`` or ``~/.dgl``. DGL downloads data
    sets that are not there.
    """
    name, options = split_source_name(source, {"raw_dir": str})
    data = import_optional("dgl.data", source, INSTALL_DGL)
    classes = _dataset_classes(data)
    key = _short_name(name)
    if key not in classes:
        close = difflib.get_close_matches(key, classes, n=5, cutoff=0.5)
        names = f"similar names are {', '.join(close)}" if close else f"allowed are {', '.join(sorted(classes))}"
        raise InputError(f"{source!r}: dgl.data has no data set {name!r} with a single graph; {names}")
    parameters = inspect.signature(classes[key]).parameters
    if "raw_dir" not in parameters and options:
        raise InputError(f"{source!r}: this data set is generated and takes no raw_dir; leave raw_dir out")
    if "verbose" in parameters:
        options["verbose"] = False
    try:
        with contextlib.redirect_stdout(sys.stderr):  # DGL reports its downloads on stdout
            dataset = classes[key](**options)
            graphs = [dataset[i] for i in range(min(len(dataset), 2))]
    except (InputError, MemoryError):
        raise
    except Exception as error:  # errors of requests, zipfile and pickle, and plain exceptions
        raise InputError(
            f"{source!r}: DGL could not load or download it ({first_line(error)}); check the network, or name the "
            "directory that holds it with ?raw_dir="
        ) from error
    if len(graphs) == 2:
        raise InputError(f"{source!r}: this data set has {len(dataset)} graphs; choose one with a single graph")
    return from_dgl(_only_graph(graphs, source), source)


def _only_graph(graphs: list, name: str):
    if len(graphs) != 1:
        raise InputError(f"{name} holds {len(graphs)} graphs; it must hold exactly one: save the one you want alone")
    return graphs[0]


def _short_name(name: str) -> str:
    """Return the name of a data set or its class in lower case, without separators and the suffix "GraphDataset"."""
    plain = name.lower().replace("_", "").replace("-", "").removesuffix("dataset")
    return plain.removesuffix("graph") or plain


def _dataset_classes(data) -> dict[str, type]:
    """Return the classes of ``dgl.data`` that need no argument, by short name."""
    classes = {}
    for _, found in inspect.getmembers(data, inspect.isclass):
        needed = [
            parameter
            for parameter in list(inspect.signature(found.__init__).parameters.values())[1:]
            if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
        ]
        if issubclass(found, data.DGLDataset) and not needed and not inspect.isabstract(found):
            classes[_short_name(found.__name__)] = found
    return classes


if __name__ == "__main__":
    serve(sys.argv[2], records(Path(sys.argv[1])))
