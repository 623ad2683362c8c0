"""Any graph that attention takes -> CSC. DGL is imported only where the graph is one of its own."""

from .structure import CSC


def csc(graph, device=None):
    """Return the structure of `graph` as a :class:`CSC`, made once and kept on the graph.

    Parameters
    ----------
    graph : dgl.DGLGraph or CSC
        A DGL graph or block with one edge type, or a CSC, which passes through. Adding or removing edges or nodes
        makes the CSC anew at the next call.
    device : torch.device, optional
        Where the result lies; the graph's own device by default.

    Returns
    -------
    CSC

    Raises
    ------
    ValueError
        `graph` is neither, or has more or fewer than one edge type.
    ImportError
        `graph` is no CSC, and DGL cannot be imported.
    """
    if isinstance(graph, CSC):
        return graph if device is None else graph.to(device)
    from .dgl_graph import to_csc

    return to_csc(graph, device)
