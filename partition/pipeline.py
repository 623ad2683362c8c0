"""From a graph to shards in one call: what ``dgl-gt partition`` and Python users run."""

from __future__ import annotations

import operator

from .atomic import new_directory
from .edge_cut import make_edge_cut
from .errors import InputError
from .shards import write_shards
from .sources import load_graph
from .vertex_cut import make_vertex_cut

_SEEDS = 2**31 - 1  # METIS's are counted from 1


def partition(
    source,
    parts: int,
    out,
    *,
    cut: str = "edge",
    seed: int = 0,
    owner=None,
    force: bool = False,
    progress=None,
    **source_options,
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
    cut : {"edge", "vertex"}
        Edge cut: every node has one owner, and an edge lives with that of its destination. Vertex cut: every edge has
        one owner, and a node touched by edges of several parts has a master and mirrors; it copies hubs instead of
        cutting off their neighbours.
    seed : int
        The same seed gives the same shards.
    owner : array of integers, (N,), optional
        Edge cuts: the part of every node, instead of METIS's choice.
    force : bool
        Replace ``out`` where it holds shards.
    progress : callable, optional
        Called as ``progress(stage)``, and as ``progress(stage, peak_memory_bytes)`` for child processes.
    **source_options
        Passed to :func:`partition.sources.load_graph`.

    Returns
    -------
    dict
        The manifest, see docs/format.md.

    Raises
    ------
    InputError
        Anything wrong with the source, ``parts`` or ``out``; nothing is written then.

    Examples
    --------
    >>> from partition import partition
    >>> manifest = partition("sample:communities?nodes=1000", parts=2, out="communities-2")  # doctest: +SKIP
    """
    parts, seed = _integer("parts", parts), _integer("seed", seed)
    if not 0 <= seed < _SEEDS:
        raise InputError(f"seed is {seed}; it must be at least 0 and below {_SEEDS}")
    if cut not in ("edge", "vertex"):
        raise InputError(f"cut is {cut!r}; it must be 'edge' or 'vertex'")
    if owner is not None and cut == "vertex":
        raise InputError("owner gives each node a part, which a vertex cut does not: leave it out, or make an edge cut")
    with new_directory(out, marker="manifest.json", force=force) as folder:
        if progress:
            progress("reading the graph")
        graph = load_graph(source, seed=seed, **source_options)
        if cut == "vertex":
            made = make_vertex_cut(graph, parts, seed=seed, progress=progress)
        else:
            made = make_edge_cut(graph, parts, seed=seed, owner=owner, progress=progress)
        return write_shards(graph, made, folder, seed=seed, progress=progress)


def _integer(name: str, value) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise InputError(f"{name} is {value!r}; it must be an integer") from None
