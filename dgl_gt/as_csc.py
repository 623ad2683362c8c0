"""Any graph that attention takes -> CSC. It does not import DGL: whoever passes a DGL graph has done so."""

import sys

import torch

from .structure import CSC

_CACHE = "_dgl_gt_csc"


def csc(graph, device=None, num_nodes=None):
    """Return the structure of `graph` as a :class:`CSC`.

    That of a DGL graph is made once and kept on the graph. That of an ``edge_index`` is made at every call, because a
    tensor does not say that it has changed: call this function once, and pass its result to attention and layers.

    Parameters
    ----------
    graph : dgl.DGLGraph, CSC or torch.Tensor
        A DGL graph or block with one edge type; or a CSC, which is returned as it is; or an ``edge_index`` as in PyG,
        (2, E) int32 or int64, with the source of each edge in row 0 and the destination in row 1. After edges or nodes are
        added to a DGL graph or removed, the next call makes the CSC again.
    device : torch.device, optional
        Device of the result; the graph's own device by default.
    num_nodes : int, or pair of int, optional
        Number of nodes of an ``edge_index``, which needs it; or the numbers of sources and of destinations, where they are
        counted apart.

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
        made = _of_edge_index(graph, num_nodes)
        return made if device is None else made.to(device)
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
    return CSC.build(indptr.long(), indices, num_src, edge_ids=_unless_in_order(edge_ids.long()))


@torch.inference_mode(False)
def _of_edge_index(edge_index, num_nodes):
    if edge_index.dim() != 2 or len(edge_index) != 2 or edge_index.dtype not in (torch.int32, torch.int64):
        raise ValueError(
            f"edge_index has shape {tuple(edge_index.shape)} and dtype {edge_index.dtype}; allowed: (2, edges), sources and "
            "destinations, and torch.int32 or torch.int64"
        )
    counts = num_nodes if isinstance(num_nodes, tuple) else (num_nodes, num_nodes)
    if len(counts) != 2 or any(type(count) is not int or count < 0 for count in counts):
        raise ValueError(
            f"num_nodes is {num_nodes!r}; an edge_index needs the number of nodes, or a pair of the numbers of sources and "
            "of destinations: pass dgl_gt.csc(edge_index, num_nodes=...)"
        )
    for ends, ids, count in zip(("sources", "destinations"), edge_index, counts):
        low, high = (int(bound) for bound in torch.aminmax(ids)) if len(ids) else (0, -1)
        if low < 0 or high >= count:
            raise ValueError(
                f"the {ends} in edge_index span {low} to {high}; allowed: 0 to {count - 1}, because there are {count} "
                "nodes; fix the edges, or pass features of all nodes"
            )
    num_src, num_dst = counts
    source, destination = edge_index if max(counts) >= 2**31 else edge_index.int()
    order = torch.sort(destination, stable=True).indices  # a row's edges stay in the order of the columns
    indptr = torch.zeros(num_dst + 1, dtype=torch.int64, device=edge_index.device)
    torch.cumsum(torch.bincount(destination, minlength=num_dst), 0, out=indptr[1:])
    return CSC.build(indptr, source[order], num_src, edge_ids=_unless_in_order(order))


def _unless_in_order(ids):
    return None if torch.equal(ids, torch.arange(len(ids), device=ids.device)) else ids


def is_dgl_graph(graph):
    """Return whether `graph` is a DGL graph or block."""
    dgl = sys.modules.get("dgl")
    return dgl is not None and isinstance(graph, dgl.DGLGraph)
