"""How long a training step takes on ranks of given speeds: pure functions of figures. Formulas: docs/selector.md."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .traffic import (
    Model,
    Traffic,
    check_strategy,
    column,
    default_strategy,
    hops_column,
    inner_hops,
    is_shallow,
    pulls,
    rows_within,
    step_traffic,
)

ATTENTION_PASSES = 3  # over all edges: forward, dQ, dK and dV
_PRODUCTS = 3  # of a projection: forward, and backward for its input and its weight
_FORWARD = 1 / 3  # of a layer's computation


@dataclass(frozen=True)
class Speeds:
    """What a rank does in a second. Each is a number, or an array with one for each rank, (P,).

    Attributes
    ----------
    link_bytes_per_s : float, or ndarray (P,) or (P, P)
        Into and out of a rank, each; with (P, P), into rank i from rank j. 10 Gbit/s by default.
    latency_s : float
        Of one exchange.
    flops_per_s : float
        Of matrix products.
    gather_bytes_per_s : float
        Rows read along edges.
    near_bytes_per_s : float, optional
        The same along edges between rows that lie near each other (``near_edges`` of a manifest), hence in caches.
    edge_s, head_s : float
        Fixed time per edge, and per edge and head (s), over the three passes of a step's forward and backward.
    attend_s : float
        Of each number of a row that attends, however many edges it has, over the three passes.
    stream_bytes_per_s : float
        Rows read and written by operations on each number, such as norms.
    layer_s : float
        Of a layer besides, whatever its size.
    reduce_bytes_per_s : float
        Sum of gradients over ranks.
    overlap : float
        Share of an exchange that can hide behind computation, 0 to 1. The parts that computation does not cover, and
        exchanges with nothing to compute meanwhile, are never hidden.
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
        """Values that JSON has: arrays as lists."""
        return {key: None if value is None else np.asarray(value).tolist() for key, value in vars(self).items()}


@dataclass(frozen=True)
class StepTime:
    """Predicted seconds of a step by what they are spent on.

    Attributes
    ----------
    products_s, rows_s, attention_s : float
        Matrix products, operations on each number of a row, and edges: of the rank that is slowest in each layer.
    exchange_s, hidden_s : float
        Between ranks, and how much of it goes on while ranks compute.
    gradients_s : float
        Sum of the parameters' gradients over ranks, and the optimiser.
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


def halo_sends(figures: dict, model: Model, speeds: Speeds) -> str:
    """``halo_h`` or ``halo_kv``: which makes a layer of this model quicker on these ranks and links.

    Keys and values are twice as wide as h, and spare their projection where they arrive.
    """
    return min(("halo_h", "halo_kv"), key=lambda strategy: step_seconds(figures, model, speeds, strategy))


def step_seconds(figures: dict, model: Model, speeds: Speeds, strategy: str | None = None, depth: int = 1) -> float:
    """Predicted seconds of one training step, forward and backward; see :func:`step_time`."""
    return step_time(figures, model, speeds, strategy, depth).total_s


def step_time(
    figures: dict,
    model: Model,
    speeds: Speeds,
    strategy: str | None = None,
    depth: int = 1,
    activation_checkpoint: str = "none",
    overlap: bool = True,
) -> StepTime:
    """Predicted seconds of one training step, forward and backward.

    A layer takes as long as its slowest rank. With speeds that are the same for all ranks, one that was to take twice
    the share (``shares``) is taken to compute twice as fast.

    Parameters
    ----------
    figures : dict
        A manifest, see docs/format.md; only counts are read.
    model : Model
    speeds : Speeds
    strategy, depth
        See :func:`partition.predict.traffic.exchange_traffic`.
    activation_checkpoint : {"none", "full", "keep_exchanges"}
        Whether backward computes each layer again, and whether it exchanges again, too.
    overlap : bool
        Whether ranks compute while rows travel, where the strategy can.
    """
    strategy = strategy or default_strategy(figures)
    check_strategy(figures, model, strategy, depth)
    again = 1 + (_FORWARD if activation_checkpoint != "none" else 0)
    spent = np.zeros(3)
    hideable = []
    hops = inner_hops(model.layers, depth)
    for number, inner in enumerate(hops):
        hops_read = 1 if is_shallow(hops, number, depth) else depth
        ranks = again * _layer(figures, model, speeds, strategy, hops_read, inner)
        slowest = ranks[:, ranks.sum(0).argmax()]
        spent += slowest
        if pulls(hops, number, depth):
            hideable.append(_local_share(figures, strategy, hops_read) * slowest[2])
    spent[:2] += _ends(figures, model, speeds, hops[0])
    exchange, hidden = 0.0, 0.0
    for number, traffic in enumerate(step_traffic(figures, model, strategy, depth, activation_checkpoint)):
        seconds = _exchange_seconds(figures, traffic, speeds, strategy)
        exchange += seconds
        if overlap:
            hidden += float(speeds.overlap) * min(seconds, hideable[number])
    return StepTime(*spent.tolist(), exchange, hidden, _gradient_seconds(figures, model, speeds))


def _layer(figures: dict, model: Model, speeds: Speeds, strategy: str, depth: int, inner: int) -> np.ndarray:
    """Seconds of one layer on each rank, (3, P): products on rows, all else on rows, and edges."""
    computed = rows_within(figures, inner)
    projected = rows_within(figures, inner + 1) if strategy in ("halo_h", "mirror") else computed
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
        seconds = seconds / (np.array(figures["shares"]) * figures["parts"])
    return seconds


def _edge_seconds(figures: dict, model: Model, speeds: Speeds, strategy: str, inner: int) -> np.ndarray:
    """Seconds of the edges of one layer on each rank."""
    edges = hops_column(figures, "edges_by_hop", inner + 1) if figures["cut"] == "edge" else column(figures, "edges")
    near = np.minimum(column(figures, "near_edges", 0), edges)
    edge_bytes = ATTENTION_PASSES * 2 * model.row_bytes
    visited = np.full(len(edges), edges.sum()) if strategy == "heads" else edges
    if strategy == "heads":  # a share of the heads of all edges
        edges, near = (np.full(len(each), each.sum() / figures["parts"]) for each in (edges, near))
    besides = visited * speeds.edge_s + edges * model.heads * speeds.head_s
    if speeds.near_bytes_per_s is None:
        return besides + edge_bytes * edges / speeds.gather_bytes_per_s
    return besides + edge_bytes * (near / speeds.near_bytes_per_s + (edges - near) / speeds.gather_bytes_per_s)


def _extra_passes(figures: dict, strategy: str, depth: int, inner: int) -> np.ndarray:
    """Rows of C that a strategy reads and writes besides: to pack, to merge attention's pieces, to sum gradients."""
    parts, owned = figures["parts"], column(figures, "owned")
    piece = 18 * owned  # queries and results once more, the merge, and the sum of the queries' gradients
    if strategy == "local" or parts == 1:
        return np.zeros(parts)
    if depth > 1:
        return 5 * (rows_within(figures, inner + 1) - owned)
    if strategy in ("halo_h", "halo_kv"):
        return piece + (10 if strategy == "halo_kv" else 5) * hops_column(figures, "sent_by_hop", 1)
    if strategy == "gather":
        return piece + 4 * owned + 6 * (parts - 1) * owned
    if strategy == "ring":
        return (parts - 1) * (piece + 6 * owned)
    if strategy == "heads":
        return 20 * owned
    mirrors, back, home = (column(figures, key) for key in ("mirrors", "returned", "returns"))
    return 2 * piece + 12 * mirrors + 18 * back + 25 * home


def _local_share(figures: dict, strategy: str, depth: int) -> float:
    """How much of a layer's attention needs no row of another rank."""
    if strategy in ("local", "heads") or depth > 1:
        return 0.0
    if strategy == "ring":
        return 1.0
    return 1.0 - figures.get("quality", {}).get("cut_ratio", 0.5)


def _ends(figures: dict, model: Model, speeds: Speeds, inner: int) -> np.ndarray:
    """Seconds of the first and the last projection, on their slowest rank: products, and all else on rows."""
    first, last = rows_within(figures, inner), column(figures, "owned")
    flops = _PRODUCTS * 2 * model.hidden * (model.features * first + model.classes * last)
    passes = (4 * first + 5 * last) * model.row_bytes if model.features or model.classes else 0 * last
    return np.array([(flops / speeds.flops_per_s).max(), (passes / speeds.stream_bytes_per_s).max()])


def _gradient_seconds(figures: dict, model: Model, speeds: Speeds) -> float:
    parts, gradient_bytes = figures["parts"], model.parameters * model.itemsize
    optimiser = 12 * gradient_bytes / float(np.min(speeds.stream_bytes_per_s))
    if parts == 1 or speeds.reduce_bytes_per_s == np.inf:
        return optimiser
    return optimiser + gradient_bytes / speeds.reduce_bytes_per_s + speeds.latency_s


def _exchange_seconds(figures: dict, traffic: Traffic, speeds: Speeds, strategy: str) -> float:
    """Of the rank that is slowest, forward and backward."""
    moved = np.maximum(traffic.sent, traffic.received) + np.maximum(traffic.sent_back, traffic.received_back)
    return float((moved / _link_rate(figures, speeds, strategy)).max()) + traffic.calls * speeds.latency_s


def _link_rate(figures: dict, speeds: Speeds, strategy: str):
    """Bytes that reach each rank in a second: one link after the other, each with its share of what arrives."""
    link = np.asarray(speeds.link_bytes_per_s, float)
    if link.ndim < 2:
        return link
    parts = figures["parts"]
    if strategy in ("halo_h", "halo_kv", "mirror"):
        rows = np.array(figures["received_rows"], float)
    elif strategy == "ring":
        rows = np.roll(np.eye(parts), -1, axis=1)
    else:
        rows = np.tile(column(figures, "owned").astype(float), (parts, 1))
    np.fill_diagonal(rows, 0.0)
    total = rows.sum(1, keepdims=True)
    shares = np.divide(rows, total, out=np.zeros_like(rows), where=total > 0)
    spent = np.divide(shares, link, out=np.zeros_like(shares), where=shares > 0).sum(1)
    return 1 / np.where(spent > 0, spent, 1 / link.max())
