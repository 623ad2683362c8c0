"""ShardedGraph: one rank's part of a graph, and how it reaches the others."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dgl_gt.comm.group import Comm
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.figures.strategies import StrategyRules
from dgl_gt.partition.schema import Schema
from dgl_gt.torch_internals import is_inside_ddp

from .halo import Halo, deep_views
from .shard import Shard, pull
from .streamed import Stream
from .view import View


class OfTypes:
    """The nodes, or the edges, of a graph, as ``DGLGraph.nodes`` and ``DGLGraph.edges``: called, or asked for a type."""

    def __init__(self, all_of: Callable, data: dict[str, Tensor], name_of: Callable[[Any], str]):
        self._all_of, self._data, self._name_of = all_of, data, name_of

    def __call__(self):
        return self._all_of()

    def __getitem__(self, name) -> OfType:
        prefix = f"{self._name_of(name)}/"
        columns = {key.removeprefix(prefix): value for key, value in self._data.items() if key.startswith(prefix)}
        return OfType(columns)


class OfType(NamedTuple):
    """The data of a type's nodes, or of a relation's edges."""

    data: dict[str, Tensor]


class ShardedGraph:
    """One rank's part of a partitioned graph, made by :func:`dgl_gt.load`; layers take it in place of a ``DGLGraph``.

    Methods that a ``DGLGraph`` has, too, describe this rank's part: its nodes are the owned nodes, as in ``ndata``. The
    numbers of the whole graph are ``manifest["nodes"]`` and ``manifest["edges"]``. Only the degrees are those of the
    whole graph.

    Attributes
    ----------
    ndata : dict of str to Tensor, (N_owned, ...)
        Node data of the owned rows.
    edata : dict of str to Tensor, (E, ...)
        Edge data of this part's edges, in the order in which layers expect ``attn_bias``.
    node_ids : Tensor, int64, (N_owned,)
        The user's ids of the owned rows.
    edge_ids : Tensor, int64, (E,)
        The user's ids of the edges.
    manifest : dict
        Description of the whole partition: ``nodes``, ``edges``, ``parts``, ``source``, ``quality`` and more, see
        docs/format.md.
    comm : Comm
        The ranks; ``comm.rank`` is the number of this part.
    strategy : StrategyRules
        How rows travel between ranks. ``strategy.name`` is one of ``local``, ``halo_h``, ``halo_kv``, ``gather``,
        ``heads``, ``ring``, ``mesh=M`` and ``mirror``, and never changes.
    depth : int
        Number of layers between exchanges, see :meth:`views`.
    stream : Stream, optional
        The pieces in which layers run, where ``load`` was given ``spill``.
    """

    stream: Stream | None = None

    def __init__(self, shard: Shard, comm: Comm, strategy: StrategyRules, make_view: Callable[[Shard], View]):
        """Take a complete shard, its ranks, how they exchange, and a function that makes a view of a shard."""
        assert len(shard.degrees) == shard.rows[-1]
        self._shard, self._make_view = shard, make_view
        self.strategy = strategy
        self.comm = comm
        self._view = make_view(shard)
        self.depth = shard.depth
        self.ndata = shard.node_data
        self.edata = shard.edge_data
        self.node_ids = shard.node_ids[: shard.num_owned]
        self.edge_ids = shard.edge_ids[: shard.edges[0]]
        self.manifest = shard.manifest
        self._has_warned = self._takes_held_rows = False

    def __repr__(self):
        shard, whole = self._shard, self.manifest
        copies = "mirror" if shard.has_mirrors else "halo"
        return (
            f"ShardedGraph(part {shard.part} of {whole['parts']}: {shard.num_owned} owned and "
            f"{shard.num_held - shard.num_owned} {copies} rows, of {whole['nodes']} nodes, "
            f"{shard.edges[0]} of {whole['edges']} edges, strategy={self.strategy.name!r}, depth={self.depth})"
        )

    def __getattr__(self, name):
        if hasattr(type(self), name):  # a property that failed: its own error is the one to see
            return object.__getattribute__(self, name)
        raise AttributeError(
            f"a ShardedGraph has no {name!r}; it has sg.ndata, sg.edata and sg.edges(), whose sources are rows of sg.pull(h). "
            "Layers of dgl_gt.nn take the ShardedGraph itself, and a layer of DGL takes its block or the graph of its "
            "owned nodes: use conv(sg.block, sg.pull(h)), or conv(sg.graph, h)"
        )

    def __enter__(self) -> ShardedGraph:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        """Wait until the process group has released this graph's tensors; the interpreter does the same before it ends.

        ``with dgl_gt.load(directory) as sg:`` calls it at its end.
        """
        self.comm.close()

    @property
    def view(self) -> View:
        """What a layer is given of this graph, for an exchange in every layer."""
        self._warn_inside_ddp()
        return self._view

    @property
    def device(self) -> torch.device:
        """The device of the tensors."""
        return self.node_ids.device

    def to(self, device) -> ShardedGraph:
        """Return this part with its tensors on a device; the same object if they are there already."""
        device = checked_device(device)
        if device == self.device:
            return self
        return ShardedGraph(self._shard.to(device), self.comm, self.strategy, self._make_view)

    @property
    def schema(self) -> Schema | None:
        """The types of nodes and edges, with their numbers in the whole graph; None where there is one of each."""
        return self._shard.schema

    @property
    def ntypes(self) -> list[str]:
        """The names of the node types of a typed graph."""
        return [*self._view.checked_schema.node_types]

    @property
    def canonical_etypes(self) -> list[tuple[str, str, str]]:
        """The relations of a typed graph: source type, name and destination type."""
        return [*self._view.checked_schema.relations]

    def rows(self, node_type: str) -> Tensor:
        """Return the rows of the owned nodes of a type, int64, ascending."""
        return self._view.owned_types.group(self._view.checked_schema.node_type(node_type))

    def edge_rows(self, relation) -> Tensor:
        """Return the rows of ``edata`` that a relation's edges have, int64, ascending."""
        return self._view.edges_by_relation.group(self._view.checked_schema.relation(relation))

    @property
    def nodes(self) -> OfTypes:
        """``nodes[name].data``: node data of the owned nodes of a type. ``nodes()``: rows of all, int64, ``0 .. N_owned - 1``.

        For the user's ids see ``node_ids``.
        """
        return OfTypes(self._nodes, self.ndata, lambda name: self.ntypes[self._view.checked_schema.node_type(name)])

    @property
    def edges(self) -> OfTypes:
        """``edges[relation].data``: edge data of this part's edges of a relation. ``edges()``: the ends of all.

        The ends are sources and destinations, int64, (E,) each, in the order of ``edata``. They are numbers of held rows,
        which :meth:`pull` returns: ``h = sg.pull(h); h[src], h[dst]``. On an edge cut every destination is an owned row.
        """
        schema = self._view.checked_schema if self.schema else None
        return OfTypes(self._edges, self.edata, lambda name: str(schema.relations[schema.relation(name)]))

    def num_nodes(self) -> int:
        """Return N_owned, the number of nodes that this rank owns, and of rows of ``ndata``.

        ``manifest["nodes"]`` is the number of nodes of the whole graph.
        """
        return self._shard.num_owned

    def num_edges(self) -> int:
        """Return E, the number of edges of this part, and of rows of ``edata``.

        ``manifest["edges"]`` is the number of edges of the whole graph.
        """
        return self._shard.edges[0]

    def _nodes(self) -> torch.Tensor:
        return torch.arange(self.num_nodes(), device=self.device)

    def _edges(self) -> tuple[torch.Tensor, torch.Tensor]:
        csc = self._shard.csc()
        rows = torch.arange(csc.num_dst, device=self.device)
        return csc.indices.long(), torch.repeat_interleave(rows, csc.indptr.diff())

    @property
    def edge_index(self) -> torch.Tensor:
        """The edges of this part as layers of PyG take them, int64 (2, E): :meth:`edges` in one tensor.

        Sources are held rows and destinations owned rows: ``conv((sg.pull(h), h), sg.edge_index)``, or after
        :func:`dgl_gt.pyg.distribute` ``conv(h, sg.edge_index)``.
        """
        return torch.stack(self.edges())

    def in_degrees(self) -> torch.Tensor:
        """Return each owned node's in-degree in the whole graph, int64, (N_owned,)."""
        return self._shard.degrees[: self.num_nodes(), 0]

    def out_degrees(self) -> torch.Tensor:
        """Return each owned node's out-degree in the whole graph, int64, (N_owned,)."""
        return self._shard.degrees[: self.num_nodes(), 1]

    @cached_property
    def block(self):
        """This part as a DGL block, made at first use; sources are held rows, destinations owned rows. Needs DGL.

        With :meth:`pull`, DGL convolutions that take blocks train full-graph across ranks:
        ``conv(sg.block, sg.pull(h))``. The in- and out-degrees are those in the whole graph. A vertex cut has no block,
        and raises :class:`InputError`.
        """
        return self._as_dgl_graph()

    @cached_property
    def graph(self):
        """This part as a homogeneous ``DGLGraph`` of the owned nodes, made at first use. Needs DGL.

        For DGL convolutions that refuse blocks, or that reach over several hops: ``conv(sg.graph, h)`` takes and
        returns owned rows. Node data that the convolution sets are exchanged at once. The degrees are those in the
        whole graph. A vertex cut has no such graph, and raises :class:`InputError`.
        """
        return self._as_dgl_graph(self.pull)

    @torch.inference_mode(False)
    def _as_dgl_graph(self, pull=None):
        if self._shard.has_mirrors:
            raise InputError(
                "a vertex cut has no block and no graph, because the in-edges of one node lie on several ranks; partition with "
                "--cut edge"
            )
        from dgl_gt.dgl_part import part_graph

        return part_graph(self._shard.csc(), self._shard.degrees[: self._shard.num_held, 1], pull)

    @cached_property
    def srcdata(self) -> dict[str, torch.Tensor]:
        """Node data of all held rows, owned rows and ``depth`` hops of halo, (N_held, ...); read at first use."""
        return self._shard.held_node_data(self.depth)

    def taking_held_rows(self) -> ShardedGraph:
        """Return this graph for models that are given the rows of :attr:`srcdata` in place of owned rows.

        Where the shards hold the features of the halo, this saves the first exchange of a deep halo.
        """
        graph = copy.copy(self)
        graph._takes_held_rows = True
        return graph

    def views(self, layers: int) -> list[View]:
        """Return the view for each layer of a model; pass the list to the model in place of the graph.

        With a depth of 1, each layer gets :attr:`view`. With a halo of r hops, ranks exchange only before every r-th layer.
        That layer also computes as many halo rows as the layers until the next exchange need.
        """
        self._warn_inside_ddp()
        if self.depth == 1:
            return [self._view] * layers
        assert isinstance(self._view, Halo)
        return deep_views(self._view, layers, self._takes_held_rows)

    def kept_exchanges(self):
        """Return a pair of contexts for a checkpoint, so that computing a layer again does not exchange again.

        Use it as ``torch.utils.checkpoint.checkpoint(layer, ..., use_reentrant=False, context_fn=sg.kept_exchanges)``.
        For layers of dgl_gt, :func:`dgl_gt.nn.apply_activation_checkpoint` does so.
        """
        return self.comm.kept_exchanges()

    def pull(self, x: torch.Tensor) -> torch.Tensor:
        """Return held rows from owned rows, (N_owned, ...) -> (N_held, ...): the differentiable exchange by itself.

        Owned rows come first. The backward pass sums the gradients of halo rows at their owners. Every rank calls it.
        If ``x`` needs a gradient on one rank, every rank takes part in the backward pass. ``ValueError`` says that ``x``
        has another number of rows, and :class:`dgl_gt.RankError` that another rank has stopped.
        """
        self._warn_inside_ddp()
        if self.comm.parameter_check is not None:
            self.comm.parameter_check.at_pull(x)
        return pull(self._shard, self.comm, self.comm.agree_on_grad(x))

    def gather(self, x: torch.Tensor, to: int | None = None) -> torch.Tensor | None:
        """Return rows of all ranks in the user's node order, (N_owned, ...) -> (N, ...), without a gradient.

        Every rank calls it. With ``to``, only that rank gets the rows; the others get None and use no memory for them.
        """
        self._shard.check(x)
        return gather_by_id(self.comm, x.detach(), self.node_ids, self.manifest["nodes"], to)

    def read_links(self) -> dict[str, torch.Tensor]:
        """Read the links of ``dgl-gt partition --link-split``, integers (2, n) on the CPU by the name of the set; and ``new_ids``.

        They are the user's numbers of nodes. ``new_ids``, (N,), has the place of each node in the order of parts, see
        docs/format.md. :class:`InputError` says that the shards have no links, or that the file is damaged.
        """
        return self._shard.reader.links()

    def _warn_inside_ddp(self) -> None:
        """Warn, once for each graph, where a DistributedDataParallel runs the model."""
        if self._has_warned or not is_inside_ddp():
            return
        self._has_warned = True
        warnings.warn(
            "a ShardedGraph is used inside DistributedDataParallel, which divides gradients by the number of ranks; "
            "use the model itself, divide the loss by the number of rows of all ranks, and call "
            "sg.comm.sum_gradients(model.parameters()) after loss.backward()",
            stacklevel=3,
        )


def gather_by_id(comm: Comm, x: Tensor, ids: Tensor, count: int, to: int | None = None) -> Tensor | None:
    """Return rows of all ranks by their ids from 0 to ``count`` - 1, (n, ...) -> (count, ...), see ``ShardedGraph.gather``."""
    rows = comm.gather_rows(x, to)
    order = comm.gather_rows(ids, to)
    if rows is None or order is None:
        return None
    gathered = x.new_empty((count, *x.shape[1:]))
    for some, piece in zip(order, rows):
        gathered.index_copy_(0, some, piece)
    return gathered


def checked_device(device) -> torch.device:
    """The device with its number, such as "cuda:0" for "cuda"; raise ``InputError`` unless this process can use it."""
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, ValueError, TypeError, AssertionError) as error:  # torch knows no such device, or finds none
        raise InputError(
            f"device is {device!r}; it must be a device that torch has here, such as 'cpu' or 'cuda:0': "
            f"{str(error).splitlines()[0]}"
        ) from None
