"""DGL graphs and blocks -> CSC, and back. The one module of this package that imports DGL."""

import numbers
import os
from collections.abc import MutableMapping

import torch

from .structure import CSC

os.environ.setdefault("DGLBACKEND", "pytorch")  # unset, DGL's import prints a notice and writes into the home directory
try:
    import dgl
    from dgl.base import ALL, is_all
    from dgl.function import TargetCode
    from dgl.function.message import BinaryMessageFunction, CopyMessageFunction
    from dgl.heterograph import DGLBlock
except Exception as error:  # a DGL built for another torch dies with OSError, RuntimeError and others, not ImportError
    raise ImportError(
        f"DGL cannot be imported ({type(error).__name__}: {error}). DGL's wheels on the package index go up to "
        "Python 3.11 (dgl 1.1.3); for newer Pythons, and for GPUs, DGL publishes its own builds: see "
        "https://www.dgl.ai/pages/start.html. Code that holds the structure already needs no DGL: pass "
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
        Where the result lies; the graph's own device by default. A copy is kept for each device asked for.

    Returns
    -------
    CSC
        ``edge_ids`` are the graph's edge ids, and also the key of dropout.

    Raises
    ------
    ValueError
        `graph` is not a DGL graph or has more or fewer than one edge type.
    """
    if not isinstance(graph, dgl.DGLGraph):
        raise ValueError(f"graph is a {type(graph).__name__}; allowed: a DGLGraph, a DGL block, or a dgl_gt.CSC")
    if len(graph.canonical_etypes) != 1:
        raise ValueError(
            f"graph has {len(graph.canonical_etypes)} edge types {graph.canonical_etypes}; allowed: exactly one. "
            "Pass one relation, graph[etype], or a homogeneous form, dgl.to_homogeneous(graph)"
        )
    # DGL puts a new index object in place at every change of structure, in place or not, and copies this attribute
    # along with all others when it copies a graph. So the entry holds its index and counts for that one alone.
    index, home, by_device = getattr(graph, _CACHE, (None, None, None))
    if index is not graph._graph:
        made = _build(graph)
        home, by_device = made.device, {made.device: made}
        setattr(graph, _CACHE, (graph._graph, home, by_device))
    device = home if device is None else torch.device(device)
    if device not in by_device:
        by_device[device] = by_device[home].to(device)
    return by_device[device]


@torch.inference_mode(False)  # what is kept on the graph serves training, too
def _build(graph):
    indptr, indices, edge_ids = graph.adj_tensors("csc")
    num_src = graph.num_src_nodes(graph.canonical_etypes[0][0])
    in_order = len(edge_ids) == 0 or torch.equal(edge_ids.long(), torch.arange(len(edge_ids), device=edge_ids.device))
    return CSC.build(indptr.long(), indices, num_src, edge_ids=None if in_order else edge_ids.long())


class _PartGraph(dgl.DGLGraph):
    """One part of a graph: the in-edges of its owned nodes, and the out-degrees of all held nodes.

    What DGL would compute wrongly from one part, such as a sum over the nodes of the graph, is refused. The structure
    does not change: other ranks would not know.
    """

    def out_degrees(self, u=ALL, etype=None):
        """Out-degrees in the whole graph of the sources, or of those in ``u``; int64, (N_src,) or (len(u),)."""
        degrees = self._out_degrees[: self.num_src_nodes()].to(self.device, self.idtype)
        if is_all(u):
            return degrees
        if isinstance(u, numbers.Integral):
            return int(degrees[u])
        return degrees[torch.as_tensor(u, device=degrees.device)]

    def batch_num_nodes(self, ntype=None):
        """Refused: a readout or a normalisation by graph would see this part alone."""
        raise NotImplementedError(
            "this is one part of a graph: neither its number of nodes nor a sum over them is that of the whole graph; "
            "use sg.manifest['nodes'] and sg.comm.all_reduce_sum, and no batches or readouts of DGL's"
        )

    def clone(self):
        """Refused: DGL clones a graph in order to change its edges, of which the other ranks would not know."""
        raise NotImplementedError(
            "the edges of one part of a graph cannot be changed: change the graph and partition it again, for instance "
            "with --self-loops; for a copy with node and edge data of its own use local_var()"
        )

    add_edges = remove_edges = add_nodes = remove_nodes = lambda self, *args, **options: self.clone()

    def __getitem__(self, key):
        """This graph, for its one relation: a slice that DGL makes would lose the degrees."""
        super().__getitem__(key)  # which refuses an unknown relation
        return self


class PartBlock(_PartGraph):
    """A DGL block of one part of a graph: sources are the held rows, destinations the owned rows, which come first.

    Not a subclass of ``DGLBlock``: DGL refuses to reverse a block, as it must, since out-edges lie on other ranks, too;
    but ``EdgeWeightNorm`` would turn a ``DGLBlock`` into a plain graph first, and sum the weights that are here.
    """

    is_block = True
    __repr__ = DGLBlock.__repr__

    def _set_n_repr(self, ntid, u, data):
        """Of data of all held rows, destinations take the first, theirs: ``EGATConv`` leaves that to the block."""
        if ntid == self.get_ntype_id_from_dst(self.dsttypes[0]) and is_all(u):
            held, owned = self.num_src_nodes(), self.num_dst_nodes()
            data = {key: value[:owned] if len(value) == held else value for key, value in data.items()}
        super()._set_n_repr(ntid, u, data)


class OwnedGraph(_PartGraph):
    """One part of a graph as a homogeneous DGL graph of its owned nodes, which fetches what edges from elsewhere read.

    Node data have one row for each owned node. Node data that are set travel at once to the ranks that hold copies, and
    their gradients come home in backward, so every rank must set the same node data in the same order, as layers that
    run on every rank do; a tensor that is changed in place must be set again. Edges and their sources are numbered as
    in the block.
    """

    is_block = False
    is_homogeneous = True

    def __repr__(self):
        return f"Graph(num_nodes={self.num_nodes()}, num_edges={self.num_edges()})"

    def num_nodes(self, ntype=None):
        """The number of owned nodes."""
        return self.num_dst_nodes()

    number_of_nodes = num_src_nodes = number_of_src_nodes = num_nodes

    @property
    def nodes(self):
        """``nodes()`` gives the owned nodes, counted from 0."""
        return _OwnedNodes(self)

    srcnodes = nodes

    @property
    def ndata(self):
        """Node data of the owned nodes; what is set here travels."""
        return _NodeData(super().dstdata, super().srcdata, self._pull)

    srcdata = dstdata = ndata

    def apply_edges(self, func, edges=ALL, etype=None):
        """See ``DGLGraph.apply_edges``."""
        self.ndata.fetch(func)
        self._as_block().apply_edges(func, edges)

    def update_all(self, message_func, reduce_func, apply_node_func=None, etype=None):
        """See ``DGLGraph.update_all``."""
        data = self.ndata
        data.fetch(message_func)
        before = dict(data)
        self._as_block().update_all(message_func, reduce_func, apply_node_func)
        data.forget_copies(key for key, value in data.items() if value is not before.get(key))

    def _as_block(self):
        """A block with the same data."""
        types = (self.srctypes, self.dsttypes), self.etypes
        return DGLBlock(self._graph, *types, self._node_frames, self._edge_frames)

    def _refuse(self, *args, **options):
        raise NotImplementedError(
            "sg.graph runs update_all and apply_edges; for another way of passing messages use sg.block with sg.pull"
        )

    multi_update_all = pull = push = send_and_recv = prop_nodes = prop_edges = _refuse


class _OwnedNodes:
    def __init__(self, graph):
        self._graph = graph

    def __call__(self, ntype=None):
        return self._graph.dstnodes()

    def __getitem__(self, ntype):  # which is how DGL reverses a graph, for one
        raise NotImplementedError(
            "sg.graph holds the in-edges of its own nodes alone, so DGL can neither reverse it nor sum over its nodes; "
            "compute what needs the whole graph before partitioning and store it as node or edge data, or use "
            "sg.comm.all_reduce_sum"
        )


class _NodeData(MutableMapping):
    """Node data of the owned nodes, and beside them those of the held rows, which edges read."""

    def __init__(self, owned, held, pull):
        self._owned, self._held, self._pull = owned, held, pull

    def __getitem__(self, key):
        return self._owned[key]

    def __setitem__(self, key, value):
        self._owned[key] = value
        self._held[key] = self._pull(value)

    def __delitem__(self, key):
        del self._owned[key]
        self.forget_copies([key])

    def __iter__(self):
        return iter(self._owned)

    def __len__(self):
        return len(self._owned)

    def fetch(self, message_func) -> None:
        """Bring what a message function reads at sources and an earlier ``update_all`` has made."""
        for key in _source_fields(message_func, self):
            if key not in self._held:
                self._held[key] = self._pull(self._owned[key])

    def forget_copies(self, keys) -> None:
        """Of values that have changed; they travel when an edge reads them."""
        for key in keys:
            self._held.pop(key, None)


def _source_fields(message_func, all_fields) -> list:
    """The node data that a message function reads at the source of an edge; of a user's function, all."""
    if isinstance(message_func, BinaryMessageFunction):
        sides = (message_func.lhs, message_func.lhs_field), (message_func.rhs, message_func.rhs_field)
    elif isinstance(message_func, CopyMessageFunction):
        sides = ((message_func.target, message_func.in_field),)
    else:
        return list(all_fields)
    return [field for target, field in sides if target == TargetCode.SRC]


def to_block(csc, out_degrees):
    """Return one part of a graph as a DGL block, with the edges of a CSC, in its order; no data.

    Parameters
    ----------
    csc : CSC
        N_dst <= N_src, the destinations being the first source rows, as DGL's convolutions expect.
    out_degrees : Tensor, int64, (N_src,)
        Of the source rows in the whole graph.

    Returns
    -------
    PartBlock
    """
    return _part_graph(PartBlock, csc, out_degrees)


def to_owned_graph(csc, out_degrees, pull):
    """Return one part of a graph as a graph of its owned nodes; see :func:`to_block`.

    Parameters
    ----------
    pull : callable
        Rows of the destinations in, rows of the sources out; every rank calls it.

    Returns
    -------
    OwnedGraph
    """
    graph = _part_graph(OwnedGraph, csc, out_degrees)
    graph._pull = pull
    return graph


def _part_graph(kind, csc, out_degrees):
    # DGL lets edge ids be left out, but then some backward passes fail.
    ids = torch.arange(csc.num_edges, device=csc.device)
    structure = ("csc", (csc.indptr, csc.indices.long(), ids))
    block = dgl.create_block(structure, num_src_nodes=csc.num_src, num_dst_nodes=csc.num_dst)
    graph = kind(block._graph, (block.srctypes, block.dsttypes), block.etypes)
    graph._out_degrees = out_degrees
    return graph
