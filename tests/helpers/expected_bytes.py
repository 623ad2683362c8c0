"""The bytes that the strategies of the graph transformer exchange, written by hand: what traces and ranks must count."""

from dataclasses import dataclass

import numpy as np

from dgl_gt.partition.figures.strategies import strategy_of


@dataclass(frozen=True)
class Sizes:
    """Layers, width and heads of a graph transformer, and the bytes of a number."""

    layers: int
    hidden: int
    heads: int
    itemsize: int = 4

    @property
    def row(self) -> int:
        return self.hidden * self.itemsize


def exchange_bytes(figures, sizes, strategy, hops=1):
    """Bytes that each rank sends and receives in one exchange forward, and in the backward pass of it: four (P,)."""
    parts, owned, row = figures.parts, figures.owned, sizes.row
    others, per_host = owned.sum() - owned, strategy_of(strategy).ranks_per_host
    match strategy:
        case _ if parts == 1:
            sent = received = 0 * owned
        case "halo_h" | "halo_kv":
            width = row if strategy == "halo_h" else 2 * row
            sent, received = width * figures.sent_within(hops), width * figures.copies_within(hops)
        case "gather":
            sent, received = 2 * row * owned * (parts - 1), 2 * row * others
        case "heads":  # queries, keys and values go out, results come back
            share = row // parts
            mine, theirs = share * owned * (parts - 1), share * others
            sent, received = 3 * mine + theirs, 3 * theirs + mine
        case _ if per_host:  # as heads within a host, and keys and values of its halo, with this rank's heads
            share, needed = row // per_host, figures.hosts[per_host].received_rows
            mine = share * owned * (per_host - 1)
            theirs = share * (owned.reshape(-1, per_host).sum(axis=1).repeat(per_host) - owned)
            sent, received = (2 * share * needed.sum(axis=axis).repeat(per_host) for axis in (0, 1))
            sent, received = 3 * mine + theirs + sent, 3 * theirs + mine + received
        case "ring":  # keys and values go round; backward once more, and their gradients behind them
            block = 2 * row
            sent, received = block * (owned.sum() - np.roll(owned, -1)), block * others
            return sent, received, sent + received, received + block * (owned.sum() - np.roll(owned, 1))
        case "mirror":
            result = row + sizes.heads * max(4, sizes.itemsize)
            sent = row * figures.sent_within(1) + result * figures.returned
            received = row * figures.copies_within(1) + result * figures.returns
    return sent, received, received, sent


def bias_bytes(figures, sizes, depth, forward=1):
    """Bytes that each rank sends in a step for the biases of replicated edges, (P,), where a halo is ``depth`` hops deep.

    Every head has a number for each edge. The last layer before an exchange replicates none, the one before it those
    of one hop, and so on. ``forward`` is how often the forward pass runs.
    """
    sent = 0 * figures.owned
    for layer in range(sizes.layers):
        inner = min(depth, sizes.layers - layer // depth * depth) - 1 - layer % depth
        copied, held = (
            each[:, 1 : inner + 1].sum(axis=1) for each in (figures.sent_edges_by_hop, figures.edges_by_hop)
        )
        sent = sent + sizes.heads * sizes.itemsize * (forward * copied + held)
    return sent


def step_bytes(figures, sizes, strategy, depth=1, activation_checkpoint="none", from_held=True):
    """Bytes that each rank sends and receives in a training step: two (P,).

    With ``from_held`` a halo deeper than one hop needs no exchange before the first layer.
    """
    first = depth if depth > 1 and from_held else 0
    hops = [min(depth, sizes.layers - number) if number else depth for number in range(first, sizes.layers, depth)]
    exchanges = [exchange_bytes(figures, sizes, strategy, each) for each in hops]
    forward = 2 if activation_checkpoint == "full" else 1
    none = 0 * figures.owned
    sent = sum((forward * sent + back for sent, _, back, _ in exchanges), none)
    received = sum((forward * received + back for _, received, _, back in exchanges), none)
    return sent, received
