"""What a rank's tensors take at the peak of a training step: pure functions of figures. Formulas: docs/selector.md.

The peak is in the backward pass of a layer, as a rule the last: nothing is freed yet of what those before it keep.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from .traffic import (
    Model,
    check_strategy,
    column,
    default_strategy,
    hops_column,
    inner_hops,
    is_shallow,
    pulls,
    rows_within,
)

_STATISTICS_BYTES = 16  # of a row's two layer norms
_DEGREES_BYTES = 16  # in and out in the whole graph, of each owned row and copy of one hop


@dataclass(frozen=True)
class StepMemory:
    """Predicted bytes of each rank's tensors by what they are for, int64 (P,) each.

    Attributes
    ----------
    shard : ndarray
        Structure, as on disk and as the strategy reads it, degrees in the whole graph, and node and edge data.
    activations : ndarray
        What backward finds of the model's rows, and what it makes of them where the peak is.
    exchange : ndarray
        The same of rows that others own, of copies made for the exchange and of results to be merged.
    parameters : ndarray
        Parameters and their gradients.
    optimiser : ndarray
        AdamW's two moments.
    """

    shard: np.ndarray
    activations: np.ndarray
    exchange: np.ndarray
    parameters: np.ndarray
    optimiser: np.ndarray

    @property
    def total(self) -> np.ndarray:
        return self.shard + self.activations + self.exchange + self.parameters + self.optimiser


@dataclass(frozen=True)
class _Layer:
    """Rows of C that one layer takes on each rank, float (P,) each.

    Attributes
    ----------
    computed, read : ndarray
        Destination and source rows.
    pulled : ndarray
        Rows that it reads and is not called with: an exchange brings them before it begins.
    own, others : ndarray
        What backward finds of attention: of this rank's rows, and besides.
    travelled : ndarray
        What of it exchanges brought.
    transient : ndarray
        What the backward pass of attention makes besides, at its peak.
    """

    computed: np.ndarray
    read: np.ndarray
    pulled: np.ndarray
    own: np.ndarray
    others: np.ndarray
    travelled: np.ndarray
    transient: np.ndarray


def rank_memory_bytes(
    figures: dict, model: Model, strategy: str | None = None, depth: int = 1, activation_checkpoint: str = "none"
) -> np.ndarray:
    """Predicted bytes of each rank's tensors, int64 (P,); see :func:`step_memory`."""
    return step_memory(figures, model, strategy, depth, activation_checkpoint).total


def step_memory(
    figures: dict, model: Model, strategy: str | None = None, depth: int = 1, activation_checkpoint: str = "none"
) -> StepMemory:
    """Predicted bytes of tensors at the peak of a training step on each rank, without edge bias.

    The interpreter and its libraries come on top, as does what the allocator holds back.

    Parameters
    ----------
    figures, model, strategy, depth
        See :func:`partition.predict.traffic.exchange_traffic`. Where the model's ``features`` are 0, node data count as they lie
        on disk (``bytes``), where ``figures`` know that, and parameters do not.
    activation_checkpoint : {"none", "full", "keep_exchanges"}
        See :func:`partition.predict.step_time.step_time`.
    """
    strategy = strategy or default_strategy(figures)
    check_strategy(figures, model, strategy, depth)
    layers = _layers(figures, model, strategy, depth)
    row = model.row_bytes
    # of a layer the inputs of its two norms and what they give, the feed-forward network before and behind its
    # activation, and attention
    kept = [
        row * (2 * each.read + (2 + 2 * model.ffn) * each.computed + each.own)
        + (_STATISTICS_BYTES + model.lse_bytes) * each.computed
        for each in layers
    ]
    activations = exchange = np.zeros(figures["parts"])
    for number, each in enumerate(layers):
        before = layers[:number]
        if activation_checkpoint == "none":
            own, others = sum(kept[:number]), row * sum(layer.others for layer in before)
        else:
            own = row * sum(layer.read - layer.pulled for layer in layers[: number + 1]) - row * each.read
            own = own + row * np.where(each.pulled > 0, each.read, 0)
            others = row * sum(layer.travelled for layer in before) if activation_checkpoint == "keep_exchanges" else 0
        own = own + row * layers[0].read + kept[number]  # the input of the first activation is kept besides
        others = others + row * each.others
        # Two moments: gradients are in the feed-forward network; in attention, when that of the network is gone.
        feed_forward = row * (1 + model.ffn) * each.computed
        attending = row * (each.transient - (2 + 2 * model.ffn) * each.computed)
        if each is layers[-1] and activation_checkpoint == "none":  # or forward has just ended
            feed_forward = np.maximum(feed_forward, (2 * row + 2 * model.itemsize * model.classes) * each.computed)
        own, others = own + feed_forward, others + np.maximum(attending - feed_forward, 0)
        is_peak = own + others > activations + exchange
        activations, exchange = np.where(is_peak, own, activations), np.where(is_peak, others, exchange)
    parameters = np.full(figures["parts"], model.parameters * model.itemsize if model.features else 0)
    shard = _shard_bytes(figures, model, strategy, depth)
    terms = (shard, activations, exchange, 2 * parameters, 2 * parameters)
    return StepMemory(*(np.asarray(each).astype(np.int64) for each in terms))


def _layers(figures: dict, model: Model, strategy: str, depth: int) -> list[_Layer]:
    owned, layers = column(figures, "owned").astype(float), []
    hops = inner_hops(model.layers, depth)
    for number, inner in enumerate(hops):
        computed, read = (rows_within(figures, inner + more).astype(float) for more in (0, 1))
        if is_shallow(hops, number, depth):
            layers.append(_shallow(figures, strategy))
            continue
        pulled = read - owned if pulls(hops, number, depth) else 0 * owned
        own, transient = 2 * computed + 2 * read, 3 * computed + 2 * read
        layers.append(_Layer(computed, read, pulled, own, 0 * owned, pulled, transient))
    return layers


def _shallow(figures: dict, strategy: str) -> _Layer:
    """A layer of a strategy that exchanges in each; owned rows n, halo or mirrors a, sent s, all N."""
    parts, n = figures["parts"], column(figures, "owned").astype(float)
    total, none = n.sum(), 0 * n
    most = 0 * n + n.max()
    if strategy == "local" or parts == 1:
        return _Layer(n, n, none, 4 * n, none, none, 5 * n)
    if strategy in ("halo_h", "halo_kv"):
        a, s = (hops_column(figures, key, 1).astype(float) for key in ("halo_by_hop", "sent_by_hop"))
        if strategy == "halo_h":
            return _Layer(n, n, none, 4 * n, 3 * a, a, 3 * n + np.maximum(2 * a, 3 * n + s - 2 * a))
        return _Layer(n, n, none, 4 * n, 2 * a, 2 * a, 3 * n + np.maximum(2 * a, 3 * n + 2 * s))
    if strategy == "gather":
        everything = 2 * total + none
        # the gradients of all; or these on their way, when K and V are gone, and those that others send
        transient = 3 * n + np.maximum(everything, 3 * n + 2 * parts * n)
        return _Layer(n, n, none, 4 * n, everything, everything, transient)
    if strategy == "heads":
        share = total / parts + none
        transient = 2 * n + np.maximum(np.maximum(4 * share, n + share), 6 * n - 4 * share)
        return _Layer(n, n, none, n, 4 * share, 3 * share + n, transient)
    if strategy == "ring":
        flying = {2: 6, 3: 8}.get(parts, 10)  # blocks: at hand and next; gradients: at hand, out and in
        return _Layer(n, n, none, 4 * n, none, 2 * (total - n), 5 * n + flying * most)
    a, back, home = (column(figures, key).astype(float) for key in ("mirrors", "returned", "returns"))
    transient = 3 * n + np.maximum(3 * home, 2 * n + 2 * a + 2 * back - home)
    others = 2 * n + 5 * a + 3 * back + home
    return _Layer(n, n, none, 5 * n, others, a + home, transient)


def _shard_bytes(figures: dict, model: Model, strategy: str, depth: int) -> np.ndarray:
    """Structure: ids, pointers and neighbours as on disk, and as the strategy reads them, with the reverse index."""
    n = column(figures, "owned")
    is_vertex, parts = figures["cut"] == "vertex", figures["parts"]
    held = rows_within(figures, depth)
    edges = column(figures, "edges") if is_vertex else hops_column(figures, "edges_by_hop", depth)
    sent = column(figures, "sent") if is_vertex else hops_column(figures, "sent_by_hop", depth)
    disk = 12 * edges + 16 * held + 8 * sent
    total = n.sum()
    if strategy == "local" or parts == 1:
        read = 12 * edges + 8 * n
    elif depth > 1:
        read = 12 * sum(hops_column(figures, "edges_by_hop", inner + 1) for inner in range(depth)) + 8 * held * depth
        hops = inner_hops(model.layers, depth)
        if any(is_shallow(hops, number, depth) for number in range(len(hops))):
            read = read + _pieces_bytes(figures, 2, rows_within(figures, 1))
    elif strategy == "heads":
        read = 24 * column(figures, "edges").sum() + 16 * total + 0 * n
    else:
        pieces = parts if strategy == "ring" else 2
        sources = total + (n if strategy == "gather" else 0) if strategy in ("ring", "gather") else held
        read = _pieces_bytes(figures, pieces, sources)
    if model.features:
        data = 4 * model.features * (held if depth > 1 else n) + _other_data_bytes(figures, n)
    else:
        data = np.maximum(column(figures, "bytes", 0) - disk, 0)
    return disk + read + data + _DEGREES_BYTES * rows_within(figures, 1)


def _pieces_bytes(figures: dict, pieces: int, sources) -> np.ndarray:
    """A part's own edges as so many pieces read them."""
    edges = column(figures, "edges")
    return 32 * edges + 8 * pieces * column(figures, "owned") + 8 * sources


def _other_data_bytes(figures: dict, owned: np.ndarray) -> np.ndarray:
    """Node data but features, of owned rows, and edge data, where ``figures`` know them."""

    def row_bytes(data: dict) -> int:
        kept = [entry for name, entry in data.items() if name != "feat"]
        return sum(np.dtype(entry["dtype"]).itemsize * math.prod(entry["shape"]) for entry in kept)

    nodes, edges = (row_bytes(figures.get(key, {})) for key in ("node_data", "edge_data"))
    return nodes * owned + edges * column(figures, "edges")
