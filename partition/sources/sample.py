"""Generated graphs for trials, tests and benchmarks, whose labels depend more on neighbours than on features."""

from __future__ import annotations

import numpy as np
import scipy  # imports its parts at their first use

from dgl_gt.partition.errors import InputError, whole_number
from dgl_gt.partition.graph import SPLIT_MASKS, Graph, from_edges
from dgl_gt.partition.system.user_files import check_fits_memory

_SAME_COMMUNITY = 0.5  # share of edges inside a community
_SAME_CLASS = 0.2  # share of edges inside a class; the others may be anywhere
_COMMUNITY_NODES = 500
_DEGREE_EXPONENT = 2.5
_MAX_ROUNDS = 8  # in which edges are drawn to replace duplicates
_TOLERANCE = 1e-3  # relative, of the number of edges
_CHUNK = 1 << 20
_MAX_COUNT = 10**18  # nodes, classes and features, far beyond any use


def communities(
    nodes: int = 20_000,
    degree: float = 20,
    classes: int = 10,
    features: int = 64,
    signal: float = 0.55,
    seed: int = 0,
) -> Graph:
    """Generate a graph with communities, hubs, labels, noisy features and a split.

    Edges follow the degree-corrected block model (Karrer and Newman, *Stochastic blockmodels and community structure
    in networks*, 2011), with degrees from a power law of exponent 2.5 and a mean of ``degree``, met within about 0.1 %.
    Of the undirected edges, 50 % are inside a community of about 500 nodes, 20 % inside a class of many communities,
    and 30 % anywhere; each is stored in both directions. There are no self-loops and no parallel edges, and node ids
    tell nothing about communities. Features are one direction per class plus normal noise. Their strength is such that
    guessing the nearest class from a node's own features is right for the share ``signal`` of nodes, for any number of
    classes up to ``features``. Node data are ``feat`` float32 (N, features), ``label`` int64 (N,), and masks with 50,
    25 and 25 % of the nodes. The same arguments give the same graph.
    """
    _check(nodes, degree, classes, features, signal, seed)
    rng = np.random.default_rng(seed)
    community, label, weight = _nodes(rng, nodes, classes)
    src, dst = _edges(rng, community, label, weight, round(nodes * degree / 2))
    # nodes were drawn in the order of communities, but the nodes of real graphs are not sorted
    place = rng.permutation(nodes).astype(np.int32 if nodes < 2**31 else np.int64)
    src, dst = place[src], place[dst]
    placed_label = np.empty(nodes, np.int64)
    placed_label[place] = label
    feat = _features(rng, placed_label, classes, features, signal)
    node_data = {"feat": feat, "label": placed_label, **_split(rng, nodes)}
    name = f"sample:communities?nodes={nodes}&degree={degree:g}&seed={seed}"
    return from_edges(np.concatenate([src, dst]), np.concatenate([dst, src]), nodes, node_data, name=name)


def _check(nodes: int, degree: float, classes: int, features: int, signal: float, seed: int) -> None:
    for key, value, least in (("nodes", nodes, 10), ("classes", classes, 2), ("features", features, 1)):
        whole_number(f"sample:communities: {key}", value, least, _MAX_COUNT)
    whole_number("sample:communities: seed", seed, 0)
    for key, given, fits, allowed in (
        ("degree", degree, 0 < degree <= nodes / 4, f"above 0 and at most nodes / 4 = {nodes / 4:g}"),
        ("classes", classes, classes <= nodes / 5, f"at most nodes / 5 = {nodes / 5:g}"),
        ("signal", signal, 1 < signal * classes < classes, "above 1 / classes and below 1"),
    ):
        if not fits:
            raise InputError(f"sample:communities: {key}={given} is out of range; it must be {allowed}")
    needed_bytes = 4 * nodes * features + int(24 * nodes * degree) + 8 * features * max(features, classes)
    check_fits_memory(f"sample:communities: nodes={nodes}, degree={degree} and features={features}", needed_bytes)


def _nodes(rng: np.random.Generator, nodes: int, classes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw community, class and expected-degree weight of each node, sorted by class, then by community."""
    # every class has the same number of communities, of uneven sizes
    count = classes * max(1, round(nodes / _COMMUNITY_NODES / classes))
    share = rng.lognormal(0.0, 0.5, count)
    size = rng.multinomial(nodes, share / share.sum())
    community = np.repeat(np.arange(count), size)
    label = community // (count // classes)
    weight = (1 - rng.random(nodes)) ** (-1 / (_DEGREE_EXPONENT - 1))
    np.minimum(weight, weight.mean() * np.sqrt(nodes), out=weight)
    return community, label, weight


def _edges(
    rng: np.random.Generator, community: np.ndarray, label: np.ndarray, weight: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Draw about ``count`` distinct undirected edges without self-loops, each listed once."""
    nodes = len(weight)
    ends = np.concatenate([[0.0], np.cumsum(weight)])
    community_ends = ends[np.searchsorted(community, np.arange(community[-1] + 2))]
    class_ends = ends[np.searchsorted(label, np.arange(label[-1] + 2))]
    keys = np.empty(0, np.int64)
    for _ in range(_MAX_ROUNDS):
        missing = count - len(keys)
        if missing <= count * _TOLERANCE:
            break
        # a Poisson count per node draws the first ends in sorted order, which keeps lookups in cache
        draws = rng.poisson(weight * (missing / ends[-1]))
        bounds = np.searchsorted(np.cumsum(draws), np.arange(_CHUNK, draws.sum() + _CHUNK, _CHUNK)) + 1
        drawn = [keys]
        for begin, end in zip([0, *bounds[:-1]], bounds):
            first = np.repeat(np.arange(begin, min(end, nodes)), draws[begin:end])
            second = _partners(rng, first, ends, (community, community_ends), (label, class_ends))
            drawn.append((np.minimum(first, second) * nodes + np.maximum(first, second))[first != second])
        keys = np.concatenate(drawn)
        keys.sort()  # newer versions of numpy.unique hash, which is ten times slower here
        new = np.ones(len(keys), bool)
        new[1:] = keys[1:] != keys[:-1]
        keys = keys[new]
    return keys // nodes, keys % nodes


def _partners(rng: np.random.Generator, first: np.ndarray, ends: np.ndarray, *groups: tuple) -> np.ndarray:
    """Draw the other end of each edge by weight: from the first end's community, its class or the whole graph."""
    low, high = np.zeros(len(first)), np.full(len(first), ends[-1])
    where = rng.random(len(first))
    inside = (where < _SAME_COMMUNITY, (where >= _SAME_COMMUNITY) & (where < _SAME_COMMUNITY + _SAME_CLASS))
    for chosen, (group, group_ends) in zip(inside, groups):
        of_first = group[first[chosen]]
        low[chosen], high[chosen] = group_ends[of_first], group_ends[of_first + 1]
    at = low + rng.random(len(first)) * (high - low)
    # rounding can put a point at the end of the last interval
    return np.minimum(np.searchsorted(ends, at, side="right") - 1, len(ends) - 2)


def _features(rng: np.random.Generator, label: np.ndarray, classes: int, width: int, signal: float) -> np.ndarray:
    directions = rng.standard_normal((max(classes, width), width))
    if width >= classes:
        directions = np.linalg.qr(directions[:classes].T)[0].T
    else:
        directions = directions[:classes] / np.linalg.norm(directions[:classes], axis=1, keepdims=True)
    directions = (directions * _strength(classes, signal)).astype(np.float32)
    feat = rng.standard_normal((len(label), width), dtype=np.float32)
    for start in range(0, len(label), _CHUNK):
        feat[start : start + _CHUNK] += directions[label[start : start + _CHUNK]]
    return feat


def _strength(classes: int, signal: float) -> float:
    """Return the length s of orthogonal class means at which the best guess is right with probability ``signal``.

    With unit normal noise, the guess is right if the coordinate of the true class, ``z + s``, exceeds the K - 1 others,
    which has the probability E[Phi(z + s)^(K - 1)] for normal z.
    """
    points, weights = np.polynomial.hermite_e.hermegauss(80)
    weights = weights / weights.sum()
    return scipy.optimize.brentq(
        lambda s: weights @ scipy.special.ndtr(points + s) ** (classes - 1) - signal, 0.0, 40.0, xtol=1e-9
    )


def _split(rng: np.random.Generator, nodes: int) -> dict[str, np.ndarray]:
    order, masks = rng.permutation(nodes), {}
    for key, ids in zip(SPLIT_MASKS, np.split(order, [nodes // 2, nodes // 2 + nodes // 4])):
        masks[key] = np.zeros(nodes, bool)
        masks[key][ids] = True
    return masks
