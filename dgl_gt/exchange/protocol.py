"""The strategy protocol: what a layer asks of a graph, whether one process or many hold it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

import torch
from torch import Tensor

from dgl_gt.as_csc import csc
from dgl_gt.structure import CSC

from .local import Local


class Project(Protocol):
    """The layer's own projection, called by a strategy on whichever rows it decides to project.

    ``project(h, "q")`` gives ``q (rows, H, D)``, ``project(h, "kv")`` keys and values packed, ``(rows, 2, H, D)``, and
    ``project(h, "qkv")`` all three, ``(rows, 3, H, D)``, as ``sparse_attention`` takes them. Row ``i`` of a result
    depends on row ``i`` of ``h`` alone, so projecting and then moving rows gives the same numbers as moving and then
    projecting.
    """

    def __call__(self, h: Tensor, which: str) -> Tensor: ...


class Strategy(Protocol):
    """Attention over the in-edges of the owned rows, wherever the sources of those edges are.

    Which rows are projected, and what travels, is the strategy's choice, so a layer hands over its projection and not
    the projected rows. Every strategy is exact: the owned rows of all ranks together equal the result of one process,
    outputs and gradients, up to the order of summation.

    Attributes
    ----------
    num_owned : int
        ``N_owned``, the rows of the result on this rank. Owned rows come first in every tensor that holds others too.
    node_ids : Tensor, int64, or None
        The user's ids of the rows that ``attend`` takes, the key of feature dropout; None where rows are the nodes.
    name : str
        As in ``partition.predict.strategies.STRATEGIES``.
    """

    num_owned: int
    node_ids: Tensor | None
    name: str

    def input_rows(self, x: Tensor) -> Tensor:
        """The rows that a layer needs, of those that a model is given: without hops of halo that no layer reads.

        Raises
        ------
        ValueError
            If there are fewer rows than the layer needs, or more where they are not those of a deeper halo.
        """
        ...

    def source_rows(self, h: Tensor) -> Tensor:
        """The rows that a layer works on, ``(N_src, C)``, of those that it was given; a collective.

        They are the same for all but the first layer of several that share a halo of several hops.
        """
        ...

    def agreed(self, seeds: Tensor) -> Tensor:
        """What rank 0 was given, on every rank: seeds of dropout, int64 on the CPU; a collective."""
        ...

    def kept_exchanges(self) -> tuple[AbstractContextManager, AbstractContextManager]:
        """Contexts for a layer's first pass and for the one in backward that computes it again, which finds there what
        the first one's exchanges brought. For ``torch.utils.checkpoint.checkpoint(context_fn=...)``."""
        ...

    def attend(
        self,
        h: Tensor,
        project: Project,
        *,
        bias: Tensor | None = None,
        dropout: tuple[float, int | Tensor] | None = None,
    ) -> Tensor:
        """Project, exchange where needed, and attend.

        With several ranks this is a collective: all ranks call it, in the same order, even one without rows or edges.

        Parameters
        ----------
        h : Tensor, floating point, (N_owned, C)
            The rows that the projection reads. ``Local`` on a block takes the rows of all its sources, ``(N_src, C)``,
            with the destinations first.
        project : Project
            The layer's projection.
        bias : Tensor, (E, H), optional
            Added to the scores; ``E`` counts the edges of this rank, in its edge-id order.
        dropout : (float, int or Tensor () int64), optional
            Probability ``p`` in [0, 1) of dropping an attention weight, and the seed of the mask. The mask depends on
            (seed, global edge id, global head) alone, so ranks that share the seed draw the mask of one process.

        Returns
        -------
        Tensor, (N_owned, H, D)
            Zeros in a row without edges.

        Raises
        ------
        ValueError
            If ``h`` or ``bias`` does not have as many rows as the graph asks for.
        """
        ...


def as_strategy(graph, device: torch.device | None = None) -> Strategy:
    """The strategy that runs attention on ``graph``.

    Parameters
    ----------
    graph : ShardedGraph, DGLGraph, DGL block, CSC or Strategy
        A ``ShardedGraph`` has chosen its strategy, and a strategy is itself; what one process holds is ``Local``.
    device : torch.device, optional
        Where the features lie: a DGL graph may stay on the CPU, and its structure follows them, copied once.

    Returns
    -------
    Strategy

    Raises
    ------
    ValueError
        If ``graph`` is none of these, or a DGL graph with more or fewer than one edge type, or one whose edges go from
        nodes of one type to nodes of another.
    """
    # By attribute and not by class: sharded_graph.py imports the strategies, so this module must not import it, and
    # torch.compile follows no isinstance of a protocol.
    chosen = getattr(graph, "strategy", graph)
    if hasattr(chosen, "attend"):
        return chosen
    # By attribute here too, so that a wrong type is refused by name even where DGL cannot be imported.
    if not isinstance(graph, CSC) and not hasattr(graph, "canonical_etypes"):
        raise ValueError(
            f"graph is a {type(graph).__name__}; allowed: a DGLGraph, a DGL block, a dgl_gt.CSC or a ShardedGraph. "
            "Make one with dgl.graph(...), or load shards with dgl_gt.load(directory)"
        )
    structure = csc(graph, device)
    if not isinstance(graph, CSC) and graph.canonical_etypes[0][0] != graph.canonical_etypes[0][2]:
        source, _, destination = graph.canonical_etypes[0]
        raise ValueError(
            f"the edges go from {source!r} nodes to {destination!r} nodes, but a layer attends within one type, whose "
            "features it is given; pass dgl.to_homogeneous(graph), or use dgl_gt.sparse_attention with queries of the "
            f"{destination!r} nodes"
        )
    return Local(structure)
