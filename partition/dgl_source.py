"""Graphs that come by way of DGL: a DGLGraph, a file of ``save_graphs``, a data set of ``dgl.data``."""

from __future__ import annotations

import contextlib
import difflib
import inspect
import sys
from pathlib import Path

import numpy as np

from .errors import InputError
from .files import first_line, need, nonempty, reading, split_name
from .raw import RawGraph

INSTALL = "pip install 'dgl>=1.1.3' (wheels up to Python 3.11; see docs.dgl.ai for newer)"

# columns in which DGL notes where a subgraph's or converted graph's rows came from
_DGL_COLUMNS = ("_ID", "_TYPE", "__orig__")


def from_dgl(graph, name: str = "DGLGraph") -> RawGraph:
    """Take over a homogeneous DGLGraph: its edges in edge-id order, its node and edge data under their own names.

    Columns that DGL adds for its own use (``_ID``, ``_TYPE``, ``__orig__``) are left out. Tensors on the CPU are
    shared, not copied.

    Raises
    ------
    InputError
        A heterogeneous graph or a block; data that numpy has no type for, such as bfloat16.
    """
    if graph.is_block:
        raise InputError(f"{name}: a DGL block is no whole graph; load the graph that it was sampled from")
    if not graph.is_homogeneous:
        raise InputError(
            f"{name}: a graph of node types {graph.ntypes} and edge types {graph.etypes}; only homogeneous graphs can "
            "be loaded: convert it with dgl.to_homogeneous first"
        )
    src, dst = (_array(ids, name, "node ids") for ids in graph.edges(order="eid"))
    node_data = {key: _array(value, name, key) for key, value in graph.ndata.items() if key not in _DGL_COLUMNS}
    edge_data = {key: _array(value, name, key) for key, value in graph.edata.items() if key not in _DGL_COLUMNS}
    return RawGraph(src, dst, graph.num_nodes(), node_data, edge_data, name)


def read_dgl_file(path: Path) -> RawGraph:
    """Read the one graph of a file by ``dgl.save_graphs``; :class:`InputError` where there are more, or none."""
    with reading(path), open(path, "rb"):  # DGL's own words for these errors are a C++ stack trace
        pass
    dgl = need("dgl", str(path), INSTALL)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            graphs, _ = dgl.load_graphs(str(path))
    except (dgl.DGLError, RuntimeError, MemoryError) as error:
        raise InputError(f"{path} is not a file of dgl.save_graphs, or is damaged; save the graph again") from error
    return from_dgl(_only(graphs, str(path)), path.name)


def dgl_dataset(source: str) -> RawGraph:
    """Load ``dgl:NAME?raw_dir=DIR``, NAME as in ``cora``, ``amazon_co_buy_computer`` or ``CoraGraphDataset``.

    ``raw_dir`` is where DGL keeps its data sets, by default ``$DGL_DOWNLOAD_DIR`` or ``~/.dgl``; DGL downloads what is
    not there.

    Raises
    ------
    InputError
        An unknown name, a data set of several or heterogeneous graphs, one that cannot be downloaded.
    """
    name, options = split_name(source, {"raw_dir": nonempty})
    data = need("dgl.data", source, INSTALL)
    classes = _dataset_classes(data)
    key = _plain(name)
    if key not in classes:
        close = difflib.get_close_matches(key, classes, n=5, cutoff=0.5)
        names = f"close names are {', '.join(close)}" if close else f"allowed are {', '.join(sorted(classes))}"
        raise InputError(f"{source!r}: dgl.data has no data set {name!r} of one graph; {names}")
    parameters = inspect.signature(classes[key].__init__).parameters
    if "raw_dir" not in parameters and options:
        raise InputError(f"{source!r}: this data set is generated and takes no raw_dir; leave it out")
    if "verbose" in parameters:
        options["verbose"] = False
    try:
        with contextlib.redirect_stdout(sys.stderr):  # DGL reports its downloads on stdout
            dataset = classes[key](**options)
            graphs = [dataset[i] for i in range(min(len(dataset), 2))]
    except Exception as error:  # data sets raise anything: requests', zipfile's, pickle's and bare exceptions
        raise InputError(
            f"{source!r}: DGL could not load or download it ({first_line(error)}); check the network, or put the "
            "data set where ?raw_dir= says"
        ) from error
    if len(graphs) == 2:
        raise InputError(f"{source!r}: a data set of {len(dataset)} graphs; choose one of a single graph")
    return from_dgl(_only(graphs, source), source)


def _only(graphs: list, name: str):
    if len(graphs) != 1:
        raise InputError(f"{name} holds {len(graphs)} graphs; exactly one is allowed: save the one you want by itself")
    return graphs[0]


def _array(tensor, name: str, key: str) -> np.ndarray:
    tensor = tensor.detach().cpu()
    try:
        return tensor.numpy()
    except TypeError:
        raise InputError(
            f"{name}: {key!r} is {tensor.dtype}, which numpy does not have; convert it, say with .float()"
        ) from None


def _plain(name: str) -> str:
    """A class's or user's name without case, separators and the endings that every class carries."""
    plain = name.lower().replace("_", "").replace("-", "").removesuffix("dataset")
    return plain.removesuffix("graph") or plain


def _dataset_classes(data) -> dict[str, type]:
    """The data sets of ``dgl.data`` that need no argument, by plain name."""
    classes = {}
    for _, found in inspect.getmembers(data, inspect.isclass):
        needed = [
            parameter
            for parameter in list(inspect.signature(found.__init__).parameters.values())[1:]
            if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
        ]
        if issubclass(found, data.DGLDataset) and not needed and not inspect.isabstract(found):
            classes[_plain(found.__name__)] = found
    return classes
