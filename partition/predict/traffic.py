"""What an exchange strategy moves, from a manifest's counts: pure functions of figures, exact. Formulas: docs/selector.md.

What follows from these and from speeds: :mod:`partition.predict.step_time`; what ranks hold: :mod:`partition.predict.step_memory`.
"""

from __future__ import annotations

import reprlib
from dataclasses import dataclass, replace

import numpy as np

from partition.errors import InputError

STRATEGIES = ("local", "halo_h", "halo_kv", "gather", "heads", "ring", "mirror")
CHOICES = ("halo", *STRATEGIES)  # halo: whichever of halo_h and halo_kv is quicker, see halo_sends
AUTO = "auto"  # in place of one of them, where the selector chooses
ACTIVATION_CHECKPOINTS = (
    "none",
    "keep_exchanges",
    "full",
)  # what of a layer is kept for backward, see partition.predict.step_time.step_time
_CALLS = {"local": 0, "halo_h": 2, "halo_kv": 2, "heads": 4, "mirror": 6}  # forward and backward


# What sizes of a model may be, from and to: far beyond any use, so that what is refused is a slip.
MODEL_LIMITS = {
    "layers": (1, 1000),
    "hidden": (1, 1_000_000),
    "heads": (1, 1_000_000),
    "ffn": (1, 1000),
    "features": (0, 10**9),
    "classes": (0, 10**9),
}


@dataclass(frozen=True)
class Model:
    """A graph transformer; its defaults are also those of training and of planning.

    Attributes
    ----------
    layers, hidden, heads : int
        L, C and H.
    ffn : int
        Width of the feed-forward networks, as a multiple of C.
    itemsize : int
        Bytes of a number.
    features, classes : int
        Width of what goes in and of what comes out; 0 leaves the two projections out of predictions.
    """

    layers: int = 2
    hidden: int = 64
    heads: int = 8
    ffn: int = 2
    itemsize: int = 4
    features: int = 0
    classes: int = 0

    def __post_init__(self):
        for name, (least, most) in MODEL_LIMITS.items():
            if not least <= getattr(self, name) <= most:
                raise InputError(
                    f"{name} is {reprlib.repr(getattr(self, name))}; it must be from {least:,} to {most:,}"
                )

    @property
    def row_bytes(self) -> int:
        return self.hidden * self.itemsize

    @property
    def lse_bytes(self) -> int:
        """Of a row's log-sum-exps, float32 or, for float64, as wide."""
        return self.heads * max(4, self.itemsize)

    @property
    def parameters(self) -> int:
        """Of ``dgl_gt.nn.GraphTransformer``, with norms before attention and feed-forward."""
        width = self.hidden
        layer = 4 * width**2 + 2 * self.ffn * width**2 + (4 + self.ffn + 1 + 4) * width
        ends = (self.features + 1) * width + (width + 1) * self.classes + 2 * width
        return self.layers * layer + ends


def feature_width(manifest: dict) -> int:
    """Columns of a manifest's ``feat``; 0 where there is none, or one number a node, which is no row of features."""
    shape = manifest["node_data"].get("feat", {"shape": []})["shape"]
    return shape[0] if shape else 0


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
    check_strategy(figures, model, strategy, depth)
    parts, row = figures["parts"], model.row_bytes
    owned = column(figures, "owned")
    others = owned.sum() - owned
    if strategy == "local" or parts == 1:
        none = np.zeros(parts, np.int64)
        return Traffic(none, none, none, none, 0)
    if strategy in ("halo_h", "halo_kv"):
        width = row if strategy == "halo_h" else 2 * row
        sent, received = (width * hops_column(figures, key, depth) for key in ("sent_by_hop", "halo_by_hop"))
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
    mirrors, sent = column(figures, "mirrors"), column(figures, "sent")
    result = row + model.lse_bytes
    back, home = column(figures, "returned"), column(figures, "returns")
    out, into = row * sent + result * back, row * mirrors + result * home
    return Traffic(out, into, into, out, _CALLS[strategy])


def hops_exchanged(layers: int, depth: int = 1) -> list[int]:
    """Hops of halo that each exchange of a training step fills: one at every layer, or, with a deeper halo, as many as
    there are layers until the next, but for the first, whose halo's input features lie in the shards."""
    groups = [min(depth, layers - start) for start in range(0, layers, depth)]
    return groups if depth == 1 else groups[1:]


def step_traffic(
    figures: dict, model: Model, strategy: str | None = None, depth: int = 1, activation_checkpoint: str = "none"
) -> list[Traffic]:
    """The exchanges of one training step, forward and backward; see :func:`exchange_traffic`.

    ``activation_checkpoint``: with ``full``, backward runs each forward exchange again.
    """
    exchange_traffic(figures, model, strategy, depth)  # refuses even where there is none
    traffics = [exchange_traffic(figures, model, strategy, hops) for hops in hops_exchanged(model.layers, depth)]
    return (
        [_with_repeated_forward(each, strategy) for each in traffics] if activation_checkpoint == "full" else traffics
    )


def _with_repeated_forward(traffic: Traffic, strategy: str | None) -> Traffic:
    forward_calls = traffic.calls // (3 if strategy == "ring" else 2)
    return replace(traffic, sent=2 * traffic.sent, received=2 * traffic.received, calls=traffic.calls + forward_calls)


def step_bytes(
    figures: dict, model: Model, strategy: str | None = None, depth: int = 1, activation_checkpoint: str = "none"
) -> int:
    """Bytes that all ranks send in the exchanges of one training step, forward and backward."""
    return sum(traffic.total_bytes for traffic in step_traffic(figures, model, strategy, depth, activation_checkpoint))


def check_strategy(figures: dict, model: Model, strategy: str, depth: int) -> None:
    """Raise ``ValueError`` where these shards or this model cannot have a strategy or depth."""
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


def inner_hops(layers: int, depth: int) -> list[int]:
    """For each layer, how many hops of halo rows it computes besides the owned: those that later layers still need."""
    groups = [min(depth, layers - start) for start in range(0, layers, depth)]
    return [inner for group in groups for inner in reversed(range(group))]


def pulls(hops: list[int], number: int, depth: int) -> bool:
    """Whether an exchange precedes a layer, by :func:`inner_hops`: the first of a deep halo is spared."""
    return depth == 1 or number > 0 and hops[number - 1] == 0


def is_shallow(hops: list[int], number: int, depth: int) -> bool:
    """Whether a layer, by :func:`inner_hops`, is the only one behind its exchange, hence as with one hop of halo."""
    return pulls(hops, number, depth) and hops[number] == 0


def rows_within(figures: dict, hops: int) -> np.ndarray:
    """Owned rows and those of so many hops; of a vertex cut all held rows where any copy counts."""
    owned = column(figures, "owned")
    if figures["cut"] == "vertex":
        return owned + (column(figures, "mirrors") if hops else 0)
    return owned + hops_column(figures, "halo_by_hop", hops)


def hops_column(figures: dict, key: str, hops: int) -> np.ndarray:
    """Of each part, the sum of a count over the first hops."""
    return np.array([sum(part[key][:hops]) for part in figures["per_part"]], np.int64)


def column(figures: dict, key: str, default: int | None = None) -> np.ndarray:
    """A count of each part; with a ``default``, where older shards lack it."""
    return np.array(
        [part[key] if default is None else part.get(key, default) for part in figures["per_part"]], np.int64
    )
