"""What a rank's tensors take at the peak of a training step, from figures. Formulas: docs/selector.md.

The peak lies in the backward pass of a layer, usually the last: what the layers before it keep is still there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .figures import Figures
from .model import Model
from .strategies import check_strategy, default_strategy
from .traffic import schedule

_STATISTICS_BYTES = 16  # of the two layer norms, per row
_DEGREES_BYTES = 16  # in- and out-degree in the whole graph, per owned row and copy of one hop


@dataclass(frozen=True)
class StepMemory:
    """Predicted bytes of each rank's tensors, by what they are for, int64 (P,).

    Attributes
    ----------
    shard : ndarray
        Structure, as it is stored and as the strategy reads it, degrees in the whole graph, and node and edge data
        (bytes).
    activations : ndarray
        What the backward pass needs of the rank's own rows, and what it makes of them at the peak (bytes).
    exchange : ndarray
        The same of rows that other ranks own, of copies made for the exchange, and of results to be merged (bytes).
    parameters : ndarray
        Parameters and their gradients (bytes).
    optimiser : ndarray
        The two moments of AdamW (bytes).
    """

    shard: np.ndarray
    activations: np.ndarray
    exchange: np.ndarray
    parameters: np.ndarray
    optimiser: np.ndarray

    @property
    def total(self) -> np.ndarray:
        """All of it, int64 (P,) (bytes)."""
        return self.shard + self.activations + self.exchange + self.parameters + self.optimiser


@dataclass(frozen=True)
class _Layer:
    """Numbers of rows of width C that one layer takes on each rank, float (P,).

    Attributes
    ----------
    computed, read : ndarray
        Rows that the layer computes, and rows that it reads.
    pulled : ndarray
        Rows that it reads and that an exchange brings before it begins.
    own, others : ndarray
        Rows that attention keeps for the backward pass: of this rank's rows, and of all others.
    travelled : ndarray
        Those of them that exchanges brought.
    transient : ndarray
        Rows that the backward pass of attention makes, at its peak.
    """

    computed: np.ndarray
    read: np.ndarray
    pulled: np.ndarray
    own: np.ndarray
    others: np.ndarray
    travelled: np.ndarray
    transient: np.ndarray


def rank_memory_bytes(
    figures: Figures, model: Model, strategy: str | None = None, depth: int = 1, activation_checkpoint: str = "none"
) -> np.ndarray:
    """Predicted bytes of each rank's tensors, int64 (P,); see :func:`step_memory`."""
    return step_memory(figures, model, strategy, depth, activation_checkpoint).total


def step_memory(
    figures: Figures, model: Model, strategy: str | None = None, depth: int = 1, activation_checkpoint: str = "none"
) -> StepMemory:
    """Predict the bytes of tensors on each rank at the peak of a training step, without edge bias.

    A process takes more: the interpreter, its libraries, and memory that the allocator keeps.

    Parameters
    ----------
    figures, model, strategy, depth
        See :func:`partition.predict.traffic.exchange_traffic`. A model with ``features`` 0 has no known ends: its
        parameters are not counted, and all that the shards store is.
    activation_checkpoint : {"none", "full", "keep_exchanges"}
        See :func:`partition.predict.step_time.step_time`.

    Raises
    ------
    InputError
        The partition or the model cannot have the strategy.
    """
    strategy = strategy or default_strategy(figures)
    check_strategy(figures, strategy, depth, model)
    activations, exchange = _peak_bytes(_layers(figures, model, strategy, depth), model, activation_checkpoint)
    parameters = np.full(figures.parts, model.parameters * model.itemsize if model.features else 0)
    shard = _structure_bytes(figures, model, strategy, depth) + _data_bytes(figures, model, depth)
    terms = (shard, activations, exchange, 2 * parameters, 2 * parameters)
    return StepMemory(*(np.asarray(each).astype(np.int64) for each in terms))


def _peak_bytes(layers: list[_Layer], model: Model, activation_checkpoint: str) -> tuple[np.ndarray, np.ndarray]:
    """Bytes of own rows and of others at the peak of the backward pass, (P,) each."""
    row = model.row_bytes
    # A layer keeps the inputs of its two norms and their results, what goes into the feed-forward network's activation
    # and what comes out of it, and what attention keeps.
    kept = [
        row * (2 * each.read + (2 + 2 * model.ffn) * each.computed + each.own)
        + (_STATISTICS_BYTES + model.lse_bytes) * each.computed
        for each in layers
    ]
    activations = exchange = 0 * layers[0].computed
    for number, each in enumerate(layers):
        before = layers[:number]
        if activation_checkpoint == "none":
            own, others = sum(kept[:number]), row * sum(layer.others for layer in before)
        else:
            own = row * sum(layer.read - layer.pulled for layer in layers[: number + 1]) - row * each.read
            own = own + row * np.where(each.pulled > 0, each.read, 0)
            others = row * sum(layer.travelled for layer in before) if activation_checkpoint == "keep_exchanges" else 0
        own = own + row * layers[0].read + kept[number]  # the input of the first activation is kept, too
        others = others + row * each.others
        # There are two moments to compare: gradients are in the feed-forward network, or, when its tensors are gone,
        # in attention.
        feed_forward = row * (1 + model.ffn) * each.computed
        attending = row * (each.transient - (2 + 2 * model.ffn) * each.computed)
        if each is layers[-1] and activation_checkpoint == "none":  # or the forward pass has just ended
            feed_forward = np.maximum(feed_forward, (2 * row + 2 * model.itemsize * model.classes) * each.computed)
        own, others = own + feed_forward, others + np.maximum(attending - feed_forward, 0)
        is_peak = own + others > activations + exchange
        activations, exchange = np.where(is_peak, own, activations), np.where(is_peak, others, exchange)
    return activations, exchange


def _layers(figures: Figures, model: Model, strategy: str, depth: int) -> list[_Layer]:
    layers, none = [], np.zeros(figures.parts)
    for layer in schedule(model.layers, depth):
        if layer.is_alone:
            layers.append(_layer_alone(figures, strategy))
            continue
        computed, read = (figures.held_within(layer.inner_hops + more).astype(float) for more in (0, 1))
        pulled = read - figures.owned if layer.follows_exchange else none
        own, transient = 2 * computed + 2 * read, 3 * computed + 2 * read
        layers.append(_Layer(computed, read, pulled, own, none, pulled, transient))
    return layers


def _layer_alone(figures: Figures, strategy: str) -> _Layer:
    """A layer that no other shares an exchange with. n: owned rows, a: copies, s: rows sent, N: all nodes."""
    parts, n = figures.parts, figures.owned.astype(float)
    total, none = n.sum(), 0 * n
    a, s = (each.astype(float) for each in (figures.copies_within(1), figures.sent_within(1)))
    if parts == 1:
        return _Layer(n, n, none, 4 * n, none, none, 5 * n)
    match strategy:
        case "halo_h":
            return _Layer(n, n, none, 4 * n, 3 * a, a, 3 * n + np.maximum(2 * a, 3 * n + s - 2 * a))
        case "halo_kv":
            return _Layer(n, n, none, 4 * n, 2 * a, 2 * a, 3 * n + np.maximum(2 * a, 3 * n + 2 * s))
        case "gather":
            everything = 2 * total + none
            # the gradients of all rows; or, when K and V are gone, these on their way and those that others send
            transient = 3 * n + np.maximum(everything, 3 * n + 2 * parts * n)
            return _Layer(n, n, none, 4 * n, everything, everything, transient)
        case "heads":
            share = total / parts + none
            transient = 2 * n + np.maximum(np.maximum(4 * share, n + share), 6 * n - 4 * share)
            return _Layer(n, n, none, n, 4 * share, 3 * share + n, transient)
        case "ring":
            # blocks of the largest part: K and V at hand and next; their gradients at hand, going out and coming in
            in_flight = {2: 6, 3: 8}.get(parts, 10)
            return _Layer(n, n, none, 4 * n, none, 2 * (total - n), 5 * n + in_flight * n.max())
    back, home = figures.returned.astype(float), figures.returns.astype(float)
    transient = 3 * n + np.maximum(3 * home, 2 * n + 2 * a + 2 * back - home)
    return _Layer(n, n, none, 5 * n, 2 * n + 5 * a + 3 * back + home, a + home, transient)


def _structure_bytes(figures: Figures, model: Model, strategy: str, depth: int) -> np.ndarray:
    """Ids, pointers and neighbours as they are stored and as the strategy reads them, and degrees."""
    owned, edges, held = figures.owned, figures.edges, figures.held_within(depth)
    if figures.parts == 1:
        read = 12 * figures.edges_within(depth) + 8 * owned
    elif depth > 1:
        read = 12 * sum(figures.edges_within(inner + 1) for inner in range(depth)) + 8 * held * depth
        if any(layer.is_alone for layer in schedule(model.layers, depth)):
            read = read + _pieces_bytes(figures, 2, figures.held_within(1))
    elif strategy == "heads":
        read = 24 * edges.sum() + 16 * owned.sum() + 0 * owned
    elif strategy == "ring":
        read = _pieces_bytes(figures, figures.parts, owned.sum())
    else:
        read = _pieces_bytes(figures, 2, owned.sum() + owned if strategy == "gather" else held)
    stored_hops = depth if model.features else max(figures.halo_depth, 1)
    stored = 12 * figures.edges_within(stored_hops) + 16 * figures.held_within(stored_hops)
    return stored + 8 * figures.sent_within(stored_hops) + read + _DEGREES_BYTES * figures.held_within(1)


def _pieces_bytes(figures: Figures, pieces: int, sources) -> np.ndarray:
    """A part's edges, split into so many pieces that are attended one after the other."""
    return 32 * figures.edges + 8 * pieces * figures.owned + 8 * sources


def _data_bytes(figures: Figures, model: Model, depth: int) -> np.ndarray:
    """Node and edge data: those that training keeps, or, for a model without features, all that the shards store."""
    if model.features:
        feature_rows = figures.held_within(depth) if depth > 1 else figures.owned
        kept = figures.node_bytes * figures.owned + figures.edge_bytes * figures.edges
        return 4 * model.features * feature_rows + kept
    hops = max(figures.halo_depth, 1)
    rows = (figures.feature_bytes + figures.node_bytes) * figures.held_within(hops)
    return rows + figures.edge_bytes * figures.edges_within(hops)
