"""A handful of the faults of ``faults.py``, which has hundreds."""

import pytest
from faults import KINDS, Fault, Trial, draw

QUICK = [Fault("kill while writing", 0, 6), Fault("truncate", 0, 6), Fault("full disk", 0, 6)]


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    return Trial(tmp_path_factory.mktemp("faults"))


@pytest.mark.parametrize("fault", QUICK, ids=[fault.kind for fault in QUICK])
def test_a_broken_run_ends_with_the_numbers_of_an_undisturbed_one(trial, fault):
    wrong, _ = trial.run(fault)
    assert wrong == []


def test_other_numbers_are_seen(trial):
    before = trial.expected
    assert trial.run(Fault("none of them", 0, 99))[0] == ["the run ended before the fault"]
    trial.expected = trial.expected | {"losses": trial.expected["losses"][:-1]}
    assert trial._judge(0) == ["the metric or the losses differ"]
    assert trial._judge(3)[0].startswith("exit code 3")
    trial.expected = before


def test_a_seed_draws_the_same_faults():
    assert draw(3, 20) == draw(3, 50)[:20] != draw(4, 20)
    assert {fault.kind for fault in draw(3, 50)} == set(KINDS)
