"""From a graph to shards in one call: what ``dgl-gt partition`` and Python users run."""

from __future__ import annotations

import operator
import reprlib
from contextlib import ExitStack

from . import metis
from .atomic import new_directory
from .budget import NAMES, choose, measure
from .choice import check_memory, choose_cut
from .console import size
from .cost import Model
from .edge_cut import check_parts, make_edge_cut
from .errors import InputError
from .layout import Layout
from .manifest import SHARDS
from .shards import write_shards
from .sources import build, open_source
from .step_time import Speeds
from .stream import open_stream, streamed_cut
from .vertex_cut import make_vertex_cut

CUTS = ("edge", "vertex", "auto")
_MOST_HALO_DEPTH = 100  # hops; the halos of a connected graph hold every node long before
_MODEL, _SPEEDS = Model(), Speeds()


def partition(
    source,
    parts: int,
    out,
    *,
    cut: str | None = None,
    halo_depth: int = 1,
    attempts: int = 1,
    max_imbalance=None,
    target_weights=None,
    owner=None,
    model: Model = _MODEL,
    speeds: Speeds = _SPEEDS,
    memory: int | None = None,
    rank_memory: int | None = None,
    seed: int = 0,
    force: bool = False,
    progress=None,
    num_nodes: int | None = None,
    node_data=None,
    **additions,
):
    """Partition a graph and write its shards.

    Parameters
    ----------
    source : str, path, DGLGraph, networkx graph or Graph
        See :func:`partition.sources.load_graph`.
    parts : int
        K, 1 <= K <= N.
    out : path
        The shard directory to make; it appears when it is complete.
    cut : {"edge", "vertex", "auto"}, optional
        Edge cut: every node has one owner, and an edge lives with that of its destination. Vertex cut: every edge has
        one owner, and a node touched by edges of several parts has a master and mirrors; it copies hubs instead of
        cutting off their neighbours. ``"auto"`` makes both and keeps the one whose training step is predicted to be
        quicker (:mod:`partition.cost`); the manifest's ``choice`` says why. By default an edge cut, or a vertex cut
        where ``memory`` is too little for METIS.
    halo_depth : int
        Edge cuts: how many hops of halo each part stores, with their edges, 1 to 100.
    attempts, max_imbalance, target_weights, owner
        Edge cuts: see :func:`partition.edge_cut.make_edge_cut`.
    model, speeds : Model, Speeds
        The graph transformer and the machines that predictions have in mind.
    memory : int, optional
        Bytes that this process and its children may need at their peak. What fits is taken first: METIS, neighbour
        expansion (a vertex cut), streaming over the edges on disk (a vertex cut). Estimates: :mod:`partition.budget`.
    rank_memory : int, optional
        Bytes that a training rank has; a cut whose largest part needs more is refused.
    seed : int
        The same seed gives the same shards.
    force : bool
        Replace ``out`` where it holds shards.
    progress : callable, optional
        Called as ``progress(stage)``, and as ``progress(stage, peak_memory_bytes)`` for child processes.
    num_nodes, node_data, **additions
        Passed to :func:`partition.sources.load_graph`.

    Returns
    -------
    dict
        The manifest, see docs/format.md.

    Raises
    ------
    InputError
        Anything wrong with the source or an argument; nothing is written then.

    Examples
    --------
    >>> from partition import partition
    >>> manifest = partition("sample:communities?nodes=1000", parts=2, out="communities-2")  # doctest: +SKIP
    """
    memory = None if memory is None else _count("memory", memory)
    rank_memory = None if rank_memory is None else _count("rank_memory", rank_memory)
    parts, seed, halo_depth = _integer("parts", parts), metis.check_seed(seed), _count("halo_depth", halo_depth)
    edge_options = {"max_imbalance": max_imbalance, "target_weights": target_weights, "owner": owner}
    attempts = _count("attempts", attempts)
    cut = effective_cut(cut, halo_depth, attempts, **edge_options)
    edge_options |= {"attempts": attempts, "model": model, "speeds": speeds}
    progress = progress or (lambda *_: None)
    with new_directory(out, SHARDS, force=force) as folder, ExitStack() as stack:
        progress("reading the graph")
        graph = open_source(source, num_nodes=num_nodes, node_data=node_data)
        method = "metis"
        if memory is not None:
            method = choose(measure(graph, max(parts, 1), **additions), memory, cut)
            progress(f"within {size(memory)}: {NAMES[method]}")
        if method == "streaming":
            graph = open_stream(graph)
            check_parts(graph, parts)
            cuts = [stack.enter_context(streamed_cut(graph, parts, folder / "edges", progress))]
        else:
            graph = build(graph, seed=seed, **additions)
            cuts = list(_cuts(graph, parts, cut, method, edge_options, seed, progress))
        layouts = [Layout(graph, each, halo_depth) for each in cuts]
        choice = choose_cut(layouts, model, speeds, rank_memory) if cut == "auto" else None
        (chosen,) = (each for each in layouts if choice is None or each.figures["cut"] == choice["cut"])
        del layouts, cuts
        check_memory(chosen, model, rank_memory)
        return write_shards(chosen, folder, seed=seed, choice=choice, method=method, progress=progress)


def effective_cut(cut: str | None, halo_depth: int = 1, attempts: int = 1, **edge_options) -> str | None:
    """The cut that the options ask for: an edge cut where they make sense of no other.

    Raises
    ------
    InputError
        No such cut, a halo that is too deep, or options for edge cuts with another.
    """
    if cut not in (None, *CUTS):
        raise InputError(f"cut is {cut!r}; it must be one of {', '.join(CUTS)}")
    if halo_depth > _MOST_HALO_DEPTH:
        raise InputError(f"halo_depth is {reprlib.repr(halo_depth)}; it must be from 1 to {_MOST_HALO_DEPTH}")
    given = [name for name, value in edge_options.items() if value is not None]
    given += ["halo_depth"] if halo_depth > 1 else []
    given += ["attempts"] if attempts > 1 and cut != "auto" else []
    if given and cut not in (None, "edge"):
        raise InputError(f"{given[0]} is for edge cuts alone: leave it out, or set cut to 'edge'")
    return "edge" if given else cut


def _cuts(graph, parts: int, cut: str | None, method: str, edge_options: dict, seed: int, progress):
    """The cuts to choose from: one, or both."""
    if method == "expansion" or cut in ("vertex", "auto"):  # the first, as it may refuse
        yield make_vertex_cut(graph, parts, seed=seed, by_metis=method == "metis", progress=progress)
    if method == "metis" and cut != "vertex":
        yield make_edge_cut(graph, parts, seed=seed, progress=progress, **edge_options)


def _integer(name: str, value) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise InputError(f"{name} is {value!r}; it must be an integer") from None


def _count(name: str, value) -> int:
    value = _integer(name, value)
    if value < 1:
        raise InputError(f"{name} is {value}; it must be at least 1")
    return value
