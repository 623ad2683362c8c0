"""ShardedGraph: one rank's part of a graph, and how it reaches the others."""

from __future__ import annotations

import reprlib
import warnings
from functools import cached_property

import torch
from torch.nn.parallel import DistributedDataParallel

from dgl_gt.comm.group import Comm
from dgl_gt.comm.transfer import kept_exchanges
from partition.errors import InputError
from partition.predict.step_time import Speeds
from partition.predict.strategies import AUTO, CHOICES, check_strategy
from partition.shards.counts import read_figures
from partition.shards.manifest import read_manifest, verify
from partition.system.units import counted

from .deep_halo import blocks
from .degrees import degrees
from .gather import Gather
from .halo import Halo, pull
from .heads import Heads
from .local import Local
from .mirror import Mirror
from .ring import Ring
from .shard import Shard, read_shard


class ShardedGraph:
    """One rank's part of a partitioned graph; layers take it in place of a ``DGLGraph``. Made by :func:`load`.

    Methods that a ``DGLGraph`` has, too, speak of this rank's part: its nodes are the owned ones, as in ``ndata``. The
    numbers of the whole graph are ``manifest["nodes"]`` and ``manifest["edges"]``. Only degrees are those of the whole.

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
        The whole partition: ``nodes``, ``edges``, ``parts``, ``source``, ``quality`` and more, see docs/format.md.
    comm : Comm
        The ranks; ``comm.rank`` is this part.
    strategy : Strategy
    depth : int
        Layers between exchanges, see :meth:`blocks`.
    """

    def __init__(self, shard: Shard, comm: Comm, make_strategy, degrees: torch.Tensor):
        """Take a shard, its ranks, a function that makes a shard's strategy, and :func:`~.degrees.degrees`."""
        self._shard, self._make_strategy, self._degrees = shard, make_strategy, degrees
        self.comm = comm
        self._strategy = make_strategy(shard)
        self.depth = shard.depth
        self.ndata = shard.node_data
        self.edata = shard.edge_data
        self.node_ids = shard.node_ids[: shard.num_owned]
        self.edge_ids = shard.edge_ids[: shard.edges[0]]
        self.manifest = shard.manifest
        self._has_warned = False

    def __repr__(self):
        shard, whole = self._shard, self.manifest
        copies = "mirror" if shard.cut == "vertex" else "halo"
        return (
            f"ShardedGraph(part {shard.part} of {whole['parts']}: {shard.num_owned} owned and "
            f"{shard.num_held - shard.num_owned} {copies} rows, of {whole['nodes']} nodes, "
            f"{shard.edges[0]} of {whole['edges']} edges, strategy={self._strategy.name!r}, depth={self.depth})"
        )

    def __getattr__(self, name):
        if hasattr(type(self), name):  # a property that failed: its own error is the one to see
            return object.__getattribute__(self, name)
        raise AttributeError(
            f"a ShardedGraph has no {name!r}; a layer of DGL's takes its block, or the graph of its owned nodes: "
            "use conv(sg.block, sg.pull(h)), or conv(sg.graph, h); layers of dgl_gt.nn take the ShardedGraph itself"
        )

    def __enter__(self) -> ShardedGraph:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        """Wait until the process group has let go of this graph's tensors; the end of the interpreter does the same.

        ``with dgl_gt.load(directory) as sg:`` calls it at the end.
        """
        self.comm.close()

    @property
    def strategy(self):
        """How attention crosses ranks."""
        self._warn_inside_ddp()
        return self._strategy

    @property
    def device(self) -> torch.device:
        """Where the tensors lie."""
        return self.node_ids.device

    def to(self, device) -> ShardedGraph:
        """This part with its tensors on a device; itself where they lie there already."""
        device = torch.device(device)
        if device == self.device:
            return self
        return ShardedGraph(self._shard.to(device), self.comm, self._make_strategy, self._degrees.to(device))

    def num_nodes(self) -> int:
        """N_owned, the nodes that this rank owns: the rows of ``ndata``. ``manifest["nodes"]`` counts those of all."""
        return self._shard.num_owned

    def num_edges(self) -> int:
        """E, the edges of this part: the rows of ``edata``. ``manifest["edges"]`` counts those of all parts."""
        return self._shard.edges[0]

    def nodes(self) -> torch.Tensor:
        """Rows of the owned nodes, int64, ``0 .. N_owned - 1``; ``node_ids`` holds the user's ids of them."""
        return torch.arange(self.num_nodes(), device=self.device)

    def edges(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Source and destination of this part's edges, int64, (E,) each, in the order of ``edata``.

        They are held rows, those of :meth:`pull`'s result: ``h = sg.pull(h); h[src], h[dst]``. On an edge cut every
        destination is an owned row.
        """
        csc = self._shard.csc()
        rows = torch.arange(csc.num_dst, device=self.device)
        return csc.indices.long(), torch.repeat_interleave(rows, csc.indptr.diff())

    def in_degrees(self) -> torch.Tensor:
        """In-degree in the whole graph of each owned node, int64, (N_owned,)."""
        return self._degrees[: self.num_nodes(), 0]

    def out_degrees(self) -> torch.Tensor:
        """Out-degree in the whole graph of each owned node, int64, (N_owned,)."""
        return self._degrees[: self.num_nodes(), 1]

    @cached_property
    @torch.inference_mode(False)
    def block(self):
        """This part as a DGL block (sources: held rows, destinations: owned rows), made at first use; needs DGL.

        With :meth:`pull`, DGL convolutions that take blocks train full-graph across ranks:
        ``conv(sg.block, sg.pull(h))``. Its in- and out-degrees are those in the whole graph.
        """
        from dgl_gt.dgl_graph import to_block

        return to_block(self._csc_of_in_edges(), self._degrees[:, 1])

    @cached_property
    def graph(self):
        """This part as a homogeneous ``DGLGraph`` of the owned nodes, made at first use; needs DGL.

        For DGL convolutions that refuse blocks, or that reach over several hops: ``conv(sg.graph, h)`` takes and gives
        owned rows. Node data that the convolution sets are exchanged there and then. Degrees are those in the whole
        graph.
        """
        from dgl_gt.dgl_graph import to_owned_graph

        return to_owned_graph(self._csc_of_in_edges(), self._degrees[:, 1], self.pull)

    def _csc_of_in_edges(self):
        if self._shard.cut == "vertex":
            raise InputError(
                "a vertex cut has no block: in-edges of one node lie on several ranks; partition with --cut edge"
            )
        return self._shard.csc()

    @cached_property
    def srcdata(self) -> dict[str, torch.Tensor]:
        """Node data of all held rows, owned and of ``depth`` hops, (N_held, ...); read from disk at first use."""
        return self._shard.held_node_data(self.depth)

    def blocks(self, layers: int, from_held: bool = False) -> list:
        """What each of so many layers sees, for a model that takes a list of blocks.

        With a depth of 1 that is the strategy at each. With a halo of r hops ranks exchange before every r-th layer
        only, which computes halo rows as well as its own, as many as the layers until the next exchange need.

        Parameters
        ----------
        layers : int
        from_held : bool
            The first layer is given the rows of :attr:`srcdata`, made of features that the shards hold, instead of
            owned rows: that spares the first exchange of a deep halo. Same on all ranks.
        """
        self._warn_inside_ddp()
        if self.depth == 1:
            return [self._strategy] * layers
        return blocks(self._strategy, layers, from_held)

    def kept_exchanges(self):
        """For ``torch.utils.checkpoint.checkpoint(layer, ..., use_reentrant=False, context_fn=sg.kept_exchanges)``:
        what the layer's exchanges brought is kept, where they would be repeated when backward computes it again."""
        return kept_exchanges(self.comm)

    def pull(self, x: torch.Tensor) -> torch.Tensor:
        """The differentiable exchange by itself: owned rows in, held rows out, (N_owned, ...) -> (N_held, ...).

        Owned rows come first. The backward pass sums the gradients of halo rows at their owners. Every rank calls it.
        Where ``x`` needs a gradient on one rank, every rank takes part in that.
        """
        self._warn_inside_ddp()
        return pull(self._shard, self.comm, self.comm.agree_on_grad(x))

    def gather(self, x: torch.Tensor, to: int | None = None) -> torch.Tensor | None:
        """Rows of all ranks in the user's node order, (N_owned, ...) -> (N, ...); no gradient. Every rank calls it.

        Every rank gets them, or rank ``to`` alone, and the others None and no memory filled.
        """
        self._shard.check_rows(x)
        rows = self.comm.gather_rows(x.detach(), to)
        order = self.comm.gather_rows(self.node_ids, to)
        if rows is None:
            return None
        gathered = x.new_empty((self.manifest["nodes"], *x.shape[1:]))
        for places, piece in zip(order, rows):
            gathered.index_copy_(0, places, piece)
        return gathered

    def _warn_inside_ddp(self) -> None:
        """Warn, once for a graph, where a DistributedDataParallel runs the model."""
        # torch has no public way to ask. If a later torch names this otherwise, the warning goes and nothing else.
        if getattr(DistributedDataParallel, "_active_ddp_module", None) is None or self._has_warned:
            return
        self._has_warned = True
        warnings.warn(
            "a ShardedGraph is used inside DistributedDataParallel, which divides gradients by the number of ranks: "
            "use the model itself, divide the loss by the number of rows of all ranks, and call "
            "sg.comm.sum_gradients(model.parameters()) after loss.backward()",
            stacklevel=3,
        )


@torch.inference_mode(False)  # its tensors are for training, too
def load(
    directory,
    strategy: str | None = None,
    depth: int = 1,
    group=None,
    device=None,
    *,
    overlap: bool = True,
    speeds: Speeds = Speeds(),
    timeout_s: float | None = None,
) -> ShardedGraph:
    """Load this rank's part of a shard directory; every rank of the group calls it, with the same arguments.

    Parameters
    ----------
    directory : path
        Made by ``dgl-gt partition``.
    strategy : str, optional
        How attention crosses ranks: ``halo`` (sends h or K,V, as :func:`partition.predict.step_time.halo_sends` says;
        ``halo_h`` and ``halo_kv`` force one form), ``gather``, ``heads`` or ``ring`` on an edge cut, ``mirror`` on a
        vertex cut, ``local`` on one part. By default ``halo`` or ``mirror``. All give the same numbers.
    depth : int
        Layers between exchanges, for ``halo`` on shards with as many hops of halo.
    group : torch.distributed.ProcessGroup, optional
        As many ranks as there are parts; by default all ranks. One part needs no torch.distributed.
    device : torch.device or str, optional
        By default the group's: the current GPU with nccl, else the CPU.
    overlap : bool
        Whether to compute while rows travel.
    speeds : Speeds
        Of ranks and links, for what ``halo`` sends.
    timeout_s : float, optional
        How long a rank waits for the others in one exchange before it raises :class:`dgl_gt.comm.group.RankError`, which
        names the ranks that it waits for (s). It becomes the timeout of the group, too. By default as long as the group
        allows. A rank that waits longer than a minute says on stderr for which ranks.

    Raises
    ------
    InputError
        Damaged shards, a number of ranks other than the number of parts, a strategy that does not fit, or ranks that
        disagree; on every rank if on any.
    RankError
        Another rank has stopped, or does not answer in time; from here on every exchange may raise it.
    """
    comm = Comm(group, timeout_s)
    with comm.together():
        return _load(directory, strategy, depth, comm, device, overlap, speeds)


def _load(directory, strategy, depth: int, comm: Comm, device, overlap: bool, speeds: Speeds) -> ShardedGraph:
    shard = error = None
    try:
        if not isinstance(speeds, Speeds):
            raise InputError(f"speeds is {reprlib.repr(speeds)}; it must be a Speeds, as profile.speeds(...) makes one")
        manifest = read_manifest(directory)
        strategy = check_choice(directory, manifest, strategy, depth)
        if (parts := manifest["parts"]) != comm.world_size:
            raise InputError(
                f"{directory} has {counted(parts, 'part')}, but the number of ranks is {comm.world_size}; start "
                f"{parts} (torchrun --nproc-per-node {parts}, then torch.distributed.init_process_group), or partition "
                "again"
            )
        shard = read_shard(directory, comm.rank, depth)
        if strategy == "heads":  # which reads the structure of all parts, and its own is verified
            verify(directory, manifest, [part for part in range(parts) if part != comm.rank])
    except InputError as caught:
        error = caught
    comm.raise_together(error)
    comm.check_agreement(
        {
            "shards": manifest["checksum"],
            "strategy": strategy,
            "depth": depth,
            "overlap": overlap,
            "speeds": speeds.as_dict(),
        }
    )
    shard = shard.to(comm.device if device is None else device)
    graph = ShardedGraph(shard, comm, lambda on: _make(strategy, on, comm, overlap, speeds), degrees(shard, comm))
    comm.reset_counters()
    return graph


def _make(strategy: str, shard: Shard, comm: Comm, overlap: bool, speeds: Speeds):
    match strategy:
        case "local":
            return Local(shard.csc(), shard.node_ids)
        case "gather":
            return Gather(shard, comm, overlap)
        case "heads":
            return Heads(shard, comm, overlap)
        case "ring":
            return Ring(shard, comm, overlap)
        case "mirror":
            return Mirror(shard, comm, overlap)
        case _:
            chooses = strategy == "halo" and shard.depth == 1 and comm.world_size > 1
            return Halo(shard, comm, overlap, None if chooses else {"halo": "halo_h"}.get(strategy, strategy), speeds)


def check_choice(directory, manifest: dict, strategy: str | None, depth: int) -> str:
    """The strategy's name, where None is given the cut's; raise ``InputError`` unless these shards can have it."""
    figures = read_figures(manifest)
    strategy = strategy or ("mirror" if figures.cut == "vertex" else "halo")
    if strategy == AUTO:
        raise InputError(
            "strategy auto depends on the model: use `dgl-gt train --strategy auto`, or choose with "
            "dgl_gt.selector.choose and load what it chose, see docs/selector.md"
        )
    check_strategy(figures, strategy, depth, allowed=CHOICES, shards=directory)
    return strategy
