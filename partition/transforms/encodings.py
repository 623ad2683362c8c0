"""Which encodings the text of ``--encode`` names, and what memory and time they take, before anything is computed.

Bytes are counted from the arrays of each step, and times come from runs on two cores of a server.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dgl_gt.partition.errors import InputError, check_type
from dgl_gt.partition.schema import Schema

from . import node_encodings
from .hop_tokens import WIDTH, token_counts
from .laplacian import SPARE, lanczos_vectors
from .shortest_path import BLOCK_WALKS, CELLS

NAMES = ("laplacian", "random_walk", "degree", "anchors", "hops", "shortest_path")
MAX_SIZES = {"laplacian": 128, "random_walk": 128, "anchors": 1024, "hops": 32, "shortest_path": 6}
MAX_WIDTH = 4096  # columns per hop
_FORMS = "laplacian=K, random_walk=K, degree, anchors=A, hops=K, hops=KxW or shortest_path=K, with commas between them"
# nanoseconds per entry of the adjacency, and per column, probe and step, landmark, or hop and feature
_ENTRY_NS = {"adjacency": 50, "laplacian": 250, "random_walk": 1.5, "anchors": 15, "hops": 2}
_HOP_NS = {"entry": 8, "pair": 15}  # of a search for shortest paths, from 64 nodes
_SEARCHES = 12  # time of the whole over that of the searches from nodes of high degree


@dataclass(frozen=True)
class Encoding:
    """One encoding to compute; its name is also that of its node data or edge data."""

    name: str  # one of ``NAMES``
    size: int  # number of eigenvectors, steps, landmarks or hops; 2 for ``degree``
    width: int | None = None  # most columns per hop, only for ``hops``; wider features are projected
    tokens: int | None = None  # of a node on average, only for ``hops`` of a typed graph

    @property
    def is_of_edges(self) -> bool:
        """Whether the encoding becomes edge data."""
        return self.name == "shortest_path"

    def on(self, schema: Schema | None) -> Encoding:
        """Return the encoding with the sizes that it has on a graph of these types."""
        if self.name != "hops" or schema is None:
            return self
        total = sum(schema.nodes[name] * tokens for name, tokens in token_counts(schema, self.size).items())
        return replace(self, width=self.width or WIDTH, tokens=-(-total // max(1, int(schema.node_ptr[-1]))))

    def columns(self, features: int = 0) -> int:
        """Return the number of columns; ``features`` is the width of ``feat``, which only ``hops`` reads."""
        if self.is_of_edges:
            return 2
        if self.name != "hops":
            return self.size
        if self.tokens is not None:
            return self.tokens * (self.width or WIDTH)
        return self.size * (features if self.width is None else min(features, self.width))


def parse_encodings(text: str | None) -> tuple[Encoding, ...]:
    """The encodings that a text such as ``"laplacian=16,degree"`` names; :class:`InputError` if one is wrong."""
    if text is None:
        return ()
    check_type("encode", text, str)
    encodings = tuple(_parse_one(text, word.strip()) for word in text.split(","))
    names = [each.name for each in encodings]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"encode is {reprlib.repr(text)}: it names {name} twice; give each encoding at most once")
    return encodings


def _parse_one(text: str, word: str) -> Encoding:
    name, equals, value = (part.strip() for part in word.partition("="))
    if name == "degree" and not equals:
        return Encoding("degree", 2)
    if name not in MAX_SIZES:
        raise InputError(f"encode is {reprlib.repr(text)}: there is no encoding {reprlib.repr(word)}; write {_FORMS}")
    size, by, width = value.partition("x") if name == "hops" else (value, "", "")
    encoding = Encoding(name, _number(size), _number(width) if by else None)
    if not 1 <= encoding.size <= MAX_SIZES[name] or encoding.width is not None and not 1 <= encoding.width <= MAX_WIDTH:
        columns = f", and hops=KxW a width W from 1 to {MAX_WIDTH:,}, as in hops=3x64" if name == "hops" else ""
        raise InputError(
            f"encode is {reprlib.repr(text)}: {name} takes a whole number from 1 to {MAX_SIZES[name]:,}, as in "
            f"{name}=4{columns}"
        )
    return encoding


def _number(text: str) -> int:
    """A whole number, or 0, which is never allowed, for other text."""
    return int(text) if re.fullmatch("[0-9]{1,9}", text.strip(), re.ASCII) else 0


# ---- needs -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sizes:
    """Sizes of a graph without what transforms add, and of what they add."""

    nodes: int
    edges: int
    undirected_edges: int  # that METIS sees
    features: int  # width of ``feat``
    new_edges: int = 0  # of transforms
    expander_edges: int = 0  # those of new_edges between nodes of the graph


def row_bytes(encodings: Sequence[Encoding], features: int) -> int:
    """Bytes per node of the node data; ``features`` is the width of ``feat``."""
    return 4 * sum(each.columns(features) for each in encodings if not each.is_of_edges)


def edge_bytes(encodings: Sequence[Encoding]) -> int:
    """Bytes per edge of the edge data."""
    return sum(each.columns() for each in encodings if each.is_of_edges)


def work_bytes(encodings: Sequence[Encoding], sizes: Sizes) -> int:
    """The most memory that computing takes in addition to the graph and the data that it makes (bytes)."""
    if not encodings:
        return 0
    entries = 2 * sizes.undirected_edges
    building = 36 * sizes.edges + 30 * sizes.nodes  # the adjacency and its transpose, with indices of 64 bits
    needs = [max(40 * sizes.nodes, 8 * (sizes.nodes + sizes.edges))]
    for each in encodings:
        if each.is_of_edges:
            needs.append(_shortest_path(each.size, sizes))
        elif each.name != "degree":
            own = _one(each, sizes.nodes, entries, sizes.features)
            needs.append(max(building, 5 * entries + 4 * sizes.nodes + own))
    plain = 8 * sizes.nodes + 18 * sizes.edges + 9 * sizes.new_edges if sizes.new_edges else 0
    return plain + max(needs)


def seconds(encodings: Sequence[Encoding], sizes: Sizes) -> float:
    """About how long computing takes on one core."""
    entries, total = 2 * sizes.undirected_edges, 0.0
    for each in encodings:
        if each.is_of_edges:
            total += _search_seconds(each.size, sizes)
        elif each.name != "degree":
            passes = each.columns(sizes.features) if each.tokens is None else each.size * (each.width or WIDTH)
            if each.name == "random_walk":
                is_exact = node_encodings.is_exact(sizes.nodes, entries, each.size)
                passes = (sizes.nodes if is_exact else node_encodings.PROBES) * ((each.size + 1) // 2)
            total += 1e-9 * entries * _ENTRY_NS[each.name] * passes
            total += 1e-9 * entries * _ENTRY_NS["adjacency"]
    return total


def _shortest_path(most: int, sizes: Sizes) -> int:
    """Memory of ``shortest_path`` (bytes)."""
    pairs, block = sizes.edges + 2 * sizes.expander_edges, 0
    if most > 1:
        degree = 2 * sizes.undirected_edges / sizes.nodes
        block = min(CELLS, sizes.nodes**2) + int(30 * min(BLOCK_WALKS, pairs * max(degree, 1) ** (most // 2)))
    return 11 * (sizes.edges + sizes.new_edges) + 60 * pairs + 20 * sizes.edges + 16 * most * sizes.nodes + block


def _search_seconds(most: int, sizes: Sizes) -> float:
    """About how long ``shortest_path`` takes: longer paths are searched for edges without a reverse."""
    one_way = max(0, 2 * sizes.undirected_edges - sizes.edges) + sizes.expander_edges
    hubs = min(sizes.nodes, 32 << most) / 64 if one_way and most > 1 else 0  # searches, by experience
    search = hubs * most * (_HOP_NS["entry"] * sizes.edges + _HOP_NS["pair"] * one_way)
    return 1e-9 * (_SEARCHES * search + 500 * (sizes.edges + 2 * sizes.expander_edges))


def _one(encoding: Encoding, nodes: int, entries: int, features: int) -> int:
    """Memory of one encoding in addition to the adjacency and the result (bytes)."""
    size = encoding.size
    match encoding.name:
        case "laplacian":
            lanczos = lanczos_vectors(size, nodes) + size + 10
            return 8 * nodes * max(lanczos, 6 * (size + SPARE)) + 32 * entries + 60 * nodes
        case "random_walk":
            if node_encodings.is_exact(nodes, entries, size):
                return 5 * node_encodings.block_bytes(nodes) + 8 * entries
            return nodes * (20 * node_encodings.BLOCK_PROBES + 8 * size + 60) + 8 * entries
        case "anchors":
            return 8 * entries + 60 * nodes
        case "hops" if encoding.tokens is not None:
            return 12 * nodes * (encoding.width or WIDTH) + 16 * entries
        case "hops":
            return 8 * nodes * (encoding.columns(features) // size) + 8 * entries + 20 * nodes
    return 40 * nodes
