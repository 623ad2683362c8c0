"""Find a transmission policy for a model and a graph: what each mode loses is measured, and its time is predicted."""

from __future__ import annotations

import copy
import math
import statistics
from dataclasses import dataclass

from dgl_gt.exchange.load import load
from dgl_gt.exchange.policy.policy import MIN_COLUMNS, Mode, Policy
from dgl_gt.exchange.sharded_graph import ShardedGraph
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.figures.figures import Figures
from dgl_gt.partition.figures.profile import Profile
from dgl_gt.partition.figures.strategies import WITH_POLICY
from dgl_gt.partition.shards.counts import read_figures
from dgl_gt.train.config import TrainConfig
from dgl_gt.train.fit import take_step
from dgl_gt.train.optimizer import Schedule, make_optimizer
from dgl_gt.train.run import prepare
from dgl_gt.train.tasks.node_classification import node_classification

from .planned_step import tracer_of
from .policy_choice import MODES, Place, by_links, choose_modes, places, policy_of_modes
from .policy_time import PolicyCosts
from .select import choose

_WARM_UP = 60  # exact steps before anything is measured, because rows change most at the beginning
_STEPS, CHECKED_STEPS = 8, 80  # over which the loss of one mode, and of the policy that was found, is measured
_ATTEMPTS = 5


@dataclass(frozen=True)
class FoundPolicy:
    """A transmission policy, and what is expected of it.

    Attributes
    ----------
    policy : Policy
    modes : dict of Place to Mode
        The mode of each layer and direction, and of each kind of link.
    losses : dict of Place to dict of Mode to float
        What each mode of each place lost by itself (points of the validation metric).
    loss : float
        What the policy as a whole lost (points).
    metric : str
    seconds, exact_seconds : float
        Predicted time of a step with the policy, and of an exact one (s).
    sent_bytes, exact_sent_bytes : int
        Bytes that all ranks send in a step, on average.
    """

    policy: Policy
    modes: dict[Place, Mode]
    losses: dict[Place, dict[Mode, float]]
    loss: float
    metric: str
    seconds: float
    exact_seconds: float
    sent_bytes: int
    exact_sent_bytes: int


def load_for_policies(directory, config: TrainConfig, profile: Profile, rank_memory: int | None = None) -> ShardedGraph:
    """Load shards with the strategy whose exact steps are fastest among those that follow policies; rank 0 chooses it.

    Every rank calls it. The arguments are those of :func:`dgl_gt.load` and :func:`dgl_gt.plan.choose`.
    """
    sg, strategy = load(directory), None
    with sg.comm.together():
        classes = node_classification(sg, config).classes
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
    traces, strategy = tracer_of(config, figures.features, probe.task.classes), sg.strategy
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
    exact, losses = probe.metric_with(Policy(), _STEPS), {}
    for place in found_places:
        losses[place] = {}
        for mode in MODES[1:]:
            report(f"layer {place.layer}, {place.direction}, {mode}")
            found = probe.metric_with(Policy((place.rule(mode),)), _STEPS)
            losses[place][mode] = max(0.0, 100 * (exact - found))
    checked = probe.metric_with(Policy(), CHECKED_STEPS)
    assumed = {place: dict(each) for place, each in losses.items()}  # corrected by what policies lose as a whole
    for _ in range(_ATTEMPTS):
        modes, loss = choose_modes(costs.seconds, assumed, max_loss, [_start(costs, losses)]), 0.0
        policy = policy_of_modes(modes)
        if policy.is_exact:
            break
        report("the policy as a whole")
        loss = 100 * (checked - probe.metric_with(policy, CHECKED_STEPS))
        if loss <= max_loss:
            break
        _share_out(loss, modes, assumed)
    else:
        modes, policy, loss = dict.fromkeys(losses, MODES[0]), Policy(), 0.0
    seconds, sent = costs.seconds, costs.sent_bytes
    return FoundPolicy(
        *(policy, modes, losses, loss, probe.task.metric),
        *(seconds(policy), seconds(Policy()), sent(policy), sent(Policy())),
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
    """Bits by how long the transmissions of each place take, against their share of the time that ranks compute."""
    taken = {place: _seconds_of(costs, place) for place in losses}
    return by_links(taken, costs.compute_s / len(taken))


def _seconds_of(costs: PolicyCosts, place: Place) -> float:
    """Seconds that a step would save if the transmissions of a place took none."""
    nothing = Policy((place.rule(Mode(every=10**9)),))
    return max(0.0, costs.seconds(Policy()) - costs.seconds(nothing))


class _Probe:
    """A model after a few exact epochs, from which steps are taken under one policy after another."""

    def __init__(self, sg: ShardedGraph, config: TrainConfig, report):
        self.task, self._model = prepare(sg, config)
        self._sg, self._seed, self._optimizer = sg, config.seed, make_optimizer(self._model, config)
        if config.local_epochs:
            self._model.uses_global = False
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
