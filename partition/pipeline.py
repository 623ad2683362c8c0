"""From a graph to shards in one call: what ``dgl-gt partition`` and Python users run."""

from __future__ import annotations

import operator
import reprlib
from contextlib import ExitStack

from partition.cuts import metis
from partition.cuts.edge_cut import make_edge_cut
from partition.cuts.method import (
    METHOD_NAMES,
    check_disk_space,
    check_memory_bound,
    choose_method,
    measure_source,
    metis_need,
)
from partition.cuts.permutation import check_parts
from partition.cuts.streamed_cut import open_stream, streamed_cut
from partition.cuts.vertex_cut import make_vertex_cut
from partition.predict.model import Model
from partition.predict.step_time import Speeds
from partition.shards.cut_selection import check_memory, choose_cut
from partition.shards.layout import Layout
from partition.shards.manifest import SHARDS
from partition.shards.write import write_shards
from partition.sources.load import build, open_source
from partition.system.atomic_write import new_directory
from partition.system.memory import available_memory_bytes, give_freed_back, peak_memory_bytes, resident_memory_bytes
from partition.system.units import size

from .errors import InputError

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
    self_loops: bool = False,
    undirected: bool = False,
    random_features: int | None = None,
):
    """Partition a graph and write its shards.

    Parameters
    ----------
    source : str, path, DGLGraph, networkx graph, scipy matrix, array, tensor, tuple or Graph
        See :func:`partition.sources.load.load_graph`.
    parts : int
        K, 1 <= K <= N.
    out : path
        The shard directory to make; it appears when it is complete.
    cut : {"edge", "vertex", "auto"}, optional
        Edge cut: every node has one owner, and an edge lives with that of its destination. Vertex cut: every edge has
        one owner, and a node touched by edges of several parts has a master and mirrors; it copies hubs instead of
        cutting off their neighbours. ``"auto"`` makes both and keeps the one whose training step is predicted to be
        quicker (:mod:`partition.predict.step_time`); the manifest's ``choice`` says why. By default an edge cut, or a vertex cut
        where ``memory`` is too little for METIS.
    halo_depth : int
        Edge cuts: how many hops of halo each part stores, with their edges, 1 to 100.
    attempts, max_imbalance, target_weights, owner
        Edge cuts: see :func:`partition.cuts.edge_cut.make_edge_cut`.
    model, speeds : Model, Speeds
        The graph transformer and the machines that predictions assume.
    memory : int, optional
        Bytes that this process and its children may take at their peak, with 80 MiB for the interpreter; no more than
        the system or a container's limit leaves. The first of these that fits is taken: METIS, neighbour expansion (a
        vertex cut), streaming over the edges on disk (a vertex cut). Estimates: :mod:`partition.cuts.method`.
    rank_memory : int, optional
        Bytes that a training rank has; a cut whose largest part needs more is refused.
    seed : int
        The same seed gives the same shards.
    force : bool
        Replace ``out`` where it holds shards.
    progress : callable, optional
        Called as ``progress(stage)``, and as ``progress(stage, peak_memory_bytes)`` for child processes.
    num_nodes, node_data, self_loops, undirected, random_features
        See :func:`partition.sources.load.load_graph`.

    Returns
    -------
    dict
        The manifest, see docs/format.md; its ``left_out`` names what of the source is not in the shards.

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
    additions = {"self_loops": self_loops, "undirected": undirected, "random_features": random_features}
    edge_options |= {"attempts": attempts, "model": model, "speeds": speeds}
    progress = progress or (lambda *_: None)
    with new_directory(out, SHARDS, force=force) as folder, ExitStack() as stack:
        if memory is not None and (left := available_memory_bytes() + resident_memory_bytes()) < memory:
            progress(f"only {size(left)} of {size(memory)} are available")
            memory = left
        progress("reading the graph")
        named = {"num_nodes": num_nodes, "node_data": node_data}
        graph, method, sizes = _opened(source, named, parts, memory, cut, additions, progress)
        if method == "streaming":
            graph = open_stream(graph)
            check_parts(graph.num_nodes, parts)
            check_disk_space(graph, out, method)
            cuts = [stack.enter_context(streamed_cut(graph, parts, folder / "edges", progress))]
        else:
            graph = build(graph, seed=seed, **additions)
            check_disk_space(graph, out, method)
            cuts = list(_cuts(graph, parts, cut, method, edge_options, seed, progress))
        if memory is not None:
            give_freed_back()
        layouts = [Layout(graph, each, halo_depth) for each in cuts]
        choice = choose_cut(layouts, model, speeds, rank_memory) if cut == "auto" else None
        (chosen,) = (each for each in layouts if choice is None or each.figures.cut == choice["cut"])
        del layouts, cuts
        check_memory(chosen.figures, model, rank_memory)
        if memory is not None:
            check_memory_bound(sizes, method, memory, chosen.quality.max_copies_factor)
        return write_shards(chosen, folder, seed=seed, choice=choice, method=method, progress=progress)


def _opened(source, named: dict, parts: int, memory: int | None, cut: str | None, additions: dict, progress):
    """The source, unchecked, and how to cut it: what is in memory stays within the bound, or it is refused."""
    peak, resident = peak_memory_bytes(), resident_memory_bytes()
    graph = open_source(source, **named)
    if memory is None:
        return graph, "metis", None
    sizes = measure_source(graph, max(parts, 1), **additions)
    method = choose_method(sizes, memory, cut, peak_memory_bytes() - resident if peak_memory_bytes() > peak else 0)
    give_freed_back()
    if method == "metis":
        progress(f"within {size(memory)}: {METHOD_NAMES[method]}")
    else:
        progress(f"{metis_need(sizes)}, which exceeds {size(memory)}: making a vertex cut by {METHOD_NAMES[method]}")
    return graph, method, sizes


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
