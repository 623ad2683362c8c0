"""What an exchange strategy moves and how long a step takes, from a manifest's counts: pure functions of figures.

Rows and bytes are exact; seconds and memory follow from speeds and sizes that the caller gives. Formulas: docs/cost.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

STRATEGIES = ("local", "halo_h", "halo_kv", "gather", "heads", "ring", "mirror")
CHOICES = ("halo", *STRATEGIES)  # halo: whichever of halo_h and halo_kv is quicker, see halo_sends
_ATTENTION_PASSES = 3  # over all edges: forward, dQ, dK and dV
_PRODUCTS = 3  # of a projection: forward, and backward for its input and its weight
_CALLS = {"local": 0, "halo_h": 2, "halo_kv": 2, "heads": 4, "mirror": 6}  # forward and backward


@dataclass(frozen=True)
class Model:
    """A graph transformer: L layers, C = hidden, H heads, feed-forward of ``ffn`` times C, bytes of a number."""

    layers: int = 3
    hidden: int = 128
    heads: int = 8
    ffn: int = 2
    itemsize: int = 4

    @property
    def row_bytes(self) -> int:
        return self.hidden * self.itemsize

    @property
    def lse_bytes(self) -> int:
        """Of a row's log-sum-exps, float32 or, for float64, as wide."""
        return self.heads * max(4, self.itemsize)


@dataclass(frozen=True)
class Speeds:
    """What one rank does in a second.

    Attributes
    ----------
    link_bytes_per_s : float
        Into and out of a rank, each. 10 Gbit/s by default.
    latency_s : float
        Of one exchange.
    flops_per_s : float
        Of matrix products.
    gather_bytes_per_s : float
        Rows read along edges.
    """

    link_bytes_per_s: float = 1.25e9
    latency_s: float = 1e-4
    flops_per_s: float = 1e11
    gather_bytes_per_s: float = 1e10


@dataclass(frozen=True)
class Traffic:
    """Bytes of one exchange, int64 (P,) each: of one layer, or of ``depth`` layers where the halo is deeper.

    Attributes
    ----------
    sent, received : ndarray
        By each rank in forward.
    sent_back, received_back : ndarray
        In backward.
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
        """Sent by all ranks, forward and backward."""
        return int(self.sent.sum() + self.sent_back.sum())


def default_strategy(figures: dict) -> str:
    """``mirror`` on a vertex cut, ``halo_h`` on an edge cut."""
    return "mirror" if figures["cut"] == "vertex" else "halo_h"


def exchange_traffic(figures: dict, model: Model, strategy: str | None = None, depth: int = 1) -> Traffic:
    """The bytes of one exchange under a strategy; by default that of the cut.

    Parameters
    ----------
    figures : dict
        A manifest, see docs/format.md; only counts are read.
    model : Model
    strategy : str, optional
        One of ``STRATEGIES``; ``halo_h`` sends h, ``halo_kv`` keys and values. ``heads`` needs H % P == 0. Edge bias is
        not counted.
    depth : int
        Of the halo that is exchanged, at most the shards' ``halo_depth``; of ``halo_h`` alone.

    Raises
    ------
    ValueError
        A strategy that these shards or this model cannot have.
    """
    strategy = strategy or default_strategy(figures)
    _check(figures, model, strategy, depth)
    parts, row = figures["parts"], model.row_bytes
    owned = _column(figures, "owned")
    others = owned.sum() - owned
    if strategy == "local" or parts == 1:
        none = np.zeros(parts, np.int64)
        return Traffic(none, none, none, none, 0)
    if strategy in ("halo_h", "halo_kv"):
        width = row if strategy == "halo_h" else 2 * row
        sent, received = (width * _hops(figures, key, depth) for key in ("sent_by_hop", "halo_by_hop"))
        return Traffic(sent, received, received, sent, _CALLS[strategy])
    if strategy == "gather":
        sent, received = 2 * row * owned * (parts - 1), 2 * row * others
        return Traffic(sent, received, received, sent, 2 * (parts - 1))
    if strategy == "heads":  # queries, keys and values one way and results the other; their gradients back
        share = row // parts
        mine, theirs = share * owned * (parts - 1), share * others
        return Traffic(3 * mine + theirs, 3 * theirs + mine, 3 * theirs + mine, 3 * mine + theirs, _CALLS[strategy])
    if strategy == "ring":  # blocks go from rank i to i + 1; backward they do again, their gradients a step behind
        block = 2 * row
        sent, received = block * (owned.sum() - np.roll(owned, -1)), block * others
        home = block * others, block * (owned.sum() - np.roll(owned, 1))
        return Traffic(sent, received, sent + home[0], received + home[1], 3 * (parts - 1))
    mirrors, sent = _column(figures, "mirrors"), _column(figures, "sent")
    result = row + model.lse_bytes
    back, home = _column(figures, "returned"), _column(figures, "returns")
    out, into = row * sent + result * back, row * mirrors + result * home
    return Traffic(out, into, into, out, _CALLS[strategy])


def hops_exchanged(layers: int, depth: int = 1) -> list[int]:
    """Hops of halo that each exchange of a training step fills: one at every layer, or, with a deeper halo, as many as
    there are layers until the next, but for the first, whose halo's input features lie in the shards."""
    groups = [min(depth, layers - start) for start in range(0, layers, depth)]
    return groups if depth == 1 else groups[1:]


def step_traffic(figures: dict, model: Model, strategy: str | None = None, depth: int = 1) -> list[Traffic]:
    """The exchanges of one training step, forward and backward; see :func:`exchange_traffic`."""
    exchange_traffic(figures, model, strategy, depth)  # refuses even where there is none
    return [exchange_traffic(figures, model, strategy, hops) for hops in hops_exchanged(model.layers, depth)]


def step_bytes(figures: dict, model: Model, strategy: str | None = None, depth: int = 1) -> int:
    """Bytes that all ranks send in the exchanges of one training step, forward and backward."""
    return sum(traffic.total_bytes for traffic in step_traffic(figures, model, strategy, depth))


def halo_sends(figures: dict, model: Model, speeds: Speeds) -> str:
    """``halo_h`` or ``halo_kv``: which makes a layer of this model quicker on these ranks and links.

    Keys and values are twice as wide as h, and spare their projection where they arrive.
    """
    return min(("halo_h", "halo_kv"), key=lambda strategy: step_seconds(figures, model, speeds, strategy))


def step_seconds(figures: dict, model: Model, speeds: Speeds, strategy: str | None = None, depth: int = 1) -> float:
    """Predicted seconds of one training step, forward and backward, without overlap of exchange and computation.

    A layer takes as long as its slowest rank. A rank that was to take twice the share (``shares``) is taken to compute
    twice as fast.
    """
    strategy = strategy or default_strategy(figures)
    traffics = step_traffic(figures, model, strategy, depth)
    relative_speed = np.array(figures["shares"]) * figures["parts"]
    compute_s = sum(
        (_layer_seconds(figures, model, speeds, strategy, inner) / relative_speed).max()
        for inner in _inner_hops(model.layers, depth)
    )
    return float(compute_s + sum(_exchange_seconds(traffic, speeds) for traffic in traffics))


def rank_memory_bytes(figures: dict, model: Model, strategy: str | None = None, depth: int = 1) -> np.ndarray:
    """Estimated bytes that each rank needs for a training step beyond the interpreter, int64 (P,).

    Rows kept for backward: a layer keeps about 10 + 2 ``ffn`` rows of C for each row it computes, and 3 for each copy
    (h, K, V); ``heads`` and ``gather`` keep theirs for all N. Edges take 16 bytes (forward and reverse index), and
    features and other node data what the shards have on disk (``bytes``), where ``figures`` know it.
    """
    strategy = strategy or default_strategy(figures)
    _check(figures, model, strategy, depth)
    parts, owned, edges = figures["parts"], _column(figures, "owned"), _column(figures, "edges")
    rows = np.zeros(parts)
    for inner in _inner_hops(model.layers, depth):
        computed, held = _rows(figures, inner), _rows(figures, inner + 1)
        if strategy in ("gather", "ring", "heads", "local"):
            held = np.full(parts, owned.sum() if strategy == "gather" else owned)
        if strategy == "heads":
            held = held + owned.sum() / parts
        rows += (10 + 2 * model.ffn) * computed + 3 * (held - computed)
    if strategy == "heads":
        edges = np.full(parts, edges.sum())
    elif strategy == "halo_h" and depth > 1:
        edges = _hops(figures, "edges_by_hop", depth)
    disk = np.array([part.get("bytes", 0) for part in figures["per_part"]])
    return (rows * model.row_bytes + 16 * edges + disk).astype(np.int64)


def _check(figures: dict, model: Model, strategy: str, depth: int) -> None:
    cut, parts = figures["cut"], figures["parts"]
    if strategy not in STRATEGIES:
        raise ValueError(f"strategy is {strategy!r}; allowed are {', '.join(STRATEGIES)}")
    if (strategy == "mirror") != (cut == "vertex"):
        raise ValueError(
            f"{strategy} cannot run on shards of cut {cut!r}: mirror is for vertex cuts, the others for edge cuts"
        )
    if strategy == "local" and parts > 1:
        raise ValueError(f"local needs one part, and there are {parts}")
    if strategy == "heads" and (model.heads % parts or model.hidden % model.heads):
        raise ValueError(f"heads needs as many heads on each rank: {model.heads} heads cannot go to {parts} ranks")
    if depth != 1 and (strategy != "halo_h" or not 1 <= depth <= figures["halo_depth"]):
        raise ValueError(
            f"depth is {depth}; it goes to {figures.get('halo_depth', 1)} here, and beyond 1 for halo_h alone"
        )


def _exchange_seconds(traffic: Traffic, speeds: Speeds) -> float:
    """Of the rank that moves most."""
    moved = np.maximum(traffic.sent, traffic.received) + np.maximum(traffic.sent_back, traffic.received_back)
    return float(moved.max()) / speeds.link_bytes_per_s + traffic.calls * speeds.latency_s


def _inner_hops(layers: int, depth: int) -> list[int]:
    """For each layer, how many hops of halo rows it computes besides the owned: those that later layers still need."""
    groups = [min(depth, layers - start) for start in range(0, layers, depth)]
    return [inner for group in groups for inner in reversed(range(group))]


def _layer_seconds(figures: dict, model: Model, speeds: Speeds, strategy: str, inner: int) -> np.ndarray:
    """Seconds of computing one layer on each rank: products on rows, and two rows of C read an edge in each pass."""
    computed = _rows(figures, inner)
    projected = _rows(figures, inner + 1) if strategy in ("halo_h", "mirror") else computed
    edges = _hops(figures, "edges_by_hop", inner + 1) if figures["cut"] == "edge" else _column(figures, "edges")
    if strategy == "heads":  # all edges, a share of the width
        edges = np.full(len(edges), edges.sum() / figures["parts"])
    queried = projected if strategy == "mirror" else computed
    product = 2 * model.hidden**2  # operations of C x C on one row
    flops = _PRODUCTS * product * ((1 + 2 * model.ffn) * computed + queried + 2 * projected)
    gathered_bytes = _ATTENTION_PASSES * 2 * model.row_bytes * edges
    return flops / speeds.flops_per_s + gathered_bytes / speeds.gather_bytes_per_s


def _rows(figures: dict, hops: int) -> np.ndarray:
    """Owned rows and those of so many hops; of a vertex cut all held rows where any copy counts."""
    owned = _column(figures, "owned")
    if figures["cut"] == "vertex":
        return owned + (_column(figures, "mirrors") if hops else 0)
    return owned + _hops(figures, "halo_by_hop", hops)


def _hops(figures: dict, key: str, hops: int) -> np.ndarray:
    return np.array([sum(part[key][:hops]) for part in figures["per_part"]], np.int64)


def _column(figures: dict, key: str) -> np.ndarray:
    return np.array([part[key] for part in figures["per_part"]], np.int64)
