"""From a graph to shards in one call: what ``dgl-gt partition`` and Python users run."""

from __future__ import annotations

import operator
from dataclasses import asdict

from .atomic import new_directory
from .cost import Model, Speeds, epoch_seconds, layer_traffic
from .edge_cut import make_edge_cut
from .errors import InputError
from .layout import Layout
from .shards import write_shards
from .sources import load_graph
from .vertex_cut import make_vertex_cut

CUTS = ("edge", "vertex", "auto")
_SEEDS = 2**31 - 1  # METIS's are counted from 1
_MODEL, _SPEEDS = Model(), Speeds()


def partition(
    source,
    parts: int,
    out,
    *,
    cut: str = "edge",
    model: Model = _MODEL,
    speeds: Speeds = _SPEEDS,
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
    cut : {"edge", "vertex", "auto"}
        Edge cut: every node has one owner, and an edge lives with that of its destination. Vertex cut: every edge has
        one owner, and a node touched by edges of several parts has a master and mirrors; it copies hubs instead of
        cutting off their neighbours. ``"auto"`` makes both and keeps the one whose training step is predicted to be
        quicker (:mod:`partition.cost`); the manifest's ``choice`` says why.
    model : Model
        The graph transformer that ``"auto"`` has in mind.
    speeds : Speeds
        The machines that it has in mind.
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
    if cut not in CUTS:
        raise InputError(f"cut is {cut!r}; it must be one of {', '.join(CUTS)}")
    if owner is not None and cut != "edge":
        raise InputError("owner gives each node a part, which only edge cuts do: leave it out, or set cut to 'edge'")
    with new_directory(out, marker="manifest.json", force=force) as folder:
        if progress:
            progress("reading the graph")
        graph = load_graph(source, seed=seed, **source_options)
        layouts = []
        if cut != "edge":  # the first, as it may refuse
            layouts.append(Layout(graph, make_vertex_cut(graph, parts, seed=seed, progress=progress)))
        if cut != "vertex":
            layouts.append(Layout(graph, make_edge_cut(graph, parts, seed=seed, owner=owner, progress=progress)))
        choice = _choice([layout.figures for layout in layouts], model, speeds) if cut == "auto" else None
        if choice is not None:
            layouts = [layout for layout in layouts if layout.figures["cut"] == choice["cut"]]
        return write_shards(layouts[0], folder, seed=seed, choice=choice, progress=progress)


def _choice(candidates: list[dict], model: Model, speeds: Speeds) -> dict:
    """The cut of the lower predicted time, the figures of all, and the reason in words."""
    seconds = [epoch_seconds(figures, model, speeds) for figures in candidates]
    order = sorted(range(len(candidates)), key=seconds.__getitem__)
    best, other = (candidates[index] for index in order)
    best_s, other_s = sorted(seconds)
    best_bytes, other_bytes = (int(layer_traffic(figures, model).sent.sum()) for figures in (best, other))
    held, edges = ([cut["quality"][key] for cut in (best, other)] for key in ("max_copies_factor", "edge_balance"))
    reason = (
        f"a step is predicted to take {best_s:.3g} s with the {best['cut']} cut and {other_s:.3g} s with the "
        f"{other['cut']} cut; a layer sends {best_bytes:,} and {other_bytes:,} bytes, the largest part holds "
        f"{held[0]:.2f} and {held[1]:.2f} times N / K rows and has {edges[0]:.2f} and {edges[1]:.2f} times E / K edges"
    )
    return {
        "cut": best["cut"],
        "reason": reason,
        "model": asdict(model),
        "speeds": asdict(speeds),
        "candidates": [
            {"cut": figures["cut"], "predicted_seconds": time_s, "quality": figures["quality"]}
            for figures, time_s in zip(candidates, seconds)
        ],
    }


def _integer(name: str, value) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise InputError(f"{name} is {value!r}; it must be an integer") from None
