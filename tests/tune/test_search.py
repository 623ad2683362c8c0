"""The search without processes: what is proposed, what is stopped, what is chosen, and that a kill changes none of it."""

import json
import random

import pytest

from dgl_gt.partition import InputError
from dgl_gt.run_files.search_files import SearchRecord, TrialLine, add_trial, read_trials
from dgl_gt.train.metric_kinds import shown_metric
from dgl_gt.tune.finals import Finals
from dgl_gt.tune.jobs import RUNGS, Outcome, on_grid
from dgl_gt.tune.proposals import Proposals
from dgl_gt.tune.recipes import Choice, Number
from dgl_gt.tune.search import Clock, Search, check_found

pytest.importorskip("optuna")

SPACES = {
    "gcn": {"layers": Number(1, 4, 2), "lr": Number(1e-3, 1e-1, 1e-2, log=True), "epochs": Choice((100, 200), 100)},
    "mlp": {"hidden": Choice((16, 32), 16), "dropout": Number(0.0, 0.5, 0.2)},
}


def record(**changes):
    found = {
        "dgl_gt": "0",
        "graph": {},
        "given": {},
        "models": list(SPACES),
        "seed": 5,
        "ranks": 1,
        "jobs": 2,
        "budget_s": 1000.0,
        "most_trials": 12,
        "metric": "accuracy",
        "lower_is_better": False,
        "splits": 1,
        "rows": 0,
    }
    return SearchRecord(**found | changes)


def goodness(settings):
    """What a run with these settings reaches: best near lr 0.02 of a deep GCN."""
    if settings["score"] == "gcn" and "lr" in settings and "dropout" not in settings:
        return 0.9 - 0.1 * abs(settings["lr"] - 0.02) / 0.1 - 0.02 * (4 - settings["layers"])
    return 0.5 + settings["dropout"] / 10


class Killed(Exception):
    pass


class FakeCrew:
    """Does jobs without training, several at once, which end in an order that only its own seed decides."""

    def __init__(self, jobs=2, order=0, kill_after=None, seconds=1.0, missing=()):
        self.workers, self._random, self._kill_after = list(range(jobs)), random.Random(order), kill_after
        self.metric, self.screen, self.jobs, self.seconds = shown_metric("accuracy"), self, [], seconds
        self._missing = missing

    def say(self, text):
        pass

    def work(self, next_job, ended):
        running = []
        while True:
            while len(running) < len(self.workers) and (job := next_job()):
                running.append(job)
            if not running:
                return
            job = running.pop(self._random.randrange(len(running)))
            self.jobs.append(job)
            if self._kill_after is not None and len(self.jobs) > self._kill_after:
                raise Killed
            ended(job, self._outcome(job))

    def _outcome(self, job):
        value = goodness(job.settings) + 0.001 * job.settings.get("seed", 0)
        rungs, state = [], "complete"
        for share, bar in zip(RUNGS, job.bars or (None,) * len(RUNGS)):
            rungs.append(value * (0.8 + share / 10))
            if bar is not None and rungs[-1] < bar:
                return Outcome("stopped", job.epochs, self.seconds, 0.0, rungs[-1], rungs)
        if job.out:
            import pathlib

            folder = pathlib.Path(job.out)
            folder.mkdir(parents=True)
            for name in ("config.yaml", "metrics.jsonl", "model.safetensors"):
                (folder / name).write_text(folder.name)
            metric = {"validation": value, "test": value - 0.05}
            (folder / "record.json").write_text(json.dumps({"finished": True, "metric": metric}))
        return Outcome(state, job.epochs, self.seconds, 0.0, value, rungs)


def tried(folder, crew, **changes):
    folder.mkdir(exist_ok=True)
    search = Search(folder, record(**changes), SPACES, crew, Clock(1000.0))
    search.run()
    return search


def shown(search):
    return [
        (each.number, each.model, each.settings, each.state, each.value) for _, each in sorted(search.results.items())
    ]


def test_the_middles_come_first_and_the_best_region_is_found(tmp_path):
    search = tried(tmp_path / "a", FakeCrew(jobs=1), jobs=1, most_trials=30)
    assert [search.results[n].model for n in (0, 1)] == ["gcn", "mlp"]
    assert search.results[0].settings == {"layers": 2, "lr": 0.01, "epochs": 100}
    best = max(search.results.values(), key=lambda each: each.value)
    assert best.model == "gcn" and best.settings["layers"] == 4


@pytest.mark.parametrize("jobs", [1, 2])
def test_the_best_middles_run_again_with_smaller_steps(tmp_path, jobs):
    """As soon as all middles have ended, which several trials at once see later; a recipe without steps has no such run."""
    crew = FakeCrew(jobs=jobs)
    search = tried(tmp_path / "a", crew, jobs=jobs)
    slower = search.results[2 if jobs == 1 else 5]
    assert (slower.model, slower.settings) == ("gcn", {"layers": 2, "lr": 0.00333, "epochs": 200})
    job = next(each for each in crew.jobs if each.number == slower.number)
    assert job.epochs == 200 and job.bars[0] is None
    forms = [search.results[slower.number + 1 + n].settings for n in range(2)]
    assert forms == [{"layers": layers, "lr": 0.01, "epochs": 100} for layers in (4, 1)]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"layers": Number(1, 8, 3)}, [("layers", 6), ("layers", 1)]),
        ({"layers": Number(1, 5, 3)}, [("layers", 5), ("layers", 1)]),
        ({"layers": Number(1, 3, 1)}, [("layers", 2)]),
        ({"layers": Choice((2, 3, 8), 3)}, [("layers", 8), ("layers", 2)]),
        ({"norm": Choice(("layer", "batch", "none"), "batch"), "hidden": Choice((8, 16), 8)}, [("norm", "layer")]),
        (
            {"norm_first": Choice((False, True), True), "layers": Number(1, 4, 4)},
            [("layers", 2), ("norm_first", False)],
        ),
        ({"dropout": Number(0.0, 0.7, 0.5), "layers": Number(1, 4, 4)}, [("layers", 2), ("dropout", 0.0)]),
    ],
)
def test_the_best_middle_runs_again_with_other_depths_and_norms(tmp_path, settings, expected):
    proposals, results = Proposals(tmp_path / "study", {"gcn": settings, "mlp": {}}, 0, False, 1), {}
    for number, value in enumerate((0.7, 0.6)):
        model, values = proposals.ask(results)[1:3]
        results[number] = line(number=number, model=model, settings=values, state="complete", value=value)
    middle = results[0].settings
    for name, value in expected:
        found = proposals.ask(results)
        assert (found.model, found.values, found.is_first) == ("gcn", middle | {name: value}, True)
        results[found.number] = results[0]
    assert not proposals.ask(results).is_first


@pytest.mark.parametrize(
    ("lower_is_better", "has_longer", "expected"),
    [
        (False, False, ["gat", "sage"]),
        (True, False, ["mlp", "gcn"]),
        (False, True, ["gt with more time", "gat"]),
        (True, True, ["gcnii with more time", "mlp"]),
    ],
)
def test_the_best_two_run_again_if_there_is_time(tmp_path, lower_is_better, has_longer, expected):
    values = {
        "gcn": (0.7, 100),
        "gat": (0.9, 100),
        "sage": (0.8, 100),
        "mlp": (0.6, 100),
        "gt": (0.95, 80),
        "gcnii": (0.1, 80),
    }
    space = {"lr": Number(1e-3, 1e-1, 9e-3, log=True), "epochs": Choice((100, 200), 100)}
    spaces, results = dict.fromkeys(values, space), {}
    proposals = Proposals(tmp_path / "study", spaces, 0, lower_is_better, 1, has_longer)
    for number, (model, (value, epochs)) in enumerate(values.items()):
        found = proposals.ask(results)
        assert (found.number, found.model) == (number, model)
        line = {"state": "complete", "seconds": 1.0, "epoch_s": 0.01, "at_s": 0.0, "why": ""}
        results[number] = TrialLine(
            number=number, model=model, settings=found.values, epochs=epochs, value=value, rungs=[], curve=[], **line
        )
    for each in expected:
        found, (model, *is_longer) = proposals.ask(results | {len(values): results[0]}), each.split(" ", 1)
        assert (found.model, found.values) == (
            model,
            {"lr": 0.009, "epochs": 100} if is_longer else {"lr": 0.003, "epochs": 200},
        )


def test_with_a_learning_rate_of_the_user_no_middle_runs_again_as_it_is(tmp_path):
    space = {"hidden": Choice((16, 32), 16), "epochs": Choice((100, 200), 100)}
    proposals, results = Proposals(tmp_path / "study", {"gcn": space}, 0, False, 1, has_longer=True), {}
    found = proposals.ask(results)
    results[0] = line(number=0, model="gcn", settings=found.values, state="complete", value=0.5, epochs=100)
    assert found.is_first and not proposals.ask(results).is_first


@pytest.mark.parametrize("order", [1, 2])
def test_the_order_in_which_trials_end_changes_nothing(tmp_path, order):
    one, other = tried(tmp_path / "a", FakeCrew()), tried(tmp_path / "b", FakeCrew(order=order))
    assert shown(one) == shown(other)
    assert shown(one) != shown(tried(tmp_path / "c", FakeCrew(), seed=6))


@pytest.mark.parametrize("kills", [(0,), (1, 3, 2), (2, 1, 5)])
def test_kills_change_nothing(tmp_path, kills):
    whole = tried(tmp_path / "a", FakeCrew())
    for order, after in enumerate(kills):
        with pytest.raises(Killed):
            tried(tmp_path / "b", FakeCrew(order=order, kill_after=after))
        with (tmp_path / "b" / "study.log").open("a") as log:
            log.write('{"op_code": 4, "wor')  # a torn line
        if (tmp_path / "b" / "trials.jsonl").exists():
            with (tmp_path / "b" / "trials.jsonl").open("a") as log:
                log.write('{"number": 99, "mod')
    assert shown(tried(tmp_path / "b", FakeCrew())) == shown(whole)


def test_hopeless_trials_are_stopped_and_a_middle_has_time_until_the_second_rung(tmp_path):
    crew = FakeCrew(jobs=1)
    search = tried(tmp_path / "a", crew, jobs=1, most_trials=20)
    states = {each.state for each in search.results.values()}
    assert states == {"complete", "stopped"}
    bars = {job.number: job.bars for job in crew.jobs}
    assert bars[0] == (None, None) and bars[1][0] is None and bars[1][1] is not None
    assert all(None not in bars[number] for number in range(5, 20))
    kept = [each.rungs[1] for each in search.results.values() if len(each.rungs) > 1]
    assert bars[19][1] <= max(kept)


def test_a_bar_leaves_room_for_chance(tmp_path):
    exact, loose = FakeCrew(jobs=1), FakeCrew(jobs=1)
    tried(tmp_path / "a", exact, jobs=1, most_trials=2)
    tried(tmp_path / "b", loose, jobs=1, most_trials=2, rows=100)
    value = exact.jobs[1].bars[1]
    assert loose.jobs[1].bars[1] == pytest.approx(value - (value * (1 - value) / 100) ** 0.5)


def test_middles_share_the_time_of_trials(tmp_path):
    (tmp_path / "a").mkdir()
    crew, spaces = FakeCrew(), {f"gcn{number}": SPACES["gcn"] for number in range(8)}
    search = Search(tmp_path / "a", record(models=list(spaces)), spaces, crew, Clock(1000.0))
    found = [search._usual_s(number) for number in (0, 7, 8)]
    assert found == [150.0, 150.0, 200.0]  # 0.6 of the budget for 8 middles, 2 at once; and a fifth


def test_no_trial_begins_after_its_share_of_the_time(tmp_path):
    (tmp_path / "a").mkdir()
    search = Search(tmp_path / "a", record(), SPACES, FakeCrew(), Clock(1000.0, used_s=601.0))
    search.run()
    assert not search.results


def finals_of(folder, crew, clock=None, **changes):
    its = record(**changes)
    search = Search(folder, its, SPACES, crew, Clock(1000.0))
    search.run()
    finals = Finals(folder, its, search, crew, clock or Clock(1000.0))
    chosen = finals.choose()
    finals.report(chosen)
    return its, chosen


def test_the_best_trials_are_compared_with_other_seeds_and_the_test_is_that_of_the_chosen_one(tmp_path):
    found, chosen = finals_of(tmp_path, FakeCrew())
    assert found.best == chosen.number and chosen.model == "gcn"
    assert len(found.finalists) > 1 and all(len(each.validations) > 1 for each in found.finalists)
    assert [each.seed for each in found.runs] == list(range(6, 16))
    assert all(each.test == pytest.approx(each.validation - 0.05) for each in found.runs)
    assert (tmp_path / "config.yaml").read_text() == f"{chosen.number}-0-15"  # the seed that validates best
    assert not (tmp_path / "seeds").exists()
    assert "test" not in (tmp_path / "trials.jsonl").read_text()


def test_with_several_splits_the_first_one_chooses_and_all_are_reported(tmp_path):
    crew = FakeCrew()
    found, chosen = finals_of(tmp_path, crew, splits=3)
    searched = [job for job in crew.jobs if not job.out]
    assert all("split" not in job.settings for job in searched)
    assert {(each.split, each.seed) for each in found.runs} >= {(0, 6), (1, 6), (2, 6)}
    assert (tmp_path / "config.yaml").read_text().startswith(f"{chosen.number}-0-")


def test_where_time_is_short_there_is_one_last_run(tmp_path):
    found, _ = finals_of(tmp_path, FakeCrew(), Clock(1000.0, used_s=998.0))
    assert found.finalists == [] and len(found.runs) == 1


def test_the_last_runs_of_a_killed_search_are_kept(tmp_path):
    its, crew = record(), FakeCrew()
    search = Search(tmp_path, its, SPACES, crew, Clock(1000.0))
    search.run()
    killed = FakeCrew(kill_after=3)
    with pytest.raises(Killed):
        Finals(tmp_path, its, search, killed, Clock(1000.0)).choose()
    again = FakeCrew()
    finals = Finals(tmp_path, its, search, again, Clock(1000.0))
    finals.report(finals.choose())
    done = {job.out for job in killed.jobs[:3]}
    assert not done & {job.out for job in again.jobs}
    other = tmp_path / "whole"
    other.mkdir()
    assert finals_of(other, FakeCrew())[0].runs == its.runs


def line(**changes):
    return TrialLine(**{"number": 0, "model": "gcn", "settings": {}, "state": "failed"} | changes)


@pytest.mark.parametrize(
    ("results", "named"),
    [([], "10 s"), ([line(why="too large")], "too large"), ([line(why="slow", epoch_s=2.0)], "--budget 180s")],
)
def test_a_search_that_found_nothing_says_what_a_trial_takes(results, named):
    with pytest.raises(InputError, match=named):
        check_found(dict(enumerate(results)), Clock(10.0))
    check_found({0: line(value=0.5, state="cut")}, Clock(10.0))


def test_trials_are_read_up_to_a_torn_line(tmp_path):
    add_trial(tmp_path, line(value=0.25))
    with (tmp_path / "trials.jsonl").open("a") as file:
        file.write('{"number": 1')
    assert [each.value for each in read_trials(tmp_path)] == [0.25]
    (tmp_path / "trials.jsonl").write_text("{}\n")
    with pytest.raises(InputError, match="line 1"):
        read_trials(tmp_path)


def test_epochs_are_on_a_grid():
    assert [on_grid(each) for each in (0.5, 1, 30, 30.5, 200)] == [0, 1, 28, 28, 169]
