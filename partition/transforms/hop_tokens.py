"""Hop tokens of a typed graph: what a node's surroundings hold, by relation and hop (after RpHGNN, arXiv:2310.14481)."""

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
_CHUNK_ROWS = 1 << 14


def relations_into(schema: Schema, node_type: str) -> list[Relation]:
    """The relations whose edges end in a node type, in the order of their tokens."""
    return [each for each in schema.edges if each.destination == node_type]


def token_counts(schema: Schema, hops: int) -> dict[str, int]:
    """How many tokens the nodes of each type have."""
    return {name: 1 + hops * len(relations_into(schema, name)) for name in schema.nodes}


def hop_tokens(graph: Graph, hops: int, width: int, seed: int) -> dict[str, np.ndarray]:
    """The tokens of the nodes of each type, float32 (nodes, tokens * width).

    The first token of a node is its state before the first hop. Then each hop adds one token for each relation into
    the node's type: the mean of the states of the sources of its in-edges (the paper's local and global collection;
    parallel edges count as often, and a node without in-edges has zeros). A node's state after a hop is the mean of
    these tokens, each multiplied by a random matrix of its own and scaled to length 1, divided by its length (its
    squashing). So the tokens of hop k hold what lies at the end of every sequence of k relations into the type, and
    their number grows with the hops, not with the sequences.

    Before the first hop, the state is ``feat``, scaled to length 1 and multiplied by a random matrix if it is wider than
    ``width``, with zeros on the right if it is narrower. Nodes of a type without features have random rows, as if each had a
    column of its own. Random matrices are normally distributed with variance 1 / width, which preserves inner products on
    average.
    """
    schema, streams = graph.schema, np.random.SeedSequence(seed)
    assert schema is not None
    counts = token_counts(schema, hops)
    tokens = {name: np.zeros((nodes, counts[name], width), np.float32) for name, nodes in schema.nodes.items()}
    for name, stream in zip(schema.nodes, streams.spawn(len(schema.nodes))):
        _fill_first(
            tokens[name][:, 0],
            graph.node_data.get(f"{name}/feat"),
            np.random.default_rng(stream),
            f"{graph.name}: {name}",
        )
    states = {name: each[:, 0] for name, each in tokens.items()}
    means = _means(graph) if hops else {}
    for hop in range(hops):
        following = {name: np.zeros((nodes, width), np.float32) for name, nodes in schema.nodes.items()}
        for (relation, mean), stream in zip(means.items(), streams.spawn(len(means))):
            place = 1 + hop * len(relations_into(schema, relation.destination))
            place += relations_into(schema, relation.destination).index(relation)
            squash = _random_matrix(np.random.default_rng(stream), width, width)
            source, into = np.ascontiguousarray(states[relation.source]), following[relation.destination]
            for rows in _chunks(len(into)):
                of_rows = mean[rows] @ source
                tokens[relation.destination][rows, place] = of_rows
                into[rows] += _of_length_one(of_rows @ squash)
        for each in following.values():
            for rows in _chunks(len(each)):
                each[rows] = _of_length_one(each[rows])
        states = following
    return {name: each.reshape(len(each), counts[name] * width) for name, each in tokens.items()}


def _fill_first(state: np.ndarray, feat: np.ndarray | None, rng: np.random.Generator, what: str) -> None:
    """Write the states before the first hop, (nodes, width)."""
    width = state.shape[1]
    feat = None if feat is None else feat.reshape(len(feat), -1)
    columns = 0 if feat is None else feat.shape[1]
    projection = _random_matrix(rng, columns, width) if columns > width else None
    for rows in _chunks(len(state)):
        if feat is None or not columns:
            state[rows] = _random_matrix(rng, rows.stop - rows.start, width)
            continue
        with np.errstate(over="ignore", invalid="ignore"):
            chunk = _of_length_one(feat[rows].astype(np.float32))
        if not np.isfinite(chunk).all():
            raise InputError(
                f"{what}/feat holds numbers beyond the range of float32 (3.4e38); scale the features, or leave hops out of encode "
                "(--encode)"
            )
        state[rows, : min(width, columns)] = chunk if projection is None else chunk @ projection
        release_pages(feat)


def _means(graph: Graph) -> dict[Relation, scipy.sparse.csr_array]:
    """The matrix of each relation that takes means over in-edges, float32 (destinations, sources)."""
    found = {}
    for relation, edges in relations_of(graph).items():
        assert graph.schema is not None
        shape = graph.schema.nodes[relation.destination], graph.schema.nodes[relation.source]
        matrix = scipy.sparse.csr_array((np.ones(len(edges.src), np.float32), (edges.dst, edges.src)), shape)
        matrix.data /= np.repeat(matrix.sum(axis=1), np.diff(matrix.indptr))
        found[relation] = matrix
    return found


def _random_matrix(rng: np.random.Generator, rows: int, width: int) -> np.ndarray:
    return (rng.standard_normal((rows, width), np.float32) / np.sqrt(width)).astype(np.float32)


def _of_length_one(rows: np.ndarray) -> np.ndarray:
    """Rows divided by their lengths; zeros stay."""
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(length > 0, length, 1)


def _chunks(count: int) -> Iterator[slice]:
    for start in range(0, count, _CHUNK_ROWS):
        yield slice(start, min(start + _CHUNK_ROWS, count))
