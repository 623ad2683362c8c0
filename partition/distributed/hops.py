"""The encoding ``hops``, range by range and some columns at a time, with the numbers that one process computes.

A graph of one type is taken as one type with one relation. Columns do not depend on each other, so a task holds few.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import scipy  # imports its parts at their first use

from dgl_gt.partition.system.distinct import unique
from dgl_gt.partition.system.mapped_arrays import take_rows
from dgl_gt.partition.transforms.encode import record_of_hops
from dgl_gt.partition.transforms.encodings import Encoding
from dgl_gt.partition.transforms.hop_tokens import first_tokens, mean_matrix
from dgl_gt.partition.transforms.node_encodings import check_finite, starting_rows

from .edges import edge_ids
from .files import array_file, write_rows
from .job import Job, places
from .stages import Arrays, Stages

_COLUMNS = 16  # of a token that a task computes
_CHUNK_BYTES = 16 << 20  # of tokens that are joined at a time


@dataclass(frozen=True)
class _Tokens:
    """What the nodes of each type get."""

    encoding: Encoding
    width: int
    ptr: np.ndarray  # the nodes where types begin, and N
    ends: np.ndarray  # types of the sources and destinations of each relation, (relations, 2)
    counts: list[list[int]]  # of each type after each hop

    @property
    def blocks(self) -> range:
        """The blocks of columns of a token."""
        return range(-(-self.width // _COLUMNS))

    def slice(self, block: int) -> slice:
        """The columns of a block."""
        return slice(block * _COLUMNS, min((block + 1) * _COLUMNS, self.width))


def add_hops(run: Stages, job: Job, encoding: Encoding) -> Job:
    """Compute the encoding; return the job with it among the node data."""
    schema = job.coo.schema
    tokens = _tokens(job, encoding.on(schema))
    run.map("first-tokens", partial(_first, job, tokens=tokens), 1)
    if schema is None:
        run.map("token-scales", partial(_scales, job), job.ranges)
    for block in tokens.blocks:
        for hop in range(1, encoding.size + 1):
            run.map(f"tokens-{hop}-{block}", partial(_hop, job, tokens=tokens, hop=hop, block=block), job.ranges)
    names = ["hops"] if schema is None else [f"{each}/hops" for each in schema.nodes]
    run.map("tokens", partial(_join, job, tokens=tokens), len(names))
    run.drop(*(f"tokens-{hop}-{block}" for block in tokens.blocks for hop in range(1, encoding.size + 1)))
    paths = [_place(job, "tokens", number) for number in range(len(names))]
    arrays = {f"node/{name}": array_file(np.load(path, mmap_mode="r"), path) for name, path in zip(names, paths)}
    record = record_of_hops(tokens.encoding, schema, encoding.size * tokens.width, job.seed)
    coo = replace(job.coo, encodings={**job.coo.encodings, "hops": record})
    return replace(job, arrays=job.arrays | arrays, coo=coo)


def _tokens(job: Job, encoding: Encoding) -> _Tokens:
    schema = job.coo.schema
    if schema is None:
        features = int(np.prod(job.arrays["node/feat"].shape[1:]))
        ptr, ends, width = np.array([0, job.num_nodes]), np.zeros((1, 2), np.int64), encoding.columns(features)
        width //= encoding.size
    else:
        assert encoding.width is not None
        ptr, ends, width = schema.node_ptr, schema.ends, encoding.width
    counts: list[np.ndarray] = [np.ones(len(ptr) - 1, np.int64)]
    for _ in range(encoding.size):
        counts.append(np.bincount(ends[:, 1], counts[-1][ends[:, 0]], len(ptr) - 1).astype(np.int64))
    return _Tokens(encoding, width, ptr, ends, [each.tolist() for each in counts])


def _first(job: Job, _item: int, tokens: _Tokens) -> Arrays:
    """Write the rows that are propagated, of all types: random numbers come from one stream."""
    schema = job.coo.schema
    if schema is None:
        rows = {0: starting_rows(job.arrays["node/feat"].open(), tokens.encoding.width, job.seed)}
    else:
        streams, rows = np.random.SeedSequence(job.seed).spawn(len(schema.nodes)), {}
        for number, (name, nodes) in enumerate(schema.nodes.items()):
            feat, draw = job.arrays.get(f"node/{name}/feat"), np.random.default_rng(streams[number])
            opened = None if feat is None else feat.open()
            rows[number] = first_tokens(opened, nodes, tokens.width, draw, f"{job.coo.name}: {name}")
    for number, chunks in rows.items():
        shape = int(np.diff(tokens.ptr)[number]), tokens.width
        write_rows(_place(job, "first-tokens", number), np.dtype(np.float32), shape, chunks)
    return {}


def _scales(job: Job, index: int) -> Arrays:
    """1 / sqrt(degree) of the nodes of a range, as METIS sees them."""
    (ptr,) = job.folder.load(f"ranges-sorted/{index}", "ptr")
    return {"scale": (1 / np.sqrt(np.maximum(np.diff(ptr), 1))).astype(np.float32)}


def _hop(job: Job, index: int, tokens: _Tokens, hop: int, block: int) -> Arrays:
    """Some columns of the tokens of one hop of a range's nodes, by type and place."""
    found: Arrays = {}
    following = [0] * (len(tokens.ptr) - 1)
    for (source, destination), matrix, nodes in _matrices(job, index, tokens):
        for place in range(tokens.counts[hop - 1][source]):
            rows = matrix @ _rows(job, tokens, hop - 1, block, source, place, nodes)
            if job.coo.schema is None:
                check_finite(rows)
            found[f"{destination}.{following[destination]}"] = rows
            following[destination] += 1
    return found


def _matrices(
    job: Job, index: int, tokens: _Tokens
) -> Iterator[tuple[tuple[int, int], scipy.sparse.csr_array, np.ndarray]]:
    """Of each relation its types, the matrix that takes a range's nodes to the next hop, and the nodes of its columns."""
    begin, end = job.range_ptr[index : index + 2].tolist()
    if job.coo.schema is None:
        ptr, neighbours, others = job.folder.load(f"ranges-sorted/{index}", "ptr", "neighbours", "others")
        values = job.lookup("token-scales", "scale", others)[neighbours] if len(others) else np.zeros(0, np.float32)
        values *= np.repeat(job.folder.load(f"token-scales/{index}", "scale")[0], np.diff(ptr))
        yield (0, 0), scipy.sparse.csr_array((values, neighbours, ptr), (end - begin, len(others))), others
        return
    indptr, src = job.folder.load(f"ranges-sorted/{index}", "indptr", "src")
    relation, dst = job.coo.schema.relation_of(edge_ids(job, index)), np.repeat(job.nodes(index), np.diff(indptr))
    for number, (source, destination) in enumerate(tokens.ends.tolist()):
        first, last = np.clip(tokens.ptr[destination : destination + 2], begin, end).tolist()
        is_of = relation == number
        nodes = unique(src[is_of])
        at = places(nodes, src[is_of], job.num_nodes)
        yield (source, destination), mean_matrix(at, dst[is_of] - first, (last - first, len(nodes))), nodes


def _rows(job: Job, tokens: _Tokens, hop: int, block: int, of_type: int, place: int, nodes: np.ndarray) -> np.ndarray:
    """Some columns of one token of ascending nodes of a type after a hop."""
    columns = tokens.slice(block)
    if not len(nodes):
        return np.zeros((0, columns.stop - columns.start), np.float32)
    first = int(tokens.ptr[of_type])
    if hop:
        return job.lookup(f"tokens-{hop}-{block}", f"{of_type}.{place}", nodes, first)
    mapped = np.load(_place(job, "first-tokens", of_type), mmap_mode="r")
    return np.ascontiguousarray(take_rows(mapped[:, columns], nodes - first))


def _join(job: Job, of_type: int, tokens: _Tokens) -> Arrays:
    """Write all tokens of the nodes of a type as a file that workers map."""
    nodes = int(np.diff(tokens.ptr)[of_type])
    kept = range(
        job.coo.schema is None, tokens.encoding.size + 1
    )  # the first tokens of a graph of one type are its features
    columns = tokens.width * sum(tokens.counts[hop][of_type] for hop in kept)
    chunks = _joined(job, of_type, tokens, kept)
    write_rows(_place(job, "tokens", of_type), np.dtype(np.float32), (nodes, columns), chunks)
    return {}


def _joined(job: Job, of_type: int, tokens: _Tokens, kept: range) -> Iterator[np.ndarray]:
    first, last = tokens.ptr[of_type : of_type + 2].tolist()
    firsts = (
        np.load(_place(job, "first-tokens", of_type), mmap_mode="r") if last > first else np.zeros((0, tokens.width))
    )
    columns = tokens.width * sum(tokens.counts[hop][of_type] for hop in kept)
    at_once = max(1, _CHUNK_BYTES // max(1, 4 * columns))
    for index in range(job.ranges):
        begin, end = np.clip(job.range_ptr[index : index + 2], first, last).tolist()
        for start in range(begin, end, at_once):
            stop = min(start + at_once, end)
            pieces = [firsts[start - first : stop - first]] if 0 in kept else []
            for hop in (each for each in kept if each):
                for place in range(tokens.counts[hop][of_type]):
                    for block in tokens.blocks:
                        name, key = f"tokens-{hop}-{block}/{index}", f"{of_type}.{place}"
                        pieces.append(job.folder.rows(name, key, start - begin, stop - begin))
            yield np.concatenate(pieces, axis=1)


def _place(job: Job, name: str, of_type: int) -> Path:
    return job.folder.place(f"source/{name}-{of_type}.npy")
