"""What a training step does on any part, and how long that takes on ranks and links of a hardware profile.

Sizes in a trace depend linearly on the counts of a part. Here are operations and links, and no model; and the linear form
of the time, which partitioning reads.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import msgspec
import numpy as np

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.figures.costs import CutCosts, PerCount
from dgl_gt.partition.figures.figures import Figures
from dgl_gt.partition.figures.profile import ATTENTION_PASSES, Disk, Profile
from dgl_gt.partition.figures.strategies import ONE, Count, counts_of_parts

_PER_COUNT = {
    "one": "rank",
    "selected": "owned",
    **dict.fromkeys(("typed_nodes", "sources", "own_sources"), "owned"),
    "typed_edges": "edges",
}  # names of counts in PerCount
_DIGITS = 6  # of linear costs
COMPUTE = ("product", "rows", "edges", "file")
_SPENT = (*COMPUTE, "memory")
_COMPUTE_TERMS = ("products_s", "rows_s", "attention_s", "files_s", "pages_s")
# Operations of torch that read and write memory in order and hardly compute. Copies and joins are not among them: they
# often rearrange numbers, as ``heads`` does.
_SIMPLE = {"add", "sub", "mul", "div", "sum", "zero", "zeros", "new_zeros", "zeros_like", "fill", "where", "relu"}
_SIMPLE |= {"index", "index_add", "index_put", "index_select", "gather", "scatter", "scatter_add", "threshold_backward"}
TERMS = ("products_s", "rows_s", "attention_s", "exchange_s", "hidden_s", "gradients_s", "files_s", "pages_s")


class Event(NamedTuple):
    """One event of a step: what is the same on every part. Its sizes, by kind, are:

    ``product``, a matrix product: its operations, and three dimensions. ``what`` is the operation's name, and the size of a
    number (bytes). ``rows``, any other operation: what it reads and writes (bytes). ``what`` is its name.
    ``edges``, passes over edges: edges, destinations, and sources. ``what`` is heads, the width of a head, the size of a
    number (bytes), and the number of passes.
    ``begin``, the start of an exchange: what the rank sends, and what it receives (bytes). ``what`` is, with one other rank
    only, how many ranks after the sender the receiver is; ``within`` hosts of M ranks, or ``between`` them, this word and M.
    ``sum``, a sum over ranks, and ``begin_sum``, one that runs at the same time as all else: the summed tensor (bytes), or
    that of a sum that moves as many bytes. ``wait`` and ``wait_sum``, where a result is needed, have none.
    ``memory``, a tensor that is made, or freed: its storage, below 0 if freed (bytes).
    ``piece`` and ``piece_end``, around the run of a piece in a step part by part, have none. ``file``, rows that are copied
    from and to files: bytes that are read, and bytes that are written.
    """

    kind: str
    what: tuple = ()
    layer: str = ""  # of the model, see dgl_gt.plan.watch.LayerTracker; empty for memory


@dataclass(frozen=True, eq=False)
class Trace:
    """The events of one training step in order, with sizes for any part of a cut."""

    counts: tuple[Count, ...]  # of a part, on which sizes depend
    events: tuple[Event, ...]
    event_of: np.ndarray  # number of the event to which each size belongs, int64, (S,)
    sizes: np.ndarray  # each size per unit of each count, float64, (counts, S)
    kept_bytes: np.ndarray  # of what outlives a step: shard, parameters, optimiser; per unit of each count, (counts,)

    @cached_property
    def placed_events(self) -> list[tuple[Event, int]]:
        """The events, and where the first size of each is among the sizes."""
        return list(zip(self.events, np.searchsorted(self.event_of, np.arange(len(self.events))).tolist()))

    def runs(self, figures: Figures, start: int) -> np.ndarray | int:
        """How often each rank runs the event whose first size is there."""
        return 1

    def file_bytes(self, figures: Figures) -> np.ndarray:
        """Bytes of the files with rows that each rank has at once, int64, (P,)."""
        return np.zeros(figures.parts, np.int64)

    def positions(self, kind: str) -> np.ndarray:
        """Where the first size of each event of a kind is among the sizes."""
        return np.array([start for event, start in self.placed_events if event.kind == kind], int)

    def sizes_of(self, figures: Figures) -> np.ndarray:
        """Each size on each part, float64, (P, S)."""
        return counts_of_parts(figures, self.counts) @ self.sizes

    def does_the_same(self, other: Trace, figures: Figures) -> bool:
        """Whether another trace has the same events, with the same sizes on the parts of a cut, whoever the peers are."""
        events = [
            [each._replace(what=()) if each.kind == "begin" else each for each in it.events] for it in (self, other)
        ]
        return events[0] == events[1] and np.allclose(self.sizes_of(figures), other.sizes_of(figures), atol=0.5)

    def sent_bytes(self, figures: Figures) -> int:
        """Bytes that all ranks together send in the exchanges of a step."""
        return round(float(self.sizes_of(figures)[:, self.positions("begin")].sum()))

    def sent_by_layer(self, figures: Figures) -> dict[str, int]:
        """Bytes that all ranks together send in exchanges, by the layer that exchanges."""
        sizes = self.sizes_of(figures).sum(axis=0)
        found: dict[str, float] = defaultdict(float)
        for event, start in self.placed_events:
            if event.kind == "begin":
                found[event.layer] += float(sizes[start])
        return {layer: round(sent) for layer, sent in found.items()}

    def kept(self, figures: Figures) -> np.ndarray:
        """Bytes of the tensors that outlive a step, of each rank, int64, (P,)."""
        return np.rint(counts_of_parts(figures, self.counts) @ self.kept_bytes).astype(np.int64)

    def peak_bytes(self, figures: Figures) -> np.ndarray:
        """Bytes of the tensors that are alive at the peak of a step, of each rank, int64, (P,)."""
        made = self.sizes_of(figures)[:, self.positions("memory")]
        return self.kept(figures) + np.rint(made.cumsum(axis=1).max(axis=1, initial=0)).astype(np.int64)

    def peak_of_largest_rank(self, figures: Figures) -> tuple[int, np.ndarray]:
        """The rank that needs most, and what is alive at its peak per unit of each count, float64 (bytes), (counts,)."""
        rank, memory = int(self.peak_bytes(figures).argmax()), self.positions("memory")
        alive = np.concatenate([[0.0], self.sizes_of(figures)[rank, memory].cumsum()])
        until = int(alive.argmax())  # this many tensors have been made or freed by then
        return rank, self.kept_bytes + self.sizes[:, memory[:until]].sum(axis=1)


# ---- the time ----


@dataclass
class TracedTime:
    """Predicted seconds of a training step, by what they are spent on, on the rank that is slowest at each time.

    ``hidden_s`` is how much of the exchanges goes by while ranks compute, and ``gradients_s`` is spent in sums over
    ranks, without what goes by while they compute. ``files_s`` is spent on files of a step part by part, and ``pages_s`` on
    memory that is taken from the system. ``layers`` has the same terms of each layer of the model, see
    :class:`dgl_gt.plan.watch.LayerTracker`.
    """

    products_s: float = 0.0
    rows_s: float = 0.0
    attention_s: float = 0.0
    exchange_s: float = 0.0
    hidden_s: float = 0.0
    gradients_s: float = 0.0
    files_s: float = 0.0
    pages_s: float = 0.0
    layers: dict[str, dict[str, float]] = field(default_factory=dict)

    def add(self, layer: str, **seconds: float) -> None:
        """Add seconds of some terms to the sums and to those of a layer."""
        of_layer = self.layers.setdefault(layer, dict.fromkeys(TERMS, 0.0))
        for term, value in seconds.items():
            setattr(self, term, getattr(self, term) + value)
            of_layer[term] += value

    def add_computed(self, spent: dict[str, np.ndarray]) -> float:
        """Add what the slowest rank spends, by layer, on products, rows, edges, files and pages, (5, P); return the sum (s)."""
        if not spent:
            return 0.0
        by_rank = sum(of_layer.sum(axis=0) for of_layer in spent.values())
        slowest = int(by_rank.argmax())
        for layer, of_layer in spent.items():
            self.add(layer, **dict(zip(_COMPUTE_TERMS, of_layer[:, slowest].tolist())))
        return float(by_rank[slowest])

    @property
    def terms(self) -> dict[str, float]:
        """The sums by name."""
        return {term: getattr(self, term) for term in TERMS}

    @property
    def total_s(self) -> float:
        """Predicted time of the step (s)."""
        computed_s = self.products_s + self.rows_s + self.attention_s + self.files_s + self.pages_s
        return computed_s + self.exchange_s - self.hidden_s + self.gradients_s


def traced_time(
    trace: Trace,
    figures: Figures,
    profile: Profile,
    free_bytes: np.ndarray | float = np.inf,
    given_back: float = np.inf,
) -> TracedTime:
    """Predict the time of one step of a strategy on a cut: between two exchanges, it lasts as long as on its slowest rank.

    ``free_bytes`` is what each rank's memory leaves the system for its copies of files, (P,) or one number. Blocks of memory of
    ``given_back`` bytes or more go back to the system when they are free, so that each tensor takes new ones, unless smaller
    ones have left a hole for it.
    """
    rates, time, now = _Rates(trace, figures, profile, free_bytes), TracedTime(), 0.0
    spent: dict[str, np.ndarray] = {}  # since the last exchange or sum
    link_is_free_at = 0.0
    under_way: list[tuple[float, float]] = []  # exchanges that have begun: their seconds, and when they could be done
    sums: list[tuple[float, float]] = []  # the same of sums
    holes = [] if np.isinf(given_back) else rates.holes(given_back)
    for number, (event, start) in enumerate(trace.placed_events):
        if event.kind in ("piece", "piece_end") or event.kind == "memory" and np.isinf(given_back):
            continue
        if event.kind in _SPENT:
            of_layer = spent.setdefault(event.layer, np.zeros((len(_SPENT), figures.parts)))
            is_memory = event.kind == "memory"
            of_ranks = (
                rates.page_seconds(start, given_back, holes[number]) if is_memory else rates.seconds(event, start)
            )
            of_layer[_SPENT.index(event.kind)] += of_ranks
            continue
        now, spent = now + time.add_computed(spent), {}
        if event.kind == "sum":
            seconds = rates.sum_seconds(start)
            now += seconds
            time.add(event.layer, gradients_s=seconds)
        elif event.kind in ("begin_sum", "begin"):
            seconds = rates.sum_seconds(start) if event.kind == "begin_sum" else rates.exchange_seconds(event, start)
            link_is_free_at = max(link_is_free_at, now) + seconds
            (sums if event.kind == "begin_sum" else under_way).append((seconds, link_is_free_at))
        elif event.kind == "wait_sum":  # all else that the link carries may come first
            seconds, done_at = sums.pop(0)
            exposed_s = profile.overlap * max(0.0, done_at - now) + (1 - profile.overlap) * seconds
            now += exposed_s
            time.add(event.layer, gradients_s=exposed_s)
        else:
            seconds, done_at = under_way.pop(0)
            exposed_s = profile.overlap * min(max(0.0, done_at - now), seconds) + (1 - profile.overlap) * seconds
            now += exposed_s
            time.add(event.layer, exchange_s=seconds, hidden_s=seconds - exposed_s)
    time.add_computed(spent)
    return time


class _Rates:
    """Seconds of the events of a trace on each rank of a profile."""

    def __init__(self, trace: Trace, figures: Figures, profile: Profile, free_bytes=np.inf):
        self._trace, self._figures, self._profile, self._ranks = trace, figures, profile, figures.parts
        if figures.near_edges is None:
            raise InputError(
                "near edges are not counted in these figures; lay out the cut, or read them from its shards"
            )
        self._sizes, self._near = trace.sizes_of(figures), figures.near_edges / np.maximum(figures.edges, 1)
        self._file_byte_s = (profile.disk or Disk()).byte_seconds(trace.file_bytes(figures) <= free_bytes)
        self._byte_s: dict[tuple, np.ndarray] = {}  # seconds per byte on each rank, by the peers of an exchange
        self.operation_s = np.broadcast_to(profile.operation_s, self._ranks)  # fixed seconds of any operation, (P,)

    def seconds(self, event: Event, start: int) -> np.ndarray:
        """Seconds of an operation on each rank, (P,)."""
        rates = self.rates(event, start)
        spent_s = (rates * np.maximum(self._sizes[:, start : start + len(rates)].T, 0)).sum(axis=0)
        return spent_s if event.kind == "file" else self.operation_s * self._trace.runs(self._figures, start) + spent_s

    def holes(self, given_back: float) -> list[np.ndarray]:
        """For each event, the bytes of all blocks below ``given_back`` that the same piece makes, (P,).

        The heap keeps them when they are free, and a block that is no larger finds room there. It is a rule of thumb: a trace
        does not say which blocks are alive together.
        """
        found, of_piece = [], np.zeros(self._ranks)
        for event, start in self._trace.placed_events:
            if event.kind in ("piece", "piece_end"):
                of_piece = np.zeros(self._ranks)
            elif event.kind == "memory":
                size = self._sizes[:, start] / self._trace.runs(self._figures, start)
                of_piece += np.where(size < given_back, np.maximum(size, 0.0), 0.0)
            found.append(of_piece)  # one array for the whole piece, which is not complete yet
        return found

    def page_seconds(self, start: int, given_back: float, hole: np.ndarray) -> np.ndarray:
        """Seconds in which each rank takes the memory of a tensor from the system, (P,)."""
        sizes = self._sizes[:, start]
        is_taken = sizes / self._trace.runs(self._figures, start) >= np.maximum(given_back, hole)
        return np.where(is_taken, sizes * self._profile.page_byte_s, 0.0)

    def sum_seconds(self, start: int) -> float:
        """Seconds of a sum over ranks."""
        return float(self._sizes[:, start].max()) / self._profile.reduce_bytes_per_s + self._profile.latency_s

    def exchange_seconds(self, event: Event, start: int) -> float:
        """Seconds of an exchange on the slowest rank."""
        if event.what not in self._byte_s:
            self._byte_s[event.what] = self._seconds_per_byte(event.what)
        moved = self._sizes[:, start : start + 2].max(axis=1)
        return float((moved * self._byte_s[event.what]).max()) + self._profile.latency_s

    def rates(self, event: Event, start: int) -> np.ndarray:
        """Seconds per unit of the first sizes of an operation on each rank, (1, P), or (2, P) for passes over edges."""
        if event.kind == "file":
            return self._file_byte_s
        profile, sizes = self._profile, self._sizes
        if event.kind == "rows":
            name = event.what[0].rpartition("::")[2].partition(".")[0].rstrip("_")  # "add" for "aten::add_.Tensor"
            bytes_per_s = profile.simple_bytes_per_s if name in _SIMPLE else profile.stream_bytes_per_s
            return np.broadcast_to(1 / np.asarray(bytes_per_s), (1, self._ranks))
        if event.kind == "product":
            varies = np.abs(self._trace.sizes[1:, start + 1 : start + 4]).max(axis=0) > 1e-6
            fixed = self._trace.sizes[self._trace.counts.index(ONE), start + 1 : start + 4][~varies]
            width = max(1.0, min(fixed, default=np.inf))  # 0 in an empty product
            return 1 / profile.product_flops_per_s(width, self._ranks, event.what[1])[None]
        heads, head_dim, itemsize, passes = event.what
        sources = np.maximum(sizes[:, start + 2], 0) / self._trace.runs(self._figures, start)
        columns = heads * head_dim
        per_edge = profile.edge_seconds(heads, columns, 2 * sources * columns * itemsize, self._near, itemsize)
        per_row = np.broadcast_to(columns * np.asarray(profile.attention.row_column_s), self._ranks)
        return passes / ATTENTION_PASSES * np.stack([per_edge, per_row])

    def _seconds_per_byte(self, peer: tuple) -> np.ndarray:
        """Seconds per byte that reaches each rank, (P,): from all ranks whose rows it reads, or from some alone."""
        if not peer:
            rows = self._figures.received_rows
        elif peer[0] == "within":  # a host: evenly
            rows = np.kron(np.eye(self._ranks // peer[1]), np.ones((peer[1], peer[1])))
        elif (
            peer[0] == "between"
        ):  # hosts: by the halo rows they need, with the rank that has the same place in its host
            rows = np.kron(self._figures.hosts[peer[1]].received_rows, np.eye(peer[1]))
        else:
            rows = np.roll(np.eye(self._ranks), -peer[0], axis=1)
        rows = rows * (1.0 - np.eye(self._ranks))
        total = rows.sum(axis=1, keepdims=True)
        shares = np.divide(rows, total, out=np.zeros_like(rows), where=total > 0)
        return (shares / self._profile.links(self._ranks)).sum(axis=1)


# ---- the linear form ----


def cut_costs(trace: Trace, figures: Figures, profile: Profile, strategy: str) -> CutCosts:
    """The costs of a traced step on cuts that resemble this one.

    How fast attention reads rows, and which moment of a step needs most memory, depend on a cut; they are taken from
    this one. Sizes that depend on other counts, such as a mask's rows, are taken to grow with rows or edges.

    The strategy sends copies, with a halo of one hop, and the cut has at least two parts.
    """
    time, starts = traced_time(trace, figures, profile), trace.positions("begin")
    sent, seen_s = trace.sizes[:, starts].sum(axis=1), time.exchange_s - time.hidden_s
    most_bytes = float((counts_of_parts(figures, trace.counts) @ sent).max())
    call_s = profile.latency_s * (seen_s / time.exchange_s if time.exchange_s else 1.0)
    return CutCosts(
        strategy=strategy,
        compute_s=_per_count(_compute_seconds(trace, figures, profile), trace, figures),
        sent_bytes=_per_count(sent, trace, figures),
        byte_s=_rounded(max(seen_s - len(starts) * call_s, 0.0) / most_bytes if most_bytes else 0.0),
        calls=len(starts),
        call_s=_rounded(call_s),
        sum_s=_rounded(time.gradients_s),
        tensor_bytes=_tensor_bytes(trace, figures),
    )


def _compute_seconds(trace: Trace, figures: Figures, profile: Profile) -> np.ndarray:
    """Seconds of computation per unit of each count of the trace, on average over ranks, (counts,)."""
    rates, seconds = _Rates(trace, figures, profile), np.zeros(len(trace.counts))
    for event, start in trace.placed_events:
        if event.kind in COMPUTE:
            per_unit = rates.rates(event, start).mean(axis=1)
            seconds += trace.sizes[:, start : start + len(per_unit)] @ per_unit
            seconds[trace.counts.index(ONE)] += rates.operation_s.mean()
    return seconds


def _tensor_bytes(trace: Trace, figures: Figures) -> PerCount:
    """Bytes per unit of each count at the peak of the rank that needs most, without node and edge data."""
    per_count = _per_count(trace.peak_of_largest_rank(figures)[1], trace, figures)
    data = {"owned": figures.feature_bytes + figures.node_bytes, "edges": figures.edge_bytes}
    return msgspec.structs.replace(
        per_count, **{name: max(getattr(per_count, name) - held, 0.0) for name, held in data.items()}
    )


def _per_count(amounts: np.ndarray, trace: Trace, figures: Figures) -> PerCount:
    """Convert amounts per unit of the trace's counts to amounts per unit of the counts in :class:`PerCount`."""
    found = dict.fromkeys(PerCount.__struct_fields__, 0.0)
    for count, amount, total in zip(trace.counts, amounts, counts_of_parts(figures, trace.counts).sum(axis=0)):
        known = _PER_COUNT.get(count.of, count.of)
        if known not in found or count.mask or count.kind is not None:
            known = known if known in found else "edges"
            amount = amount * total / max(float(getattr(figures, known).sum()), 1.0)
        found[known] += float(amount)
    least = 1e-9 * max(found.values())  # less than that is rounding, and may be below 0
    return PerCount(**{name: _rounded(amount) if amount > least else 0.0 for name, amount in found.items()})


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
