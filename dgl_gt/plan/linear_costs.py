"""The linear form of a step's costs, which partitioning reads: traces of the step, with the rates of one cut."""

from __future__ import annotations

import msgspec
import numpy as np

from dgl_gt.partition.figures.costs import CutCosts, PerCount
from dgl_gt.partition.figures.figures import Figures
from dgl_gt.partition.figures.profile import Profile
from dgl_gt.partition.figures.strategies import ONE, counts_of_parts

from .trace import Trace
from .traced_time import COMPUTE, Rates, traced_time

_NAMES = {"one": "rank", "selected": "owned"}  # of counts, in PerCount
_DIGITS = 6


def cut_costs(trace: Trace, figures: Figures, profile: Profile, strategy: str) -> CutCosts:
    """The costs of a traced step on cuts that resemble this one.

    How fast attention reads rows, and which moment of a step needs most memory, depend on a cut; they are taken from
    this one. Sizes that depend on other counts, such as a mask's rows, are taken to grow with rows or edges.

    Parameters
    ----------
    trace : Trace
        Of a strategy that sends copies, with a halo of one hop.
    figures : Figures
        Of a cut into at least two parts.
    profile : Profile
    strategy : str
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
    sizes, rates = trace.sizes_of(figures), Rates(trace, figures, profile)
    seconds = np.zeros(len(trace.counts))
    for event, start in zip(trace.events, np.searchsorted(trace.event_of, np.arange(len(trace.events)))):
        if event.kind in COMPUTE:
            per_unit = rates.rates(event, start, sizes).mean(axis=1)
            seconds += trace.sizes[:, start : start + len(per_unit)] @ per_unit
            seconds[trace.counts.index(ONE)] += rates.operation_s.mean()
    return seconds


def _tensor_bytes(trace: Trace, figures: Figures) -> PerCount:
    """Bytes per unit of each count at the peak of the rank that needs most, without node and edge data."""
    memory, largest = trace.positions("memory"), int(trace.peak_bytes(figures).argmax())
    alive = np.concatenate([[0.0], trace.sizes_of(figures)[largest, memory].cumsum()])
    until = int(alive.argmax())  # this many tensors have been made or freed by then
    per_count = _per_count(trace.kept_bytes + trace.sizes[:, memory[:until]].sum(axis=1), trace, figures)
    data = {"owned": figures.feature_bytes + figures.node_bytes, "edges": figures.edge_bytes}
    return msgspec.structs.replace(
        per_count, **{name: max(getattr(per_count, name) - held, 0.0) for name, held in data.items()}
    )


def _per_count(amounts: np.ndarray, trace: Trace, figures: Figures) -> PerCount:
    """Convert amounts per unit of the trace's counts to amounts per unit of the counts in :class:`PerCount`."""
    found = dict.fromkeys(PerCount.__struct_fields__, 0.0)
    for count, amount, total in zip(trace.counts, amounts, counts_of_parts(figures, trace.counts).sum(axis=0)):
        known = _NAMES.get(count.of, count.of)
        if known not in found or count.mask:
            known = known if known in found else "edges"
            amount = amount * total / max(float(getattr(figures, known).sum()), 1.0)
        found[known] += float(amount)
    least = 1e-9 * max(found.values())  # less than that is rounding, and may be below 0
    return PerCount(**{name: _rounded(amount) if amount > least else 0.0 for name, amount in found.items()})


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
