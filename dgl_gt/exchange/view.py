"""The view protocol: what a layer is given of a graph, whether one process or many hold it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from dgl_gt.partition.schema import Schema

from .relations import Relations, RowGroups, TypedProject, rows_by_type


class Project(Protocol):
    """The layer's own projection, which a view calls on the rows that it decides to project.

    ``project(h, "q")`` returns ``q (rows, H, D)``; ``project(h, "kv")`` returns keys and values packed,
    ``(rows, 2, H, D)``; ``project(h, "qkv")`` returns all three, ``(rows, 3, H, D)``, as ``sparse_attention`` takes
    them. On the CPU, the heads of a row may lie side by side in memory; a view that moves rows puts them in the
    order of :func:`dgl_gt.ops.head_minor.in_wire_order`, which does not depend on how the rows of one rank lie. For
    additive scores the shapes are ``(rows, H)``, ``(rows, H, D + 1)`` and ``(rows, H, D + 2)``. With features of edges,
    "q" is ``(rows, H, D + F)``, and "qkv" is not asked for. Row ``i`` of a result depends on row ``i`` of ``h`` alone.
    Therefore it makes no difference whether a view first projects rows and then moves them, or the other way round.
    """

    def __call__(self, h: Tensor, which: str) -> Tensor: ...


class View:
    """Base class of what a layer is given of a graph: attention over the in-edges of its rows, wherever their sources are.

    A view chooses which rows are projected and what travels between ranks, as its strategy says, so a layer gives it the
    projection and not the projected rows. Unless a transmission policy is followed, every view is exact: the owned rows
    of all ranks together equal the result of one process, in outputs and gradients, up to the order of summation. The
    methods below are all that a layer or a model calls. Owned rows come first in every tensor that holds other rows, too.
    """

    num_owned: int  # N_owned, the number of nodes that this rank owns: over all ranks, each node counts once
    num_dst: int  # rows of the result on this rank: the owned rows, and with a deep halo copies of others after them
    node_ids: Tensor | None = None  # int64: the user's ids of the rows that attend takes, unless they are row numbers
    schema: Schema | None = None  # the types of nodes and edges, where there are several
    holds_all: bool = False  # whether this process holds all nodes, so that sums over nodes need no other rank

    def input_rows(self, x: Tensor) -> Tensor:
        """Return the rows that the layer needs, of those that the model was given; ``ValueError`` if they do not fit."""
        return x

    def source_rows(self, h: Tensor) -> Tensor:
        """Return the rows on which the layer works, ``(N_src, C)``, from the rows that it was given; a collective.

        They are the same rows, except in the first of several layers that share a halo of several hops.
        """
        return h

    def in_degrees(self) -> Tensor:
        """Return the in-degrees in the whole graph of the rows of the result, int64, (num_dst,)."""
        raise NotImplementedError

    def out_degrees(self) -> Tensor:
        """Return the out-degrees in the whole graph of the rows that attend takes, int64, (N_src,)."""
        raise NotImplementedError

    def add_ends(self, of_dst: Tensor, of_src: Tensor) -> Tensor:
        """Return for each edge of this process its destination's row plus its source's, (E, W); a collective.

        ``of_dst`` (num_dst, W) are rows of the result, and ``of_src`` (N_src, W) rows that attend takes. The edges are
        in the order of a bias.
        """
        raise NotImplementedError

    def sum_of_weighted_rows(self, rows: Tensor, weights: Tensor) -> Tensor:
        """Return each row's sum of its sources' rows times the weights of the edges, (num_dst, W); a collective.

        ``rows`` (N_src, W) are rows that attend takes; ``weights`` (E,), of any sign, are in the order of a bias. The
        result is differentiable in both.
        """
        raise NotImplementedError

    def sum_over_ranks(self, values: Tensor) -> Tensor:
        """Return the sum of all ranks' values, floating point, (...); differentiable, and a collective.

        The values must be sums over owned rows, because only those count each node once.
        """
        return values

    def stack_over_ranks(self, values: Tensor) -> Tensor:
        """Return every rank's values one after the other, (P, ...), without a gradient; a collective."""
        return values.detach().unsqueeze(0)

    def broadcast(self, seeds: Tensor) -> Tensor:
        """Return rank 0's seeds of dropout, int64 on the CPU, on every rank; a collective."""
        return seeds

    def before_pass(self, module: nn.Module) -> None:
        """Note that a module's forward pass on this graph begins; ranks may compare its parameters: a collective."""

    def kept_exchanges(self) -> tuple[AbstractContextManager, AbstractContextManager]:
        """Return contexts for the first run of a layer and for the run in backward that computes the layer again.

        The second run uses the rows that the exchanges of the first one brought. The pair is for
        ``torch.utils.checkpoint.checkpoint(context_fn=...)``. Here, where nothing is exchanged, they do nothing.
        """
        return nullcontext(), nullcontext()

    def forget_exchanges(self) -> None:
        """Use no row again that arrived in an earlier step; every rank calls it after a step that was skipped."""

    def training_step(self, step: int) -> AbstractContextManager:
        """Return a context for a training step with this number, in which exchanges follow the policy, if there is one."""
        return nullcontext()

    def attend(
        self,
        h: Tensor,
        project: Project,
        *,
        bias: Tensor | None = None,
        edge: Tensor | None = None,
        dropout: tuple[float, int | Tensor] | None = None,
        negative_slope: float | None = None,
    ) -> Tensor:
        """Project, exchange where needed, and attend.

        With several ranks this is a collective: all ranks call it in the same order, even a rank without rows or edges.

        ``h`` (N_owned, C) are the rows that the projection reads; ``Local`` on a block takes those of all sources,
        (N_src, C), with the destinations first. ``bias`` (E, H) is added to the scores; its rows are this rank's edges
        in the order of their ids. ``edge`` (E, F), in the same order, are features that follow each head of an edge's key
        and value: queries and results are D + F wide. ``dropout`` is a probability and the seed of the mask, which
        depends on (seed, global edge id, global head) alone: ranks that share the seed draw the mask of one process. With
        a ``negative_slope``, scores are additive. Returns (num_dst, H, D) or (num_dst, H, D + F), with zeros in a row
        without edges. Raises ``ValueError`` if the rows of ``h``, ``bias`` or ``edge`` do not fit the graph.
        """
        raise NotImplementedError

    @cached_property
    def types(self) -> RowGroups:
        """The rows of the result of a typed graph by node type; ``ValueError`` if there is one type of nodes and edges."""
        ids = torch.arange(self.num_dst) if self.node_ids is None else self.node_ids[: self.num_dst]
        return rows_by_type(self.checked_schema, ids)

    @cached_property
    def owned_types(self) -> RowGroups:
        """The owned rows by node type."""
        ids = torch.arange(self.num_owned) if self.node_ids is None else self.node_ids[: self.num_owned]
        return rows_by_type(self.checked_schema, ids)

    def in_degrees_by_relation(self) -> Tensor:
        """Return the in-degrees in the whole graph of the rows of the result in each relation, int64, (num_dst, relations).

        A collective at its first call.
        """
        raise NotImplementedError

    @property
    def checked_schema(self) -> Schema:
        """The schema of a typed graph; ``ValueError`` if there is one type of nodes and edges."""
        if self.schema is None:
            raise ValueError(
                "the graph has one type of nodes and edges, and this layer is for typed graphs; pass a heterograph, or use "
                "a layer for one type"
            )
        return self.schema

    @property
    def edges_by_relation(self) -> RowGroups:
        """The rows of a bias or of features of edges, by relation."""
        raise NotImplementedError

    @property
    def relations(self) -> Relations:
        """The edges of a typed graph, see :class:`Relations`; ``ValueError`` if there is one type of nodes and edges."""
        raise NotImplementedError

    def attend_relations(
        self,
        h: Tensor,
        project: TypedProject,
        *,
        bias: Tensor | None = None,
        edge: Tensor | None = None,
        dropout: tuple[float, int | Tensor] | None = None,
    ) -> Tensor:
        """Attend as :meth:`attend` does, on a typed graph, with one softmax over the in-edges of all relations; a collective.

        Returns (num_dst, H, D) or (num_dst, H, D + F).
        """
        raise NotImplementedError

    def sum_relations(self, h: Tensor, project: TypedProject, *, mean: bool) -> Tensor:
        """Return each row's sum over relations of the sum, or mean, of its sources, (num_dst, W); a collective.

        ``project(h, sources, "v")`` gives the rows of the sources.
        """
        raise NotImplementedError


def project_own(project: Project, h: Tensor, edge: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Return q and kv of rows of which all are projected, or all in one tensor, where features of edges allow that."""
    return (project(h, "qkv"), None) if edge is None else (project(h, "q"), project(h, "kv"))


class SeededView(NamedTuple):
    """A view in one pass of a module, and the seed of each dropout of that pass, () int64 on the CPU.

    A module gives it to the modules inside in place of a graph. As the seeds are in an argument, a layer that is computed
    again in backward has the masks of its first run, whatever passes came between.
    """

    view: View
    seeds: Mapping[nn.Module, Tensor]
