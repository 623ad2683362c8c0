"""DGL graphs and blocks -> CSC. Only this module and ``dgl_part`` import DGL."""

import os

import torch

from .structure import CSC

os.environ.setdefault("DGLBACKEND", "pytorch")  # without it, DGL prints a notice and writes into the home directory
try:
    pass
except Exception as error:  # a DGL built for another torch raises OSError, RuntimeError or others, not ImportError
    raise ImportError(
        f"DGL cannot be imported ({type(error).__name__}: {error}). DGL's wheels on the package index go up to "
        "Python 3.11 (dgl 1.1.3); for newer Pythons and for GPUs, install one of the builds that "
        "https://www.dgl.ai/pages/start.html lists. Code that already has the structure needs no DGL: pass "
        "dgl_gt.CSC.build(indptr, indices, num_src)."
    ) from error

_CACHE = "_dgl_gt_csc"


def to_csc(graph, device=None):
    """Return the CSC of a DGL graph or block, made once and kept on the graph object.

    Parameters
    ----------
    graph : dgl.DGLGraph
        A graph or block with one edge type; homogeneous, or from one node type to another.
    device : torch.device, optional
        Device of the result; the graph's own device by default. One copy is kept for each device.

    Returns
    -------
    CSC
        Its ``edge_ids`` are the graph's edge ids, and also the key of dropout.

    Raises
    ------
    ValueError
        `graph` does not have exactly one edge type.
    """
    if len(graph.canonical_etypes) != 1:
        raise ValueError(
            f"graph has {len(graph.canonical_etypes)} edge types {graph.canonical_etypes}; allowed: exactly one. "
            "Pass one relation, graph[etype], or a homogeneous form, dgl.to_homogeneous(graph)"
        )
    # At every change of the structure, in place or not, DGL makes a new index object; and when it copies a graph, it
    # copies this attribute with all others. So the entry holds the index for which it is valid.
    index, home, by_device = getattr(graph, _CACHE, (None, None, None))
    if index is not graph._graph:
        made = _build(graph)
        home, by_device = made.device, {made.device: made}
        setattr(graph, _CACHE, (graph._graph, home, by_device))
    device = home if device is None else torch.device(device)
    if device not in by_device:
        by_device[device] = by_device[home].to(device)
    return by_device[device]


@torch.inference_mode(False)  # the result is kept on the graph, and training needs it, too
def _build(graph):
    indptr, indices, edge_ids = graph.adj_tensors("csc")
    num_src = graph.num_src_nodes(graph.canonical_etypes[0][0])
    in_order = len(edge_ids) == 0 or torch.equal(edge_ids.long(), torch.arange(len(edge_ids), device=edge_ids.device))
    return CSC.build(indptr.long(), indices, num_src, edge_ids=None if in_order else edge_ids.long())
