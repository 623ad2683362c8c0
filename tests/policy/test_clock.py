"""When rows of an adaptive staleness are sent."""

import pytest

from dgl_gt.exchange.policy.transmission import MAX_STEPS, Clock


def sending_steps(clock, changes, losses, steps):
    """The steps that send rows; those that send note the change of that step, if there is one."""
    found = []
    for step in range(steps):
        if clock.is_due:
            found.append(step)
            for change in changes(step):
                clock.note_change(change)
        clock.end_step(lambda value: value)
        clock.note_loss(losses(step))
    return found


def test_rows_that_change_little_are_sent_ever_more_rarely():
    clock = Clock()
    found = sending_steps(clock, lambda step: [0.1, 0.2] if step else [], lambda step: 1.0, 400)
    assert found[:7] == [0, 1, 3, 7, 15, 31, 63] and clock.every == MAX_STEPS
    assert {after - before for before, after in zip(found[6:], found[7:])} == {MAX_STEPS}


@pytest.mark.parametrize("changes", [[0.5], [0.1, 0.9], []])
def test_one_exchange_that_changes_much_keeps_k(changes):
    assert sending_steps(Clock(), lambda step: changes, lambda step: 1.0, 5) == [0, 1, 2, 3, 4]


def test_a_jump_of_the_loss_halves_k_and_sends_at_once():
    clock = Clock()
    found = sending_steps(clock, lambda step: [0.0] if step else [], lambda step: 2.0 if step == 20 else 1.0, 22)
    assert found == [0, 1, 3, 7, 15, 21] and clock.every == 16  # halved from 16, doubled after step 21


def test_a_steady_loss_below_zero_is_no_jump():
    clock = Clock()
    sending_steps(clock, lambda step: [0.0] if step else [], lambda step: -2.0, 20)
    assert clock.every == 16


def test_a_step_without_a_finite_loss_halves_nothing():
    clock = Clock()
    sending_steps(clock, lambda step: [0.0] if step else [], lambda step: float("nan") if step == 3 else 1.0, 8)
    assert clock.every == 8


def test_ranks_agree_on_the_largest_change():
    clock = Clock()
    clock.end_step(lambda value: value)
    clock.note_change(0.1)
    clock.end_step(lambda value: max(value, 0.9))
    assert clock.every == 1
