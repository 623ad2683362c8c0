"""What the exchanges of a training step move: exact bytes, from figures. Formulas: docs/selector.md."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from .figures import Figures
from .model import Model
from .strategies import check_strategy, default_strategy

_CALLS = {"halo_h": 2, "halo_kv": 2, "heads": 4, "mirror": 6}  # forward and backward


@dataclass(frozen=True)
class Traffic:
    """Bytes that each rank moves in one exchange, int64 (P,).

    Attributes
    ----------
    sent, received : ndarray
        Forward (bytes).
    sent_back, received_back : ndarray
        Backward (bytes).
    calls : int
        Collective calls, forward and backward.
    """

    sent: np.ndarray
    received: np.ndarray
    sent_back: np.ndarray
    received_back: np.ndarray
    calls: int

    @property
    def total_bytes(self) -> int:
        """Bytes that all ranks send, forward and backward."""
        return int(self.sent.sum() + self.sent_back.sum())


@dataclass(frozen=True)
class ScheduledLayer:
    """What a layer computes with a halo of some depth.

    Attributes
    ----------
    inner_hops : int
        Hops of halo rows that the layer computes besides the owned rows, as later layers need them before the next
        exchange.
    follows_exchange : bool
        Whether an exchange brings halo rows before the layer. With a depth beyond 1 there is none before the first
        layer, as the shards store the halo's input features.
    """

    inner_hops: int
    follows_exchange: bool

    @property
    def is_alone(self) -> bool:
        """Whether the layer is the only one between two exchanges, and so runs as with a halo of depth 1."""
        return self.follows_exchange and self.inner_hops == 0


def schedule(layers: int, depth: int = 1) -> list[ScheduledLayer]:
    """The layers of a forward pass: every ``depth`` of them share an exchange."""
    scheduled = []
    for number in range(layers):
        first = number - number % depth  # of those that share an exchange
        last = min(first + depth, layers) - 1
        scheduled.append(ScheduledLayer(last - number, number == first and (number > 0 or depth == 1)))
    return scheduled


def hops_exchanged(layers: int, depth: int = 1) -> list[int]:
    """Hops of halo that each exchange of a forward pass fills: as many as there are layers until the next."""
    return [layer.inner_hops + 1 for layer in schedule(layers, depth) if layer.follows_exchange]


def exchange_traffic(figures: Figures, model: Model, strategy: str | None = None, depth: int = 1) -> Traffic:
    """The bytes of one exchange.

    Parameters
    ----------
    figures : Figures
    model : Model
    strategy : str, optional
        One of :data:`partition.predict.strategies.STRATEGIES`; by default ``mirror`` for a vertex cut and ``halo_h``
        for an edge cut. Edge bias is not counted.
    depth : int
        Hops of halo that the exchange fills.

    Raises
    ------
    InputError
        The partition or the model cannot have the strategy, see :func:`partition.predict.strategies.check_strategy`.
    """
    strategy = strategy or default_strategy(figures)
    check_strategy(figures, strategy, depth, model)
    parts, row, owned = figures.parts, model.row_bytes, figures.owned
    others = owned.sum() - owned
    if parts == 1:
        none = np.zeros(1, np.int64)
        return Traffic(none, none, none, none, 0)
    if strategy in ("halo_h", "halo_kv"):
        width = row if strategy == "halo_h" else 2 * row
        sent, received = width * figures.sent_within(depth), width * figures.copies_within(depth)
        return Traffic(sent, received, received, sent, _CALLS[strategy])
    if strategy == "gather":
        sent, received = 2 * row * owned * (parts - 1), 2 * row * others
        return Traffic(sent, received, received, sent, 2 * (parts - 1))
    if strategy == "heads":  # queries, keys and values travel one way and results the other; backward the reverse
        share = row // parts
        mine, theirs = share * owned * (parts - 1), share * others
        return Traffic(3 * mine + theirs, 3 * theirs + mine, 3 * theirs + mine, 3 * mine + theirs, _CALLS[strategy])
    if strategy == "ring":  # blocks go from rank i to i + 1, backward again, with their gradients a step behind
        block = 2 * row
        sent, received = block * (owned.sum() - np.roll(owned, -1)), block * others
        sent_home, received_home = block * others, block * (owned.sum() - np.roll(owned, 1))
        return Traffic(sent, received, sent + sent_home, received + received_home, 3 * (parts - 1))
    result = row + model.lse_bytes
    sent = row * figures.sent_within(1) + result * figures.returned
    received = row * figures.copies_within(1) + result * figures.returns
    return Traffic(sent, received, received, sent, _CALLS[strategy])


def step_traffic(
    figures: Figures, model: Model, strategy: str | None = None, depth: int = 1, activation_checkpoint: str = "none"
) -> list[Traffic]:
    """The exchanges of one training step, forward and backward; see :func:`exchange_traffic`.

    With ``activation_checkpoint="full"``, backward runs each forward exchange again.
    """
    exchange_traffic(figures, model, strategy, depth)  # raises even for a step without an exchange
    traffics = [exchange_traffic(figures, model, strategy, hops) for hops in hops_exchanged(model.layers, depth)]
    if activation_checkpoint == "full":
        traffics = [_with_repeated_forward(each, strategy) for each in traffics]
    return traffics


def _with_repeated_forward(traffic: Traffic, strategy: str | None) -> Traffic:
    forward_calls = traffic.calls // (3 if strategy == "ring" else 2)
    return replace(traffic, sent=2 * traffic.sent, received=2 * traffic.received, calls=traffic.calls + forward_calls)


def step_bytes(
    figures: Figures, model: Model, strategy: str | None = None, depth: int = 1, activation_checkpoint: str = "none"
) -> int:
    """Bytes that all ranks send in one training step, forward and backward."""
    return sum(traffic.total_bytes for traffic in step_traffic(figures, model, strategy, depth, activation_checkpoint))
