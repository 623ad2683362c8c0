"""Loads of parts (nodes, edges and training nodes), and how uneven they may be."""

from __future__ import annotations

import math
import reprlib
from dataclasses import dataclass, replace
from numbers import Real

import numpy as np

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.figures.costs import Costs, default_costs
from dgl_gt.partition.graph import Graph

from .permutation import training_nodes

KINDS = ("nodes", "edges", "train")
_STEP_BOUND, NODES_BOUND = 1.03, 1.1  # where the user gives none
_MEAN_STEP = 1000  # weight of a node with average costs; METIS takes whole numbers
_ROUNDING = 1e-12
_FLOOR = 0.5  # of a part's share
_MIN_SHARE = 1e-6  # of an equal share


@dataclass(frozen=True)
class Balance:
    """The load that each part is to take, of each kind, and its bounds."""

    kinds: tuple[str, ...]  # of ``KINDS`` (``train`` once for each split), ``step`` and ``types`` (once for each)
    weights: np.ndarray  # load that a node adds to its part, int64, (N, kinds): 1, its in-edges, or 1 if in the split
    shares: np.ndarray  # share of the whole load that each part is to take, (P,); they add up to one
    bounds: np.ndarray  # the most that a part's load may be, over its share, (kinds,)
    is_strict: bool  # whether the user asked for the bounds, so that a cut that exceeds them is refused
    step: np.ndarray  # what each node adds to the time that its rank computes, int64, (N,), see :func:`step_weights`

    def capacities(self, tightness: float = 1.0) -> np.ndarray:
        """The most that parts may take, int64, (P, kinds): the bound, or the share rounded up if that is more.

        With ``tightness`` 0.8 the search aims at 80 % of the way from the share to the bound, so that its result keeps
        the bound.
        """
        totals = self.weights.sum(axis=0)
        shares = np.outer(self.shares, totals)
        least = np.ceil(shares * (1 - _ROUNDING))
        most = np.maximum(np.floor(np.minimum(shares * self.bounds * (1 + _ROUNDING), totals)), least)
        return (least + np.floor(tightness * (most - least))).astype(np.int64)

    def floors(self) -> np.ndarray:
        """The least load that a search for fewer copies leaves to parts, int64, (P, kinds): half a share."""
        return np.floor(_FLOOR * np.outer(self.shares, self.weights.sum(axis=0))).astype(np.int64)

    def loads(self, owner: np.ndarray) -> np.ndarray:
        """The load of each part under an assignment, int64, (P, kinds)."""
        parts = len(self.shares)
        columns = [np.bincount(owner, weights=column, minlength=parts) for column in self.weights.T]
        return np.stack(columns, axis=1).astype(np.int64)

    def largest_load(self, owner: np.ndarray) -> float:
        """The largest load as a share of its capacity; it is at most 1 where every bound holds."""
        return float((self.loads(owner) / np.maximum(self.capacities(), 1)).max())

    def exceeded_bounds(self, owner: np.ndarray) -> str:
        """The bounds that an assignment exceeds, in words."""
        loads, capacities = self.loads(owner), self.capacities()
        words = []
        for kind, name in enumerate(self.kinds):
            part = int((loads[:, kind] / np.maximum(capacities[:, kind], 1)).argmax())
            if loads[part, kind] > capacities[part, kind]:
                share = self.shares[part] * self.weights[:, kind].sum()
                words.append(f"{name} {loads[part, kind] / share:.4g} (part {part}; bound {self.bounds[kind]:g})")
        return ", ".join(dict.fromkeys(words))


def step_weights(graph: Graph, costs: Costs) -> np.ndarray:
    """What each node adds to the time that its rank computes, int64, (N,): its row and its in-edges, by costs.

    The mean is about a thousand, and the least is 1, because METIS takes only positive weights.
    """
    return weights_by_degree(graph.in_degrees(), graph.num_edges / graph.num_nodes, costs)


def weights_by_degree(in_degrees: np.ndarray, mean_degree: float, costs: Costs) -> np.ndarray:
    """The same of some nodes of a graph; ``mean_degree`` is that of all."""
    per_count = costs.of("edge").compute_s
    return _whole(per_count.owned + per_count.edges * in_degrees, per_count.owned + per_count.edges * mean_degree)


def _whole(loads: np.ndarray, mean: float | None = None) -> np.ndarray:
    """Loads of nodes as whole numbers of at least 1 and a mean of about a thousand."""
    mean = loads.mean(dtype=np.float64) if mean is None else mean
    weights = np.rint(_MEAN_STEP * (loads / mean)) if mean > 0 else np.ones(len(loads))
    return np.maximum(weights, 1).astype(np.int64)


def make_balance(
    graph: Graph,
    parts: int,
    max_imbalance=None,
    target_weights=None,
    costs: Costs | None = None,
    node_weights: np.ndarray | None = None,
    balance: str | None = None,
) -> Balance:
    """The loads that the parts of a graph are to take, and their bounds.

    ``max_imbalance`` is the most that a part's load may be, over its share: one number for ``nodes``, ``edges`` and
    ``train`` (training nodes), or a number for each by name. Without it, a cut aims at equal times of all ranks,
    predicted by ``costs`` (by default :func:`dgl_gt.partition.default_costs`), and no cut is refused. ``target_weights``,
    (P,), is the load of each part relative to the others. ``node_weights``, (N,), take the place of times. With
    ``balance`` "types", the nodes of each type are kept even, too.
    """
    costs = default_costs() if costs is None else costs
    step = step_weights(graph, costs) if node_weights is None else _whole(node_weights)
    bounds = {"step": _STEP_BOUND} if max_imbalance is None else _checked_bounds(max_imbalance)
    names, columns = [], []
    train = training_nodes(graph)
    for kind in bounds:
        if kind == "nodes":
            new = [np.ones(graph.num_nodes, np.int64)]
        elif kind == "edges":
            new = [graph.in_degrees()]
        elif kind == "step":
            new = [step]
        elif train is None and not isinstance(max_imbalance, dict):
            new = []
        elif train is None:
            raise InputError(f"max_imbalance bounds 'train', but {graph.name} has no train_mask; leave it out")
        else:
            new = list(train.T)
        names += [kind] * len(new)
        columns += new
    if balance is not None:
        types = _of_types(graph)
        bounds, names, columns = bounds | {balance: NODES_BOUND}, names + [balance] * len(types), columns + types
    return Balance(
        kinds=tuple(names),
        weights=np.ascontiguousarray(np.stack(columns, axis=1), np.int64),
        shares=shares(parts, target_weights),
        bounds=np.array([bounds[name] for name in names]),
        is_strict=max_imbalance is not None,
        step=step,
    )


def check_types(source, balance: str | None) -> None:
    """Raise :class:`InputError` where types are to be kept even of a Graph or COOGraph that has one node type."""
    if balance is not None and source.schema is None:
        raise InputError(f"balance (--balance) is 'types', and {source.name} has one node type; leave it out")


def _of_types(graph: Graph) -> list[np.ndarray]:
    """Whether each node is of a type, int64 (N,), for each type that has nodes."""
    check_types(graph, "types")
    assert graph.schema is not None
    types = graph.schema.type_of(np.arange(graph.num_nodes))
    return [(types == each).astype(np.int64) for each in np.unique(types)]


def with_default_bounds(balance: Balance, *kinds: str) -> Balance:
    """The balance with a bound of 1.03 for steps and 1.1 for nodes, if among ``kinds`` and not bounded yet.

    If nodes and edges are both bounded, there is none for steps, because these bounds limit steps, too.
    """
    defaults = {"step": (balance.step, _STEP_BOUND), "nodes": (np.ones(len(balance.step), np.int64), NODES_BOUND)}
    known = {*balance.kinds, *(["step"] if {"nodes", "edges"} <= set(balance.kinds) else [])}
    new = [kind for kind in kinds if kind not in known]
    return replace(
        balance,
        kinds=(*balance.kinds, *new),
        weights=np.column_stack([balance.weights, *(defaults[kind][0] for kind in new)]),
        bounds=np.append(balance.bounds, [defaults[kind][1] for kind in new]),
    )


def shares(parts: int, target_weights=None) -> np.ndarray:
    """Each part's share of the whole load, float64, (P,); raise :class:`InputError` for bad weights."""
    if target_weights is None:
        return np.full(parts, 1 / parts)
    try:
        weights = np.asarray(target_weights, dtype=np.float64)
        fits = weights.shape == (parts,) and bool((np.isfinite(weights) & (weights > 0)).all())
    except (TypeError, ValueError):
        fits = False
    if not fits:
        raise InputError(
            f"target_weights are {reprlib.repr(target_weights)}; they must be {parts} positive numbers, one for each part"
        )
    weights = weights / weights.max()
    weights = weights / weights.sum()
    if weights.min() * parts < _MIN_SHARE:
        raise InputError(
            f"target_weights go from {np.min(target_weights):g} to {np.max(target_weights):g}; the smallest part would "
            "get nearly nothing: choose weights that differ less"
        )
    return weights


def _checked_bounds(max_imbalance) -> dict[str, float]:
    bounds = max_imbalance if isinstance(max_imbalance, dict) else dict.fromkeys(KINDS, max_imbalance)
    unknown = [name for name in bounds if name not in KINDS]
    if unknown or not bounds:
        raise InputError(
            f"max_imbalance bounds {', '.join(map(repr, unknown)) or 'nothing'}; name one or more of {', '.join(KINDS)}"
        )
    for name, bound in bounds.items():
        if isinstance(bound, bool) or not isinstance(bound, Real) or bound < 1 or not bound < math.inf:
            raise InputError(f"max_imbalance is {bound!r} for {name}; it must be a number from 1 (perfect balance)")
    return bounds


def fill_empty_parts(owner: np.ndarray, parts: int) -> None:
    """Give a node of the largest part to each part that METIS left empty, which happens on tiny graphs."""
    counts = np.bincount(owner, minlength=parts)
    for part in np.flatnonzero(counts == 0):
        largest = int(counts.argmax())
        owner[np.flatnonzero(owner == largest)[-1]] = part
        counts[largest] -= 1
        counts[part] = 1
