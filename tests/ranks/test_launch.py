"""The launcher: whose failure is named, how long it waits, and when ranks start again."""

import json
import os
import signal
import subprocess
import threading
import time
from contextlib import contextmanager, suppress

import pytest

from dgl_gt.partition.errors import InputError
from dgl_gt.ranks import launch, started_ranks
from dgl_gt.ranks.launcher_link import Failure
from dgl_gt.ranks.started_ranks import StartedRank, first_failure

# ---- ranks of a few words of shell: what is made of their ends ----------------------------------------------------


def say(**words) -> str:
    return f"echo '{json.dumps(words)}' >&$PIPE;"


def failed(kind, text="", **more) -> str:
    return say(kind=kind, text=text, at_s=time.monotonic(), **more)


JOINED = say(state="joined")
WAITS = "sleep 600 & wait;"  # a shell that waits hears a signal at once
CLINGS = "trap '' TERM; sleep 600 & wait; wait;"


@pytest.fixture
def started(monkeypatch):
    """A function: a shell script a rank -> the ranks, which are ended with the test."""
    monkeypatch.setattr(started_ranks, "_CAUSE_WAIT_S", 0.5)
    monkeypatch.setattr(started_ranks, "_END_WAIT_S", 0.5)
    ranks, ends = [], []

    def start(*scripts):
        for number, script in enumerate(scripts):
            ours, theirs = os.pipe()
            ends.append(ours)
            words = ["bash", "-c", f"PIPE={theirs}; {script}"]
            process = subprocess.Popen(words, pass_fds=(theirs,), start_new_session=True)
            os.close(theirs)
            ranks.append(StartedRank(number, process, ours))
        return ranks

    yield start
    for each in ranks:
        with suppress(ProcessLookupError):
            os.killpg(each.process.pid, signal.SIGKILL)
        each.process.wait()
    for end in ends:
        os.close(end)


def outcome(ranks, timeout=None):
    started_ranks.watch(ranks, [], timeout)
    started_ranks.end_all(ranks)
    assert all(each.has_ended for each in ranks)
    return first_failure(ranks, started_ranks.child_process.memory_kills())


def test_ranks_that_end_well_are_no_failure(started):
    assert outcome(started(JOINED, JOINED + "sleep 0.1")) is None


@pytest.mark.parametrize(
    ("scripts", "expected"),
    [
        ([JOINED + WAITS, JOINED + "kill -9 $$"], (1, "signal", "9")),
        (["kill -TERM $$", WAITS], (0, "signal", "15")),
        ([WAITS, "exit 143"], (1, "signal", "15")),  # a rank that had no time to say so
        ([CLINGS, WAITS, "exit 7"], (2, "exit", "7")),
        # told first of what another rank says later
        ([failed("relayed", "rank 1 stopped") + "exit 1", "sleep 0.2;" + failed("error", "it broke") + "exit 1"], None),
        # and told by a connection that has ended with the process
        ([failed("relayed", "connection lost") + "exit 1", "sleep 0.2; kill -9 $$"], (1, "signal", "9")),
        ([failed("relayed", "rank 1 stopped") + "exit 1", WAITS], (0, "relayed", "rank 1 stopped")),
        ([WAITS, failed("memory", "it asked for 1 TiB") + "exit 2"], (1, "memory", "it asked for 1 TiB")),
    ],
    ids=lambda value: None,
)
def test_the_first_failure_is_named_and_all_ranks_end(started, scripts, expected):
    number, failure = outcome(started(*scripts))
    assert (number, failure.kind, failure.text) == (expected or (1, "error", "it broke"))


def test_of_a_mistake_that_all_ranks_find_the_first_ranks_words_are_shown(started):
    script = failed("input", "rank 1: a bad number") + "exit 2", failed("input", "a bad number") + "exit 2"
    ranks = started(*script)
    for each in ranks:
        each.process.wait()  # both have said what they found
    assert outcome(ranks)[1].text == "rank 1: a bad number"


def test_what_the_launcher_ends_is_no_failure(started):
    ranks = started(WAITS, CLINGS)
    time.sleep(0.2)  # until the trap is set
    started_ranks.end_all(ranks)
    assert ranks[1].process.returncode == -signal.SIGKILL
    assert first_failure(ranks, None) is None


def test_a_rank_that_writes_the_model_is_given_time_to_finish(started, tmp_path):
    """More than another rank, which would be killed by then."""
    release = tmp_path / "release"
    writes = "trap 'exit 9' TERM; " + say(state="writing") + f"while [ ! -e {release} ]; do sleep 0.1; done; exit 0"
    ranks = started(writes)
    while ranks[0].state != "writing":
        ranks[0].update()
    timer = threading.Timer(1.5, release.touch)
    timer.start()
    started_ranks.end_all(ranks)
    assert ranks[0].process.returncode == 0
    timer.join()


def test_a_rank_that_writes_twice_is_given_the_whole_time_for_each(started, monkeypatch):
    """A checkpoint, and then, when it is asked to stop, the best model; a frozen rank is killed in the end."""
    monkeypatch.setattr(started_ranks, "_WRITE_WAIT_S", 2.0)
    monkeypatch.setattr(started_ranks, "_END_WAIT_S", 0.5)
    writing = say(state="writing")
    again = f"finish() {{ {writing} sleep 1.8; exit 0; }}; trap finish TERM; {writing} sleep 1.5; {JOINED} {WAITS} wait"
    ranks = started(again, writing + "trap '' TERM; kill -STOP $$")
    while any(each.state != "writing" for each in ranks):
        for each in ranks:
            each.update()
    started_ranks.end_all(ranks[:1])
    assert ranks[0].process.returncode == 0
    started_ranks.end_all(ranks[1:])
    assert ranks[1].process.returncode == -signal.SIGKILL


def test_a_rank_that_does_not_join_is_named(started, monkeypatch, capsys):
    monkeypatch.setattr(started_ranks, "LATE_AFTER_S", 0.1)
    joining = say(state="joining")
    ranks = started(joining + WAITS, WAITS)
    with pytest.raises(InputError, match=r"^rank 1 \(process \d+\) has not joined after 0.6 s"):
        outcome(ranks, timeout=0.6)
    assert capsys.readouterr().err == (
        f"dgl-gt: rank 1 (process {ranks[1].process.pid}) has not joined after 0 s; still waiting\n"
    )
    started_ranks.end_all(ranks)


def test_a_command_that_has_a_timeout_says_so_where_a_rank_is_late(shell_ranks, monkeypatch, capsys):
    monkeypatch.setattr(started_ranks, "LATE_AFTER_S", 0.1)
    shell_ranks(["sleep 0.5;" + JOINED])
    assert launch.launch_command([], 1, {}) == 0
    assert "(--timeout SECONDS" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("failure", "code", "text"),
    [
        (Failure("input", "a bad number", 0), 2, "a bad number"),
        (Failure("relayed", "rank 0: a bad number", 0, is_input=True), 2, "rank 0: a bad number"),
        (Failure("relayed", "rank 0 stopped: it broke", 0), 1, "rank 0 stopped: it broke"),
        (Failure("signal", "15", 0), 143, "rank 1 was ended by signal 15 (SIGTERM)"),
        (Failure("signal", "6", 0), 134, "rank 1 was ended by signal 6 (SIGABRT)"),
        (Failure("exit", "2", 0), 2, ""),  # it has said why itself
        (Failure("exit", "7", 0), 7, "rank 1 ended with exit code 7"),
        (Failure("error", "Traceback ...", 0), 1, "rank 1 was stopped by an error in dgl-gt:\nTraceback ..."),
        (Failure("memory", "it asked", 0), 2, "rank 1 ran out of memory: it asked; take less"),
    ],
    ids=lambda value: value.kind if isinstance(value, Failure) else None,
)
def test_one_line_says_which_rank_and_why(failure, code, text):
    assert failure.exit_code == code
    assert launch.explained(1, failure, lambda: "take less") == text


def test_a_kill_for_want_of_memory_is_told_from_others(started, monkeypatch):
    ranks = started("kill -9 $$")
    assert outcome(ranks)[1].kind == "signal"
    monkeypatch.setattr(started_ranks.child_process, "memory_kills", lambda: 3)
    assert first_failure(ranks, kills=3)[1].kind == "signal"
    _, found = first_failure(ranks, kills=2)
    assert found.exit_code == 2 and not launch._may_pass(found)
    assert launch.explained(0, found, lambda: "take less") == (
        "rank 0 ran out of memory: the system killed it; take less"
    )


# ---- ranks that start again, and ranks that may finish an epoch ---------------------------------------------------


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (Failure("signal", "9", 0), True),
        (Failure("signal", "11", 0), True),
        (Failure("signal", "15", 0), False),  # somebody asked for it
        (Failure("relayed", "rank 0 has waited 20 s for rank 1", 0), True),
        (Failure("relayed", "rank 0: a bad number", 0, is_input=True), False),
        (Failure("input", "a bad number", 0), False),
        (Failure("memory", "it asked", 0), False),
        (Failure("error", "Traceback", 0), True),
        (Failure("exit", "7", 0), True),
        (Failure("exit", "2", 0), False),
    ],
    ids=lambda value: f"{value.kind} {value.text[:12]}" if isinstance(value, Failure) else None,
)
def test_what_may_pass_is_tried_again(failure, expected):
    assert launch._may_pass(failure) is expected


@pytest.fixture
def shell_ranks(started, monkeypatch):
    """A function: for each start of the ranks, a shell script per rank; returns how often they have been started."""

    def use(*starts):
        count = []

        @contextmanager
        def start_ranks(command, ranks, environment, restarts):
            assert restarts == len(count)
            count.append(restarts)
            before = len(started())
            ranks = started(*starts[restarts])[before:]
            yield ranks
            started_ranks.end_all(ranks)

        monkeypatch.setattr(launch, "started_ranks", start_ranks)
        return count

    return use


def test_ranks_start_again_until_they_succeed(shell_ranks, capsys):
    killed = "kill -9 $$;"
    count = shell_ranks([JOINED + killed, JOINED + WAITS], [JOINED + WAITS, JOINED + killed], [JOINED, JOINED])
    assert launch.launch_command([], 2, {}, max_restarts=5) == 0
    assert count == [0, 1, 2]
    assert [line.partition("; ")[2] for line in capsys.readouterr().err.splitlines()] == [
        "the ranks start again (1 of 5)",
        "the ranks start again (2 of 5)",
    ]


def test_ranks_do_not_start_again_for_ever(shell_ranks, capsys):
    killed = [JOINED + "kill -9 $$;", JOINED + WAITS]
    count = shell_ranks(killed, killed, killed)
    assert launch.launch_command([], 2, {}, max_restarts=1) == 137
    assert (
        count == [0, 1] and capsys.readouterr().err.splitlines()[-1] == "dgl-gt: rank 0 was ended by signal 9 (SIGKILL)"
    )


FINISHES = "trap 'sleep 0.3; exit 130' INT; " + JOINED + "while true; do sleep 0.1; done"
IGNORES = "trap '' INT; " + JOINED + "sleep 600 & wait"


def test_ranks_may_finish_what_they_do_when_asked_to_stop(started):
    ranks = started(FINISHES, IGNORES)
    while any(each.state != "joined" for each in ranks):
        ranks[0].update(), ranks[1].update()
    started_ranks.watch(ranks, [signal.SIGINT])
    assert ranks[0].process.returncode == 130 and not ranks[1].has_ended
    started_ranks.end_all(ranks)


def test_a_second_signal_does_not_wait_for_them(started, monkeypatch, capsys):
    monkeypatch.setattr(started_ranks, "SAME_STOP_S", 0.2)
    ranks, signals = started(IGNORES), [signal.SIGINT]
    while ranks[0].state != "joined":
        ranks[0].update()
    timer = threading.Timer(0.8, signals.append, [signal.SIGINT])
    timer.start()
    started_ranks.watch(ranks, signals)
    assert not ranks[0].has_ended and len(signals) == 2
    assert capsys.readouterr().err == "dgl-gt: waiting for the ranks to stop; a second signal ends them at once\n"
    started_ranks.end_all(ranks)


def test_ranks_that_take_too_long_for_a_scheduler_are_not_waited_for(started, monkeypatch):
    monkeypatch.setattr(started_ranks, "_STOP_WAIT_S", 0.5)
    ranks = started("trap '' TERM; " + JOINED + "sleep 600 & wait; wait")
    while ranks[0].state != "joined":
        ranks[0].update()
    started_ranks.watch(ranks, [signal.SIGTERM])
    assert not ranks[0].has_ended
    started_ranks.end_all(ranks)
