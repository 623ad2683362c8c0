"""A handful of the kills of ``kills.py``, which has hundreds."""

import signal

import pytest
from kills import Kill, Trial, draw

QUICK = [
    Kill("partition", "all", signal.SIGINT, 0.5),
    Kill("partition", "child", signal.SIGKILL, 0.5),
    Kill("train", "command", signal.SIGTERM, 0.3),
    Kill("train", "child", signal.SIGINT, 0.9),
]


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    return Trial(tmp_path_factory.mktemp("kills"))


@pytest.mark.parametrize("kill", QUICK, ids=str)
def test_a_signal_leaves_nothing_behind(trial, kill):
    assert trial.kill(kill) == []


def test_what_is_wrong_is_seen(trial):
    """Half an output, a temporary file, a traceback and an exit code of 1."""
    trial.start("partition").wait()
    (trial.folder / "out" / "result" / "manifest.json").write_text("{}")
    (trial.folder / "out" / ".result.partial-1").mkdir()
    (trial.folder / "tmp" / "left").touch()
    (trial.folder / "stderr").write_text("Traceback\nsignals.py\ndgl-gt: one\ndgl-gt: two\n")
    found = trial.judge(QUICK[0], 1, has_hit_command=True)
    assert [each.splitlines()[0] for each in found] == [
        "exit code 1, expected one of [0, 130]",
        "traceback",
        "more than one message",
        "temporary files left: ['left']",
        "half-written files left: ['.result.partial-1']",
        "the output is not complete",
    ]


def test_a_seed_draws_the_same_kills():
    assert draw(3, 20) == draw(3, 50)[:20] != draw(4, 20)
    assert {kill.number for kill in draw(3, 50)} == {signal.SIGTERM, signal.SIGINT, signal.SIGKILL}
