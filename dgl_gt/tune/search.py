"""The search: trials of recipes until a share of the time is over, then the best few with other seeds, then the result.

What it has found so far is on the disk, and a search that was killed goes on with that.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dgl_gt.partition.errors import InputError
from dgl_gt.run_files.search_files import STUDY, TRIALS, SearchRecord, TrialLine, add_trial, drop_torn_end, read_trials
from dgl_gt.train.metric_kinds import MetricKind, shown_metric

from .crew import Worker
from .jobs import FEWEST_EPOCHS, GRID, RUNGS, Job, Outcome
from .proposals import Proposal, Proposals, Space
from .recipes import RECIPES
from .screen import Screen

SEARCH_SHARE, LAST_TRIAL_SHARE = 0.6, 0.65  # of the budget: no trial begins, or goes on, after these
LONGEST_SHARE = 0.2  # of the budget: time of one run, so that the last runs have room
_REDUCTION = 3  # of the trials at a rung, one in so many goes on
_POLL_S = 0.05


@dataclass
class Clock:
    """The time of a search: what it may take, and what it took before it was killed."""

    budget_s: float
    used_s: float = 0.0
    _started: float = field(default_factory=time.monotonic)

    @property
    def elapsed_s(self) -> float:
        return self.used_s + time.monotonic() - self._started

    @property
    def left_s(self) -> float:
        return self.budget_s - self.elapsed_s

    def at(self, seconds: float) -> float:
        """When the search will have taken this long, by ``time.monotonic``."""
        return self._started + seconds - self.used_s


class Search:
    """Trials of the recipes; ``given`` are settings of the user's, which none of them changes."""

    def __init__(
        self,
        folder: Path,
        record: SearchRecord,
        spaces: Mapping[str, Space],
        crew: Crew,
        clock: Clock,
    ):
        self._folder, self._record, self._spaces, self._crew, self._clock = folder, record, spaces, crew, clock
        self._lag = 1 if record.jobs == 1 else 2 * record.jobs
        self.proposals = Proposals(
            folder / STUDY,
            spaces,
            record.seed,
            record.lower_is_better,
            self._lag,
            GRID * self._usual_s(0) <= self._usual_s(len(spaces)),
        )
        drop_torn_end(folder / TRIALS)
        self.results = {each.number: each for each in read_trials(folder)}
        self._waiting = self.proposals.interrupted(self.results)
        self._running: dict[int, Proposal] = {}

    def run(self) -> None:
        """Try until it is time for the last runs, or there are enough trials."""
        self._crew.work(self._next_job, self._ended)

    def settings_of(self, trial: TrialLine) -> dict[str, Any]:
        """All settings of a trial that do not have their defaults."""
        return fixed_settings(trial.model) | trial.settings | self._record.given

    def epochs_of(self, model: str) -> int:
        """Most epochs of a run of a recipe."""
        return int(self._record.given.get("epochs", RECIPES[model].epochs))

    def _next_job(self) -> Job | None:
        clock = self._clock
        if clock.elapsed_s >= SEARCH_SHARE * clock.budget_s:
            return None
        if self._waiting:
            found: Proposal | None = self._waiting.pop(0)
        elif len(self.results) + len(self._running) >= self._record.most_trials:
            return None
        else:
            found = self.proposals.ask(self.results)
        if found is None:
            return None
        self._running[found.number] = found
        return Job(
            found.number,
            fixed_settings(found.model) | found.values | self._record.given,
            found.values.get("epochs", self.epochs_of(found.model)),
            clock.at(LAST_TRIAL_SHARE * clock.budget_s),
            LONGEST_SHARE * self._record.budget_s,
            self._usual_s(found.number),
            tuple(self._bar(rung, found) for rung in range(len(RUNGS))),
            title=f"{found.number} {found.model}",
        )

    def _usual_s(self, number: int) -> float:
        """Time of a run: the middles together have no more than all trials, unless twelve epochs take longer."""
        of_middles = SEARCH_SHARE * self._record.jobs / min(len(self._spaces), self._record.most_trials)
        return self._record.budget_s * min(LONGEST_SHARE, of_middles if number < len(self._spaces) else 1.0)

    def _bar(self, rung: int, trial: Proposal) -> float | None:
        """What a trial must reach at a rung: a place among the best third of those that are at least the lag before it.

        It may miss it by what the number of validation rows leaves to chance, one standard error of a share. Some models learn
        slowly at first: the first rung compares trials of one recipe, and its middle, or another form of this, has time until the
        second.
        """
        if trial.is_first and not rung:
            return None
        known = range(trial.number - self._lag + 1)
        there = [self.results[each] for each in known if len(self.results[each].rungs) > rung]
        values = [each.rungs[rung] for each in there if rung or each.model == trial.model]
        values.sort(reverse=not self._record.lower_is_better)
        if not values:
            return None
        bar, rows = values[max(1, (len(values) + 1) // _REDUCTION) - 1], self._record.rows
        is_share = self._crew.metric.is_share and rows and 0 < bar < 1
        return bar - math.sqrt(bar * (1 - bar) / rows) if is_share else bar

    def _ended(self, job: Job, outcome: Outcome) -> TrialLine:
        proposal = self._running.pop(job.number)
        trial = TrialLine(
            number=job.number,
            model=proposal.model,
            settings=proposal.values
            | ({"epochs": outcome.epochs} if "epochs" in proposal.values and outcome.epochs else {}),
            state=outcome.state,
            epochs=outcome.epochs,
            seconds=round(outcome.seconds, 3),
            epoch_s=round(outcome.epoch_s, 5),
            at_s=round(self._clock.elapsed_s, 1),
            value=outcome.value,
            rungs=outcome.rungs,
            curve=outcome.curve,
            why=outcome.why,
        )
        self.results[trial.number] = trial
        add_trial(self._folder, trial)
        return trial


class Crew:
    """The workers of a search, and what a person sees of them."""

    def __init__(self, make: Callable[[int], Worker], jobs: int | None, most: int, clock: Clock):
        self._stack, self._clock, self._trials = ExitStack(), clock, list[TrialLine]()
        self.workers: list[Worker] = []
        try:
            self.workers.append(self._started(make(jobs or most)))
            hello = self._first_hello()
            self.jobs = jobs or (1 if hello.device == "cuda" else most)
            self.hello = hello
            self.workers += [self._started(make(self.jobs)) for _ in range(self.jobs - 1)]
        except BaseException:
            self._stack.close()
            raise
        self.metric: MetricKind = shown_metric(hello.metric)
        self.screen = Screen(self.metric)

    def _started(self, worker: Worker) -> Worker:
        self._stack.callback(worker.close)
        return worker

    def _first_hello(self):
        (worker,) = self.workers
        while worker.hello is None:
            worker.poll()
            time.sleep(_POLL_S)
        return worker.hello

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_) -> None:
        self._stack.close()

    def work(self, next_job: Callable[[], Job | None], ended: Callable[[Job, Outcome], TrialLine | None]) -> None:
        """Give jobs to free workers until there are none and the last has ended."""
        is_over = False
        while True:
            for worker in self.workers:
                if found := worker.poll():
                    trial = ended(*found)
                    if trial:
                        self._trials.append(trial)
                        self.screen.ended(trial, self._clock.left_s)
            free = [each for each in self.workers if each.is_free]
            jobs = [(each, job) for each in free if (job := next_job())]
            for worker, job in jobs:
                worker.give(job)
            busy = [each for each in self.workers if each.job]
            is_over = not busy and not jobs and bool(free)
            if is_over:
                return
            self.screen.draw(
                self._trials,
                [(each.job.title, each.epoch, each.epochs, each.value) for each in busy if each.job],
                self._clock.left_s,
            )
            time.sleep(_POLL_S)

    def show(self, trials: list[TrialLine]) -> None:
        """Show trials of an earlier part of the search, too."""
        self._trials = trials


def fixed_settings(model: str) -> dict[str, Any]:
    """The settings that make a recipe's model."""
    recipe = RECIPES[model]
    return recipe.fixed | ({"encodings": recipe.encodings} if recipe.encodings else {})


def check_found(results: Mapping[int, TrialLine], clock: Clock) -> None:
    """Raise :class:`InputError` unless a trial has a value; the message says what one takes."""
    if any(each.value is not None for each in results.values()):
        return
    why = [each.why for each in results.values() if each.why and not each.epoch_s]
    timed = [each.epoch_s for each in results.values() if each.epoch_s]
    if timed:
        needed_s = FEWEST_EPOCHS * min(timed) / LONGEST_SHARE
        raise InputError(
            f"budget is {clock.budget_s:g} s, and no trial had the time for {FEWEST_EPOCHS} epochs, of which the fastest takes "
            f"{min(timed):.2g} s; give at least --budget {max(1, round(1.5 * needed_s))}s"
        )
    if why:
        raise InputError(f"every trial failed; the first one: {why[0]}")
    raise InputError(
        f"budget is {clock.budget_s:g} s, which was over before the first trial had ended ({clock.elapsed_s:.0f} s); give more, such "
        f"as --budget {max(60, round(4 * clock.elapsed_s))}s"
    )
