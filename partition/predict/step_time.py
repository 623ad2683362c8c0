"""How long a training step takes on ranks of given speeds, from figures. Formulas: docs/selector.md."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .figures import Figures
from .model import Model
from .strategies import check_strategy, default_strategy
from .traffic import Traffic, schedule, step_traffic

ATTENTION_PASSES = 3  # over all edges: forward, dQ, and dK with dV
_PRODUCTS = 3  # matrix products of a projection: forward, and backward for its input and its weight
_FORWARD = 1 / 3  # share of the forward pass in a layer's computation


@dataclass(frozen=True)
class Speeds:
    """Speeds of ranks and links. Each is one number for all ranks, or an array with one for each rank, (P,).

    Attributes
    ----------
    link_bytes_per_s : float, or ndarray (P,) or (P, P)
        Rate of a rank's link in each direction, 10 Gbit/s by default; with (P, P), into rank i from rank j (bytes/s).
    latency_s : float
        Time that one collective call takes besides its bytes (s).
    flops_per_s : float or ndarray
        Rate of matrix products (operations/s).
    gather_bytes_per_s : float or ndarray
        Rate at which rows are read along edges (bytes/s).
    near_bytes_per_s : float or ndarray, optional
        The same along near edges, whose rows lie in caches, see :class:`partition.predict.figures.Figures`; by default
        all edges have one rate (bytes/s).
    edge_s, head_s : float or ndarray
        Fixed time per edge, and per edge and head, over the three passes of a step (s).
    attend_s : float or ndarray
        Fixed time per number of a row that attends, over the three passes of a step (s).
    stream_bytes_per_s : float or ndarray
        Rate of operations on each number of a row, such as norms (bytes/s).
    layer_s : float or ndarray
        Fixed time per layer (s).
    reduce_bytes_per_s : float
        Rate at which gradients are summed over ranks (bytes/s).
    overlap : float
        Share of an exchange that computation at the same time can hide, 0 to 1.
    """

    link_bytes_per_s: float | np.ndarray = 1.25e9
    latency_s: float = 1e-4
    flops_per_s: float | np.ndarray = 1e11
    gather_bytes_per_s: float | np.ndarray = 1e10
    near_bytes_per_s: float | np.ndarray | None = None
    edge_s: float | np.ndarray = 0.0
    head_s: float | np.ndarray = 0.0
    attend_s: float | np.ndarray = 0.0
    stream_bytes_per_s: float | np.ndarray = np.inf
    layer_s: float | np.ndarray = 0.0
    reduce_bytes_per_s: float = np.inf
    overlap: float = 0.0

    def as_dict(self) -> dict:
        """The speeds by name as JSON values: lists in place of arrays, and None where a speed is infinite or None."""

        def json_value(value):
            if isinstance(value, list):
                return [json_value(each) for each in value]
            return None if value is None or np.isinf(value) else value

        return {key: json_value(np.asarray(value).tolist()) for key, value in vars(self).items()}


@dataclass(frozen=True)
class StepTime:
    """Predicted seconds of a training step, by what they are spent on.

    Attributes
    ----------
    products_s, rows_s, attention_s : float
        Time of matrix products, of operations on each number of a row, and of edges, on the rank that is slowest in
        each layer (s).
    exchange_s, hidden_s : float
        Time of exchanges, and how much of it goes by while ranks compute (s).
    gradients_s : float
        Time to sum the parameters' gradients over ranks, and of the optimiser (s).
    """

    products_s: float
    rows_s: float
    attention_s: float
    exchange_s: float
    hidden_s: float
    gradients_s: float

    @property
    def total_s(self) -> float:
        return self.products_s + self.rows_s + self.attention_s + self.exchange_s - self.hidden_s + self.gradients_s


def halo_sends(figures: Figures, model: Model, speeds: Speeds) -> str:
    """Return ``halo_h`` or ``halo_kv``, whichever makes a training step quicker.

    Keys and values are twice as wide as h, but need no projection where they arrive.
    """
    return min(("halo_h", "halo_kv"), key=lambda strategy: step_seconds(figures, model, speeds, strategy))


def step_seconds(figures: Figures, model: Model, speeds: Speeds, strategy: str | None = None, depth: int = 1) -> float:
    """Predicted seconds of one training step, forward and backward; see :func:`step_time`."""
    return step_time(figures, model, speeds, strategy, depth).total_s


def step_time(
    figures: Figures,
    model: Model,
    speeds: Speeds,
    strategy: str | None = None,
    depth: int = 1,
    activation_checkpoint: str = "none",
    overlap: bool = True,
) -> StepTime:
    """Predict the time of one training step, forward and backward.

    A layer takes as long as its slowest rank. Where the speeds are the same for all ranks, a rank with twice the share
    (``figures.shares``) is taken to compute twice as fast.

    Parameters
    ----------
    figures : Figures
        With ``near_edges``, if the speeds have a rate for them.
    model : Model
    speeds : Speeds
    strategy, depth
        See :func:`partition.predict.traffic.exchange_traffic`.
    activation_checkpoint : {"none", "full", "keep_exchanges"}
        Whether backward computes each layer again, and whether it exchanges again, too.
    overlap : bool
        Whether ranks compute while rows travel, where the strategy can.

    Raises
    ------
    InputError
        The partition or the model cannot have the strategy.
    """
    strategy = strategy or default_strategy(figures)
    check_strategy(figures, strategy, depth, model)
    again = 1 + (_FORWARD if activation_checkpoint != "none" else 0)
    spent, hideable = np.zeros(3), []
    layers = schedule(model.layers, depth)
    for layer in layers:
        hops_read = 1 if layer.is_alone else depth
        ranks = again * _layer(figures, model, speeds, strategy, hops_read, layer.inner_hops)
        slowest = ranks[:, ranks.sum(0).argmax()]
        spent += slowest
        if layer.follows_exchange:
            hideable.append(_local_share(figures, strategy, hops_read) * slowest[2])
    spent[:2] += _ends(figures, model, speeds, layers[0].inner_hops)
    exchange, hidden = 0.0, 0.0
    for number, traffic in enumerate(step_traffic(figures, model, strategy, depth, activation_checkpoint)):
        seconds = _exchange_seconds(figures, traffic, speeds, strategy)
        exchange += seconds
        if overlap:
            hidden += float(speeds.overlap) * min(seconds, hideable[number])
    return StepTime(*spent.tolist(), exchange, hidden, _gradient_seconds(figures, model, speeds))


def _layer(figures: Figures, model: Model, speeds: Speeds, strategy: str, depth: int, inner: int) -> np.ndarray:
    """Seconds of one layer on each rank, (3, P): matrix products, other operations on rows, and edges."""
    computed = figures.held_within(inner)
    projected = figures.held_within(inner + 1) if strategy in ("halo_h", "mirror") else computed
    queried = projected if strategy == "mirror" else computed
    product = 2 * model.hidden**2  # operations of C x C on one row
    flops = _PRODUCTS * product * ((1 + 2 * model.ffn) * computed + queried + 2 * projected)
    passes = (22 + 5 * model.ffn) * computed + _extra_passes(figures, strategy, depth, inner)
    attending = np.full(len(computed), computed.sum() / len(computed)) if strategy == "heads" else computed
    rows = passes * model.row_bytes / speeds.stream_bytes_per_s + attending * model.hidden * speeds.attend_s
    rows = rows + speeds.layer_s
    attention = _edge_seconds(figures, model, speeds, strategy, inner)
    seconds = np.stack(np.broadcast_arrays(flops / speeds.flops_per_s, rows, attention))
    if np.ndim(speeds.flops_per_s) == 0:
        seconds = seconds / (figures.shares * figures.parts)
    return seconds


def _edge_seconds(figures: Figures, model: Model, speeds: Speeds, strategy: str, inner: int) -> np.ndarray:
    """Seconds of the edges of one layer on each rank."""
    edges = visited = figures.edges_within(inner + 1)
    if strategy == "heads":  # every rank visits all edges, with its share of the heads
        visited = np.full(len(edges), edges.sum())
        edges = np.full(len(edges), edges.sum() / figures.parts)
    fixed = visited * speeds.edge_s + edges * model.heads * speeds.head_s
    edge_bytes = ATTENTION_PASSES * 2 * model.row_bytes
    if speeds.near_bytes_per_s is None:
        return fixed + edge_bytes * edges / speeds.gather_bytes_per_s
    if figures.near_edges is None:
        raise ValueError("near_bytes_per_s is given, but near edges are not counted; count them, or leave it out")
    near = figures.near_edges
    if strategy == "heads":
        near = np.full(len(near), near.sum() / figures.parts)
    return fixed + edge_bytes * (near / speeds.near_bytes_per_s + (edges - near) / speeds.gather_bytes_per_s)


def _extra_passes(figures: Figures, strategy: str, depth: int, inner: int) -> np.ndarray:
    """Rows of C that a strategy reads and writes to pack rows, to merge pieces of attention and to sum gradients."""
    parts, owned = figures.parts, figures.owned
    piece = 18 * owned  # queries and results once more, the merge, and the sum of the queries' gradients
    if parts == 1:
        return np.zeros(parts)
    if depth > 1:
        return 5 * figures.copies_within(inner + 1)
    match strategy:
        case "halo_h":
            return piece + 5 * figures.sent_within(1)
        case "halo_kv":
            return piece + 10 * figures.sent_within(1)
        case "gather":
            return piece + 4 * owned + 6 * (parts - 1) * owned
        case "ring":
            return (parts - 1) * (piece + 6 * owned)
        case "heads":
            return 20 * owned
        case _:
            return 2 * piece + 12 * figures.copies_within(1) + 18 * figures.returned + 25 * figures.returns


def _local_share(figures: Figures, strategy: str, depth: int) -> float:
    """The share of a layer's attention that needs no row of another rank."""
    if strategy in ("local", "heads") or depth > 1:
        return 0.0
    if strategy == "ring":
        return 1.0
    return 1.0 - figures.cut_ratio


def _ends(figures: Figures, model: Model, speeds: Speeds, inner: int) -> np.ndarray:
    """Seconds of the first and the last projection on their slowest rank: matrix products, other operations on rows."""
    first, last = figures.held_within(inner), figures.owned
    flops = _PRODUCTS * 2 * model.hidden * (model.features * first + model.classes * last)
    passes = (4 * first + 5 * last) * model.row_bytes if model.features or model.classes else 0 * last
    return np.array([(flops / speeds.flops_per_s).max(), (passes / speeds.stream_bytes_per_s).max()])


def _gradient_seconds(figures: Figures, model: Model, speeds: Speeds) -> float:
    gradient_bytes = model.parameters * model.itemsize
    optimiser = 12 * gradient_bytes / float(np.min(speeds.stream_bytes_per_s))
    if figures.parts == 1 or speeds.reduce_bytes_per_s == np.inf:
        return optimiser
    return optimiser + gradient_bytes / speeds.reduce_bytes_per_s + speeds.latency_s


def _exchange_seconds(figures: Figures, traffic: Traffic, speeds: Speeds, strategy: str) -> float:
    """Seconds of one exchange on the slowest rank, forward and backward."""
    moved = np.maximum(traffic.sent, traffic.received) + np.maximum(traffic.sent_back, traffic.received_back)
    return float((moved / _link_rate(figures, speeds, strategy)).max()) + traffic.calls * speeds.latency_s


def _link_rate(figures: Figures, speeds: Speeds, strategy: str):
    """Bytes per second that reach each rank, whose links work one after the other, each with its share of the bytes."""
    link = np.asarray(speeds.link_bytes_per_s, float)
    if link.ndim < 2:
        return link
    if strategy in ("halo_h", "halo_kv", "mirror"):
        rows = figures.received_rows.astype(float)
    elif strategy == "ring":
        rows = np.roll(np.eye(figures.parts), -1, axis=1)
    else:
        rows = np.tile(figures.owned.astype(float), (figures.parts, 1))
    np.fill_diagonal(rows, 0.0)
    total = rows.sum(1, keepdims=True)
    shares = np.divide(rows, total, out=np.zeros_like(rows), where=total > 0)
    spent = np.divide(shares, link, out=np.zeros_like(shares), where=shares > 0).sum(1)
    return 1 / np.where(spent > 0, spent, 1 / link.max())
