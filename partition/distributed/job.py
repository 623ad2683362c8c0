"""What every task of a run is told: the source, the ranges of nodes, and where files are."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from dgl_gt.partition.cuts.balance import weights_by_degree
from dgl_gt.partition.cuts.metis import EDGE_BYTES as METIS_EDGE_BYTES
from dgl_gt.partition.cuts.permutation import row_type
from dgl_gt.partition.figures.costs import Costs
from dgl_gt.partition.sources.coo import COOGraph
from dgl_gt.partition.system.distinct import unique

from .files import ArrayFile, Folder

BASE_BYTES = 200 << 20  # of a process without a task
EDGE_BYTES = 96  # that a task takes for each edge, at most, in the stages that hold most of them, with ids of 4 bytes
SEARCH_BYTES = 48  # the same in the search, which was measured to take 31 to 36
ROWS_BYTES, FILE_BYTES = 64, 32  # of a part's rows, and as it is written, beside its data; 47 and 19 were measured
COARSE_BYTES = METIS_EDGE_BYTES // 2 + 24  # that METIS and its task take for each end of an edge
PLANNED, USABLE = (
    0.75,
    0.9,
)  # of a worker's memory: what tasks are sized for, and what one may take; Dask ends it at 0.95
_MANY = (
    256  # ranges or chunks; with fewer, workers might lack tasks, and each task reads something of every other's file
)

_DENSE = 4


@dataclass(frozen=True)
class Sizes:
    """How a run is divided; this, the seed and the source decide what is written, and the number of workers does not."""

    chunk_edges: int  # listed edges that a task reads
    range_ends: int  # ends of edges at the nodes of a range
    coarse_ends: int  # the same of the graph that METIS sees
    group_edges: int  # in-edges of the parts that one task refines
    usable_bytes: int | None = None  # memory that one task may take

    @classmethod
    def within(cls, memory_bytes: int, num_nodes: int, num_edges: int) -> Sizes:
        """Sizes whose tasks take about this much memory each."""
        planned = int(PLANNED * memory_bytes) - BASE_BYTES
        ends = max(4, planned // edge_bytes(num_nodes, num_edges))
        chunk, of_range = (max(each, num_edges // _MANY) for each in (1 << 22, 1 << 23))
        of_range = max(of_range, 2 * num_edges // _MANY)
        coarse = max(4, planned) // COARSE_BYTES
        return cls(min(chunk, ends // 4), min(of_range, ends // 2), coarse, ends, int(USABLE * memory_bytes))


def edge_bytes(num_nodes: int, num_edges: int, narrow: int = EDGE_BYTES) -> int:
    """Bytes that a task takes for each edge, at most; ``narrow`` with ids of 4 bytes."""
    wide = np.dtype(row_type(2 * num_edges + num_nodes)).itemsize // 4  # ids of edges, also of those that are added
    return narrow * (1 + wide) // 2


def search_bytes(
    group: int, num_nodes: int, nodes: float, edges: float, of_edge: int = SEARCH_BYTES, types: int = 0
) -> int:
    """Bytes that the search of a group of parts with so many nodes and in-edges takes, at most, beside the process.

    It counts, for each node it holds, also of other parts, the neighbours in each part of the group and outside; and it has a
    weight of each for all ``types`` that are kept even.
    """
    return int(edges * of_edge + (4 * (group + 1) + 8 * types) * min(num_nodes, nodes + edges))


@dataclass(frozen=True)
class Job:
    """What every task is told."""

    folder: Folder
    coo: COOGraph  # without arrays, which are in ``arrays``
    arrays: dict[str, ArrayFile]
    parts: int
    seed: int
    costs: Costs
    shares: np.ndarray
    sizes: Sizes
    range_ptr: np.ndarray = field(default_factory=lambda: np.zeros(1, np.int64))  # the nodes where ranges begin, and N
    num_edges: int = 0
    listed_edges: int = 0  # the same without those that are added
    cut: str = "edge"
    undirected: bool = False
    self_loops: bool = False
    halo_depth: int = 1
    balances_types: bool = False

    @property
    def ranges(self) -> int:
        """The number of ranges."""
        return len(self.range_ptr) - 1

    @property
    def num_nodes(self) -> int:
        """N."""
        assert self.coo.num_nodes is not None
        return self.coo.num_nodes

    @property
    def node_type(self) -> type:
        """The integer type of nodes."""
        return row_type(self.num_nodes)

    @property
    def edge_type(self) -> type:
        """The integer type of edges, also of those that are added."""
        return row_type(2 * self.num_edges + self.num_nodes)

    def nodes(self, index: int) -> np.ndarray:
        """The nodes of a range."""
        return np.arange(*self.range_ptr[index : index + 2], dtype=self.node_type)

    def range_of(self, nodes: np.ndarray) -> np.ndarray:
        """The range of each node."""
        return np.searchsorted(self.range_ptr, nodes, "right") - 1

    def graph(self) -> COOGraph:
        """The source, whose arrays are mapped into memory."""
        opened = {name: each.open() for name, each in self.arrays.items()}
        data: dict[str, dict[str, np.ndarray]] = {"node": {}, "edge": {}}
        for name, array in opened.items():
            kind, slash, column = name.partition("/")
            if slash:
                data[kind][column] = array
        return replace(self.coo, src=opened["src"], dst=opened["dst"], node_data=data["node"], edge_data=data["edge"])

    def weights(self, in_degrees: np.ndarray) -> np.ndarray:
        """What nodes add to the time that their rank computes, int64; in a vertex cut edges count, as masters are chosen later."""
        if self.cut == "vertex":
            return in_degrees.astype(np.int64) + 1
        return weights_by_degree(in_degrees, self.num_edges / self.num_nodes, self.costs)

    @property
    def of_types(self) -> np.ndarray:
        """The types whose nodes are kept even."""
        schema = self.coo.schema if self.balances_types else None
        return np.zeros(0, np.int64) if schema is None else np.flatnonzero(np.diff(schema.node_ptr))

    def loads(self, nodes: np.ndarray, in_degrees: np.ndarray, others: int = 0) -> np.ndarray:
        """What nodes add to their part, int64 (n, kinds): their weight, and 1 for their type; then zeros for ``others``."""
        found = np.zeros((len(nodes) + others, 1 + len(self.of_types)), np.int64)
        found[: len(nodes), 0] = self.weights(in_degrees)
        if len(self.of_types):
            assert self.coo.schema is not None
            types = self.coo.schema.type_of(nodes)
            for kind, each in enumerate(self.of_types, start=1):
                found[: len(nodes), kind] = types == each
        return found

    def lookup(self, stage: str, name: str, nodes: np.ndarray, first: int = 0) -> np.ndarray:
        """The values of ascending nodes, of which ``stage`` has a file for each range; one file is read at a time.

        Files have no rows of nodes before ``first``.
        """
        ends = np.searchsorted(nodes, self.range_ptr)
        found = []
        for index in np.flatnonzero(np.diff(ends)).tolist():
            rows = nodes[ends[index] : ends[index + 1]] - max(int(self.range_ptr[index]), first)
            begin = int(rows[0])
            values = self.folder.rows(f"{stage}/{index}", name, begin, int(rows[-1]) + 1)
            found.append(values[rows - begin])
        return np.concatenate(found) if found else np.zeros(0, self.node_type)


def places(nodes: np.ndarray, values: np.ndarray, num_nodes: int) -> np.ndarray:
    """Where each value is among ascending nodes, and -1 where it is not; int32 if that holds it."""
    dtype = row_type(len(nodes))
    if num_nodes <= _DENSE * len(values):  # one table of all nodes, if it is no larger than the values
        table = np.full(num_nodes, -1, dtype)
        table[nodes] = np.arange(len(nodes))
        return table[values]
    if not len(nodes):
        return np.full(len(values), -1, dtype)
    found = np.searchsorted(nodes, values).clip(max=len(nodes) - 1)
    return np.where(nodes[found] == values, found, -1).astype(dtype)


def distinct(values: np.ndarray, num_nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """The different ones of some nodes, ascending, and the place of each value among them."""
    if num_nodes <= _DENSE * len(values):
        is_there = np.zeros(num_nodes, bool)
        is_there[values] = True
        found = np.flatnonzero(is_there).astype(values.dtype)
    else:
        found = unique(values)
    return found, places(found, values, num_nodes)


def mixed(values: np.ndarray, salt: int) -> np.ndarray:
    """Numbers that look random, uint64, one for each value: the same on every machine and in the compiled loops."""
    with np.errstate(over="ignore"):
        x = values.astype(np.uint64) + np.uint64(salt % 2**32 + 1) * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))
