"""What to try next: Optuna's sampler over the spaces of recipes, with a study in a file that a killed search goes on with.

A proposal depends on the seed, its number and the results of the trials that are at least ``lag`` before it, and on no
clock: so several trials at once, a kill or a pause change no proposal.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from dgl_gt.partition.errors import import_optional
from dgl_gt.run_files.search_files import TrialLine, drop_torn_end, ranked

from .recipes import Choice, Number

_NAME = "dgl-gt"
_FEWEST_FOR_IMPORTANCE = 6
_SLOWER_TRIALS, _SLOWER = 2, 3  # of the best middles: again, with a third of the learning rate, and the most epochs
_DECISIVE = ("layers", "norm_first", "norm", "dropout", "loss")  # of the best middle: again, with other values
Space = Mapping[str, Choice | Number]


class Proposal(NamedTuple):
    """A trial: its number, the recipe and values for its space."""

    number: int
    model: str
    values: dict[str, Any]
    is_first: bool  # a middle, or another form of it: the sampler had no say


class _NoLock:
    """In place of Optuna's lock, which stays where a search is killed: one process writes."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass


class Proposals:
    """The study of a search, in the file ``path``; ``spaces`` are those of the recipes by name.

    With ``has_longer``, other trials have time for more epochs than middles.
    """

    def __init__(
        self,
        path: Path,
        spaces: Mapping[str, Space],
        seed: int,
        lower_is_better: bool,
        lag: int,
        has_longer: bool = False,
    ):
        self._optuna = optuna = import_optional("optuna", "dgl-gt tune", "pip install 'dgl-gt[tune]'")
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
        self._spaces, self._seed, self._lag, self._lower_is_better = spaces, seed, lag, lower_is_better
        self._has_longer = has_longer
        drop_torn_end(path)
        storage = JournalStorage(JournalFileBackend(str(path), lock_obj=_NoLock()))
        direction = "minimize" if lower_is_better else "maximize"
        self._study = optuna.create_study(
            storage=storage, study_name=_NAME, direction=direction, load_if_exists=True, sampler=self._sampler(0)
        )
        self._told = 0
        middles = [self._middle(name) for name in spaces]
        for each in middles[len(self._study.trials) :]:
            self._study.enqueue_trial(each, user_attrs={"is_first": True})

    def _sampler(self, number: int):
        return self._optuna.samplers.TPESampler(
            multivariate=True,
            group=True,
            constant_liar=True,
            n_startup_trials=len(self._spaces),
            seed=(self._seed * 1_000_003 + number) % 2**32,
        )

    def _middle(self, name: str) -> dict[str, Any]:
        return {"model": name} | {f"{name}.{key}": each.middle for key, each in self._spaces[name].items()}

    def interrupted(self, results: Mapping[int, TrialLine]) -> list[Proposal]:
        """Trials that were begun and have no result; one that was begun in part is completed."""
        found = []
        for each in self._study.trials:
            if each.state.name != "WAITING" and each.number not in results:
                self._study.sampler = self._sampler(each.number)
                found.append(self._proposed(self._optuna.trial.Trial(self._study, each._trial_id)))
        return found

    def ask(self, results: Mapping[int, TrialLine]) -> Proposal | None:
        """The next trial, or None as long as a trial that is ``lag`` before it has no result."""
        trials = self._study.get_trials(deepcopy=False)
        number = sum(each.state.name != "WAITING" for each in trials)
        due = range(number - self._lag + 1)
        if any(past not in results for past in due):
            return None
        for past in due[self._told :]:
            if trials[past].state.name == "RUNNING":
                self._tell(trials[past], results[past])
        self._told = max(self._told, len(due))
        if len(due) == len(self._spaces):
            begun = len(trials) - number  # by a search that was killed here
            for each in self._other_forms(results)[begun:]:
                self._study.enqueue_trial(each, user_attrs={"is_first": True})
        self._study.sampler = self._sampler(number)
        return self._proposed(self._study.ask())

    def _other_forms(self, results: Mapping[int, TrialLine]) -> list[dict[str, Any]]:
        """The best middles with more time, or a lower learning rate and more epochs, and the best one with other values of ``_DECISIVE``.

        Published settings differ in these most, and first runs need no small steps. A middle that had no time for all of its epochs
        has none for more; it runs again as it is where trials have more time.
        """
        found: list[tuple[str, dict[str, Any]]] = []
        middles = ranked([results[number] for number in range(len(self._spaces))], self._lower_is_better)
        for each in middles:
            space = self._spaces[each.model]
            lr, epochs = space.get("lr"), space.get("epochs")
            if isinstance(epochs, Choice) and each.epochs < epochs.middle:
                found += [(each.model, {})] * self._has_longer
            elif isinstance(epochs, Choice) and isinstance(lr, Number):
                found.append((each.model, {"lr": max(lr.least, lr.middle / _SLOWER), "epochs": epochs.values[-1]}))
        found = found[:_SLOWER_TRIALS]
        for model, space in [(each.model, self._spaces[each.model]) for each in middles[:1]]:
            found += [(model, {name: value}) for name in _DECISIVE if name in space for value in _others(space[name])]
        return [
            self._middle(name) | {f"{name}.{key}": value for key, value in changes.items()} for name, changes in found
        ]

    def _proposed(self, trial) -> Proposal:
        """A trial with values for all of its space."""
        model = trial.suggest_categorical("model", list(self._spaces))
        for name, each in self._spaces[model].items():
            key = f"{model}.{name}"
            if isinstance(each, Choice):
                trial.suggest_categorical(key, each.values)
            elif each.is_whole:
                trial.suggest_int(key, each.least, each.most)
            else:
                trial.suggest_float(key, each.least, each.most, log=each.log)
        values = {name: trial.params[f"{model}.{name}"] for name in self._spaces[model]}
        values = {name: _short(each) if isinstance(each, float) else each for name, each in values.items()}
        return Proposal(trial.number, model, values, bool(trial.user_attrs.get("is_first")))

    def _tell(self, trial, result: TrialLine) -> None:
        """Tell a result: a trial that did not end by itself is worse than all that did, and better the longer it ran."""
        for rung, value in enumerate(result.rungs):
            if rung not in trial.intermediate_values:  # which a search that was killed here has reported
                self._optuna.trial.Trial(self._study, trial._trial_id).report(value, rung)
        is_whole = result.state == "complete"
        state = self._optuna.trial.TrialState.COMPLETE if is_whole else self._optuna.trial.TrialState.PRUNED
        self._study.tell(trial.number, result.value if is_whole else None, state=state)

    def importances(self, model: str, results: Mapping[int, TrialLine]) -> dict[str, float]:
        """How much each setting of a recipe mattered among its complete trials, by Optuna; empty where they are few."""
        optuna, space = self._optuna, self._spaces[model]
        keys, trials = [f"{model}.{name}" for name in space], self._study.trials
        chosen = [each for each in results.values() if each.model == model and each.state == "complete"]
        chosen = [each for each in chosen if {*keys} <= trials[each.number].params.keys()]  # the space may have grown
        if len(chosen) < _FEWEST_FOR_IMPORTANCE or not space:
            return {}
        study = optuna.create_study(direction=self._study.direction)
        for each in chosen:
            of_search = trials[each.number]
            study.add_trial(
                optuna.trial.create_trial(
                    params={key: of_search.params[key] for key in keys},
                    distributions={key: of_search.distributions[key] for key in keys},
                    value=each.value,
                )
            )
        evaluator = optuna.importance.PedAnovaImportanceEvaluator()  # unlike the others, it needs no scikit-learn
        found = optuna.importance.get_param_importances(study, evaluator=evaluator)
        return {name.partition(".")[2]: float(value) for name, value in found.items()}


def _others(each: Choice | Number) -> list:
    """Twice and half a whole number, within its range; the least of others; of a choice the next larger and smaller value, or the
    first that is another.
    """
    if isinstance(each, Number) and not each.is_whole:
        found = [each.least]
    elif isinstance(each, Number):
        found = [int(min(2 * each.middle, each.most)), int(max(each.middle // 2, each.least))]
    elif type(each.middle) is int:
        place = each.values.index(each.middle)
        found = [*each.values[place + 1 : place + 2], *each.values[:place][-1:]]
    else:
        found = [value for value in each.values if value != each.middle][:1]
    return [value for value in found if value != each.middle]


def _short(value: float) -> float:
    """A number with three digits, as a person would write it."""
    return float(f"{value:.3g}")
