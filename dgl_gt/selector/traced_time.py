"""How long a traced step takes on ranks and links of a hardware profile. It knows operations and links, and no model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dgl_gt.trace.step_trace import Event, StepTrace
from partition.predict.figures import Figures

from .hardware_profile import ATTENTION_PASSES, Profile

_COMPUTE = ("product", "rows", "edges")  # in the order of TracedTime.add
# Operations of torch that read and write memory in order and hardly compute. Copies and joins are not among them: they
# often rearrange numbers, as ``heads`` does.
SIMPLE = {"add", "sub", "mul", "div", "sum", "zero", "zeros", "new_zeros", "zeros_like", "fill", "where", "relu"}
SIMPLE |= {"index", "index_add", "index_put", "index_select", "gather", "scatter", "scatter_add", "threshold_backward"}


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
        Time of sums over ranks (s).
    """

    products_s: float = 0.0
    rows_s: float = 0.0
    attention_s: float = 0.0
    exchange_s: float = 0.0
    hidden_s: float = 0.0
    gradients_s: float = 0.0

    def add(self, spent: np.ndarray) -> float:
        """Add what the slowest rank spends on products, rows and edges, (3, P); return the sum of the three (s)."""
        products, rows, edges = spent[:, spent.sum(axis=0).argmax()].tolist()
        self.products_s, self.rows_s, self.attention_s = (
            self.products_s + products,
            self.rows_s + rows,
            self.attention_s + edges,
        )
        return products + rows + edges

    @property
    def total_s(self) -> float:
        """All of it (s)."""
        return self.products_s + self.rows_s + self.attention_s + self.exchange_s - self.hidden_s + self.gradients_s


def traced_time(trace: StepTrace, figures: Figures, profile: Profile) -> TracedTime:
    """Predict the time of one training step.

    Between two exchanges, a step lasts as long as on its slowest rank.

    Parameters
    ----------
    trace : StepTrace
        Of the strategy that is to run on the cut.
    figures : Figures
        Of the cut.
    profile : Profile
    """
    sizes, time, now = trace.sizes_of(figures), TracedTime(), 0.0
    rates, spent = _Rates(trace, figures, profile), np.zeros((len(_COMPUTE), figures.parts))
    link_is_free_at, under_way = 0.0, []  # exchanges that have begun: their durations, and when they could be done
    starts = np.searchsorted(trace.event_of, np.arange(len(trace.events)))
    for event, start in zip(trace.events, starts):
        if event.kind in _COMPUTE:
            spent[_COMPUTE.index(event.kind)] += rates.seconds(event, start, sizes)
        if event.kind in _COMPUTE or event.kind == "memory":
            continue
        now, spent = now + time.add(spent), np.zeros_like(spent)
        if event.kind == "sum":
            seconds = float(sizes[0, start]) / profile.reduce_bytes_per_s + profile.latency_s
            time.gradients_s, now = time.gradients_s + seconds, now + seconds
        elif event.kind == "begin":
            seconds = rates.exchange_seconds(event, sizes[:, start : start + 2].max(axis=1))
            link_is_free_at = max(link_is_free_at, now) + seconds
            under_way.append((seconds, link_is_free_at))
        else:
            seconds, done_at = under_way.pop(0)
            seen = profile.overlap * min(max(0.0, done_at - now), seconds) + (1 - profile.overlap) * seconds
            time.exchange_s, time.hidden_s, now = time.exchange_s + seconds, time.hidden_s + seconds - seen, now + seen
    time.add(spent)
    return time


def _base_name(name: str) -> str:
    """``add`` for ``aten::add_.Tensor``."""
    return name.rpartition("::")[2].partition(".")[0].rstrip("_")


class _Rates:
    """Seconds of the events of a trace on each rank of a profile."""

    def __init__(self, trace: StepTrace, figures: Figures, profile: Profile):
        self._trace, self._figures, self._profile, self._ranks = trace, figures, profile, figures.parts
        near = 0 if figures.near_edges is None else figures.near_edges
        self._near = near / np.maximum(figures.edges, 1)
        self._links = profile.links(figures.parts)

    def seconds(self, event: Event, start: int, sizes: np.ndarray) -> np.ndarray:
        """Seconds of an operation on each rank, (P,)."""
        profile, size, fixed_s = self._profile, np.maximum(sizes[:, start], 0), np.asarray(self._profile.operation_s)
        if event.kind == "rows":
            is_simple = _base_name(event.what[0]) in SIMPLE
            return fixed_s + size / (profile.simple_bytes_per_s if is_simple else profile.stream_bytes_per_s)
        if event.kind == "product":
            varies = np.abs(self._trace.sizes[1:, start + 1 : start + 4]).max(axis=0) > 1e-6
            width = max(1.0, min(sizes[0, start + 1 : start + 4][~varies], default=np.inf))  # 0 in an empty product
            return fixed_s + size / profile.product_flops_per_s(width, self._ranks)
        heads, head_dim, itemsize, passes = event.what
        rows, sources = np.maximum(sizes[:, start + 1 : start + 3].T, 0)
        columns = heads * head_dim
        per_edge = profile.edge_seconds(heads, columns, 2 * sources * columns * itemsize, self._near)
        per_row = columns * np.asarray(profile.attention.row_column_s)
        return fixed_s + passes / ATTENTION_PASSES * (size * per_edge + rows * per_row)

    def exchange_seconds(self, event: Event, moved: np.ndarray) -> float:
        """Seconds of an exchange on the slowest rank."""
        ranks, rows = self._ranks, self._figures.received_rows
        if event.what:  # with one rank alone
            rows = np.roll(np.eye(ranks), -event.what[0], axis=1)
        rows = rows * (1.0 - np.eye(ranks))
        total = rows.sum(axis=1, keepdims=True)
        shares = np.divide(rows, total, out=np.zeros_like(rows), where=total > 0)
        return float((moved * (shares / self._links).sum(axis=1)).max()) + self._profile.latency_s
