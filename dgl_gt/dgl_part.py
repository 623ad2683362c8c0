"""One part of a graph as a DGL block or graph, on which DGL's convolutions train across ranks.

The one module of this package that imports DGL.
"""

import numbers
import os
from collections.abc import MutableMapping

import torch

from .ops.dispatch import edge_range

os.environ.setdefault("DGLBACKEND", "pytorch")  # without it, DGL prints a notice and writes into the home directory
try:
    import dgl
    from dgl.base import ALL, is_all
    from dgl.function import TargetCode
    from dgl.function.message import BinaryMessageFunction, CopyMessageFunction
    from dgl.heterograph import DGLBlock
except Exception as error:  # a DGL built for another torch raises OSError, RuntimeError or others, not ImportError
    raise ImportError(
        f"DGL cannot be imported ({type(error).__name__}: {error}). DGL's wheels on the package index go up to "
        "Python 3.11 (dgl 1.1.3); for newer Pythons and for GPUs, install one of the builds that "
        "https://www.dgl.ai/pages/start.html lists. Code that already has the structure needs no DGL: pass "
        "dgl_gt.CSC.build(indptr, indices, num_src)."
    ) from error


class _PartGraph(dgl.DGLGraph):
    """One part of a graph: the in-edges of its owned nodes, and the out-degrees of all held nodes.

    It refuses what DGL would compute wrongly from one part, such as a sum over the nodes of the graph. It also refuses
    changes of the structure, because other ranks would not know of them.
    """

    def __init__(self, *arguments, out_degrees=None, **options):  # DGL makes copies without them, and then adds them
        super().__init__(*arguments, **options)
        self._out_degrees = out_degrees

    def out_degrees(self, u=ALL, etype=None):
        """Return out-degrees in the whole graph of all sources, or of those in ``u``; int64, (N_src,) or (len(u),)."""
        degrees = self._out_degrees[: self.num_src_nodes()].to(self.device, self.idtype)
        if is_all(u):
            return degrees
        if isinstance(u, numbers.Integral):
            return int(degrees[u])
        return degrees[torch.as_tensor(u, device=degrees.device)]

    def batch_num_nodes(self, ntype=None):
        """Refused: a readout or a normalisation by graph would see this part alone."""
        raise NotImplementedError(
            "this is one part of a graph, so its number of nodes and sums over its nodes are not those of the whole "
            "graph; use sg.manifest['nodes'] and sg.comm.all_reduce_sum instead of DGL's batches and readouts"
        )

    def clone(self):
        """Refused: DGL clones a graph to change its edges, and the other ranks would not know of the change."""
        raise NotImplementedError(
            "the edges of one part of a graph cannot be changed; change the graph and partition it again, for instance "
            "with --self-loops. To get a copy with its own node and edge data, use local_var()"
        )

    add_edges = remove_edges = add_nodes = remove_nodes = lambda self, *args, **options: self.clone()

    def __getitem__(self, key):
        """Return this graph for its one relation, because a slice made by DGL would lose the degrees."""
        super().__getitem__(key)  # it refuses an unknown relation
        return self


def _announced(block, message_func):
    """Announce the source rows that a message function reads: once forward, and once for the gradient of each end."""
    rows = [block.srcdata[field] for field in _source_fields(message_func, block.srcdata)]
    columns = sum(x[0].numel() if len(x) else 0 for x in rows)
    itemsize = max((x.element_size() for x in rows), default=4)
    return edge_range(block.num_edges(), block.num_dst_nodes(), block.num_src_nodes(), 1, columns, itemsize, passes=3)


class PartBlock(_PartGraph):
    """A DGL block of one part of a graph: sources are the held rows, destinations the owned rows, which come first.

    It is not a subclass of ``DGLBlock``. DGL refuses to reverse a block, which is right, because out-edges lie on other
    ranks, too; but ``EdgeWeightNorm`` would turn a ``DGLBlock`` into a plain graph first, and sum this rank's weights
    alone.
    """

    is_block = True
    __repr__ = DGLBlock.__repr__

    def update_all(self, message_func, reduce_func, apply_node_func=None, etype=None):
        """See ``DGLGraph.update_all``."""
        with _announced(self, message_func):
            super().update_all(message_func, reduce_func, apply_node_func, etype)

    def apply_edges(self, func, edges=ALL, etype=None):
        """See ``DGLGraph.apply_edges``."""
        with _announced(self, func):
            super().apply_edges(func, edges, etype)

    def _set_n_repr(self, ntid, u, data):
        """Set node data. If destinations are given data of all held rows, they take the first, as ``EGATConv`` expects."""
        if ntid == self.get_ntype_id_from_dst(self.dsttypes[0]) and is_all(u):
            held, owned = self.num_src_nodes(), self.num_dst_nodes()
            data = {key: value[:owned] if len(value) == held else value for key, value in data.items()}
        super()._set_n_repr(ntid, u, data)


class OwnedGraph(_PartGraph):
    """One part of a graph as a homogeneous DGL graph of its owned nodes; it fetches remote rows that its edges read.

    Node data have one row for each owned node. Node data that are set travel at once to the ranks that hold copies, and
    their gradients travel back in backward. So every rank must set the same node data in the same order, as layers that
    run on every rank do. A tensor that is changed in place must be set again. Edges and their sources are numbered as
    in the block.
    """

    is_block = False
    is_homogeneous = True

    def __init__(self, *arguments, pull=None, **options):
        super().__init__(*arguments, **options)
        self._pull = pull

    def __repr__(self):
        return f"Graph(num_nodes={self.num_nodes()}, num_edges={self.num_edges()})"

    def num_nodes(self, ntype=None):
        """Return the number of owned nodes."""
        return self.num_dst_nodes()

    number_of_nodes = num_src_nodes = number_of_src_nodes = num_nodes

    @property
    def nodes(self):
        """``nodes()`` gives the owned nodes, counted from 0."""
        return _OwnedNodes(self)

    srcnodes = nodes

    @property
    def ndata(self):
        """Node data of the owned nodes; data that are set here travel to the other ranks."""
        return _NodeData(super().dstdata, super().srcdata, self._pull)

    srcdata = dstdata = ndata

    def apply_edges(self, func, edges=ALL, etype=None):
        """See ``DGLGraph.apply_edges``."""
        self.ndata.fetch(func)
        block = self._as_block()
        with _announced(block, func):
            block.apply_edges(func, edges)

    def update_all(self, message_func, reduce_func, apply_node_func=None, etype=None):
        """See ``DGLGraph.update_all``."""
        data = self.ndata
        data.fetch(message_func)
        before = dict(data)
        block = self._as_block()
        with _announced(block, message_func):
            block.update_all(message_func, reduce_func, apply_node_func)
        data.forget_copies(key for key, value in data.items() if value is not before.get(key))

    def _as_block(self):
        """Return a block with the same data."""
        types = (self.srctypes, self.dsttypes), self.etypes
        return DGLBlock(self._graph, *types, self._node_frames, self._edge_frames)

    def _refuse(self, *args, **options):
        raise NotImplementedError(
            "sg.graph runs update_all and apply_edges only; to pass messages in other ways, use sg.block with sg.pull"
        )

    multi_update_all = pull = push = send_and_recv = prop_nodes = prop_edges = _refuse


class _OwnedNodes:
    def __init__(self, graph):
        self._graph = graph

    def __call__(self, ntype=None):
        return self._graph.dstnodes()

    def __getitem__(self, ntype):  # DGL calls it to reverse a graph, for example
        raise NotImplementedError(
            "sg.graph holds only the in-edges of its own nodes, so DGL can neither reverse it nor sum over its nodes; "
            "compute values that need the whole graph before partitioning and store them as node or edge data, or use "
            "sg.comm.all_reduce_sum"
        )


class _NodeData(MutableMapping):
    """Node data of the owned nodes, together with those of the held rows, which edges read."""

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
        """Fetch the rows that a message function reads at sources, where an earlier ``update_all`` has changed them."""
        for key in _source_fields(message_func, self):
            if key not in self._held:
                self._held[key] = self._pull(self._owned[key])

    def forget_copies(self, keys) -> None:
        """Drop copies of values that have changed; they travel when an edge reads them."""
        for key in keys:
            self._held.pop(key, None)


def _source_fields(message_func, all_fields) -> list:
    """Return the names of the node data that a message function reads at sources; all names for a user's function."""
    if isinstance(message_func, BinaryMessageFunction):
        sides = [(message_func.lhs, message_func.lhs_field), (message_func.rhs, message_func.rhs_field)]
    elif isinstance(message_func, CopyMessageFunction):
        sides = [(message_func.target, message_func.in_field)]
    else:
        return list(all_fields)
    return [field for target, field in sides if target == TargetCode.SRC]


def part_graph(csc, out_degrees, pull=None):
    """Return one part of a graph without data, as a DGL block, or with ``pull`` as a graph of its owned nodes.

    Edges are those of a CSC, in the same order. The destinations are the first source rows, as DGL's convolutions
    expect. ``out_degrees``, int64 (N_src,), are those in the whole graph. ``pull`` returns the rows of the sources for
    rows of the destinations; every rank calls it.
    """
    # DGL accepts a structure without edge ids, but then some backward passes fail.
    ids = torch.arange(csc.num_edges, device=csc.device)
    structure = ("csc", (csc.indptr, csc.indices.long(), ids))
    block = dgl.create_block(structure, num_src_nodes=csc.num_src, num_dst_nodes=csc.num_dst)
    kind, more = (PartBlock, {}) if pull is None else (OwnedGraph, {"pull": pull})
    return kind(block._graph, (block.srctypes, block.dsttypes), block.etypes, out_degrees=out_degrees, **more)


def relation_block(edge_index, num_src, num_dst, out_degrees):
    """Return the edges of one relation as a DGL block, in the order of ``edge_index``; see :func:`part_graph`."""
    block = dgl.create_block(tuple(edge_index), num_src_nodes=num_src, num_dst_nodes=num_dst)
    return PartBlock(block._graph, (block.srctypes, block.dsttypes), block.etypes, out_degrees=out_degrees)
