"""Choose a transmission policy: the fastest step for which the measured losses together stay within a bound.

The problem is that of Lin and Wang's searched transmission policy (2021, arXiv 2111.02489). Losses of single
transmissions are taken to add up. A greedy search takes the change that saves most seconds for each point of loss, as
long as the bound allows it; then single changes and pairs of changes improve what it found.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from dgl_gt.exchange.policy.policy import Mode, Policy, Rule, parse_mode

MODES = tuple(map(parse_mode, ("exact", "bf16", "int8", "int4", "stale=4,int8", "stale=4,int4")))
_FULL = MODES[0]
_NO_LOSS = 1e-3  # points; a smaller loss counts as this
_MIN_GAIN = 1e-4  # share of the seconds; what saves less is not worth a loss
_KINDS_OF_LINKS = 4  # up to 2, 4, 8 or more times slower than the fastest, as many as there are numbers of bits
_MAX_SHRUNK = 8  # from 32 bits to 4


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
    """Return a mode for each place.

    Parameters
    ----------
    seconds : callable
        Function that predicts the time of a step under a policy (s).
    losses : dict of Place to dict of Mode to float
        What each mode of each place loses by itself (points of the metric).
    max_loss : float
        Bound of the sum of losses (points).
    starts : iterable of dict of Place to Mode
        More assignments from which the local search starts, besides what the greedy search finds; those beyond the bound
        are left out.
    """
    search = _Search(seconds, losses, max_loss)
    found = [search.greedy(), *(each for each in starts if search.loss(each) <= max_loss)]
    return min(map(search.improved, found), key=lambda modes: (search.seconds_of(modes), search.loss(modes)))


def by_links(costs_of_place: dict[Place, float], target_s: float) -> dict[Place, Mode]:
    """Return a mode for each place: the longer its transmissions take, ``costs_of_place`` (s), the fewer bits.

    A row shrinks by the ratio of that time to ``target_s``, but at least by 1 and at most by 8. This is the rule of
    AdaTopK in FusionLLM (Tang et al. 2024, arXiv 2410.12707), with bits in place of a sparsity.
    """
    modes = {32: _FULL, 16: Mode(16), 8: Mode(8), 4: Mode(4)}
    least = max(target_s, 1e-12)
    ratios = {place: min(max(cost / least, 1.0), _MAX_SHRUNK) for place, cost in costs_of_place.items()}
    return {place: modes[32 // 2 ** round(np.log2(ratio))] for place, ratio in ratios.items()}


class _Search:
    def __init__(self, seconds, losses: dict[Place, dict[Mode, float]], max_loss: float):
        self._seconds, self._losses, self._max_loss, self._known = seconds, losses, max_loss, {}

    def loss(self, modes: dict[Place, Mode]) -> float:
        return sum(self._losses[place].get(mode, 0.0) for place, mode in modes.items())

    def seconds_of(self, modes: dict[Place, Mode]) -> float:
        key = tuple(modes.values())
        if key not in self._known:
            self._known[key] = self._seconds(policy_of_modes(modes))
        return self._known[key]

    def greedy(self) -> dict[Place, Mode]:
        modes = dict.fromkeys(self._losses, _FULL)
        while True:
            now, loss = self.seconds_of(modes), self.loss(modes)
            rated = []
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
            best = min(allowed, key=self._rank, default=modes)
            if not self._is_better(best, modes):
                return modes
            modes = best

    def _rank(self, modes):
        return self.seconds_of(modes), self.loss(modes)

    def _is_better(self, best, modes) -> bool:
        now = self.seconds_of(modes)
        saved = now - self.seconds_of(best)
        return saved > _MIN_GAIN * now or (saved >= 0 and self.loss(best) < self.loss(modes) - _NO_LOSS)

    def _changed(self, modes: dict[Place, Mode]):
        for place, measured in self._losses.items():
            for mode in (_FULL, *measured):
                if mode != modes[place]:
                    yield modes | {place: mode}
