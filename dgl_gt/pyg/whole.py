"""A script of PyG that holds the whole graph: its model runs across ranks, and everything around the model stays as it is.

On its way into the model, what the script holds is cut to the rows of this rank; on its way out, the rows of all ranks
are joined. So every rank computes the same loss, and the gradient that enters the model is the same on all. A rank takes
that of its own rows, P times: gradients of parameters are then P times its share, and their mean over ranks is the
gradient of one process. As in DistributedDataParallel, a mean leaves alone what is the same on all ranks: gradients of
an earlier backward pass, or of a penalty on the weights that the script adds to the loss.
"""

from __future__ import annotations

import os
import random
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from dgl_gt.comm.group import Comm
from dgl_gt.exchange.load import load
from dgl_gt.exchange.sharded_graph import ShardedGraph
from dgl_gt.partition.errors import INSTALL_PYG, InputError, import_optional
from dgl_gt.partition.pipeline import partition
from dgl_gt.torch_internals import after_backward, backward_number, tree_map

from .layers import distribute


def distribute_whole(model: nn.Module, data: Any, shards) -> nn.Module:
    """Let a model of PyG run across ranks in a script that holds the whole graph; returns the model.

    The script stays as it is. The model takes what it takes on one process: tensors with a row for each node or each edge
    of ``data``, ``data.edge_index``, or ``data`` itself. It returns a row for each node, on every rank. Inside, each rank
    computes the rows of its own nodes, see :func:`distribute`. Losses, metrics and, after ``loss.backward()``, gradients
    are those of one process; ``torch.autograd.grad`` does not join those of weights. Weights and the generators of torch, numpy and Python become those of rank 0, so that all
    ranks draw the same, except inside the model. Each rank holds ``data`` and the rows that the model returns; hidden rows
    and messages are divided.

    Parameters
    ----------
    model : nn.Module
        What is called with the rows; make the optimiser before or after. Methods other than ``forward`` stay on one rank.
    data : Data
        The graph, the same on every rank, with the edges that the model is given.
    shards : path
        The folder with the graph's parts, one a rank; rank 0 makes it where it does not exist.

    Raises
    ------
    InputError
        As :func:`distribute`; or ``data`` is no ``Data`` with edges, ``shards`` are those of another graph or number of
        ranks, or ``torch.distributed`` has not been initialised. Later, the model is given or returns what is no row
        of a node, or losses differ between ranks.
    """
    home = import_optional("torch_geometric.data", "dgl_gt.pyg.distribute_whole", INSTALL_PYG)
    if not (isinstance(data, home.Data) and isinstance(data.edge_index, Tensor)):
        raise InputError(f"data is a {type(data).__name__}; it must be a Data of PyG with an edge_index")
    if int(os.environ.get("WORLD_SIZE", 1)) > 1 and not dist.is_initialized():
        raise InputError("WORLD_SIZE is above 1; call torch.distributed.init_process_group first")
    comm = Comm()
    with comm.raising_together():
        if comm.rank == 0 and not Path(shards).exists():
            edges = home.Data(edge_index=data.edge_index.cpu(), num_nodes=data.num_nodes)
            partition(edges, comm.world_size, shards)
    sg = load(shards, group=comm, device=data.edge_index.device)
    with comm.raising_together():
        _check_same(sg, data, shards)
    distribute(model, sg)
    with torch.no_grad():
        for each in (*model.parameters(), *model.buffers()):
            each.copy_(comm.broadcast(each))
    _share_generators(comm, sg.device)
    vars(model)["forward"] = partial(_forward, model, _Whole(sg, data))
    return model


def _check_same(sg: ShardedGraph, data: Any, shards) -> None:
    """Raise :class:`InputError` unless the shards have the edges of the data, in their order."""
    counts = sg.manifest["nodes"], sg.manifest["edges"]
    held = sg._shard.node_ids
    if counts != (data.num_nodes, data.num_edges) or not torch.equal(
        held[sg.edge_index], data.edge_index[:, sg.edge_ids].long()
    ):
        raise InputError(
            f"{shards} has another graph than data: {counts[0]} nodes and {counts[1]} edges, not the {data.num_nodes} and "
            f"{data.num_edges} of data in their order; name a folder that does not exist, which is then made"
        )


def _share_generators(comm: Comm, device: torch.device) -> None:
    """Give every rank the state of rank 0's generators."""
    torch.set_rng_state(comm.broadcast(torch.get_rng_state()))
    if device.type == "cuda":
        torch.cuda.set_rng_state(comm.broadcast(torch.cuda.get_rng_state(device)), device)
    version, numbers, gauss = comm.broadcast_object(random.getstate())
    random.setstate((version, tuple(numbers), gauss))
    kind, numbers, *more = np.random.get_state()
    np.random.set_state(comm.broadcast_object([kind, np.asarray(numbers).tolist(), *more]))


class _Rows:
    """The nodes or edges of this rank among all: cuts whole tensors, and joins those of all ranks."""

    def __init__(self, comm: Comm, ids: Tensor, total: int):
        self.comm, self.ids, self.total = comm, ids, total
        pieces = comm.gather_rows(ids)
        self.counts, self.order = [len(each) for each in pieces], torch.cat(pieces)

    def joined(self, rows: Tensor) -> Tensor:
        """Return the rows of all ranks, (total, ...), from those of this one."""
        wide = rows.flatten(1) if rows.dim() > 1 else rows[:, None]
        whole = rows.new_empty((self.total, wide.shape[1]))
        whole[self.order] = self.comm.gather_counted(wide.contiguous(), self.counts)
        return whole.view(self.total, *rows.shape[1:])


class _Cut(torch.autograd.Function):
    @staticmethod
    def forward(ctx, whole, rows):
        ctx.rows = rows
        return whole[rows.ids]

    @staticmethod
    def backward(ctx, grad):
        return ctx.rows.joined(grad) / ctx.rows.comm.world_size, None


class _Join(torch.autograd.Function):
    @staticmethod
    def forward(ctx, part, rows, model):
        ctx.rows, ctx.model = rows, model
        return rows.joined(part)

    @staticmethod
    def backward(ctx, grad):
        comm, model = ctx.rows.comm, ctx.model
        _check_equal(comm, grad)
        if vars(model).get("dgl_gt_backward") != backward_number():  # else another output of the model came first
            model.dgl_gt_backward = backward_number()
            after_backward(partial(_mean_gradients, comm, model))
        return grad[ctx.rows.ids] * comm.world_size, None, None


def _check_equal(comm: Comm, grad: Tensor) -> None:
    """Raise :class:`InputError` on every rank unless the gradient of all rows is the same on all, up to rounding."""
    sums = torch.stack([grad.double().sum(), grad.double().abs().sum()])
    most = comm.all_reduce(torch.cat([sums, -sums]), "max")
    if (most[:2] + most[2:]).max() > 1e-4 * most[1]:
        raise InputError(
            "the loss differs between ranks; after distribute_whole, draw random numbers by the generators of torch, numpy or "
            "Python, and read the same data on every rank"
        )


@torch.no_grad()
def _mean_gradients(comm: Comm, model: nn.Module) -> None:
    comm.sum_gradients(model.parameters())
    for each in model.parameters():
        if each.grad is not None:
            each.grad /= comm.world_size


class _Whole:
    """What a model is given and returns, between whole and cut; copies of a model share it."""

    def __init__(self, sg: ShardedGraph, data: Any):
        self.sg, self.data, self.edge_index = sg, data, sg.edge_index
        self.nodes = _Rows(sg.comm, sg.node_ids, sg.manifest["nodes"])
        self.edges = _Rows(sg.comm, sg.edge_ids, sg.manifest["edges"])
        self.seed, self.calls = sg.comm.broadcast_object(torch.initial_seed()), 0

    def __deepcopy__(self, memo: dict) -> _Whole:
        return self

    def cut(self, value: Any) -> Any:
        """Return the part of this rank of an argument."""
        if isinstance(value, type(self.data)):
            columns = {key: self.cut(each) for key, each in value.items() if key != "num_nodes"}
            return type(value)(num_nodes=self.sg.num_nodes(), **columns)
        if not isinstance(value, Tensor) or value.dim() == 0 or value.layout != torch.strided:
            return value  # no rows; layers refuse sparse matrices by name
        if value.dim() == 2 and len(value) == 2 and value.dtype in (torch.int32, torch.int64):
            if value is not self.data.edge_index and not torch.equal(value, self.data.edge_index):
                raise InputError(
                    f"the model was given {value.shape[1]} edges that are not those of data; distribute it with a Data that has "
                    "them, or read pairs of nodes from the rows that it returns"
                )
            return self.edge_index
        of_edges = len(value) == self.edges.total
        if of_edges and self.edges.total == self.nodes.total:
            key = next((key for key, each in self.data.items() if each is value), None)
            if key is None:
                raise InputError(
                    f"data has {self.nodes.total} nodes and as many edges, so nothing says whose rows a tensor "
                    f"{tuple(value.shape)} holds; give the model tensors of data as they are"
                )
            of_edges = self.data.is_edge_attr(key)
        if of_edges or len(value) == self.nodes.total:
            return _Cut.apply(value, self.edges if of_edges else self.nodes)
        return value

    def joined(self, model: nn.Module, value: Any) -> Any:
        """Return the rows of all ranks of what the model returned."""
        if not isinstance(value, Tensor):
            return value
        if value.dim() == 0 or len(value) != self.sg.num_nodes():
            raise InputError(
                f"the model returned a tensor {tuple(value.shape)} for {self.sg.num_nodes()} nodes; it must return a row for each "
                "node: compute losses, means over nodes and pairs of nodes from them, outside of the model"
            )
        return _Join.apply(value, self.nodes, model)


def _forward(model: nn.Module, whole: _Whole, *arguments: Any, **named: Any) -> Any:
    """Call a model with whole tensors; what it draws differs by rank and call, and leaves torch's generators as they are."""
    comm, device = whole.sg.comm, whole.sg.device
    whole.calls += 1
    with comm.together(), torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(random.Random(f"{whole.seed} {whole.calls} {comm.rank}").getrandbits(63))
        arguments, named = tree_map(whole.cut, (arguments, named))
        out = type(model).forward(model, *arguments, **named)
        return tree_map(partial(whole.joined, model), out)
