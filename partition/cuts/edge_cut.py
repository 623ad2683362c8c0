"""Edge cut: every node has one owner, and an edge lives with the owner of its destination."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields

import numpy as np

from dgl_gt.partition.errors import InputError, check_one_of, check_type, whole_number
from dgl_gt.partition.figures.costs import Costs, default_costs
from dgl_gt.partition.figures.mapping import best_mapping
from dgl_gt.partition.figures.profile import Profile
from dgl_gt.partition.graph import Graph, as_array, symmetrised

from . import metis, weights
from .attempts import best_assignment
from .balance import Balance, make_balance
from .clusters import order_in_parts
from .local_search import fit_to_ranks
from .permutation import Permutation, check_parts, count_assignment, slice_pointers

MAX_ATTEMPTS = 10_000  # hours of work, even on a graph of a few nodes
OF_EDGE_CUTS = ("max_imbalance", "balance", "cut_weights", "node_weights", "owner")  # options that no other cut has


@dataclass(frozen=True)
class EdgeCut(Permutation):
    """The owner of every node, as a permutation with slice pointers.

    Attributes
    ----------
    order : ndarray of integers, (N,)
        The user's node id of each new id.
    ptr : ndarray, int64, (P + 1,)
        The slice pointers: part i owns the new ids ``ptr[i]:ptr[i + 1]``.
    mapping : Mapping or None
        The rank of each part; None where no profile was given.
    shares : ndarray, float64, (P,)
        The share of the whole load that each part was to take.
    of_weights : dict of str to float
        ``cut_weight``, ``cut_weight_ratio`` and ``weight_balance`` by the weights that were given.
    """

    shares: np.ndarray
    of_weights: dict[str, float] = field(default_factory=dict)

    def _renumbered(self, rank_of_part: np.ndarray, parts: np.ndarray) -> dict:
        return {"shares": self.shares[parts]}


@dataclass(frozen=True, kw_only=True)
class EdgeCutOptions:
    """Arguments of :func:`make_edge_cut`, which describes them; :class:`InputError` if one is wrong."""

    seed: int = 0
    owner: object = None
    attempts: int = 1
    max_imbalance: Mapping[str, float] | float | None = None
    balance: str | None = None
    target_weights: Sequence[float] | None = None
    cut_weights: str | None = None
    node_weights: str | None = None
    costs: Costs | None = None
    profile: Profile | None = None

    def __post_init__(self):
        if self.balance is not None:
            check_one_of("balance", self.balance, ("types",))
        if self.balance is not None and self.max_imbalance is not None:
            raise InputError(
                "balance (--balance) and max_imbalance (--max-imbalance) are given, and both say what is kept even; leave one out"
            )
        costs = default_costs() if self.costs is None else self.costs
        check_type("costs", costs, Costs)
        attempts = whole_number("attempts", self.attempts, 1, MAX_ATTEMPTS)
        # as they are used from here on; a frozen dataclass takes no assignment
        vars(self).update(costs=costs, attempts=attempts, seed=metis.check_seed(self.seed))


def make_edge_cut(
    graph: Graph,
    parts: int,
    *,
    seed: int = 0,
    owner=None,
    attempts: int = 1,
    max_imbalance=None,
    balance: str | None = None,
    target_weights=None,
    cut_weights: str | None = None,
    node_weights: str | None = None,
    costs: Costs | None = None,
    profile: Profile | None = None,
    progress=None,
) -> EdgeCut:
    """Cut a graph into parts with METIS and local search; inside a part, rows are in the order of clusters.

    Of several attempts the one with the lowest predicted step time is kept. The first twelve are by METIS with
    different objectives and node weights; later attempts start from the best cuts so far (evolutionary partitioning,
    Sanders and Schulz 2012). All are by METIS where the package has no compiled extension, or where a count for each
    node and part would take far more memory than the edges.

    Parameters
    ----------
    graph : Graph
    parts : int
        P, 1 <= P <= N.
    seed : int
        The same seed gives the same cut.
    owner : array of integers, (N,), optional
        The part of each node, if it is known already; parts may be empty.
    attempts : int
        The number of cuts to make, at least 1. If none of them keeps the bounds, more are made, until one
        does or there are six.
    max_imbalance : float or dict, optional
        Upper bound on a part's load over its share, at least 1: one for all, or one for some of "nodes", "edges" and
        "train". A cut that exceeds it is refused. By default the predicted times of parts are kept even, and no cut is
        refused.
    balance : {"types"}, optional
        Keep the nodes of each type of a typed graph even, too: at most 1.1 times the share of a part, where that can be.
    target_weights : sequence of float, (P,), optional
        Load of each part relative to the others; equal by default.
    cut_weights : str, optional
        Edge data, (E,), numbers of at least 0: the cut has little weight of cut edges, where it else has few halo rows.
        Parallel edges and both directions of a pair of nodes add up. METIS takes whole numbers: where the sums are not
        whole, they get a mean of 1,000 and are rounded, to at least 1. METIS sees the nodes of graphs of any size, the
        local search only takes nodes from parts that are too full, and attempts are compared by the weight of cut
        edges. With a profile, parts are placed on ranks, but nodes do not move for faster links.
    node_weights : str, optional
        Node data, (N,), numbers of at least 0, whose sums are kept even in place of the predicted times of parts.
    costs : Costs, optional
        What a training step costs, by default that of :func:`dgl_gt.partition.default_costs`.
    profile : Profile, optional
        The ranks that will train and the links between them: attempts are compared with parts on the ranks that suit
        them best, and nodes of the best cut then move where that makes the slowest rank faster
        (``local_search.py``). A given ``owner`` stays as it is.
    progress : callable, optional
        Called as ``progress(stage)``.

    Returns
    -------
    EdgeCut

    Raises
    ------
    InputError
        P is out of range, weights are missing, negative or not one number each, ``owner`` has the wrong length or a
        part outside 0..P-1, or no attempt keeps the bounds.
    """
    arguments = locals()  # all of them, by name
    options = EdgeCutOptions(**{each.name: arguments[each.name] for each in fields(EdgeCutOptions)})
    weights.check_weights(graph, cut_weights, node_weights)
    return cut_nodes(graph, whole_number("parts", parts), options, progress or (lambda stage: None))


def cut_nodes(graph: Graph, parts: int, options: EdgeCutOptions, progress: Callable) -> EdgeCut:
    """Do the second half of :func:`make_edge_cut`: make the cut of what was checked."""
    is_given = options.owner is not None
    if not is_given or parts < 1:
        check_parts(graph.num_nodes, parts)
    costs, profile, seed, attempts = options.costs, options.profile, options.seed, options.attempts
    edge_values = None if options.cut_weights is None else weights.weights_of(graph, "edge", options.cut_weights)
    node_values = None if options.node_weights is None else weights.weights_of(graph, "node", options.node_weights)
    kept_even = options.max_imbalance, options.target_weights, costs, node_values, options.balance
    balance = make_balance(graph, parts, *kept_even)
    undirected, mapping = symmetrised(graph), None
    if is_given:
        owner = checked_owner(options.owner, graph.num_nodes, parts)
    elif parts == 1:
        owner = np.zeros(graph.num_nodes, np.int32)
    else:

        def predicted_step_s(owner: np.ndarray) -> float:
            figures = count_assignment(graph, owner, balance.shares)
            return costs.step_seconds(figures) if profile is None else best_mapping(figures, costs, profile).predicted_s

        owner = best_assignment(
            graph, parts, undirected, balance, attempts, predicted_step_s, seed, progress, edge_values
        )
        if profile is not None:
            moves_nodes = edge_values is None
            owner, balance, mapping = fit_to_ranks(
                graph, owner, balance, costs, profile, seed, progress, moves_nodes=moves_nodes
            )
    _check_bounds(graph, balance, owner, is_given=is_given)
    progress("clusters inside parts")
    order = order_in_parts(undirected, owner, seed=seed).astype(graph.indices.dtype)
    of_weights = weights.quality_by_weights(graph, owner, balance.shares, edge_values, node_values)
    return EdgeCut(order, slice_pointers(owner, parts), balance.shares, of_weights, mapping=mapping)


def _check_bounds(graph: Graph, balance: Balance, owner: np.ndarray, *, is_given: bool) -> None:
    if balance.is_strict and balance.largest_load(owner) > 1:
        found = balance.exceeded_bounds(owner)
        if is_given:
            raise InputError(f"the given owner exceeds the bounds: {found}; raise max_imbalance, or give another owner")
        raise InputError(
            f"no cut of {graph.name} into {len(balance.shares)} parts kept the bounds: the best has {found}; raise "
            "max_imbalance, or make fewer parts"
        )


def checked_owner(owner, num_nodes: int, parts: int) -> np.ndarray:
    """The owners as int32; :class:`InputError` where they do not name a part for each node."""
    owner = as_array(owner, "owner")
    if owner.shape != (num_nodes,) or owner.dtype.kind not in "iu":
        raise InputError(f"owner must be {num_nodes} integers, one for each node, not {owner.dtype} {owner.shape}")
    if owner.min() < 0 or owner.max() >= parts:
        bad = owner.min() if owner.min() < 0 else owner.max()
        raise InputError(f"owner names part {bad}; parts are 0 to {parts - 1}; correct owner, or make more parts")
    return owner.astype(np.int32)
