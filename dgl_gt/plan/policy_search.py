"""Find a transmission policy for a model and a graph: what each mode loses is measured, and its time is predicted.

The modes are chosen so that the step is the fastest for which the measured losses together stay within a bound. The
problem is that of Lin and Wang's searched transmission policy (2021, arXiv 2111.02489). Losses of single transmissions
are taken to add up. A greedy search takes the change that saves most seconds for each point of loss, as long as the
bound allows it; then single changes and pairs of changes improve what it found.
"""

from __future__ import annotations

import copy
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np

from dgl_gt.exchange.load import load
from dgl_gt.exchange.policy.policy import MIN_COLUMNS, Mode, Policy, Rule, parse_mode
from dgl_gt.exchange.shard_view import ShardView
from dgl_gt.exchange.sharded_graph import ShardedGraph
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.figures.figures import Figures
from dgl_gt.partition.figures.profile import Profile
from dgl_gt.partition.figures.strategies import WITH_POLICY
from dgl_gt.partition.shards.counts import read_figures
from dgl_gt.train.config import TrainConfig
from dgl_gt.train.loop import take_step
from dgl_gt.train.metric_kinds import MetricKind
from dgl_gt.train.optimizer import Schedule, make_optimizer
from dgl_gt.train.run import prepare
from dgl_gt.train.task import read_task

from .planned_step import tracer_of
from .policy_costs import PolicyCosts
from .select import choose

_WARM_UP = 60  # exact steps before anything is measured, because rows change most at the beginning
_STEPS, CHECKED_STEPS = 8, 80  # over which the loss of one mode, and of the policy that was found, is measured
_ATTEMPTS = 5
MODES = tuple(map(parse_mode, ("exact", "bf16", "int8", "int4", "stale=4,int8", "stale=4,int4")))
_FULL = MODES[0]
_NO_LOSS = 1e-3  # points; a smaller loss counts as this
_MIN_GAIN = 1e-4  # share of the seconds; what saves less is not worth a loss
_KINDS_OF_LINKS = 4  # up to 2, 4, 8 or more times slower than the fastest, as many as there are numbers of bits
_MAX_SHRUNK = 8  # from 32 bits to 4


# ---- the search on ranks ----


@dataclass(frozen=True)
class FoundPolicy:
    """A transmission policy, and what is expected of it."""

    policy: Policy
    modes: dict[Place, Mode]
    losses: dict[Place, dict[Mode, float]]  # what each mode of each place lost by itself, in points of the metric
    loss: float  # what the policy as a whole lost (points)
    metric: str
    seconds: float  # of a step, predicted
    exact_seconds: float
    sent_bytes: int  # of all ranks in a step, on average
    exact_sent_bytes: int


def load_for_policies(directory, config: TrainConfig, profile: Profile, rank_memory: int | None = None) -> ShardedGraph:
    """Load shards with the strategy whose exact steps are fastest among those that follow policies; rank 0 chooses it.

    Every rank calls it. The arguments are those of :func:`dgl_gt.load` and :func:`dgl_gt.plan.choose`.
    """
    sg, strategy = load(directory), None
    with sg.comm.together():
        classes = read_task(sg, config).sizes["out_dim"]
        figures = read_figures(sg.manifest)
        with sg.comm.raising_together():
            if sg.comm.rank == 0:
                traces, options = tracer_of(config, figures.features, classes), {"strategies": WITH_POLICY}
                plan = choose([(directory, figures)], traces, profile, rank_memory=rank_memory, max_depth=1, **options)
                strategy = plan.choice.strategy
        strategy = sg.comm.broadcast_object(strategy)
    del sg  # one copy of the part at a time
    return load(directory, strategy)


def search_policy(
    sg: ShardedGraph, figures: Figures, config: TrainConfig, profile: Profile, max_loss: float, report=lambda text: None
) -> FoundPolicy:
    """Search for the policy that makes a step fastest and loses at most ``max_loss``; every rank calls it.

    After a few exact epochs, steps are taken from the same weights with one mode of one layer and direction at a time,
    and exact ones from the same weights. The difference of the validation metrics, on average over the last half of the steps,
    is what the mode loses. Seconds are predicted from the profile. The policy that was found is then measured as a
    whole. If it loses more than allowed, the assumed losses of its modes are raised to match, and the search runs
    again. After five such policies, the result is the exact one.

    Parameters
    ----------
    sg : ShardedGraph
        Graph with a strategy that can follow policies, and a halo of one hop.
    figures : Figures
        Figures of the cut.
    config : TrainConfig
        Settings of the model and the run; its own policy is not used.
    profile : Profile
        Hardware profile of the ranks and links.
    max_loss : float
        Points of the validation metric that may be lost, above 0 and below 100.
    report : callable
        Function that is called with a few words about what is being done.

    Raises
    ------
    InputError
        ``max_loss`` is out of range, there is one rank alone, the strategy follows no policy, all rows are too narrow,
        or the loss is not finite.
    """
    _check(sg, config, max_loss)
    probe = _Probe(sg, config, report)
    traces, strategy = tracer_of(config, figures.features, probe.task.sizes["out_dim"]), sg.strategy
    exchanges = traces.exchanges(figures, strategy, config.activation_checkpoint)
    costs = PolicyCosts.of_trace(
        traces.of(figures, strategy, 1, config.activation_checkpoint), figures, profile, exchanges
    )
    found_places = places(exchanges, profile.links(sg.comm.world_size))
    if not found_places:
        raise InputError(
            f"no exchange has rows of {MIN_COLUMNS} numbers or more, and narrower rows always travel as they are; train a "
            "wider model, or leave the policy out"
        )
    points = partial(points_lost, probe.task.metric)
    exact = probe.metric_with(Policy(), _STEPS)
    losses: dict[Place, dict[Mode, float]] = {}
    for place in found_places:
        losses[place] = {}
        for mode in MODES[1:]:
            report(f"layer {place.layer}, {place.direction}, {mode}")
            found = probe.metric_with(Policy((place.rule(mode),)), _STEPS)
            losses[place][mode] = max(0.0, points(found, exact))
    checked = probe.metric_with(Policy(), CHECKED_STEPS)
    assumed = {place: dict(each) for place, each in losses.items()}  # corrected by what policies lose as a whole
    for _ in range(_ATTEMPTS):
        modes, loss = choose_modes(costs.seconds, assumed, max_loss, [_start(costs, losses)]), 0.0
        policy = policy_of_modes(modes)
        if policy.is_exact:
            break
        report("the policy as a whole")
        loss = points(probe.metric_with(policy, CHECKED_STEPS), checked)
        if loss <= max_loss:
            break
        _share_out(loss, modes, assumed)
    else:
        modes, policy, loss = dict.fromkeys(losses, MODES[0]), Policy(), 0.0
    return FoundPolicy(
        policy,
        modes,
        losses,
        loss,
        probe.task.metric.name,
        seconds=costs.seconds(policy),
        exact_seconds=costs.seconds(Policy()),
        sent_bytes=costs.sent_bytes(policy),
        exact_sent_bytes=costs.sent_bytes(Policy()),
    )


def _check(sg: ShardedGraph, config: TrainConfig, max_loss: float) -> None:
    if not 0 < max_loss < 100:
        raise InputError(
            f"max_loss is {max_loss}; it must be above 0 and below 100, in points of the validation metric"
        )
    if sg.comm.world_size == 1:
        raise InputError(
            "one rank exchanges nothing, so there is no policy to search for; partition into two parts or more"
        )
    if not sg.strategy.sends_copies or sg.depth > 1:
        raise InputError(
            f"the strategy {sg.strategy.name} of depth {sg.depth} follows no policy; use {' or '.join(WITH_POLICY)} of depth 1"
        )
    if config.activation_checkpoint == "full":
        raise InputError(
            "activation_checkpoint is full, and a policy that is searched for needs keep_exchanges or none; choose one of them"
        )


def _share_out(loss: float, modes: dict[Place, Mode], losses: dict[Place, dict[Mode, float]]) -> None:
    """Raise the assumed losses of the modes of a policy until they add up to the measured loss of the whole policy.

    A mode that sends no more bits, and no more often, is assumed to lose at least as much.
    """
    chosen = {place: mode for place, mode in modes.items() if mode != MODES[0]}
    missing = (loss - sum(losses[place][mode] for place, mode in chosen.items())) / len(chosen)
    for place, mode in chosen.items():
        least = losses[place][mode] + missing
        for other in losses[place]:
            if other.bits <= mode.bits and other.every >= mode.every:
                losses[place][other] = max(losses[place][other], least)


def _start(costs: PolicyCosts, losses) -> dict[Place, Mode]:
    """Bits by the seconds that a step would save without a place's transmissions, against their share of the computing."""
    never = Mode(every=10**9)
    seconds = {place: costs.seconds(Policy()) - costs.seconds(Policy((place.rule(never),))) for place in losses}
    return by_links(seconds, costs.compute_s / len(seconds))


class _Probe:
    """A model after a few exact epochs, from which steps are taken under one policy after another."""

    def __init__(self, sg: ShardedGraph, config: TrainConfig, report):
        self.task, self._model = prepare(sg, config)
        self._sg, self._seed, self._optimizer = sg, config.seed, make_optimizer(self._model, config)
        if config.local_epochs:
            polynormer: Any = self._model
            polynormer.uses_global = False
        schedule = Schedule(self._optimizer, config.changed(schedule="constant"))  # a rate of 0 would lose nothing
        report(f"{_WARM_UP} exact epochs")
        for number in range(_WARM_UP):
            self._take(number)
            schedule.step()
        self._start = copy.deepcopy((self._model.state_dict(), self._optimizer.state_dict()))

    def _take(self, number: int) -> None:
        loss = take_step(self._model, self.task, self._sg.comm, self._optimizer, number, self._seed)
        if not math.isfinite(loss):
            raise InputError(f"the loss is {loss} in epoch {number + 1} of the search; lower lr or scale the features")

    def metric_with(self, policy: Policy, steps: int) -> float:
        """Return the mean validation metric in the last half of a few steps under a policy."""
        model, optimizer = copy.deepcopy(self._start)
        self._model.load_state_dict(model)
        self._optimizer.load_state_dict(optimizer)
        view, values = self._sg.view, []
        assert isinstance(view, ShardView), "other strategies follow no policies"
        transmission = view.follow(policy, self._seed)
        try:
            for number in range(_WARM_UP, _WARM_UP + steps):
                self._take(number)
                if number - _WARM_UP >= steps // 2:
                    values.append(self.task.evaluate(self._model)["val"])
            transmission.close()
        finally:
            view.exchange_exactly()
        return statistics.fmean(values)


def points_lost(metric: MetricKind, found: float, exact: float) -> float:
    """How much worse a metric is than that of exact steps: in points of a share, or in percent of another metric."""
    loss = found - exact if metric.lower_is_better else exact - found
    return 100 * loss / (1.0 if metric.is_share else max(abs(exact), 1e-12))


# ---- the choice of modes ----


@dataclass(frozen=True)
class Place:
    """Transmissions that have one mode: a layer, a direction, and pairs (sender, receiver) of ranks; None means all pairs."""

    layer: int
    direction: str
    peers: tuple[tuple[int, int], ...] | None = None

    def rule(self, mode: Mode) -> Rule:
        """The rule that gives these transmissions a mode."""
        return Rule(mode, (self.layer,), self.direction, self.peers)


def places(exchanges, links: np.ndarray) -> list[Place]:
    """Return the transmissions of a step that may have modes of their own: by layer, direction, and kind of link.

    Links are of one kind if they are up to 2, 4 or 8 times as slow as the fastest one, or slower.
    ``exchanges`` are those of the step, and ``links`` (P, P) the bandwidths into each rank from each other one.
    """
    pairs = [(i, j) for i in range(len(links)) for j in range(len(links)) if i != j]
    speeds = {(i, j): links[j, i] for i, j in pairs}
    kinds: dict[int, list[tuple[int, int]]] = {}
    for pair in pairs:
        octaves = math.ceil(math.log2(max(speeds.values()) / speeds[pair]))
        kinds.setdefault(min(max(octaves, 1), _KINDS_OF_LINKS), []).append(pair)
    of_kind = [tuple(kinds[kind]) for kind in sorted(kinds)] if len(kinds) > 1 else [None]
    found = {(each.layer, each.direction) for each in exchanges if each.follows_policies}
    return [Place(*each, peers) for each in sorted(found) for peers in of_kind]


def policy_of_modes(modes: dict[Place, Mode]) -> Policy:
    """Return the policy that gives each place its mode; one rule for all places where they agree on it."""
    if len(set(modes.values())) == 1:
        return Policy((Rule(next(iter(modes.values()))),))
    return Policy(tuple(place.rule(mode) for place, mode in modes.items() if mode != _FULL))


def choose_modes(
    seconds: Callable[[Policy], float], losses: dict[Place, dict[Mode, float]], max_loss: float, starts=()
) -> dict[Place, Mode]:
    """Return a mode for each place, such that the sum of their ``losses`` is at most ``max_loss`` (points).

    ``seconds`` predicts the time of a step under a policy. The local search begins with what the greedy search finds
    and with those of the ``starts`` that lose no more.
    """
    search = _Search(seconds, losses, max_loss)
    found = [search.greedy(), *(each for each in starts if search.loss(each) <= max_loss)]
    return min(map(search.improved, found), key=search.rank)


def by_links(costs_of_place: dict[Place, float], target_s: float) -> dict[Place, Mode]:
    """Return a mode for each place: the longer its transmissions take, ``costs_of_place`` (s), the fewer bits.

    A row shrinks by the ratio of that time to ``target_s``, but at least by 1 and at most by 8. This is the rule of
    AdaTopK in FusionLLM (Tang et al. 2024, arXiv 2410.12707), with bits in place of a sparsity.
    """
    ratios = np.clip(np.array(list(costs_of_place.values())) / max(target_s, 1e-12), 1.0, _MAX_SHRUNK)
    return {place: Mode(32 // 2 ** round(np.log2(ratio))) for place, ratio in zip(costs_of_place, ratios)}


class _Search:
    """A greedy search and a local one for the modes of places."""

    def __init__(self, seconds, losses: dict[Place, dict[Mode, float]], max_loss: float):
        self._seconds, self._losses, self._max_loss = seconds, losses, max_loss
        self._known: dict[tuple[Mode, ...], float] = {}

    def loss(self, modes: dict[Place, Mode]) -> float:
        return sum(self._losses[place].get(mode, 0.0) for place, mode in modes.items())

    def seconds_of(self, modes: dict[Place, Mode]) -> float:
        key = tuple(modes.values())
        if key not in self._known:
            self._known[key] = self._seconds(policy_of_modes(modes))
        return self._known[key]

    def rank(self, modes: dict[Place, Mode]) -> tuple[float, float]:
        return self.seconds_of(modes), self.loss(modes)

    def greedy(self) -> dict[Place, Mode]:
        modes = dict.fromkeys(self._losses, _FULL)
        while True:
            now, loss = self.seconds_of(modes), self.loss(modes)
            rated: list[tuple[float, int, dict[Place, Mode]]] = []
            for changed in self._changed(modes):
                saved, lost = now - self.seconds_of(changed), self.loss(changed) - loss
                if saved > _MIN_GAIN * now and loss + lost <= self._max_loss:
                    rated.append((saved / max(lost, _NO_LOSS), len(rated), changed))
            if not rated:
                return modes
            modes = max(rated, key=lambda it: it[:2])[2]

    def improved(self, modes: dict[Place, Mode]) -> dict[Place, Mode]:
        """Change one place or two as long as that saves seconds, or loses less in the same time."""
        while True:
            singles = list(self._changed(modes))
            pairs = [
                {place: a[place] if a[place] != modes[place] else b[place] for place in modes}
                for a, b in combinations(singles, 2)
            ]
            allowed = [each for each in singles + pairs if self.loss(each) <= self._max_loss]
            best = min(allowed, key=self.rank, default=modes)
            (now, loss), (seconds, best_loss) = self.rank(modes), self.rank(best)
            if not (now - seconds > _MIN_GAIN * now or (now >= seconds and best_loss < loss - _NO_LOSS)):
                return modes
            modes = best

    def _changed(self, modes: dict[Place, Mode]):
        for place, measured in self._losses.items():
            for mode in (_FULL, *measured):
                if mode != modes[place]:
                    yield modes | {place: mode}
