"""How long a traced step takes on ranks and links of a hardware profile. It knows operations and links, and no model."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.figures.figures import Figures
from dgl_gt.partition.figures.profile import ATTENTION_PASSES, Profile

from .trace import Event, Trace

COMPUTE = ("product", "rows", "edges")  # in the order of TERMS
# Operations of torch that read and write memory in order and hardly compute. Copies and joins are not among them: they
# often rearrange numbers, as ``heads`` does.
SIMPLE = {"add", "sub", "mul", "div", "sum", "zero", "zeros", "new_zeros", "zeros_like", "fill", "where", "relu"}
SIMPLE |= {"index", "index_add", "index_put", "index_select", "gather", "scatter", "scatter_add", "threshold_backward"}


TERMS = ("products_s", "rows_s", "attention_s", "exchange_s", "hidden_s", "gradients_s")


@dataclass
class TracedTime:
    """Predicted seconds of a training step, by what they are spent on, on the rank that is slowest at each time.

    Attributes
    ----------
    products_s, rows_s, attention_s : float
        Time of matrix products, of other operations on rows, and of passes over edges (s).
    exchange_s, hidden_s : float
        Time of exchanges, and how much of it goes by while ranks compute (s).
    gradients_s : float
        Time that ranks spend in sums over ranks, without what goes by while they compute (s).
    layers : dict of str to dict
        The same of each layer of the model, see :class:`dgl_gt.plan.layer_tracker.LayerTracker` (s).
    """

    products_s: float = 0.0
    rows_s: float = 0.0
    attention_s: float = 0.0
    exchange_s: float = 0.0
    hidden_s: float = 0.0
    gradients_s: float = 0.0
    layers: dict[str, dict[str, float]] = field(default_factory=dict)

    def add(self, layer: str, **seconds: float) -> None:
        """Add seconds of some terms to the sums and to those of a layer."""
        of_layer = self.layers.setdefault(layer, dict.fromkeys(TERMS, 0.0))
        for term, value in seconds.items():
            setattr(self, term, getattr(self, term) + value)
            of_layer[term] += value

    def add_computed(self, spent: dict[str, np.ndarray]) -> float:
        """Add what the slowest rank spends, by layer, on products, rows and edges, (3, P); return the sum (s)."""
        if not spent:
            return 0.0
        by_rank = sum(of_layer.sum(axis=0) for of_layer in spent.values())
        slowest = int(by_rank.argmax())
        for layer, of_layer in spent.items():
            self.add(layer, **dict(zip(TERMS, of_layer[:, slowest].tolist())))
        return float(by_rank[slowest])

    @property
    def terms(self) -> dict[str, float]:
        """The sums by name."""
        return {term: getattr(self, term) for term in TERMS}

    @property
    def total_s(self) -> float:
        """Predicted time of the step (s)."""
        return self.products_s + self.rows_s + self.attention_s + self.exchange_s - self.hidden_s + self.gradients_s


def traced_time(trace: Trace, figures: Figures, profile: Profile) -> TracedTime:
    """Predict the time of one training step.

    Between two exchanges, a step lasts as long as on its slowest rank.

    Parameters
    ----------
    trace : Trace
        Of the strategy that is to run on the cut.
    figures : Figures
        Of the cut.
    profile : Profile
    """
    sizes, time, now = trace.sizes_of(figures), TracedTime(), 0.0
    rates, spent = Rates(trace, figures, profile), {}
    link_is_free_at = 0.0
    under_way, sums = [], []  # exchanges and sums that have begun: their durations, and when they could be done
    starts = np.searchsorted(trace.event_of, np.arange(len(trace.events)))
    for event, start in zip(trace.events, starts):
        if event.kind == "memory":
            continue
        if event.kind in COMPUTE:
            of_layer = spent.setdefault(event.layer, np.zeros((len(COMPUTE), figures.parts)))
            of_layer[COMPUTE.index(event.kind)] += rates.seconds(event, start, sizes)
            continue
        now, spent = now + time.add_computed(spent), {}
        if event.kind in ("sum", "begin_sum"):
            seconds = float(sizes[:, start].max()) / profile.reduce_bytes_per_s + profile.latency_s
            if event.kind == "sum":
                now += seconds
                time.add(event.layer, gradients_s=seconds)
            else:
                link_is_free_at = max(link_is_free_at, now) + seconds
                sums.append((seconds, link_is_free_at))
        elif event.kind == "wait_sum":  # all else that the link carries may come first
            seconds, done_at = sums.pop(0)
            exposed_s = profile.overlap * max(0.0, done_at - now) + (1 - profile.overlap) * seconds
            now += exposed_s
            time.add(event.layer, gradients_s=exposed_s)
        elif event.kind == "begin":
            seconds = rates.exchange_seconds(event, sizes[:, start : start + 2].max(axis=1))
            link_is_free_at = max(link_is_free_at, now) + seconds
            under_way.append((seconds, link_is_free_at))
        else:
            seconds, done_at = under_way.pop(0)
            exposed_s = profile.overlap * min(max(0.0, done_at - now), seconds) + (1 - profile.overlap) * seconds
            now += exposed_s
            time.add(event.layer, exchange_s=seconds, hidden_s=seconds - exposed_s)
    time.add_computed(spent)
    return time


def _base_name(name: str) -> str:
    """``add`` for ``aten::add_.Tensor``."""
    return name.rpartition("::")[2].partition(".")[0].rstrip("_")


class Rates:
    """Seconds of the events of a trace on each rank of a profile."""

    def __init__(self, trace: Trace, figures: Figures, profile: Profile):
        self._trace, self._figures, self._profile, self._ranks = trace, figures, profile, figures.parts
        if figures.near_edges is None:
            raise InputError(
                "near edges are not counted in these figures; lay out the cut, or read them from its shards"
            )
        self._near = figures.near_edges / np.maximum(figures.edges, 1)
        self._links = profile.links(figures.parts)
        self._byte_s: dict[tuple, np.ndarray] = {}  # seconds per byte on each rank, by the peers of an exchange

    def seconds(self, event: Event, start: int, sizes: np.ndarray) -> np.ndarray:
        """Seconds of an operation on each rank, (P,)."""
        rates = self.rates(event, start, sizes)
        return self.operation_s + (rates * np.maximum(sizes[:, start : start + len(rates)].T, 0)).sum(axis=0)

    @property
    def operation_s(self) -> np.ndarray:
        """Fixed seconds of any operation on each rank, (P,)."""
        return np.broadcast_to(self._profile.operation_s, self._ranks)

    def rates(self, event: Event, start: int, sizes: np.ndarray) -> np.ndarray:
        """Seconds per unit of the first sizes of an operation on each rank, (1, P), or (2, P) for passes over edges."""
        profile = self._profile
        if event.kind == "rows":
            is_simple = _base_name(event.what[0]) in SIMPLE
            bytes_per_s = profile.simple_bytes_per_s if is_simple else profile.stream_bytes_per_s
            return np.broadcast_to(1 / np.asarray(bytes_per_s), (1, self._ranks))
        if event.kind == "product":
            varies = np.abs(self._trace.sizes[1:, start + 1 : start + 4]).max(axis=0) > 1e-6
            width = max(1.0, min(sizes[0, start + 1 : start + 4][~varies], default=np.inf))  # 0 in an empty product
            return 1 / profile.product_flops_per_s(width, self._ranks, event.what[1])[None]
        heads, head_dim, itemsize, passes = event.what
        columns, sources = heads * head_dim, np.maximum(sizes[:, start + 2], 0)
        per_edge = profile.edge_seconds(heads, columns, 2 * sources * columns * itemsize, self._near, itemsize)
        per_row = np.broadcast_to(columns * np.asarray(profile.attention.row_column_s), self._ranks)
        return passes / ATTENTION_PASSES * np.stack([per_edge, per_row])

    def exchange_seconds(self, event: Event, moved: np.ndarray) -> float:
        """Seconds of an exchange on the slowest rank."""
        if event.what not in self._byte_s:
            self._byte_s[event.what] = self._seconds_per_byte(event.what)
        return float((moved * self._byte_s[event.what]).max()) + self._profile.latency_s

    def _seconds_per_byte(self, peer: tuple) -> np.ndarray:
        """Seconds per byte that reaches each rank, (P,): from all ranks whose rows it reads, or from some alone."""
        rows = self._figures.received_rows
        if peer and peer[0] in ("within", "between"):
            rows = self._rows_of_mesh(*peer)
        elif peer:
            rows = np.roll(np.eye(self._ranks), -peer[0], axis=1)
        rows = rows * (1.0 - np.eye(self._ranks))
        total = rows.sum(axis=1, keepdims=True)
        shares = np.divide(rows, total, out=np.zeros_like(rows), where=total > 0)
        return (shares / self._links).sum(axis=1)

    def _rows_of_mesh(self, where: str, size: int) -> np.ndarray:
        """How the bytes of an exchange divide, (P, P): evenly within a host, or by the halo rows that hosts need.

        Between hosts, a rank exchanges with the ranks that have the same place in their own hosts.
        """
        hosts = self._ranks // size
        if where == "within":
            return np.kron(np.eye(hosts), np.ones((size, size)))
        return np.kron(self._figures.hosts[size].received_rows, np.eye(size))
