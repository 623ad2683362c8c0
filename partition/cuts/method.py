"""How much memory, disk and time each way of cutting takes, before any is tried, and which one a memory bound allows.

The numbers are estimates: bytes by counting the arrays of each step, seconds from runs on two cores of a server.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from partition.errors import InputError
from partition.graph import Graph, checked_num_nodes
from partition.sources.coo import RawGraph
from partition.system.mapped_arrays import is_mapped
from partition.system.output_checks import check_room
from partition.system.units import size

from .metis import EDGE_BYTES, most_children
from .native import counts_fit

METHODS = ("metis", "expansion", "streaming")
NAMES = {"metis": "METIS", "expansion": "neighbour expansion", "streaming": "streaming"}
_INTERPRETER_BYTES, _CHILD_BYTES = 80 << 20, 40 << 20  # with numpy and scipy; METIS runs in children
_SLICE_BYTES = 80 << 20  # of a streamed edge list
_METIS_EDGE_BYTES = EDGE_BYTES + 16  # an undirected edge: METIS's own, and the file that it maps
_HELD = 2.0  # rows of a part over N / K, for want of the cut
_MICROSECONDS = {"metis": (1.2, 0.6), "expansion": (1.0, 0.6), "streaming": (1.1, 0.6)}  # an edge; KiB of shards


@dataclass(frozen=True)
class Sizes:
    """What the estimates are made of.

    Attributes
    ----------
    nodes, edges, parts : int
    undirected_edges : int
        What METIS sees.
    node_bytes, edge_bytes : int
        Data of a node and of an edge.
    loaded_bytes : int
        Of the source's arrays in memory; memory-mapped ones take none.
    is_graph : bool
        The source is a Graph already, which cannot be streamed.
    added : tuple of str
        What is to be added to the source, which no stream can have.
    added_bytes : int
        Of it, for each node, in memory.
    held : float
        Rows of the largest part over N / K; a guess until there is a cut.
    """

    nodes: int
    edges: int
    parts: int
    undirected_edges: int
    node_bytes: int
    edge_bytes: int
    loaded_bytes: int
    is_graph: bool
    added: tuple[str, ...] = ()
    added_bytes: int = 0
    held: float = _HELD


@dataclass(frozen=True)
class Estimate:
    """Peak memory (this process and its children together), disk at its fullest, and seconds."""

    memory_bytes: int
    disk_bytes: int
    seconds: float


def measure(
    source: Graph | RawGraph,
    parts: int,
    *,
    undirected: bool = False,
    self_loops: bool = False,
    random_features: int | None = None,
) -> Sizes:
    """Sizes of a source with what is to be added; the share of edges that have a reverse is estimated from a sample.

    Raises
    ------
    InputError
        As for :func:`partition.graph.from_edges`, of the ids of nodes.
    """
    is_graph = isinstance(source, Graph)
    if is_graph:
        raw = RawGraph(source.indices, source.destinations())
        structure = [source.indptr, source.indices, source.edge_ids]
    else:
        raw, structure = source, [source.src, source.dst]
    nodes = checked_num_nodes(source.num_nodes, *raw.ends, source.name)
    data = [*source.node_data.values(), *source.edge_data.values()]
    edges = raw.num_edges
    neighbours = len(raw.src) if raw.listed_once else round(edges * (1 - raw.reciprocity() / 2))
    return Sizes(
        nodes=nodes,
        edges=(2 * neighbours if undirected else edges) + (nodes if self_loops else 0),
        parts=parts,
        undirected_edges=neighbours,
        node_bytes=_row_bytes(source.node_data) + 4 * (random_features or 0),
        added_bytes=4 * (random_features or 0),
        edge_bytes=_row_bytes(source.edge_data),
        loaded_bytes=sum(array.nbytes for array in [*structure, *data] if not is_mapped(array)),
        is_graph=is_graph,
        added=tuple(
            name
            for name, value in zip(
                ("undirected", "self_loops", "random_features"), (undirected, self_loops, random_features)
            )
            if value
        ),
    )


def estimate(sizes: Sizes, method: str) -> Estimate:
    """Memory, disk and time of one way of cutting."""
    n, e, k = sizes.nodes, sizes.edges, sizes.parts
    index = 4 if max(n, e) < 2**31 else 8
    held, part_edges = sizes.held * n / k, 1.1 * e / k
    part = held * (2 * sizes.node_bytes + 16) + part_edges * (2 * sizes.edge_bytes + 72)
    shards = _HELD * n * (sizes.node_bytes + 8) + e * (sizes.edge_bytes + 8 + index)
    if method == "streaming":
        memory = 44 * n + n * 8 * -(-k // 64) + max(_SLICE_BYTES, part)
        disk = shards + 12 * e
    else:
        graph = 0 if sizes.is_graph else 8 * n + 2 * index * e
        laid_out = 30 * n + _HELD * n * index + part
        build = 0 if sizes.is_graph else 4 * index * e
        graph += n * sizes.added_bytes
        if method == "metis":
            metis_children = min(most_children(), k)
            symmetrised = 3 * index * e + 4 * index * sizes.undirected_edges
            metis = max(symmetrised, 2 * index * sizes.undirected_edges + _METIS_EDGE_BYTES * sizes.undirected_edges)
            work, disk = metis_children * (_CHILD_BYTES + 16 * n) + metis + 30 * n, shards + 16 * sizes.undirected_edges
        else:
            levelling = 4 * n * k if counts_fit(n, e, k) else 0
            work, disk = 6 * index * e + 64 * e / k + 50 * n + levelling, shards
        memory = graph + max(build, work, laid_out)
    per_edge, per_kib = _MICROSECONDS[method]
    seconds = 1e-6 * (per_edge * e + per_kib * shards / 1024 + 0.1 * e * k * (method == "streaming") / 10)
    return Estimate(int(_INTERPRETER_BYTES + sizes.loaded_bytes + memory), int(disk), float(seconds))


def choose(sizes: Sizes, memory_bytes: int | None, cut: str | None, reading_bytes: int = 0) -> str:
    """The first of ``METHODS`` whose estimate is within the bound; METIS without a bound.

    Parameters
    ----------
    sizes : Sizes
    memory_bytes : int, optional
        The bound.
    cut : {"edge", "vertex", "auto"}, optional
    reading_bytes : int
        What reading the source has taken at its peak; no way of cutting takes less.

    Raises
    ------
    InputError
        None is; the message says the least that works.
    """
    if memory_bytes is None:
        return "metis"
    read = reading_bytes + _INTERPRETER_BYTES
    needs = {method: max(read, estimate(sizes, method).memory_bytes) for method in possible(sizes)}
    allowed = ("metis",) if cut == "edge" else tuple(needs)
    for method in allowed:
        if needs[method] <= memory_bytes:
            return method
    least = min(allowed, key=needs.get)
    advice = "raise memory (--memory)"
    others = [
        f"{NAMES[method]} needs about {_at_least(need)}" for method, need in needs.items() if method not in allowed
    ]
    if others:
        advice += f", or make a vertex cut: {', '.join(others)}"
    elif sizes.added and not sizes.is_graph:
        advice = (
            f"{', '.join(sizes.added)} cannot be added to a graph that is streamed: add them to the source, or {advice}"
        )
    meant = f" (did you mean {memory_bytes}GiB?)" if memory_bytes <= 1024 else ""
    raise InputError(
        f"a memory bound of {size(memory_bytes)} is too small{meant}: the least that works is about "
        f"{_at_least(needs[least])} ({NAMES[least]}); {advice}"
    )


def check_bound(sizes: Sizes, method: str, memory_bytes: int, held: float) -> None:
    """Raise :class:`InputError` where a cut's largest part takes more memory to write than a bound allows.

    Parameters
    ----------
    sizes : Sizes
    method : str
        One of ``METHODS``.
    memory_bytes : int
        The bound.
    held : float
        Rows of the largest part over N / K.
    """
    need = estimate(replace(sizes, held=held), method).memory_bytes
    if need > memory_bytes:
        raise InputError(
            f"writing this cut needs about {_at_least(need)}, more than the bound of {size(memory_bytes)}; its largest "
            f"part holds {held:.2f} times its share of the rows: make more parts, or raise memory (--memory)"
        )


def why_no_metis(sizes: Sizes) -> str:
    """Why a memory bound leads to a vertex cut by another way."""
    return f"METIS needs about {_at_least(estimate(sizes, 'metis').memory_bytes)}"


def check_disk(graph, out, method: str) -> None:
    """Raise :class:`InputError` where a disk has less room than the least that a graph's shards take.

    Parameters
    ----------
    graph : Graph or EdgeStream
    out : path
        The shard directory, on that disk.
    method : str
        One of ``METHODS``.
    """
    index = 4 if max(graph.num_nodes, graph.num_edges) < 2**31 else 8
    least = graph.num_nodes * (_row_bytes(graph.node_data) + 8) + graph.num_edges * (
        _row_bytes(graph.edge_data) + 8 + index + (12 if method == "streaming" else 0)
    )
    check_room(out, least)


def possible(sizes: Sizes) -> list[str]:
    """The ways of cutting that a source allows."""
    return [method for method in METHODS if method != "streaming" or not (sizes.is_graph or sizes.added)]


def _at_least(count_bytes: int) -> str:
    """An amount that reads as one that suffices, in whole MiB."""
    return f"{-(-count_bytes // (1 << 20))} MiB"


def parse_size(text: str) -> int:
    """Bytes from ``4GiB``, ``500MB`` or a plain number; :class:`InputError` for others."""
    units = {"": 1, "b": 1}
    for power, letter in enumerate("kmgt", start=1):
        units |= {letter: 1024**power, f"{letter}ib": 1024**power, f"{letter}b": 1000**power}
    number = text.strip().lower().rstrip("bikmgt")
    try:
        value = float(number) * units[text.strip().lower()[len(number) :].strip()]
    except (ValueError, KeyError):
        value = 0.0
    if not 1 <= value < 2**63:
        raise InputError(f"{text!r} is no amount of memory; write it as 4GiB, 500MB or a number of bytes")
    return int(value)


def _row_bytes(data: dict[str, np.ndarray]) -> int:
    return sum(value.dtype.itemsize * int(np.prod(value.shape[1:], dtype=np.int64)) for value in data.values())
