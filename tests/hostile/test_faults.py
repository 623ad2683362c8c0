"""A handful of the faults of ``faults.py``, which has hundreds."""

import pytest
from faults import A_RUN, KINDS, Fault, Trial, draw

QUICK = [Fault("kill while writing", 0, 6), Fault("truncate", 0, 16), Fault("full disk", 0, 26)]


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    return Trial(tmp_path_factory.mktemp("faults"))


def test_a_broken_run_ends_with_the_numbers_of_an_undisturbed_one(trial):
    wrong, lost = trial.run(QUICK)
    assert wrong == [] and len(lost) == len(QUICK)


def test_other_numbers_are_seen(trial):
    assert trial.run([Fault("none of them", 0, 999)])[0][0].startswith("the run ended before the fault")
    assert trial._judge(3)[0].startswith("exit code 3")
    before = trial.expected
    trial.expected = before | {"losses": before["losses"][:-1]}
    assert trial._judge(0) == ["the metric or the losses differ"]
    trial.expected = before


def test_a_seed_draws_the_same_faults():
    assert draw(3, 20) == draw(3, 50)[: 20 // A_RUN] != draw(4, 20)
    drawn = [fault for run in draw(3, 60) for fault in run]
    assert [sum(fault.kind == kind for fault in drawn) for kind in KINDS] == [10] * len(KINDS)
