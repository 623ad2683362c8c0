"""The last runs: the best few trials with other seeds, then the one that was chosen, whose test is looked at.

A run keeps its model and its record in a directory of its own, and nobody reads its test metric unless its settings are
chosen by the validation metric.
"""

from __future__ import annotations

import json
import shutil
import statistics
from pathlib import Path
from typing import Any, cast

from dgl_gt.partition.errors import InputError
from dgl_gt.run_files.run_directory import CONFIG, METRICS_FILE, RECORD, WEIGHTS
from dgl_gt.run_files.search_files import SEEDS, Finalist, LastRun, SearchRecord, TrialLine, ranked

from .jobs import Job, Outcome
from .search import Clock, Crew, Search

_ROUNDS = ((10, 8), (8, 5), (6, 4), (5, 3), (4, 2), (3, 2), (3, 1), (2, 1))  # trials and seeds, the most that fits
_SHARE = 0.5  # of the time that is left, for comparing them
_LAST_SEEDS = 10
_RESERVE_S, _RESERVE_SHARE = 2.0, 0.01  # of the budget, for what comes after the last run
_SLACK = 1.1  # a run may take longer than the trial did
Run = tuple[int, int, int]  # number of the trial, split, seed


class Finals:
    """The last runs of a search; ``runs`` has the validation metric of each."""

    def __init__(self, folder: Path, record: SearchRecord, search: Search, crew: Crew, clock: Clock):
        self._folder, self._record, self._search, self._crew, self._clock = folder, record, search, crew, clock
        self._end_s = clock.budget_s - max(_RESERVE_S, _RESERVE_SHARE * clock.budget_s)
        self._split = int(record.given.get("split", 0))
        self._wanted: list[Run] = []
        self._asked: dict[int, Run] = {}
        self._why: str | None = None  # the last run that failed
        self.runs: dict[Run, float] = self._kept()

    def choose(self) -> TrialLine:
        """Run the best few trials with other seeds, and return the one whose mean validation metric is best."""
        trials = _distinct(ranked(self._search.results.values(), self._record.lower_is_better))
        hopeful = [each for each in trials if each.state != "stopped"] or trials[:1]
        count, seeds = self._round(hopeful)
        finalists = hopeful[:count]
        if seeds:
            self._crew.screen.say(f"the best {count} trials, with {seeds} more seed{'s' * (seeds > 1)} each")
            self._do([(each.number, self._split, self._seed(k)) for k in range(seeds) for each in finalists])
        finalists = [each for each in finalists if self._validations(each)] or finalists
        means = {each.number: self._mean(each) for each in finalists}
        self._record.finalists = [
            Finalist(each.number, each.model, found) for each in finalists if (found := self._validations(each))
        ]
        best = min if self._record.lower_is_better else max
        return best(finalists, key=lambda each: means[each.number])

    def report(self, chosen: TrialLine) -> None:
        """Run the chosen trial with as many seeds, or on as many splits, as the time allows, and read the test metrics."""
        splits = range(self._record.splits) if "split" not in self._record.given else [self._split]
        seeds = range(1 if len(splits) > 1 else _LAST_SEEDS)
        wanted = [(chosen.number, split, self._seed(k)) for k in seeds for split in splits]
        self._crew.screen.say(f"trial {chosen.number} ({chosen.model}) was chosen; its last runs")
        self._do([each for each in wanted if each not in self.runs], at_least=0 if self._of(chosen) else 1)
        if not self._of(chosen):
            raise InputError(f"the chosen settings failed with every other seed: {self._why}")
        self._record.best = chosen.number
        for run in self._of(chosen):
            metric = json.loads((self._place(run) / RECORD).read_text())["metric"]
            self._record.runs.append(LastRun(run[1], run[2], metric["validation"], metric["test"]))
        sign = -1 if self._record.lower_is_better else 1
        on_first = [run for run in self._of(chosen) if run[1] == self._split] or self._of(chosen)
        best = max(on_first, key=lambda run: sign * self.runs[run])
        for name in (CONFIG, METRICS_FILE, RECORD, WEIGHTS):
            (self._place(best) / name).replace(self._folder / name)
        shutil.rmtree(self._folder / SEEDS)

    def _seed(self, number: int) -> int:
        return self._record.seed + 1 + number

    def _of(self, trial: TrialLine) -> list[Run]:
        return sorted(run for run in self.runs if run[0] == trial.number)

    def _validations(self, trial: TrialLine) -> list[float]:
        return [self.runs[run] for run in self._of(trial) if run[1] == self._split]

    def _mean(self, trial: TrialLine) -> float:
        """The mean over other seeds; with that of the trial, for which it was chosen, only where there are few."""
        found = self._validations(trial)
        return statistics.fmean(found if len(found) > 1 else [*found, cast(float, trial.value)])

    def _round(self, trials: list[TrialLine]) -> tuple[int, int]:
        """How many trials to compare, with how many seeds, in the time that is left; one and none where it is short."""
        room_s = _SHARE * (self._end_s - self._clock.elapsed_s) * len(self._crew.workers)
        for count, seeds in _ROUNDS:
            chosen = trials[:count]
            if len(chosen) > 1 and seeds * sum(map(_cost_s, chosen)) <= room_s:
                return len(chosen), seeds
        return 1, 0

    def _do(self, wanted: list[Run], at_least: int = 0) -> None:
        """Do the runs that there is time for, and the first ``at_least`` in any case."""
        self._wanted = [each for each in wanted if each not in self.runs]
        self._at_least = at_least
        self._crew.work(self._next_job, self._ended)

    def _next_job(self) -> Job | None:
        left_s = self._end_s - self._clock.elapsed_s
        while self._wanted:
            run = self._wanted.pop(0)
            trial = self._search.results[run[0]]
            if self._at_least <= 0 and _cost_s(trial) > left_s:
                continue
            self._at_least -= 1
            number = len(self._asked)
            self._asked[number] = run
            settings: dict[str, Any] = self._search.settings_of(trial) | {"seed": run[2]}
            if self._record.splits > 1:
                settings["split"] = run[1]
            where = f", split {run[1]}" if self._record.splits > 1 else ""
            title = f"{trial.number} {trial.model}, seed {run[2]}{where}"
            return Job(
                number, settings, trial.epochs, self._clock.at(self._end_s), out=str(self._place(run)), title=title
            )
        return None

    def _ended(self, job: Job, outcome: Outcome) -> None:
        if outcome.value is not None:
            self.runs[self._asked[job.number]] = outcome.value
        elif self._at_least >= 0 and not self.runs:
            raise InputError(f"the chosen settings failed with another seed: {outcome.why}")
        else:
            self._why = outcome.why

    def _place(self, run: Run) -> Path:
        return self._folder / SEEDS / "-".join(map(str, run))

    def _kept(self) -> dict[Run, float]:
        """The runs that a search has finished before it was killed."""
        found: dict[Run, float] = {}
        for path in sorted((self._folder / SEEDS).glob(f"*/{RECORD}")):
            record = json.loads(path.read_text())
            if record.get("finished"):
                number, split, seed = map(int, path.parent.name.split("-"))
                found[number, split, seed] = record["metric"]["validation"]
        return found


def _cost_s(trial: TrialLine) -> float:
    """What a run of a trial's settings may take; one that was cut would have taken longer (s)."""
    return _SLACK * max(trial.seconds, trial.epochs * trial.epoch_s * (trial.state == "cut"))


def _distinct(trials: list[TrialLine]) -> list[TrialLine]:
    """The trials without those that have the settings of an earlier one."""
    seen: list[tuple] = []
    found = []
    for each in trials:
        if (each.model, each.settings) not in seen:
            seen.append((each.model, each.settings))
            found.append(each)
    return found
