"""Methods of cutting: what each is estimated to need, and which one a memory bound allows.

Bytes are counted from the arrays of each step, and seconds come from runs on two cores of a server.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dgl_gt.partition.cuts.metis import EDGE_BYTES as METIS_EDGE_BYTES
from dgl_gt.partition.cuts.native import counts_fit
from dgl_gt.partition.sources.coo import COOGraph
from dgl_gt.partition.system.mapped_arrays import is_mapped
from dgl_gt.partition.system.output_checks import check_room
from dgl_gt.partition.system.units import format_bytes
from dgl_gt.partition.transforms import encodings as encoding_needs

from .config import PartitionConfig
from .errors import InputError
from .graph import Graph, checked_num_nodes
from .transforms.added_edges import check_fill
from .transforms.exphormer import EDGE_BYTES, added_sizes, check_degree

METHODS = ("metis", "expansion", "streaming")  # the one that needs most memory first
METHOD_NAMES = {"metis": "METIS", "expansion": "neighbour expansion", "streaming": "streaming"}
_INTERPRETER_BYTES, _CHILD_BYTES = 80 << 20, 40 << 20  # with numpy and scipy; METIS runs in a child
_SLICE_BYTES = 40 << 20  # a slice of a streamed edge list
_METIS_EDGE_BYTES = METIS_EDGE_BYTES + 16  # per undirected edge, with the file that METIS maps
_LARGEST_PART = 2.0  # rows of the largest part over N / P, before there is a cut
_HELD_ROWS = 2.0  # rows that all parts hold over N
_MAX_EDGES = {"metis": 2.0, "expansion": 1.1, "streaming": 1.1}  # edges of the largest part over E / P, before a cut
_EDGE_US = {"metis": 1.2, "expansion": 1.0, "streaming": 1.1}  # microseconds per edge
_KIB_US = 0.6  # microseconds per KiB of shards
# what no stream takes
_ADDITIONS = ("undirected", "self_loops", "random_features", "encode", "expander", "virtual_nodes")


@dataclass(frozen=True)
class SourceSizes:
    """Sizes of a source, from which needs are estimated."""

    nodes: int
    edges: int
    parts: int
    undirected_edges: int  # that METIS sees
    node_bytes: int  # data per node
    edge_bytes: int  # data per edge
    loaded_bytes: int  # arrays of the source in memory; memory-mapped arrays count nothing
    is_graph: bool  # a Graph cannot be streamed
    cut: str | None = None  # that is asked for
    is_of_owners: bool = False  # whether it is asked for owners of nodes, which a vertex cut does not have
    is_weighted: bool = False  # whether METIS gets weights of edges
    added: tuple[str, ...] = ()  # options that add something to the source, which is impossible in a stream
    added_bytes: int = 0  # data that these options add in memory, per node
    added_edge_bytes: int = 0  # and per edge
    transform_bytes: int = 0  # memory to add edges of transforms, which make another structure; 0 without them
    encoding_bytes: int = 0  # memory to compute encodings, without the graph and its data
    encoding_seconds: float = 0.0
    largest_part: float = _LARGEST_PART  # rows of the largest part over N / P; a guess until there is a cut
    most_edges: float | None = None  # edges of the part with most edges over E / P; None until there is a cut

    @property
    def index_bytes(self) -> int:
        """Bytes of a node id or an edge id."""
        return _index_bytes(self.nodes, self.edges)


@dataclass(frozen=True)
class Needs:
    """Estimated needs of one method."""

    memory_bytes: int  # peak memory of this process and its children together
    disk_bytes: int  # most disk space in use at one time
    seconds: float


def measure_source(source: Graph | COOGraph, config: PartitionConfig) -> SourceSizes:
    """Return the sizes of a source with what the config adds to it; the edges that METIS sees are an estimate."""
    check_fill(source, config.self_loop_fill)
    if isinstance(source, Graph):
        coo = COOGraph(source.indices, source.destinations())
        structure = [source.indptr, source.indices, source.edge_ids]
    else:
        coo, structure = source, [source.src, source.dst]
    nodes = checked_num_nodes(source.num_nodes, *coo.id_range, source.name)
    data = [*source.node_data.values(), *source.edge_data.values()]
    data += [] if source.node_names is None else [source.node_names]
    edges = coo.num_edges
    neighbours = len(coo.src) if coo.listed_once else round(edges * (1 - coo.reciprocity() / 2))
    edges = (2 * neighbours if config.undirected else edges) + (nodes if config.self_loops else 0)
    if config.expander is not None:
        check_degree(source.name, config.expander, nodes)
    virtual, new_edges = added_sizes(nodes, **config.transforms)
    encode = [each.on(source.schema) for each in config.encodings]
    features = config.random_features or _row_width(source.node_data.get("feat"))
    sizes = encoding_needs.Sizes(nodes, edges, neighbours, features, new_edges, nodes * (config.expander or 0))
    node_bytes, edge_bytes = (_row_bytes(source, kind) for kind in ("node", "edge"))
    new_bytes = 4 * (config.random_features or 0) + encoding_needs.row_bytes(encode, features) + virtual
    copied = bool(new_edges or config.undirected or config.self_loops)  # edge data that are extended
    new_edge_bytes = encoding_needs.edge_bytes(encode) + (1 if new_edges else 0) + (1 if config.reverse_kind else 0)
    return SourceSizes(
        nodes=nodes + virtual,
        edges=edges + new_edges,
        parts=config.parts,
        undirected_edges=neighbours + new_edges // 2,
        node_bytes=node_bytes + new_bytes,
        edge_bytes=edge_bytes + new_edge_bytes,
        added_bytes=new_bytes + (node_bytes if virtual else 0),  # transforms copy what they extend
        added_edge_bytes=new_edge_bytes + (edge_bytes if copied else 0),
        transform_bytes=EDGE_BYTES * (edges + new_edges) if new_edges else 0,
        encoding_bytes=encoding_needs.work_bytes(encode, sizes),
        encoding_seconds=encoding_needs.seconds(encode, sizes),
        loaded_bytes=sum(array.nbytes for array in [*structure, *data] if not is_mapped(array)),
        is_graph=isinstance(source, Graph),
        cut=config.cut,
        is_of_owners=config.assignment_only or config.like is not None,
        is_weighted=config.cut_weights is not None,
        added=tuple(name for name in _ADDITIONS if getattr(config, name)),
    )


def estimate_needs(sizes: SourceSizes, method: str) -> Needs:
    """Estimate memory, disk and time of one of ``METHODS``."""
    shards = _HELD_ROWS * sizes.nodes * (sizes.node_bytes + 8)
    shards += sizes.edges * (sizes.edge_bytes + 8 + sizes.index_bytes)
    estimates = {"metis": _metis_bytes, "expansion": _expansion_bytes, "streaming": _streaming_bytes}
    memory, temporary = estimates[method](sizes)
    scanned_parts = 0.01 * sizes.parts if method == "streaming" else 0  # microseconds per edge; it scores every part
    seconds = 1e-6 * ((_EDGE_US[method] + scanned_parts) * sizes.edges + _KIB_US * shards / 1024)
    seconds += sizes.encoding_seconds
    memory += _INTERPRETER_BYTES + sizes.loaded_bytes
    return Needs(int(memory), int(shards + temporary), float(seconds))


def _metis_bytes(sizes: SourceSizes) -> tuple[float, int]:
    """Memory beyond the source and the interpreter, and disk beyond the shards (bytes), with METIS."""
    index, undirected = sizes.index_bytes, sizes.undirected_edges
    symmetrised = 3 * index * sizes.edges + 4 * index * undirected
    symmetrised += 32 * sizes.edges + 48 * undirected if sizes.is_weighted else 0
    weights = 96 * undirected if sizes.is_weighted else 0  # matrices of floats and whole numbers, and the file
    metis = max(symmetrised, 2 * (index + 1) * undirected + _METIS_EDGE_BYTES * undirected + weights)
    expanded = 24 * (sizes.nodes + sizes.edges) if sizes.cut in ("vertex", "auto") else 0
    disk = (32 if sizes.is_weighted else 16) * undirected
    return _in_memory_bytes(sizes, "metis", _CHILD_BYTES + metis + expanded + 80 * sizes.nodes), disk


def _expansion_bytes(sizes: SourceSizes) -> tuple[float, int]:
    """Memory and disk (bytes), as in ``_metis_bytes``, for neighbour expansion."""
    n, e, k = sizes.nodes, sizes.edges, sizes.parts
    levelling = 4 * n * k if counts_fit(n, e, k) else 0
    return _in_memory_bytes(sizes, "expansion", 6 * sizes.index_bytes * e + 64 * e / k + 50 * n + levelling), 0


def _streaming_bytes(sizes: SourceSizes) -> tuple[float, int]:
    """Memory and disk (bytes), as in ``_metis_bytes``, for streaming."""
    bits = sizes.nodes * 8 * -(-sizes.parts // 64)
    return 44 * sizes.nodes + bits + max(_SLICE_BYTES, _part_bytes(sizes, "streaming")), 12 * sizes.edges


def _in_memory_bytes(sizes: SourceSizes, method: str, cutting: float) -> float:
    """Memory of the graph and of the largest step: building, encoding and cutting it, and laying out the parts."""
    index = sizes.index_bytes
    is_made = not sizes.is_graph or sizes.transform_bytes
    structure = 8 * sizes.nodes + 2 * index * sizes.edges if is_made else 0
    adds_edges = {"undirected", "self_loops"}.intersection(sizes.added)  # to a graph that is there already
    build = 6 * index * sizes.edges if adds_edges else 0 if sizes.is_graph else 4 * index * sizes.edges
    layout = 30 * sizes.nodes + _HELD_ROWS * sizes.nodes * index + _part_bytes(sizes, method)
    data = sizes.nodes * sizes.added_bytes + sizes.edges * sizes.added_edge_bytes
    return structure + data + max(build, sizes.transform_bytes, sizes.encoding_bytes, cutting, layout)


def _part_bytes(sizes: SourceSizes, method: str) -> float:
    """Memory to write the largest part (bytes)."""
    most_edges = _MAX_EDGES[method] if sizes.most_edges is None else sizes.most_edges
    rows, edges = sizes.largest_part * sizes.nodes / sizes.parts, most_edges * sizes.edges / sizes.parts
    return rows * (2 * sizes.node_bytes + 16) + edges * (2 * sizes.edge_bytes + 72)


def possible_methods(sizes: SourceSizes) -> list[str]:
    """Return those of ``METHODS`` that the source allows."""
    return [method for method in METHODS if method != "streaming" or not (sizes.is_graph or sizes.added)]


def choose_method(sizes: SourceSizes, memory_bytes: int | None, cut: str | None, reading_bytes: int = 0) -> str:
    """Return the first of ``METHODS`` whose estimate is within the bound (bytes); METIS without a bound.

    An edge cut needs METIS, and no method takes less than ``reading_bytes``, the peak memory of reading the source.
    If no method is within the bound, the message of the :class:`InputError` names the least bound that works.
    """
    if memory_bytes is None:
        return "metis"
    read = reading_bytes + _INTERPRETER_BYTES
    needs = {method: max(read, estimate_needs(sizes, method).memory_bytes) for method in possible_methods(sizes)}
    allowed = ("metis",) if cut == "edge" else tuple(needs)
    for method in allowed:
        if needs[method] <= memory_bytes:
            return method
    least = min(allowed, key=needs.get)
    advice = "raise memory (--memory)"
    if cut == "edge" and not sizes.is_of_owners:
        others = [f"{METHOD_NAMES[each]} needs about {_in_mib(needs[each])}" for each in needs if each != "metis"]
        advice += f", or make a vertex cut: {', '.join(others)}"
    elif cut != "edge" and sizes.added and not sizes.is_graph:
        added = ", ".join(f"{name} (--{name.replace('_', '-')})" for name in sizes.added)
        advice = f"{added} cannot be added to a graph that is streamed: add them to the source, or {advice}"
    unit_missing = f" (did you mean {memory_bytes}GiB?)" if memory_bytes <= 1024 else ""
    raise InputError(
        f"a memory bound of {format_bytes(memory_bytes)} is too small{unit_missing}: the least that works is about "
        f"{_in_mib(needs[least])} ({METHOD_NAMES[least]}); {advice}"
    )


def metis_need(sizes: SourceSizes) -> str:
    """Return a sentence that says how much memory METIS needs."""
    return f"METIS needs about {_in_mib(estimate_needs(sizes, 'metis').memory_bytes)}"


def check_memory_bound(
    sizes: SourceSizes, method: str, memory_bytes: int, largest_part: float, most_edges: float
) -> None:
    """Raise :class:`InputError` if writing the largest part of a finished cut needs more memory than the bound.

    ``largest_part`` is the rows of the largest part over N / P, and ``most_edges`` the most edges of a part over E / P.
    """
    found = replace(sizes, largest_part=largest_part, most_edges=most_edges)
    need = estimate_needs(found, method).memory_bytes
    if need > memory_bytes:
        raise InputError(
            f"writing this cut needs about {_in_mib(need)}, more than the bound of {format_bytes(memory_bytes)}; the part "
            f"with the most rows holds {largest_part:.2f} times an even share of the nodes, and that with the most edges "
            f"{most_edges:.2f} times its share of the edges: make more parts, or raise memory (--memory)"
        )


def check_disk_space(graph, out, method: str) -> None:
    """Raise :class:`InputError` if the disk of ``out`` has less room than the shards of a graph need at least."""
    edge_bytes = _row_bytes(graph, "edge") + 8 + _index_bytes(graph.num_nodes, graph.num_edges)
    edge_bytes += 12 if method == "streaming" else 0
    check_room(out, graph.num_nodes * (_row_bytes(graph, "node") + 8) + graph.num_edges * edge_bytes)


def _index_bytes(num_nodes: int, num_edges: int) -> int:
    return 4 if max(num_nodes, num_edges) < 2**31 else 8


def _in_mib(count_bytes: int) -> str:
    """An amount in whole MiB, rounded up, so that it suffices as a bound."""
    return f"{-(-count_bytes // (1 << 20))} MiB"


def _row_bytes(source: Graph | COOGraph, kind: str) -> int:
    """Bytes of node data or edge data for each node or edge; in a typed graph, on average over all types."""
    data, rows = (source.node_data, source.num_nodes) if kind == "node" else (source.edge_data, source.num_edges)
    if source.schema is not None:
        return -(-sum(value.nbytes for value in data.values()) // max(1, rows or 0))
    return sum(value.dtype.itemsize * _row_width(value) for value in data.values())


def _row_width(value: np.ndarray | None) -> int:
    """Numbers in a row of a column; 0 if there is no such column."""
    return 0 if value is None else int(np.prod(value.shape[1:], dtype=np.int64))
