"""Which rank takes which part: heavy traffic on fast links, and large parts on fast ranks."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from msgspec import Meta

from .costs import Costs
from .figures import Figures
from .profile import Profile

MAX_EXACT = 8  # parts for which all orders are tried: 40,320 of them
_SWAP_WORK = 5 * 10**7  # entries of tables that a search by swaps looks at, at most; about 3 s
_RANDOM_STARTS, _MAX_RESTARTED = 8, 64  # searches from random orders, and the most parts for which they are quick
_RESOLUTION = 1e9  # step times that differ by less than one part in this many are equal

Seconds = Annotated[float, Meta(ge=0, le=1e300)]


@dataclass(frozen=True)
class Mapping:
    """The rank of each part, and what that does to the predicted step."""

    profile: str  # name of the hardware profile
    shares: Literal["rank speeds", "equal"]  # what the sizes of the parts follow
    search: Literal["all orders", "swaps"]  # the best of all orders of the parts, or of searches that swap pairs
    rank_of_part: list[int]  # in the order in which the parts were cut
    unmapped_s: Seconds  # predicted time of a step with part i on rank i (s)
    mapped_s: Seconds  # with the mapping (s)
    predicted_s: Seconds  # after nodes have moved between the mapped parts (s)


def best_mapping(figures: Figures, costs: Costs, profile: Profile) -> Mapping:
    """Find the rank of each part with which a step is predicted to be fastest.

    Parts that fit the memory of their ranks come first, then the predicted step, then the time of all exchanges
    together. Of equal mappings, the one that leaves parts where they are is taken.
    """
    problem = _Problem.of(figures, costs, profile)
    parts, here = figures.parts, np.arange(figures.parts)
    is_exact = parts <= MAX_EXACT
    ranks = _best_order(problem) if is_exact else _by_swaps(problem)
    mapped_s = problem.step_seconds(ranks)
    return Mapping(
        profile=profile.name,
        shares="equal" if profile.unequal_weights() is None else "rank speeds",
        search="all orders" if is_exact else "swaps",
        rank_of_part=ranks.tolist(),
        unmapped_s=problem.step_seconds(here),
        mapped_s=mapped_s,
        predicted_s=mapped_s,
    )


@dataclass(frozen=True, eq=False)
class _Problem:
    """What a mapping depends on. ``ranks`` is always the rank of each part, (..., P)."""

    work_s: np.ndarray  # time of each part's computation on a rank of average speed, (P,)
    need: np.ndarray  # tensors of each part, in bytes, (P,)
    sent: np.ndarray  # bytes that part i receives from part j, (P, P); the diagonal is 0
    slowness: np.ndarray  # of each rank, (P,)
    room: np.ndarray  # memory of each rank for tensors, in bytes, (P,)
    byte_s: np.ndarray  # time of a byte into rank i from rank j, (P, P); the diagonal is 0
    fixed_s: float  # of a step, whatever the mapping

    @classmethod
    def of(cls, figures: Figures, costs: Costs, profile: Profile) -> _Problem:
        parts, of_cut = figures.parts, costs.of(figures.cut)
        apart = 1.0 - np.eye(parts)
        room = np.asarray(profile.memory_bytes) - np.asarray(profile.process_bytes)
        return cls(
            work_s=of_cut.compute_s.of(figures),
            need=costs.rank_memory_bytes(figures),
            sent=costs.received_bytes(figures) * apart,
            slowness=costs.slowness(profile, parts),
            room=np.broadcast_to(np.maximum(room, 1.0), parts),
            byte_s=apart / profile.links(parts),
            fixed_s=(of_cut.calls * profile.latency_s + of_cut.sum_s) if parts > 1 else 0.0,
        )

    def terms(self, ranks: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of each mapping: by how much the fullest rank exceeds its memory (at least 1), the step, and all exchanges."""
        memory_ratio = np.maximum((self.need / self.room[ranks]).max(axis=-1), 1.0)
        exchange = (self.sent * self.byte_s[ranks[..., :, None], ranks[..., None, :]]).sum(axis=-1)
        compute = (self.work_s * self.slowness[ranks]).max(axis=-1)
        return memory_ratio, compute + exchange.max(axis=-1) + self.fixed_s, exchange.sum(axis=-1)

    def step_seconds(self, ranks: np.ndarray) -> float:
        return float(self.terms(ranks)[1])

    def keys(self, memory_ratio: np.ndarray, step_s: np.ndarray, exchanges_s: np.ndarray) -> list[np.ndarray]:
        """Sort keys of mappings for ``np.lexsort``, most important last, rounded so that rounding errors decide nothing."""
        unit = self.step_seconds(np.arange(len(self.work_s))) / _RESOLUTION or 1.0
        return [np.rint(exchanges_s / unit), np.rint(step_s / unit), np.rint(memory_ratio * _RESOLUTION)]


def _best_order(problem: _Problem) -> np.ndarray:
    """The best of all orders; the first of them is the order of the parts."""
    orders = np.array(list(itertools.permutations(range(len(problem.work_s)))))
    return orders[np.lexsort(problem.keys(*problem.terms(orders)))[0]]


def _by_swaps(problem: _Problem) -> np.ndarray:
    """The best result of several searches: from the order of the parts, from random orders, and from the result of a
    search that first minimises the sum of all exchanges.

    That last start helps where no single swap helps the slowest rank, because there every link counts.
    """
    parts, draw = len(problem.work_s), np.random.default_rng(0)
    here = np.arange(parts)
    starts = [here, _swapped(problem, here, lambda keys: [keys[1], keys[0], keys[2]])]
    starts += [draw.permutation(parts) for _ in range(_RANDOM_STARTS if parts <= _MAX_RESTARTED else 0)]
    found = np.stack([here, *(_swapped(problem, start, lambda keys: keys) for start in starts)])
    return found[np.lexsort(problem.keys(*problem.terms(found)))[0]]


def _swapped(problem: _Problem, ranks: np.ndarray, ordered: Callable) -> np.ndarray:
    """Swap ranks of pairs of parts, each time the best pair for one part, until no swap of any part helps."""
    ranks, parts, tried = ranks.copy(), len(ranks), 0
    while True:
        has_moved = False
        exchange = (problem.sent * problem.byte_s[np.ix_(ranks, ranks)]).sum(axis=1)
        for part in np.argsort(-exchange, kind="stable").tolist():
            keys = ordered(problem.keys(*_after_swaps(problem, ranks, part)))
            best = int(np.lexsort(keys)[0])
            if [key[best] for key in reversed(keys)] < [key[part] for key in reversed(keys)]:
                ranks[[part, best]] = ranks[[best, part]]
                has_moved = True
            tried += 1
            if tried * parts**2 > _SWAP_WORK:
                return ranks
        if not has_moved:
            return ranks


def _after_swaps(problem: _Problem, ranks: np.ndarray, part: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The terms after a swap of ``part`` with each part, (P,) each; with itself, nothing is swapped."""
    sent, byte_s, parts = problem.sent, problem.byte_s[np.ix_(ranks, ranks)], np.arange(len(ranks))
    now, mine, theirs = sent * byte_s, byte_s[:, part], byte_s[part]
    others = now.sum(axis=1)[:, None] - now[:, part, None] - now  # of each part, by the part that is swapped
    others += sent[:, part, None] * byte_s + sent * mine[:, None]
    others[part] = byte_s @ sent[part] + sent[part] * mine
    others[parts, parts] = sent @ theirs + sent[:, part] * theirs
    others[:, part] = now.sum(axis=1)
    swapped = np.broadcast_to(ranks, (len(ranks), len(ranks))).copy()  # a mapping for each swap
    swapped[parts, part], swapped[parts, parts] = ranks, ranks[part]
    memory_ratio = np.maximum((problem.need / problem.room[swapped]).max(axis=1), 1.0)
    compute = (problem.work_s * problem.slowness[swapped]).max(axis=1)
    return memory_ratio, compute + others.max(axis=0) + problem.fixed_s, others.sum(axis=0)
