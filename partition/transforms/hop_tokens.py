"""Hop tokens of a typed graph: what lies at the end of each sequence of relations (after RpHGNN, arXiv:2310.14481)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import scipy

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.graph import Graph
from dgl_gt.partition.relations import relations_of
from dgl_gt.partition.schema import Relation, Schema
from dgl_gt.partition.system.mapped_arrays import release_pages

WIDTH = 64  # of a token where none is given
MAX_TOKENS = 1024  # of a node
_CHUNK_ROWS = 1 << 14


def token_counts(schema: Schema, hops: int) -> dict[str, int]:
    """How many tokens the nodes of each type have: the sequences of up to ``hops`` relations that end in the type.

    ``InputError`` if they are too many.
    """
    total = latest = dict.fromkeys(schema.nodes, 1)
    for hop in range(hops):
        latest = {
            name: sum(latest[each.source] for each in schema.edges if each.destination == name) for name in schema.nodes
        }
        total = {name: total[name] + latest[name] for name in schema.nodes}
        name = max(total, key=lambda each: total[each])
        if total[name] > MAX_TOKENS:
            raise InputError(
                f"hops is {hops}, and {total[name]:,} sequences of up to {hop + 1} relations end in {name!r}; at most "
                f"{MAX_TOKENS:,} may: take fewer hops in encode (--encode)"
            )
    return total


def hop_tokens(graph: Graph, hops: int, width: int, seed: int) -> dict[str, np.ndarray]:
    """The tokens of the nodes of each type, float32 (nodes, tokens * width).

    The first token of a node is its own: ``feat``, scaled to length 1 and multiplied by a random matrix if it is wider than
    ``width``, with zeros on the right if it is narrower. Nodes of a type without features have random rows, as if each
    had a column of its own. Random numbers are normally distributed with variance 1 / width, which preserves inner
    products on average. Then each sequence of 1 to ``hops`` relations that ends in the node's type has a token: the
    mean over the in-edges of its last relation of what their sources have of the sequence before it. Parallel edges
    count as often, and a node without in-edges has zeros.

    RpHGNN adds up the sequences after each hop, by further random matrices. Here they stay apart, which loses nothing, and
    their number is bounded in place of it.
    """
    schema, streams = graph.schema, np.random.SeedSequence(seed)
    assert schema is not None
    counts, means = token_counts(schema, hops), _means(graph)
    tokens = {name: np.zeros((nodes, counts[name], width), np.float32) for name, nodes in schema.nodes.items()}
    for name, stream in zip(schema.nodes, streams.spawn(len(schema.nodes))):
        feat = graph.node_data.get(f"{name}/feat")
        firsts = first_tokens(feat, schema.nodes[name], width, np.random.default_rng(stream), f"{graph.name}: {name}")
        for rows, chunk in zip(_chunks(schema.nodes[name]), firsts):
            tokens[name][rows, 0] = chunk
    latest = {name: range(1) for name in schema.nodes}  # places of the tokens of the hop before
    for _ in range(hops):
        following = {name: places.stop for name, places in latest.items()}
        for relation, mean in means.items():
            into = tokens[relation.destination]
            for place in latest[relation.source]:
                source = np.ascontiguousarray(tokens[relation.source][:, place])
                for rows in _chunks(len(into)):
                    into[rows, following[relation.destination]] = mean[rows] @ source
                following[relation.destination] += 1
        latest = {name: range(places.stop, following[name]) for name, places in latest.items()}
    return {name: each.reshape(len(each), counts[name] * width) for name, each in tokens.items()}


def first_tokens(
    feat: np.ndarray | None, nodes: int, width: int, rng: np.random.Generator, what: str
) -> Iterator[np.ndarray]:
    """Yield the first tokens of the nodes of a type, float32 (n, width), some nodes at a time; ``what`` names the type."""
    feat = None if feat is None else feat.reshape(len(feat), -1)
    columns = 0 if feat is None else feat.shape[1]
    projection = _random_matrix(rng, columns, width) if columns > width else None
    for rows in _chunks(nodes):
        if feat is None or not columns:
            yield _random_matrix(rng, rows.stop - rows.start, width)
            continue
        with np.errstate(over="ignore", invalid="ignore"):
            chunk = _of_length_one(feat[rows].astype(np.float32))
        if not np.isfinite(chunk).all():
            raise InputError(
                f"{what}/feat holds numbers beyond the range of float32 (3.4e38); scale the features, or leave hops out of encode "
                "(--encode)"
            )
        release_pages(feat)
        yield np.pad(chunk, ((0, 0), (0, width - columns))) if projection is None else chunk @ projection


def _means(graph: Graph) -> dict[Relation, scipy.sparse.csr_array]:
    """The matrix of each relation that takes means over in-edges, float32 (destinations, sources)."""
    assert graph.schema is not None
    nodes = graph.schema.nodes
    return {
        relation: mean_matrix(edges.src, edges.dst, (nodes[relation.destination], nodes[relation.source]))
        for relation, edges in relations_of(graph).items()
    }


def mean_matrix(src: np.ndarray, dst: np.ndarray, shape: tuple[int, int]) -> scipy.sparse.csr_array:
    """The matrix, float32 (destinations, sources), that takes means over in-edges, parallel ones as often as they are there."""
    matrix = scipy.sparse.csr_array((np.ones(len(src), np.float32), (dst, src)), shape)
    matrix.data /= np.repeat(matrix.sum(axis=1), np.diff(matrix.indptr))
    return matrix


def _random_matrix(rng: np.random.Generator, rows: int, width: int) -> np.ndarray:
    return (rng.standard_normal((rows, width), np.float32) / np.sqrt(width)).astype(np.float32)


def _of_length_one(rows: np.ndarray) -> np.ndarray:
    """Rows divided by their lengths; zeros stay."""
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(length > 0, length, 1)


def _chunks(count: int) -> Iterator[slice]:
    for start in range(0, count, _CHUNK_ROWS):
        yield slice(start, min(start + _CHUNK_ROWS, count))
