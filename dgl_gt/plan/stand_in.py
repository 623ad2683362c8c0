"""A small made-up part of a graph, and a stand-in for the other ranks, on which a training step can be traced.

A step's operations, and the sizes of its tensors, do not depend on the values of the data. So small parts show how
each size depends on the counts of a part, and no other rank needs to run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from dgl_gt.comm.group import Comm
from dgl_gt.comm.transport import Transport
from dgl_gt.exchange.load import make_view
from dgl_gt.exchange.shard import make_shard
from dgl_gt.exchange.sharded_graph import ShardedGraph
from dgl_gt.exchange.streamed import Stream
from dgl_gt.partition.cuts.edge_cut import EdgeCut
from dgl_gt.partition.cuts.permutation import Permutation
from dgl_gt.partition.cuts.vertex_cut import VertexCut
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.figures.strategies import Count, StrategyRules, counts_of_parts
from dgl_gt.partition.graph import LINK_SETS, Graph, from_edges
from dgl_gt.partition.schema import Schema
from dgl_gt.partition.shards.counts import manifest_counts
from dgl_gt.partition.shards.layout import Layout
from dgl_gt.partition.shards.write import of_type, structure_arrays
from dgl_gt.partition.transforms.encodings import NAMES
from dgl_gt.partition.transforms.exphormer import VIRTUAL_NODE

_OWNED, _OTHERS = (40, 90), (12, 40)  # least and most rows of the part, and of each other part
_ROWS_PER_HOP = 150  # of all other parts together
_MANY_PARTS = 16
_MAX_ATTEMPTS = 100
_OTHERS_OF_MANY = (5, 8)


class StandInRanks(Transport):
    """A transport for rank 0 of ranks that do not exist: rows arrive as zeros, and sums are this rank's own.

    ``listener(kind, what, *sizes)`` is called for each exchange and sum, see :class:`dgl_gt.plan.trace.Event`.
    """

    rank, device = 0, torch.device("cpu")

    def __init__(self, world_size: int, strategy: StrategyRules):
        self.world_size, self.ranks_per_host = world_size, strategy.ranks_per_host
        self._sends_copies = strategy.sends_copies
        self.listener: Callable | None = None

    def all_to_all(self, received, sent, recv_counts, send_counts):
        """Fill ``received`` with zeros, and tell the listener."""
        received.zero_()
        row_bytes = sent.element_size() * sent.shape[1:].numel()
        sizes = row_bytes * sum(send_counts[1:]), row_bytes * sum(recv_counts[1:])
        return self._tell("begin", "wait", *sizes, what=self._peers(recv_counts))

    def all_gather(self, received, rows, counts):
        """Fill ``received`` with zeros, and tell the listener of the sum that moves as many bytes."""
        received.zero_()
        return self._tell("sum", None, rows.nbytes * self.world_size / 2)  # a sum moves 2 (P - 1) / P times its bytes

    def all_reduce(self, total, op="sum", beside=False):
        """Change nothing, and tell the listener; what is gathered as a maximum is this rank's own."""
        return self._tell(*("begin_sum", "wait_sum") if beside else ("sum", None), total.nbytes)

    def gather_text(self, text: str, what: str) -> list[str]:
        """Every rank says the same."""
        return [text] * self.world_size

    def _tell(self, begin: str, end: str | None, *sizes, what: tuple = ()):
        if (listener := self.listener) is None:
            return lambda _: None
        listener(begin, what, *sizes)
        return lambda _: listener(end) if end else None

    def _peers(self, recv_counts: list[int]) -> tuple:
        """From which ranks rows arrive, as an event says it; copies may come from any."""
        if self._sends_copies:
            return ()
        peers, per_host = [rank for rank in range(1, self.world_size) if recv_counts[rank]], self.ranks_per_host
        if per_host is not None and peers:
            if max(peers) < per_host:
                return "within", per_host
            return ("between", per_host) if all(rank % per_host == 0 for rank in peers) else ()
        return (self.world_size - peers[0],) if len(peers) == 1 and self.world_size > 2 else ()


class _LaidOut:
    """The arrays of a layout in memory, as a reader of shards, see :class:`dgl_gt.exchange.shard.Reader`."""

    def __init__(self, layout: Layout):
        graph, figures = layout.graph, layout.figures
        self.parts, self.is_vertex_cut = figures.parts, layout.is_vertex_cut
        self.manifest = {
            **manifest_counts(figures, [0] * figures.parts),
            "ptr": layout.cut.ptr.tolist(),
            "source": graph.name,
            "encodings": {name: {} for name in (*NAMES, VIRTUAL_NODE) if name in graph.node_data | graph.edge_data},
            "transforms": {},
            "links": {
                "pairs": dict.fromkeys(LINK_SETS, 0),
                "is_undirected": True,
                "own_negatives": False,
                "relation": None,
            },
        }
        self._layout = layout

    def rows(self, part: int, depth: int = 1) -> list[int]:
        return [int(self._layout.figures.held_within(hops)[part]) for hops in range(depth + 1)]

    def structure(self, part: int, *names: str, depth: int = 1) -> dict[str, torch.Tensor]:
        arrays = structure_arrays(self._layout, self._layout.part(part), part)
        return {name: torch.from_numpy(np.ascontiguousarray(arrays[name])) for name in names or arrays}

    def links(self) -> dict[str, torch.Tensor]:
        """Return a part without links."""
        none, places = torch.zeros(2, 0, dtype=torch.int64), torch.from_numpy(self._layout.cut.new_ids())
        return {**dict.fromkeys(LINK_SETS, none), "new_ids": places}

    def data(self, part: int, kind: str, *names: str, rows: int) -> dict[str, torch.Tensor]:
        graph, ids = self._layout.graph, self.structure(part, "node_ids", "edge_ids")
        of_kind = ids[f"{kind.removesuffix('_data')}_ids"][:rows].numpy()
        columns = getattr(graph, kind)
        return {
            name: torch.from_numpy(column[of_type(graph, kind.removesuffix("_data"), name, of_kind)])
            for name, column in columns.items()
        }


def stand_in(
    layout: Layout,
    strategy: StrategyRules,
    depth: int,
    overlap: bool = True,
    pieces: tuple[int, torch.dtype | None] | None = None,
) -> ShardedGraph:
    """Part 0 of a made-up graph, as :func:`dgl_gt.load` with these options would give it.

    With ``pieces``, a number of ranks and the ``spill_dtype`` of a stream, it is the only piece of one of these ranks. A
    rank alone also has rows of other pieces, here the halo.
    """
    parts = pieces[0] if pieces else layout.figures.parts
    shard = make_shard(_LaidOut(layout), 0, depth)
    ranks = Comm(check_parameters=False, transport=StandInRanks(parts, strategy))
    order = shard.node_ids[: shard.num_held].clone() if strategy.in_rank_order else None
    degrees = torch.ones(shard.rows[-1], 2, dtype=torch.int64, device=shard.node_ids.device)
    shard = replace(shard, degrees=degrees, rank_order=order)
    sg = ShardedGraph(shard, ranks, strategy, lambda on: make_view(strategy, on, ranks, overlap))
    if pieces:
        sg.stream = Stream(shard, ranks, [0, shard.num_owned], None, pieces[1])
    return sg


def make_layout(
    strategy: StrategyRules,
    depth: int,
    parts: int,
    seed: int,
    node_data: dict,
    edge_data: dict,
    schema: Schema | None = None,
) -> Layout:
    """Lay out a small random graph, of which part 0 has rows and edges of every kind.

    ``seed`` is that of the numbers of rows and edges. The columns of the data are given by a dtype's name and the shape of
    a row. Masks select random rows of part 0, and all of the others; all other values are zeros, or True. Of a typed graph,
    the types and relations are those of ``schema``.
    """
    for attempt in range(_MAX_ATTEMPTS):
        rng = np.random.default_rng([parts, depth, seed, attempt])
        layout = Layout(*_cut_graph(rng, strategy, depth, parts, node_data, edge_data, schema), depth)
        figures = layout.figures
        counts = [figures.copies_by_hop[0], figures.sent_by_hop[0], figures.edges_by_hop[0]] if parts > 1 else []
        if size := strategy.ranks_per_host:
            rows = figures.hosts[size].received_rows
            counts += [rows[0].sum(), rows[:, 0].sum()]
        if figures.typed is not None and schema is not None:
            counts.append(figures.typed.edges[0, 0, schema.having(edge_data)])
        if all(np.all(each > 0) for each in counts):
            return layout
    raise InputError(f"a halo of {depth} hops in {parts} parts cannot be traced; choose fewer hops")


def without_dependent(made_up: Callable[[int], Layout], names: tuple[Count, ...]) -> tuple[Count, ...]:
    """Leave out counts that others always add up to: the copies of a type with one relation are the relation's sources."""
    counts = [counts_of_parts(made_up(seed).figures, names)[0] for seed in range(2 * len(names))]
    scaled, kept = np.array(counts) / np.maximum(np.max(counts, axis=0), 1), list[int]()
    for number in range(len(names)):
        if np.linalg.matrix_rank(scaled[:, [*kept, number]], tol=1e-6) > len(kept):
            kept.append(number)
    return tuple(names[number] for number in kept)


def _cut_graph(
    rng, strategy: StrategyRules, depth: int, parts: int, node_data, edge_data, schema: Schema | None
) -> tuple[Graph, Permutation]:
    least, most = np.array(_OTHERS if parts < _MANY_PARTS else _OTHERS_OF_MANY)
    owned = rng.integers(*_OWNED)
    if depth > 1:  # so that no hop reaches all rows
        least = max(least, -(-_ROWS_PER_HOP * depth // parts))
        most, owned = max(2 * most, 2 * least), max(owned, rng.integers(least, 2 * least))
    others = rng.integers(least, most + 1)
    ptr = np.concatenate([[0], np.cumsum([owned, *[others] * (parts - 1)])])
    is_vertex_cut = strategy.cut == "vertex"
    if size := strategy.ranks_per_host:
        src, dst = _edges_of_hosts(rng, ptr, size)
    elif depth > 1:
        src, dst = _few_edges(rng, ptr, depth)
    else:
        src, dst, owners = _even_edges(rng, ptr if schema is None else ptr[:3], is_vertex_cut)
    order, kept = np.arange(ptr[-1], dtype=np.int32), np.arange(len(src))
    if schema is not None:
        types, relation = _random_types(rng, src, dst, int(ptr[min(parts, 2)] if depth == 1 else ptr[-1]), schema)
        edges = np.stack([src, dst, relation, owners if depth == 1 else 0 * src])[:, relation >= 0]
        if depth == 1:
            types, edges = _alike(types, edges, ptr)
        edges = edges[:, np.argsort(edges[2], kind="stable")]
        order[np.argsort(types, kind="stable")] = np.arange(ptr[-1])  # nodes are numbered type by type
        (src, dst), owners = order[edges[:2]], edges[3].astype(np.int32)
        kept = np.arange(len(src))
        of_type, of_relation = (
            np.bincount(each, minlength=size).tolist()
            for each, size in ((types, len(schema.nodes)), (edges[2], len(schema.edges)))
        )
        schema = Schema(dict(zip(schema.nodes, of_type)), dict(zip(schema.edges, of_relation)))
    graph = from_edges(src, dst, int(ptr[-1]), {}, name="the graph of a trace", schema=schema)
    for kind, data, columns in (("node", graph.node_data, node_data), ("edge", graph.edge_data, edge_data)):
        whole = graph.num_nodes if kind == "node" else graph.num_edges
        for name, (dtype, shape) in columns.items():
            rows = slice(0, whole) if schema is None else schema.rows_of(kind, name)
            data[name] = np.full((rows.stop - rows.start, *shape), dtype == "bool", dtype)
    masks = {name: x for name, x in graph.node_data.items() if x.dtype == bool and x.ndim == 1}
    shares = rng.dirichlet(np.full(len(masks) + 1, 3.0))  # of the rows of part 0; no two masks select the same row
    chosen = rng.choice(len(masks) + 1, int(ptr[1]), p=shares)
    for number, (name, mask) in enumerate(masks.items()):
        is_first = np.zeros(graph.num_nodes, bool)
        is_first[order[: ptr[1]]] = True
        selected = ~is_first
        selected[order[: ptr[1]]] = chosen == number
        mask[:] = selected[slice(None) if schema is None else schema.rows_of("node", name)]
    if is_vertex_cut:
        return graph, VertexCut(order, ptr, owners[kept][graph.edge_ids], np.full(parts, 1 / parts))
    return graph, EdgeCut(order, ptr, np.full(parts, 1 / parts))


def _random_types(rng, src: np.ndarray, dst: np.ndarray, nodes: int, schema: Schema) -> tuple[np.ndarray, np.ndarray]:
    """Random types of rows, and relations of edges between the types of their ends, or -1 where there is none."""
    types = rng.choice(len(schema.nodes), nodes, p=rng.dirichlet(np.full(len(schema.nodes), 4.0)))
    fits = (types[src][:, None] == schema.ends[:, 0]) & (types[dst][:, None] == schema.ends[:, 1])
    return types, np.where(fits.any(axis=1), np.where(fits, rng.random(fits.shape), -1).argmax(axis=1), -1)


def _alike(types: np.ndarray, edges: np.ndarray, ptr: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Types and edges of all parts, from those of parts 0 and 1: every further part is like part 1.

    So part 0 exchanges as many rows with each of them. An edge is its source, destination, relation and owner.
    """
    if len(ptr) == 2:
        return types, edges
    first, step, others = ptr[1], ptr[2] - ptr[1], len(ptr) - 2
    within = (edges[0] < first) & (edges[1] < first) & (edges[3] == 0)
    shifted = []
    for part in range(others):
        copy = edges[:, ~within].copy()
        copy[:2] += np.where(copy[:2] >= first, part * step, 0)
        copy[3] += np.where(copy[3] > 0, part, 0)
        shifted.append(copy)
    return np.concatenate([types[:first], *[types[first:]] * others]), np.concatenate([edges[:, within], *shifted], 1)


def _even_edges(rng, ptr: np.ndarray, is_vertex_cut: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Edges such that each row has equally many from every other part, so that ``ring``'s blocks are alike.

    Their sources in other parts are some of the first rows there, so that not all rows are copied. In a vertex cut, a part
    also owns edges from its rows to some of the first rows of each other part, to which it returns results. The edges are
    sources, destinations and owners.
    """
    parts = len(ptr) - 1
    near, far = rng.integers(1, 5), rng.integers(1, 3 if is_vertex_cut or parts >= _MANY_PARTS else 4)
    back = rng.integers(1, 4) if is_vertex_cut else 0
    read_here, read_elsewhere = rng.uniform(0.1, 1, 2)
    back_here, back_elsewhere = rng.uniform(0.1, 0.7, 2) if is_vertex_cut else (0, 0)
    edges = []
    others = range(1, parts)
    pairs = [(part, part) for part in range(parts)] + [(0, part) for part in others] + [(part, 0) for part in others]
    for part, other in pairs:
        own, there = np.arange(*ptr[part : part + 2]), np.arange(*ptr[other : other + 2])
        if part == other:
            edges.append((rng.choice(own, near * len(own)), np.repeat(own, near), part))
            continue
        read = there[: max(1, round((read_here if part == 0 else read_elsewhere) * len(there)))]
        edges.append((rng.choice(read, far * len(own)), np.repeat(own, far), part))
        if is_vertex_cut:
            home = there[: max(1, round((back_here if other == 0 else back_elsewhere) * len(there)))]
            edges.append((rng.choice(own, back * len(home)), np.repeat(home, back), part))
    src, dst, owners = zip(*((src, dst, np.full(len(src), part, np.int32)) for src, dst, part in edges))
    return np.concatenate(src), np.concatenate(dst), np.concatenate(owners)


def _edges_of_hosts(rng, ptr: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Random edges between the parts, on hosts of ``size`` parts.

    How many there are between two parts depends on whether each of them is part 0, on its host, or on another host.
    """
    src, dst, parts = [], [], len(ptr) - 1
    most = rng.integers(2, 60, (3, 3))  # edges per pair of parts, by what the parts at both ends are
    kind = [0 if part == 0 else 1 if part < size else 2 for part in range(parts)]
    for part in range(parts):
        for other in range(parts) if part < size else [*range(size), part]:
            count = rng.integers(1, most[kind[part], kind[other]] + 1)
            src.append(rng.integers(ptr[other], ptr[other + 1], count))
            dst.append(rng.integers(ptr[part], ptr[part + 1], count))
    return np.concatenate(src), np.concatenate(dst)


def _few_edges(rng, ptr: np.ndarray, depth: int) -> tuple[np.ndarray, np.ndarray]:
    """Edges so few that each further hop reaches new rows, and never all."""
    dst = np.repeat(np.arange(ptr[-1]), 1 + (rng.random(ptr[-1]) < rng.uniform(0.1, 0.6)))
    near = np.clip(dst + rng.integers(-4, 5, len(dst)), 0, ptr[-1] - 1)
    share = rng.uniform(0.2, 0.5) / (depth - 1)
    return np.where(rng.random(len(dst)) < share, rng.integers(0, ptr[-1], len(dst)), near), dst
