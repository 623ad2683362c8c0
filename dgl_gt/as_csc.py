"""Any graph that attention takes -> CSC. It does not import DGL: whoever passes a DGL graph has done so."""

import sys

import torch

from .edge_index import structure_of
from .structure import CSC

_CACHE = "_dgl_gt_csc"


def csc(graph, device=None, num_nodes=None):
    """Return the structure of `graph` as a :class:`CSC`, made once and kept for as long as the graph lives.

    Attention and layers that are given a graph call this function. For an ``edge_index`` a copy is kept, too, and
    compared at every call, so that changed edges are noticed.

    Parameters
    ----------
    graph : dgl.DGLGraph, CSC or torch.Tensor
        A DGL graph or block with one edge type; or a CSC, which is returned as it is; or an ``edge_index`` as in PyG,
        (2, E) int32 or int64, with the source of each edge in row 0 and the destination in row 1. After edges or nodes
        are added or removed, the next call makes the CSC again.
    device : torch.device, optional
        Device of the result; the graph's own device by default.
    num_nodes : int, or pair of int, optional
        Number of nodes of an ``edge_index``, which needs it; or the numbers of sources and of destinations, if these
        are numbered separately.

    Returns
    -------
    CSC
        ``edge_ids`` are the graph's edge ids, or the columns of the ``edge_index``. They are also the keys of dropout.

    Raises
    ------
    ValueError
        `graph` is none of these, does not have exactly one edge type, or is an ``edge_index`` of another shape or
        dtype, or with a node that is not in ``range(num_nodes)``.
    """
    if isinstance(graph, CSC):
        return graph if device is None else graph.to(device)
    if isinstance(graph, torch.Tensor):
        return structure_of(graph, num_nodes, device)
    if not is_dgl_graph(graph):
        raise ValueError(
            f"graph is a {type(graph).__name__}; allowed: a DGLGraph, a DGL block, a dgl_gt.CSC, or an edge_index, a "
            "tensor (2, edges) of whole numbers"
        )
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


def is_dgl_graph(graph):
    """Return whether `graph` is a DGL graph or block."""
    dgl = sys.modules.get("dgl")
    return dgl is not None and isinstance(graph, dgl.DGLGraph)
