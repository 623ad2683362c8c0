"""Any graph that attention takes -> CSC. DGL is imported only where the graph is a DGL graph."""

import sys

from .structure import CSC


def csc(graph, device=None):
    """Return the structure of `graph` as a :class:`CSC`, made once and kept on the graph.

    Parameters
    ----------
    graph : dgl.DGLGraph or CSC
        A DGL graph or block with one edge type, or a CSC, which is returned as it is. After edges or nodes are added or
        removed, the next call makes the CSC again.
    device : torch.device, optional
        Device of the result; the graph's own device by default.

    Returns
    -------
    CSC

    Raises
    ------
    ValueError
        `graph` is neither, or does not have exactly one edge type.
    """
    if isinstance(graph, CSC):
        return graph if device is None else graph.to(device)
    if not is_dgl_graph(graph):
        raise ValueError(f"graph is a {type(graph).__name__}; allowed: a DGLGraph, a DGL block, or a dgl_gt.CSC")
    from .dgl_graph import to_csc

    return to_csc(graph, device)


def is_dgl_graph(graph):
    """Return whether `graph` is a DGL graph or block, without importing DGL: whoever has one has imported it."""
    dgl = sys.modules.get("dgl")
    return dgl is not None and isinstance(graph, dgl.DGLGraph)
