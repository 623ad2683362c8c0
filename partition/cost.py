"""What an exchange strategy moves and how long a layer takes, from a manifest's counts: pure functions of figures.

Rows and bytes are exact; seconds follow from speeds that the caller gives.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_LSE_BYTES = 4  # log-sum-exps travel as float32
_ATTENTION_PASSES = 3  # over all edges: forward, dQ, dK and dV
_PRODUCTS = 3  # of a projection: forward, and backward for its input and its weight


@dataclass(frozen=True)
class Model:
    """A graph transformer: L layers, C = hidden, H heads, feed-forward of ``ffn`` times C, bytes of a number."""

    layers: int = 3
    hidden: int = 128
    heads: int = 8
    ffn: int = 2
    itemsize: int = 4


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
    """Bytes that each rank sends and receives in one layer, int64 (P,), forward and backward together.

    Attributes
    ----------
    sent, received : ndarray
    exchanges : int
        Collective calls.
    """

    sent: np.ndarray
    received: np.ndarray
    exchanges: int


def layer_traffic(manifest: dict, model: Model) -> Traffic:
    """The bytes of one layer under the strategy of the cut: ``halo`` sending h, or ``mirror``.

    Halo: C x halo rows in and C x rows sent out, and in backward their gradients the other way. Mirror: C x mirrors in
    and C x rows sent out; then (C + H) back from each mirror with in-edges; in backward the gradients of both.

    Parameters
    ----------
    manifest : dict
        See docs/format.md; only counts are read.
    model : Model

    Returns
    -------
    Traffic
    """
    row_bytes = model.hidden * model.itemsize
    sent, copies = _column(manifest, "sent"), _column(manifest, _copies(manifest))
    both = row_bytes * (sent + copies)  # a row goes one way in forward, its gradient the other in backward
    if manifest["cut"] == "edge":
        return Traffic(sent=both, received=both, exchanges=2)
    result_bytes = row_bytes + model.heads * _LSE_BYTES
    both = both + result_bytes * (_column(manifest, "returned") + _column(manifest, "returns"))
    return Traffic(sent=both, received=both, exchanges=4)


def layer_seconds(manifest: dict, model: Model, speeds: Speeds) -> float:
    """Predicted seconds of one layer, forward and backward, on the slowest rank, without overlap.

    A rank projects keys and values of all rows it holds (queries too, of mirrors) and has the other products on rows
    that it owns; along each edge it reads two rows of C in each of three passes.
    """
    owned, edges = _column(manifest, "owned"), _column(manifest, "edges")
    held = owned + _column(manifest, _copies(manifest))
    product = 2 * model.hidden**2  # operations of C x C on one row
    own_products = 1 + 2 * model.ffn + (1 if manifest["cut"] == "edge" else 0)  # output, feed-forward, queries
    held_products = 2 if manifest["cut"] == "edge" else 3
    flops = _PRODUCTS * product * (own_products * owned + held_products * held)
    gathered_bytes = _ATTENTION_PASSES * 2 * model.hidden * model.itemsize * edges
    compute_s = flops / speeds.flops_per_s + gathered_bytes / speeds.gather_bytes_per_s
    traffic = layer_traffic(manifest, model)
    exchange_s = np.maximum(traffic.sent, traffic.received) / speeds.link_bytes_per_s
    waiting_s = traffic.exchanges * speeds.latency_s if manifest["parts"] > 1 else 0.0
    return float((compute_s + exchange_s).max()) + waiting_s


def epoch_seconds(manifest: dict, model: Model, speeds: Speeds) -> float:
    """Predicted seconds of one training step over the whole graph: L layers, each waiting for its slowest rank."""
    return model.layers * layer_seconds(manifest, model, speeds)


def _copies(manifest: dict) -> str:
    return "halo" if manifest["cut"] == "edge" else "mirrors"


def _column(manifest: dict, key: str) -> np.ndarray:
    return np.array([part[key] for part in manifest["per_part"]], np.int64)
